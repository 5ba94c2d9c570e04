"""The tracer: its modes, what it records, what becomes of it when the program is killed, and what is sent."""

import contextlib
import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evalrx.observability import DiagnosticTracer as SeedTracer
from evalrx.observability.envelope import artifact_manifests_for_event, make_event_envelope
from hypothesis import given
from hypothesis import strategies as st

import spanfold
from spanfold.diagnose import (
    DiagnosticTracer,
    RunLogger,
    artifact_refs,
    backfill,
    make_envelope,
    service_trace_id,
)
from spanfold.errors import LockedError
from spanfold.fold import verify_run
from spanfold.instrument import losses
from spanfold.journal import fields, read_journal
from spanfold.model import Span
from spanfold.testing import LoopbackLangfuse, LoopbackOtlpReceiver, Reply, wait_until

pytestmark = pytest.mark.slow

TRACES = "/api/public/otel/v1/traces"
KEYS = ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")


@pytest.fixture
def langfuse(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackOtlpReceiver]:
    """A Langfuse server that the environment names."""
    with LoopbackOtlpReceiver(path=TRACES) as running:
        for key in KEYS:
            monkeypatch.setenv(key, "k")
        monkeypatch.setenv("LANGFUSE_BASE_URL", running.endpoint.removesuffix(TRACES))
        spanfold.configure(otlp=False)
        yield running
        spanfold.shutdown()
    spanfold.configure(otlp=False, langfuse=False)


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANFOLD_STATE_DIR", str(tmp_path / "state"))


def spans_of(run_dir: Path) -> list[Span]:
    return [record for record in read_journal(run_dir).records if isinstance(record, Span)]


def backfilled(run_dir: Path) -> dict[str, int | str]:
    """Send a run as soon as the thread that sent it before has let go of it."""
    found: list[dict[str, int | str]] = []

    def is_sent() -> bool:
        with contextlib.suppress(LockedError):
            found.append(backfill(run_dir))
        return bool(found)

    wait_until(is_sent, 20)
    return found[0]


# -- modes


@pytest.mark.contract("DL-089")
@pytest.mark.parametrize(
    ("argument", "variable", "mode"),
    [
        (None, None, "auto"),
        (None, "offline", "offline"),
        ("offline", "auto", "offline"),
        (" OFFLINE ", "live", "offline"),
        ("", "offline", "offline"),
    ],
)
def test_the_mode_is_the_argument_then_the_variable_then_auto(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argument: str | None, variable: str | None, mode: str
) -> None:
    if variable is not None:
        monkeypatch.setenv("EVALRX_LANGFUSE_MODE", variable)

    assert DiagnosticTracer(mode=argument, outbox_path=tmp_path / "o").mode == mode
    with RunLogger(tmp_path / "run", observability_mode=argument) as log:
        assert log.tracer.mode == mode


@pytest.mark.contract("DL-089")
@pytest.mark.parametrize(("argument", "variable"), [("sometimes", None), (None, "never"), (None, "")])
def test_another_mode_is_refused_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argument: str | None, variable: str | None
) -> None:
    if variable is not None:
        monkeypatch.setenv("EVALRX_LANGFUSE_MODE", variable)

    for made in (
        lambda: DiagnosticTracer(tmp_path / "t", mode=argument),
        lambda: RunLogger(tmp_path / "run", observability_mode=argument),
    ):
        with pytest.raises(ValueError, match="auto, live or offline"):
            made()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.contract("DL-090")
@pytest.mark.parametrize("given", [(), KEYS[:1], KEYS[1:]])
def test_live_without_both_keys_names_them_and_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: tuple[str, ...]
) -> None:
    for key in given:
        monkeypatch.setenv(key, "secret-value")

    with pytest.raises(RuntimeError) as refused:
        DiagnosticTracer(tmp_path, mode="live")

    message = str(refused.value)
    assert all(word in message for word in (*KEYS, "offline"))
    assert "secret-value" not in message


@pytest.mark.contract("DL-177")
def test_live_with_keys_and_no_address_does_not_guess_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spanfold.configure(otlp=False)
    for key in KEYS:
        monkeypatch.setenv(key, "k")

    with pytest.raises(RuntimeError, match="LANGFUSE_BASE_URL"):
        DiagnosticTracer(tmp_path, mode="live")
    assert not DiagnosticTracer(tmp_path, mode="auto").live_enabled


def test_live_is_refused_where_sending_is_forbidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spanfold.configure(otlp=False, langfuse=False)
    for variable in (*KEYS, "LANGFUSE_BASE_URL"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")

    with pytest.raises(RuntimeError, match="SPANFOLD_LANGFUSE"):
        DiagnosticTracer(tmp_path, mode="live")


@pytest.mark.contract("DL-177")
def test_what_is_sent_because_of_the_environment_is_announced(
    langfuse: LoopbackOtlpReceiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="spanfold"):
        with RunLogger(tmp_path / "offline", observability_mode="offline"):
            pass
        assert "sends to" not in caplog.text
        with RunLogger(tmp_path / "run") as log:
            assert log.tracer.live_enabled

    assert "sends to langfuse at http://127.0.0.1" in caplog.text


# -- what is sent


@pytest.mark.contract("DL-162", "DL-164")
@pytest.mark.parametrize("mode", ["auto", "live"])
def test_events_of_a_logger_arrive_while_the_loop_runs_and_the_rest_after_its_end(
    langfuse: LoopbackOtlpReceiver, tmp_path: Path, mode: str
) -> None:
    with RunLogger(tmp_path / "run", observability_mode=mode) as log:
        log.log_stage_skipped("M5", "no_accepted_hypothesis")
        log.log_model_exchange("M3", role="judge", operation="generate", inputs="q", output="a", duration_sec=1.0)
        wait_until(lambda: len(langfuse.spans) >= 2, 20)
    spanfold.flush(20)

    recorded = spans_of(tmp_path / "run")
    assert sorted(span.span_id for span in langfuse.spans) == sorted(span.span_id for span in recorded)
    assert {span.trace_id for span in langfuse.spans} == {service_trace_id(log.trace_id)}
    skipped = next(span for span in langfuse.spans if "reason_code" in fields(span))
    assert skipped.attributes["spanfold.stage"] == "M5"
    asked = next(span for span in langfuse.spans if span.attributes["spanfold.kind"] == "model_call")
    assert asked.attributes["langfuse.observation.input"] == "q"
    assert asked.end_ns - asked.start_ns == 10**9


@pytest.mark.contract("DL-104", "DL-164")
def test_what_did_not_arrive_waits_beside_the_journal_and_is_sent_once_later(
    langfuse: LoopbackOtlpReceiver, tmp_path: Path
) -> None:
    langfuse.reply = Reply(status=503, stores=False)
    with RunLogger(tmp_path / "run") as log:
        log.log_stage_skipped("M5", "no_accepted_hypothesis")
        wait_until(lambda: len(langfuse.requests) > 0, 20)
    log.close()
    spanfold.shutdown(1)
    refused = len(langfuse.spans)
    langfuse.reply = Reply()

    first, second = (backfilled(tmp_path / "run") for _ in range(2))

    assert refused == 0
    assert first["pending"] == 0
    assert second["published"] == 0
    assert len(langfuse.spans) == len({span.span_id for span in langfuse.spans}) == len(spans_of(tmp_path / "run"))
    assert list((tmp_path / "state/open").iterdir()) == []


@pytest.mark.contract("DL-090", "DL-104")
def test_offline_opens_no_connection(langfuse: LoopbackOtlpReceiver, tmp_path: Path) -> None:
    with RunLogger(tmp_path / "run", observability_mode="offline") as log:
        log.log_stage_skipped("M5", "no_accepted_hypothesis")
        assert not log.tracer.live_enabled
        log.tracer.flush()
    tracer = DiagnosticTracer(tmp_path / "own", mode="offline", auto_sync=True)
    tracer.record_event({"event": "probe", "stage": "M1"}, event_seq=1)
    tracer.end_trace()
    spanfold.flush(5)

    assert langfuse.requests == []
    assert list((tmp_path / "state/open").iterdir()) == []


@pytest.mark.contract("DL-100")
def test_a_server_that_fails_is_told_of_once_and_never_reaches_the_loop(
    langfuse: LoopbackOtlpReceiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    langfuse.reply = Reply(status=503)
    tracer = DiagnosticTracer(tmp_path, mode="live", auto_sync=True)

    with caplog.at_level(logging.WARNING, logger="spanfold"):
        for seq in range(3):
            tracer.record_event({"event": "probe", "stage": "M1"}, event_seq=seq)
        tracer.end_trace()

    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("[langfuse] ")]
    assert len(told) == 1
    assert "does not take records (HTTP 503)" in told[0]
    assert len(tracer.events) == 3


# -- what is recorded


@pytest.mark.contract("DL-093", "DL-098")
def test_records_have_the_keys_and_values_of_the_seed(tmp_path: Path) -> None:
    def traced(tracer: Any) -> dict[str, Any]:
        tracer.start_trace("m", "b", 3, {"model": "other", "k": [1, {"a": None}]})
        outer = tracer.start_span("outer", "M1", {"in": 1}, {"m": 1})
        inner = tracer.start_span("inner", "M1_x", parent_id=outer)
        tracer.log_generation(
            "asked", "judge", "p", "c", span_id=inner, metadata={"n": 2}, usage={"input": 7, "odd": 1}
        )
        tracer.log_score("s", 1, "why", outer)
        tracer.end_span(inner, "out", "failed")
        tracer.end_span(outer, {"n": 1})
        tracer.end_span("unknown")
        return tracer.export_bundle()

    ours = traced(DiagnosticTracer(mode="offline", outbox_path=tmp_path / "ours"))
    seed = traced(SeedTracer(mode="offline", outbox_path=tmp_path / "seed.sqlite3"))

    assert list(ours) == list(seed) == ["trace", "spans", "generations", "scores", "events"]
    assert ours["trace"]["name"] == seed["trace"]["name"]
    assert {**seed["trace"]["metadata"], "created_at": 0}.items() <= {
        **ours["trace"]["metadata"],
        "created_at": 0,
    }.items()
    spans, theirs = ({span["name"]: span for span in bundle["spans"]} for bundle in (ours, seed))
    for name in ("outer", "inner"):
        assert spans[name].keys() >= theirs[name].keys()
        for key in ("name", "input", "output", "status"):
            assert spans[name][key] == theirs[name][key]
        assert theirs[name]["metadata"].items() <= spans[name]["metadata"].items()
        assert spans[name]["end_time"] >= spans[name]["start_time"]
    assert spans["inner"]["parent_id"] == spans["outer"]["id"]
    (asked,), (expected,) = ours["generations"], seed["generations"]
    assert asked.keys() >= expected.keys()
    assert all(asked[key] == expected[key] for key in ("name", "model", "prompt", "completion"))
    assert asked["span_id"] == spans["inner"]["id"]
    assert asked["usage"] == {"input_tokens": 7}
    assert asked["metadata"]["usage.odd"] == 1
    (score,), (expected,) = ours["scores"], seed["scores"]
    assert (score["name"], score["value"], score["comment"]) == (
        expected["name"],
        expected["value"],
        expected["comment"],
    )
    assert score["span_id"] == spans["outer"]["id"]


def test_what_is_recorded_beside_a_loop_stands_in_its_own_trace(tmp_path: Path) -> None:
    with RunLogger(tmp_path / "run", observability_mode="offline") as log:
        log.log_run_start({"model": "m"})
        span = log.tracer.start_span("mine", "M2", {"q": 1})
        log.tracer.log_score("s", 0.5, "c", span)
        log.tracer.end_span(span, {"a": 2})
        log.log_stage_skipped("M5", "no_accepted_hypothesis", detail="d")
        during = log.tracer.export_bundle(tmp_path / "out" / "bundle.json")

    bundle = json.loads((tmp_path / "run/langfuse_trace.json").read_text())
    assert {span["name"] for span in bundle["spans"]} == {"mine", "M5: skipped"}
    assert bundle["scores"][0]["value"] == 0.5
    assert bundle["trace"]["name"] == "EvalRX: m"
    assert json.loads((tmp_path / "out/bundle.json").read_text()) == during
    assert during["spans"] == bundle["spans"]


def test_changing_what_was_recorded_changes_nothing(tmp_path: Path) -> None:
    tracer = DiagnosticTracer(mode="offline", outbox_path=tmp_path / "o")
    given, event = {"a": [1]}, {"event": "probe", "stage": "M1", "findings": {"a": [1]}}

    span = tracer.start_span("s", "M1", given)
    tracer.record_event(event, event_seq=1)
    given["a"].append(2)
    event["findings"]["a"].append(2)  # type: ignore[index]
    tracer.end_span(span)

    bundle = tracer.export_bundle()
    assert next(span for span in bundle["spans"] if span["name"] == "s")["input"] == {"a": [1]}
    assert bundle["events"][0]["payload"]["findings"] == {"a": [1]}


def test_an_event_given_twice_is_recorded_once(tmp_path: Path) -> None:
    tracer = DiagnosticTracer(mode="offline", outbox_path=tmp_path / "o")

    for _ in range(2):
        tracer.record_event({"event": "probe", "stage": "M1", "ts": "2026-01-31T09:05:07.000123+00:00"}, event_seq=4)
    tracer.record_event({"event": "analysis", "stage": "M2", "duration_sec": 2.0}, event_seq=5)
    tracer.end_trace({"done": True})

    recorded = {span.name: span for span in spans_of(tmp_path / "o")}
    assert [name for name in recorded if name.startswith("EvalRX")] == ["EvalRX M1: probe", "EvalRX M2: analysis"]
    assert len(spans_of(tmp_path / "o")) == 3
    assert recorded["EvalRX M1: probe"].end_ns == 1_769_850_307_000_123_000
    assert recorded["EvalRX M2: analysis"].end_ns - recorded["EvalRX M2: analysis"].start_ns == 2 * 10**9
    assert fields(recorded["EvalRX M1: probe"])["diagnose.event_id"] == tracer.events[0]["event_id"]


@pytest.mark.contract("DL-129")
def test_a_killed_program_loses_no_span_generation_or_score_that_was_recorded(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from spanfold.diagnose import DiagnosticTracer\n"
        "tracer = DiagnosticTracer(mode='offline', outbox_path=sys.argv[1])\n"
        "tracer.start_trace('m', 'b')\n"
        "outer = tracer.start_span('outer', 'M1')\n"
        "tracer.end_span(tracer.start_span('inner', 'M1', parent_id=outer), 'out')\n"
        "tracer.log_generation('asked', 'judge', 'p', 'c', span_id=outer)\n"
        "tracer.log_score('s', 1.5, 'why', outer)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    run = tmp_path / "o"
    child = subprocess.Popen([sys.executable, "-c", program, str(run)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGKILL)
    child.wait(30)
    child.stdout.close()

    from spanfold.cli import main

    assert main(["run", "recover", str(run)]) == 0

    bundle = json.loads((run / "langfuse_trace.json").read_text())
    assert [span["name"] for span in bundle["spans"]] == ["inner"]
    assert [row["completion"] for row in bundle["generations"]] == ["c"]
    assert [row["value"] for row in bundle["scores"]] == [1.5]


# -- ids, envelopes, references


@pytest.mark.contract("DL-091")
def test_a_dashed_uuid_is_a_trace_id_without_its_dashes_and_any_text_has_one(tmp_path: Path) -> None:
    dashed = "0F9D2A34-1111-4222-8333-123456789abc"
    with RunLogger(tmp_path / "run", trace_id=dashed, observability_mode="offline") as log:
        log.log_run_start({})
        assert log.tracer.trace_id == dashed
        assert log.tracer.service_trace_id == "0f9d2a34111142228333123456789abc"

    assert {span.trace_id for span in spans_of(tmp_path / "run")} == {"0f9d2a34111142228333123456789abc"}
    for text in ("", "run-7", "../../etc", "00000000-0000-0000-0000-000000000000", "ü"):
        assert len(bytes.fromhex(service_trace_id(text))) == 16
        assert int(service_trace_id(text), 16)
        assert service_trace_id(text) == service_trace_id(text)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
records = st.fixed_dictionaries(
    {},
    optional={
        "event": st.sampled_from(
            ["probe", "analysis", "explore", "diagnosis", "fix", "experiment", "loop_end", "agent_tool"]
        ),
        "ts": st.text(max_size=5),
        "cycle": st.integers(-1, 3),
        "span_id": st.text(max_size=5),
        "ok": st.booleans(),
        "status": st.sampled_from(["failed", "error", "ok", None]),
        "findings": plain,
    },
)


@pytest.mark.contract("DL-101")
@given(record=records, seq=st.integers(1, 10**6), trace_id=st.text(max_size=40))
def test_envelopes_are_those_of_the_seed(record: dict[str, Any], seq: int, trace_id: str) -> None:
    ours = make_envelope(record, trace_id=trace_id, event_seq=seq)

    assert ours == make_event_envelope(record, trace_id=trace_id, event_seq=seq)
    assert ours["event_id"] == make_envelope(dict(record), trace_id=trace_id, event_seq=seq)["event_id"]


@pytest.mark.contract("DL-162")
@pytest.mark.parametrize(
    ("record", "stage"),
    [
        ({"event": "surgery", "stage": "M5"}, "M5"),
        ({"event": "surgery", "stage": "M4"}, "M4"),
        ({"event": "model_call", "stage": "M1"}, "M1"),
        ({"event": "stage_skipped", "stage": "M5"}, "M5"),
        ({"event": "case_record", "stage": "RUN"}, "DATA"),
        ({"event": "report_published", "stage": "RUN"}, "REPORT"),
        ({"event": "probe_search"}, "PRE_M1"),
        ({"event": "run_start", "stage": "RUN"}, "RUN"),
    ],
)
def test_an_envelope_has_the_stage_the_event_belongs_to(record: dict[str, Any], stage: str) -> None:
    assert make_envelope(record, trace_id="t", event_seq=1)["stage"] == stage


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "M1").mkdir(parents=True)
    for name in ("M1/a.npy", "M1/b.png", "c.json"):
        (folder / name).write_bytes(name.encode())
    (tmp_path / "outside.txt").write_text("private")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    return folder


@pytest.mark.contract("DL-102")
def test_references_are_those_of_the_seed(run_dir: Path) -> None:
    event = {
        "artifact_paths": {"n/a": "M1/a.npy", "again": "M1/a.npy", "gone": "M1/gone.npy"},
        "report_path": "c.json",
        "record": str(run_dir / "M1/b.png"),
        "elsewhere_path": "../outside.txt",
        "narrative": "M1/b.png",
    }

    found = artifact_refs(event, run_dir)

    assert found == artifact_manifests_for_event(event, run_dir=run_dir)
    assert [ref["path"] for ref in found] == ["M1/a.npy", "c.json", "M1/b.png"]


@pytest.mark.contract("DL-102", "DL-162")
def test_figures_are_referred_to_and_links_are_not_followed(run_dir: Path) -> None:
    event = {"figures": ["M1/b.png", "https://example.org/x.png"], "log_path": "link.txt", "media_paths": ["", "M1"]}

    assert [(ref["path"], ref["role"]) for ref in artifact_refs(event, run_dir)] == [("M1/b.png", "figures")]


def test_a_flush_of_a_tracer_without_records_is_over_at_once(tmp_path: Path) -> None:
    tracer = DiagnosticTracer(tmp_path / "run", mode="offline")
    begun = time.monotonic()

    tracer.flush()
    tracer.end_trace()

    assert time.monotonic() - begun < 10
    assert not (tmp_path / "run").exists()


def test_a_place_that_cannot_be_written_costs_the_records_and_not_the_program(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    tracer = DiagnosticTracer(mode="offline", outbox_path=tmp_path / "file" / "below")

    tracer.start_trace("m", "b")
    tracer.end_span(tracer.start_span("s", "M1"))
    tracer.log_generation("g", "m", "p", "c")
    tracer.log_score("s", 1)
    tracer.record_event({"event": "probe"}, event_seq=1)
    tracer.flush()
    tracer.end_trace()

    with pytest.raises(ValueError, match="float"):
        tracer.log_score("s", "many")  # type: ignore[arg-type]
    assert losses["spans of a tracer"] > 0


# -- the trace of a loop


class Result:
    """What an analyzer found."""

    def __init__(self, **findings: Any) -> None:
        self.findings = findings


def called(log: RunLogger, analyzer: str, count: int, cycle: int = 0) -> None:
    for index in range(1, count + 1):
        log.log_model_call(
            cycle=cycle,
            analyzer=analyzer,
            call_index=index,
            method="generate",
            inputs=f"{analyzer} {index}",
            kwargs={},
            output="a",
            duration_sec=0.01,
            error=None,
        )


@pytest.mark.contract("DL-096", "DL-157")
def test_the_trace_shows_fifty_calls_of_an_analyzer_and_tells_how_many_there_were(tmp_path: Path) -> None:
    with RunLogger(tmp_path / "run", observability_mode="offline") as log:
        called(log, "blur", 53)
        called(log, "edge", 2)
        log.log_probe(0, {"blur": Result(mean=1), "edge": Result(mean=2)})
    bundle = json.loads((tmp_path / "run/langfuse_trace.json").read_text())

    probes = {span["name"]: span for span in bundle["spans"]}
    shown = [row for row in bundle["generations"] if row["span_id"] == probes["Probe: blur"]["id"]]
    assert [row["prompt"] for row in shown] == [f"blur {index}" for index in range(1, 51)]
    assert {name: probes[name]["output"]["n_model_calls"] for name in ("Probe: blur", "Probe: edge")} == {
        "Probe: blur": 53,
        "Probe: edge": 2,
    }
    calls = [span for span in spans_of(tmp_path / "run") if span.attributes["spanfold.kind"] == "model_call"]
    assert len(calls) == 55
    assert {span.parent_span_id for span in calls} == {probes[name]["id"] for name in ("Probe: blur", "Probe: edge")}


@pytest.mark.contract("DL-097", "DL-157")
def test_an_analyzer_without_a_result_has_failed_only_if_the_loop_says_so(tmp_path: Path) -> None:
    with RunLogger(tmp_path / "run", observability_mode="offline") as log:
        called(log, "broken", 1)
        called(log, "helper", 1)
        log.log_probe(0, {"blur": Result(mean=1)}, failed_analyzers={"broken": "ValueError"})
    bundle = json.loads((tmp_path / "run/langfuse_trace.json").read_text())

    found = {span["name"]: span["status"] for span in bundle["spans"] if span["name"].startswith("Probe: ")}
    assert found == {"Probe: blur": "completed", "Probe: broken (failed)": "failed", "Probe: helper": "completed"}


@pytest.mark.contract("DL-174")
@pytest.mark.parametrize("trace_id", ["../../../evil", "/etc/evil", "a/b", "\0", "x" * 5000])
def test_a_trace_id_is_never_a_place_on_disk(tmp_path: Path, trace_id: str) -> None:
    folder = tmp_path / "deep/er/run"
    with RunLogger(folder, trace_id=trace_id, observability_mode="offline") as log:
        log.log_stage_skipped("M5", "no_accepted_hypothesis")
        during = {path.parts[len(tmp_path.parts)] for path in tmp_path.rglob("*")}
    tracer = DiagnosticTracer(tmp_path / "own", mode="offline")
    tracer.trace_id = trace_id
    tracer.end_span(tracer.start_span("s", "M1"))
    tracer.end_trace()

    assert during == {"deep", "state"}
    assert {path.name for path in tmp_path.iterdir()} == {"deep", "state", "own"}
    assert list((tmp_path / "state/open").iterdir()) == []
    assert {path.name for path in (tmp_path / "deep/er").iterdir()} == {"run"}


@pytest.mark.contract("DL-128", "DL-147", "DL-164")
def test_what_a_killed_loop_had_delivered_is_not_sent_again_and_the_rest_is(
    langfuse: LoopbackOtlpReceiver, tmp_path: Path
) -> None:
    program = (
        "import sys, time\n"
        "from spanfold.diagnose import RunLogger\n"
        "log = RunLogger(sys.argv[1])\n"
        "for seq in range(5):\n"
        "    log.log_stage_skipped('M5', f'reason {seq}')\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "log.log_model_exchange('M3', role='judge', operation='generate', inputs='q', output='a')\n"
        "print('asked', flush=True)\n"
        "time.sleep(60)\n"
    )
    run = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        wait_until(lambda: len(langfuse.spans) == 5, 30)
        acked = tmp_path / "state/open"
        wait_until(lambda: any('"sent":5' in p.read_text() for p in acked.rglob("langfuse-*.ack.jsonl")), 30)
        langfuse.reply = Reply(status=503, stores=False)
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"asked\n"
        child.send_signal(signal.SIGKILL)
    langfuse.reply = Reply()

    from spanfold.cli import main

    assert main(["run", "recover", str(run)]) == 0
    first, second = (backfilled(run) for _ in range(2))

    assert (first["events"], first["pending"], second["published"]) == (6, 0, 0)
    recorded = [span.span_id for span in spans_of(run)]
    assert sorted(span.span_id for span in langfuse.spans) == sorted(recorded)
    assert list(acked.iterdir()) == []


def test_closing_while_the_server_hangs_takes_a_few_seconds_and_loses_nothing(
    langfuse: LoopbackOtlpReceiver, tmp_path: Path
) -> None:
    log = RunLogger(tmp_path / "run")
    langfuse.reply = Reply(behaviour="hang", stores=False)
    log.log_stage_skipped("M5", "no_accepted_hypothesis")
    wait_until(lambda: len(langfuse.requests) > 0, 20)

    begun = time.monotonic()
    log.close()
    took = time.monotonic() - begun
    langfuse.reply = Reply()
    spanfold.shutdown(15)
    backfilled(tmp_path / "run")

    assert took < 20
    assert {span.span_id for span in langfuse.spans} == {span.span_id for span in spans_of(tmp_path / "run")}


def test_references_of_data_that_holds_itself_are_found_in_finite_time(run_dir: Path) -> None:
    event: dict[str, Any] = {"report_path": "c.json", "again": []}
    event["again"].append(event)

    assert [ref["path"] for ref in artifact_refs(event, run_dir)] == ["c.json"]


@pytest.mark.contract("DL-140")
def test_files_of_a_loop_are_recorded_with_their_hashes_so_that_a_change_is_found(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "plot.png").write_bytes(b"plot")
    (tmp_path / "image.png").write_bytes(b"image")
    result = Result(mean=1)
    result.artifacts = {"attn_map": np.zeros((2, 3))}  # type: ignore[attr-defined]
    with RunLogger(tmp_path / "run", observability_mode="offline") as log:
        log.log_cases([{"id": "a", "inputs": {"image": str(tmp_path / "image.png")}}] * 2)
        log.log_probe(0, {"blur": result})
        log.log_explore(0, None, out_dir=work)
        log.log_explore(1, None, out_dir=work)
        assert log.save_artifact_json("modes.json", {"a": 1}) == log.save_artifact_json("modes.json", {"a": 2})

    whole = verify_run(tmp_path / "run")
    recorded = {
        path.relative_to(tmp_path / "run").as_posix()
        for folder in ("M1/artifacts", "M2/artifacts", "media", "artifacts")
        for path in (tmp_path / "run" / folder).iterdir()
    }
    changed = next((tmp_path / "run/M1/artifacts").glob("*.npy"))
    changed.write_bytes(changed.read_bytes()[:-1] + b"x")
    found = verify_run(tmp_path / "run")

    assert whole.n_artifacts == len(recorded) == 5
    assert whole.artifacts == ()
    assert [(row.path, row.kind) for row in found.artifacts] == [
        (changed.relative_to(tmp_path / "run").as_posix(), "edited")
    ]
    assert not (tmp_path / "run/traced").exists()


@pytest.mark.contract("DL-162")
def test_pictures_and_scores_of_a_loop_arrive_at_langfuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "plot.png").write_bytes(b"\x89PNG\r\n\x1a\nplot")
    with LoopbackLangfuse() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        spanfold.configure(otlp=False)
        try:
            with RunLogger(tmp_path / "run") as log:
                log.log_explore(0, None, out_dir=work)
                log.tracer.log_score("agreement", 0.5, "of two")
            spanfold.shutdown(30)
        finally:
            spanfold.configure(otlp=False, langfuse=False)

    assert [kept["content"] for kept in server.media.values()] == [b"\x89PNG\r\n\x1a\nplot"]
    explored = next(span for span in spans_of(tmp_path / "run") if "n_charts" in fields(span))
    assert {observation for _, _, observation, _ in server.links} == {explored.span_id}
    assert [(score["name"], score["value"]) for score in server.scores.values()] == [("agreement", 0.5)]
