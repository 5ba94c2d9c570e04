"""The page on delivery says what is true."""

import re
from pathlib import Path

import pytest

import spanfold
from spanfold.deliver import _answer, _destination, _extras, _outbox, _past, _send, _spans
from spanfold.testing import LoopbackLangfuse, LoopbackOtlpReceiver

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "delivery.md").read_text(encoding="utf-8")
LANGFUSE = (Path(__file__).resolve().parents[2] / "docs" / "langfuse.md").read_text(encoding="utf-8")
RECORD, TRY, DELIVER = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run_example(source: str) -> None:
    spanfold.configure()  # the variables as they are now, not as they were when an earlier test recorded
    exec(compile(source, "docs/delivery.md", "exec"), {})


def test_the_examples_of_the_page_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with LoopbackOtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        run_example(RECORD)
        run_example(DELIVER)

    recorded, delivered = capsys.readouterr().out.splitlines()
    assert f"```text\n{recorded}\n```" in PAGE
    assert delivered == "0 0 0 "  # all of it was acknowledged already


def test_a_run_is_sent_to_the_receiver_of_the_page_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")  # so that it is taken back afterwards

    run_example(TRY)

    assert f"```text\n{capsys.readouterr().out}```" in PAGE


def test_langfuse_gets_the_attributes_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with LoopbackLangfuse() as langfuse:
        for name, value in langfuse.environment.items():
            monkeypatch.setenv(name, value)
        run_example(RECORD)

    [call] = [span for span in langfuse.spans if span.name == "chat some-model"]
    shown = [f"{k} = {v}" for k, v in call.attributes.items() if k.startswith(("langfuse.", "session."))]
    assert "```text\n" + "\n".join(shown) + "\n```" in LANGFUSE


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"{_destination.HTTP_LIMIT // 1024**2} MiB over HTTP" in PAGE
    assert f"{_destination.GRPC_LIMIT / 1e6} MB over gRPC" in PAGE
    assert f"up to {_outbox.MAX_RECORDS} spans and up to {_destination.WINDOW // 1024**2} MiB of them" in PAGE
    assert f"{_destination.LANGFUSE_WINDOW // 1024**2} MiB to Langfuse" in PAGE
    assert f"Beyond {_spans.MAX_EVENTS:,} events" in PAGE
    assert f"{_spans.MAX_SPAN_EVENTS:,} events of one span" in PAGE
    assert f"after {_past.FIRST_PAUSE_S} s, then longer, up to {_past.MAX_PAUSE_S:.0f} s" in PAGE
    assert f"again after {_send.BROKEN_PAUSE_S:.0f} s" in PAGE
    assert f"{_extras.MAX_MEDIA_BYTES // 1024**2} MiB each" in LANGFUSE
    assert ", ".join(map(str, sorted(_answer.RETRYABLE_HTTP))) in PAGE
    assert ", ".join(map(str, sorted(_answer.NOT_ITS_FAULT_HTTP))) in PAGE
    for code in (*_answer.NOT_ITS_FAULT_GRPC, *_answer.BROKEN_GRPC):
        assert f"`{code}`" in PAGE
