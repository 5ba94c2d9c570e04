"""Runs of the past: read from their documents, made a journal of, and delivered once."""

import json
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spanfold
from spanfold.diagnose import RunLogger, backfill, outbox_of
from spanfold.errors import LockedError
from spanfold.fold import fold_run
from spanfold.fs import FileLock, SafeRoot
from spanfold.journal import fields, read_journal, verify_journal
from spanfold.model import Span
from spanfold.testing import LoopbackOtlpReceiver, Reply
from tests.diagnose.script import documents, events
from tests.langfuse import to

pytestmark = pytest.mark.slow

ENVELOPE = ("ts", "event", "schema_version", "trace_id", "event_seq", "stage", "span_id")


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def spans_of(run_dir: Path) -> list[Span]:
    return [record for record in read_journal(run_dir).records if isinstance(record, Span)]


def by_seq(spans: list[Span]) -> dict[int, Span]:
    return {found["diagnose.event_seq"]: span for span in spans if "diagnose.event_seq" in (found := fields(span))}


def written(folder: Path, count: int, *, start: int = 1, trace_id: str = "ab" * 16) -> None:
    """Write the documents of a run of model calls by hand."""
    calls = [
        {
            "ts": f"{datetime.fromtimestamp(1_700_000_000 + seq, UTC):%Y-%m-%dT%H:%M:%S}.000001+00:00",
            "cycle": 0,
            "role": "judge",
            "operation": "generate",
            "inputs": f"question {seq}",
            "output": f"answer {seq}",
            "error": None,
            "metadata": {},
            "duration_sec": 0.5,
            "event": "model_call",
            "schema_version": 6,
            "trace_id": trace_id,
            "event_seq": seq,
            "stage": "M1",
            "span_id": f"m1.model_call.{seq}",
        }
        for seq in range(start, count + 1)
    ]
    (folder / "M1").mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"trace_id": trace_id, "run_start": None, "cases": []}))
    (folder / "M1/log.json").write_text(json.dumps({"model_calls": calls}))


# -- what is counted


@pytest.mark.contract("DL-105")
def test_a_dry_run_counts_and_neither_sends_nor_writes(seed_run: Path, langfuse: LoopbackOtlpReceiver) -> None:
    before = tree(seed_run)

    counted = backfill(seed_run, dry_run=True, environ=to(langfuse))

    total = len(events(seed_run))
    trace_id = documents(seed_run)["run.json"]["trace_id"]
    assert counted == {"trace_id": trace_id, "events": total, "pending": total, "published": 0}
    assert langfuse.requests == []
    assert tree(seed_run) == before


@pytest.mark.contract("DL-105")
def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")  # without a document of a stage: invisible (DL 14.3)
    for folder in (tmp_path / "missing", tmp_path):
        with pytest.raises(FileNotFoundError, match=r"run\.json"):
            backfill(folder)


def test_a_run_without_events_has_nothing_to_send(tmp_path: Path) -> None:
    written(tmp_path, 0)

    assert backfill(tmp_path) == {"trace_id": "", "events": 0, "pending": 0, "published": 0}


def test_documents_in_a_folder_logs_are_found(seed_run: Path, tmp_path: Path) -> None:
    (tmp_path / "above").mkdir()
    seed_run.rename(tmp_path / "above/logs")

    assert backfill(tmp_path / "above", dry_run=True)["events"] == len(events(tmp_path / "above/logs"))


def test_without_a_server_everything_is_pending(seed_run: Path) -> None:
    result = backfill(seed_run, environ={"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk"})

    assert (result["pending"], result["published"]) == (result["events"], 0)


# -- what is written


def without_ours(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_ours(item) for key, item in value.items() if not key.startswith("otel_")}
    return [without_ours(item) for item in value] if isinstance(value, list) else value


def test_the_documents_can_be_folded_again_from_what_was_made_of_them(seed_run: Path, tmp_path: Path) -> None:
    before = tree(seed_run)

    outbox = outbox_of(seed_run).run_dir
    fold_run(outbox, into=tmp_path / "folded")

    assert without_ours(documents(tmp_path / "folded")) == documents(seed_run)
    assert {path: data for path, data in tree(seed_run).items() if not path.startswith(".spanfold/")} == before
    assert verify_journal(outbox).findings == ()


@pytest.mark.contract("DL-154")
def test_spans_have_the_times_parents_and_ids_of_the_events(seed_run: Path) -> None:
    recorded = {event["event_seq"]: event for event in events(seed_run)}

    spans = spans_of(outbox_of(seed_run).run_dir)

    found = by_seq(spans)
    assert found.keys() == recorded.keys()
    root = next(span for span in spans if not span.parent_span_id)
    assert {span.trace_id for span in spans} == {documents(seed_run)["run.json"]["trace_id"].replace("-", "")}
    assert len({span.span_id for span in spans}) == len(spans)
    for seq, span in found.items():
        event = recorded[seq]
        end = datetime.fromisoformat(event["ts"])
        assert span.end_ns == int(end.timestamp()) * 10**9 + end.microsecond * 1000
        assert span.end_ns - span.start_ns == round((event.get("duration_sec") or 0) * 1e9)
        above = next((recorded[other] for other, o in found.items() if o.span_id == span.parent_span_id), None)
        if event["event"] != "model_call":
            assert span.parent_span_id == root.span_id
        elif "analyzer" in event and above is not None:
            assert above["event"] == "probe"
        elif above is not None:
            assert (above["stage"], above["event"] == "model_call") == (event["stage"], False)
    probe = next(found[seq] for seq, event in recorded.items() if event["event"] == "probe")
    assert any(
        span.parent_span_id == probe.span_id for span in spans if span.attributes["spanfold.kind"] == "model_call"
    )


def test_writing_again_changes_no_byte(seed_run: Path) -> None:
    first = outbox_of(seed_run)
    before = tree(first.run_dir)

    assert outbox_of(seed_run) == first
    assert tree(first.run_dir) == before


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
def test_a_write_that_was_killed_is_completed_by_the_next(seed_run: Path, tmp_path: Path, share: float) -> None:
    outbox = outbox_of(seed_run).run_dir
    (file,) = (outbox / "journal").glob("*.jsonl")
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])

    again = outbox_of(seed_run)
    fold_run(again.run_dir, into=tmp_path / "folded", force=True)

    ids = [span.span_id for span in spans_of(again.run_dir)]
    assert len(ids) == len(set(ids)) == len(events(seed_run)) + 1
    folded = {event["event"]: event for event in events(tmp_path / "folded")}
    assert folded.keys() == {event["event"] for event in events(seed_run)}


@pytest.mark.contract("DL-176")
def test_secrets_of_documents_do_not_reach_the_journal(seed_run: Path) -> None:
    secret = "sk-proj-" + "Ab3dEf6hIj9l" * 4
    document = json.loads((seed_run / "M2/log.json").read_text())
    document["analysis"][0]["narrative"] = f"the key {secret} leaks"
    (seed_run / "M2/log.json").write_text(json.dumps(document))

    outbox = outbox_of(seed_run).run_dir

    assert secret.encode() not in b"".join(tree(outbox).values())


@pytest.fixture
def policy() -> Iterator[None]:
    yield
    spanfold.configure(otlp=False, langfuse=False)


@pytest.mark.usefixtures("policy")
@pytest.mark.parametrize("content", ["none", "local"])
def test_message_content_stays_where_the_policy_says(
    tmp_path: Path, langfuse: LoopbackOtlpReceiver, content: Literal["none", "local"]
) -> None:
    written(tmp_path, 2)
    spanfold.configure(otlp=False, langfuse=False, content=content)

    backfill(tmp_path, environ=to(langfuse))

    sent = repr(langfuse.spans)
    kept = b"".join(tree(tmp_path / ".spanfold").values())
    assert "chat judge" in sent
    assert "question 1" not in sent
    assert "answer 1" not in sent
    assert (b"question 1" in kept) is (content == "local")


def test_events_without_numbers_are_taken_in_the_order_of_their_times(tmp_path: Path) -> None:
    written(tmp_path, 5)
    document = json.loads((tmp_path / "M1/log.json").read_text())
    for call in document["model_calls"]:
        del call["event_seq"], call["event"], call["stage"]
    document["model_calls"].reverse()
    (tmp_path / "M1/log.json").write_text(json.dumps(document))

    found = by_seq(spans_of(outbox_of(tmp_path).run_dir))

    assert sorted(found) == [1, 2, 3, 4, 5]
    assert all(found[seq].end_ns < found[seq + 1].end_ns for seq in range(1, 5))


def test_events_of_two_loggers_that_share_a_number_are_all_kept(tmp_path: Path) -> None:
    written(tmp_path, 3)
    document = json.loads((tmp_path / "M1/log.json").read_text())
    document["model_calls"] += document["model_calls"]
    (tmp_path / "M1/log.json").write_text(json.dumps(document))

    first = outbox_of(tmp_path)
    before = tree(first.run_dir)
    outbox_of(tmp_path)

    spans = spans_of(first.run_dir)
    assert len(spans) == len({span.span_id for span in spans}) == 7
    assert tree(first.run_dir) == before


def test_a_document_that_is_damaged_costs_its_own_events(seed_run: Path) -> None:
    whole = len(events(seed_run))
    lost = sum(len(rows) for rows in documents(seed_run)["M2/log.json"].values())
    (seed_run / "M2/log.json").write_text('{"analysis": [')

    assert backfill(seed_run, dry_run=True)["events"] == whole - lost


# -- what is sent


@pytest.mark.contract("DL-163", "DL-164")
def test_a_thousand_events_arrive_with_one_call_and_not_again_with_the_next(
    tmp_path: Path, langfuse: LoopbackOtlpReceiver
) -> None:
    written(tmp_path, 1000)

    first = backfill(tmp_path, environ=to(langfuse))
    arrived = [span.span_id for span in langfuse.spans]
    second = backfill(tmp_path, environ=to(langfuse))

    assert first == {"trace_id": "ab" * 16, "events": 1000, "pending": 0, "published": 1000}
    assert second == {**first, "published": 0}
    assert len(arrived) == len(set(arrived)) == 1001
    assert len(langfuse.spans) == 1001
    assert [request.problem for request in langfuse.requests] == [""] * len(langfuse.requests)


@pytest.mark.contract("DL-164")
def test_what_was_not_confirmed_stays_and_is_sent_by_the_next_call(
    tmp_path: Path, langfuse: LoopbackOtlpReceiver
) -> None:
    written(tmp_path, 30)
    langfuse.reply = Reply(status=503, stores=False)

    refused = backfill(tmp_path, environ=to(langfuse), timeout_s=0.3)
    langfuse.reply = Reply()
    accepted = backfill(tmp_path, environ=to(langfuse))

    assert (refused["pending"], refused["published"]) == (30, 0)
    assert (accepted["pending"], accepted["published"]) == (0, 30)
    assert len({span.span_id for span in langfuse.spans}) == 31


def test_of_documents_that_have_grown_only_the_new_events_are_sent(
    tmp_path: Path, langfuse: LoopbackOtlpReceiver
) -> None:
    written(tmp_path, 20)
    backfill(tmp_path, environ=to(langfuse))
    written(tmp_path, 25)

    grown = backfill(tmp_path, environ=to(langfuse))
    again = backfill(tmp_path, environ=to(langfuse))

    assert (grown["events"], grown["pending"], grown["published"]) == (25, 0, 5)
    assert again["published"] == 0
    assert len(langfuse.spans) == len({span.span_id for span in langfuse.spans}) == 26


@pytest.mark.contract("DL-164")
def test_two_processes_do_not_send_one_run(tmp_path: Path, langfuse: LoopbackOtlpReceiver) -> None:
    written(tmp_path, 3)
    outbox = outbox_of(tmp_path).run_dir

    with FileLock(SafeRoot(outbox), "lock"), pytest.raises(LockedError):
        backfill(tmp_path, environ=to(langfuse))

    assert langfuse.spans == []


@pytest.mark.contract("DL-162")
def test_a_run_of_spanfold_is_sent_from_its_own_journal(tmp_path: Path, langfuse: LoopbackOtlpReceiver) -> None:
    with RunLogger(tmp_path / "run", observability_mode="offline") as log:
        log.log_run_start({"model": "m"})
        log.log_stage_skipped("M5", "no_accepted_hypothesis")

    first = backfill(tmp_path / "run", environ=to(langfuse))
    second = backfill(tmp_path / "run", environ=to(langfuse))

    assert not (tmp_path / "run/.spanfold").exists()
    assert first == {"trace_id": log.trace_id, "events": 2, "pending": 0, "published": 2}
    assert second == {**first, "published": 0}
    skipped = next(span for span in langfuse.spans if fields(span).get("reason_code"))
    assert skipped.attributes["spanfold.stage"] == "M5"
    assert len(langfuse.spans) == len(spans_of(tmp_path / "run"))


@pytest.mark.contract("DL-162")
def test_events_arrive_with_their_stage_and_the_files_they_speak_of(
    seed_run: Path, langfuse: LoopbackOtlpReceiver
) -> None:
    backfill(seed_run, environ=to(langfuse))

    found = {
        fields(span)["diagnose.event_seq"]: span for span in langfuse.spans if "diagnose.event_seq" in fields(span)
    }
    for event in events(seed_run):
        expected = event["stage"] if event["stage"] != "RUN" else None
        assert found[event["event_seq"]].attributes.get("spanfold.stage") == expected
    probe = next(event for event in events(seed_run) if event["event"] == "probe")
    refs = fields(found[probe["event_seq"]])["diagnose.artifact_refs"]
    assert {ref["path"] for ref in refs} == set(probe["artifact_paths"].values())
    assert all((seed_run / ref["path"]).stat().st_size == ref["size_bytes"] for ref in refs)


def test_the_environment_of_the_process_names_the_server(
    tmp_path: Path, langfuse: LoopbackOtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, 2)
    for name, value in to(langfuse).items():
        monkeypatch.setenv(name, value)

    assert backfill(tmp_path)["published"] == 2
    assert os.environ["LANGFUSE_SECRET_KEY"] not in "".join(map(repr, langfuse.spans))


# -- whatever documents hold

words = st.text(st.characters(categories=("Lu", "Ll", "Nd", "Zs", "Po", "Sm")), max_size=8)
# Names of the envelope are not payload; `diagnose.` is what the recorder itself puts in front of facts about a record.
names = words.filter(
    lambda name: name not in {*ENVELOPE, "n_model_calls", "notes"} and not name.startswith("diagnose.")
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 80), 1 << 80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
payloads = st.dictionaries(
    names
    | st.sampled_from(["kind", "name", "input", "output", "field.x", "json_fields", "cycle", "duration_sec", "error"]),
    values,
    max_size=5,
)
rows = st.lists(
    st.tuples(
        st.sampled_from(
            [("M2", "analysis"), ("M3", "diagnosis"), ("M5", "experiment"), ("M5", "tool_codegen"), ("RUN", "loop_end")]
        ),
        payloads,
        st.integers(0, 10**6),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60)
@given(found=rows)
def test_records_of_any_content_come_back_from_the_journal_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, found: list[tuple[tuple[str, str], dict[str, Any], int]]
) -> None:
    place = tmp_path_factory.mktemp("b")
    made: dict[str, dict[str, Any]] = {"run.json": {"trace_id": "ab" * 16, "run_start": None}, "M1/log.json": {}}
    micros = 0
    for seq, ((stage, event), payload, step) in enumerate(found, start=1):
        micros += step
        moment = datetime.fromtimestamp(1_700_000_000 + micros // 10**6, UTC)
        ts = f"{moment:%Y-%m-%dT%H:%M:%S}.{micros % 10**6:06d}+00:00"
        label = {"analysis": "m2", "diagnosis": "m3"}.get(event)
        cycle = payload.get("cycle")
        record = {
            "ts": ts,
            **payload,
            "event": event,
            "schema_version": 6,
            "trace_id": "ab" * 16,
            "event_seq": seq,
            "stage": stage,
            "span_id": f"c{-1 if cycle is None else cycle}.{label}" if label else f"{stage.lower()}.{event}.{seq}",
        }
        document = "run.json" if stage == "RUN" else f"{stage}/log.json"
        made.setdefault(document, {}).setdefault(event, []).append(record)
    for path, document in made.items():
        (place / "run" / path).parent.mkdir(parents=True, exist_ok=True)
        (place / "run" / path).write_text(json.dumps(document), encoding="utf-8")

    fold_run(outbox_of(place / "run").run_dir, into=place / "folded")

    for path, document in made.items():
        folded = without_ours(json.loads((place / "folded" / path).read_text(encoding="utf-8")))
        for bucket, records in document.items():
            assert folded[bucket] == records


def test_documents_of_ours_whose_journal_is_gone_are_made_a_journal_again(tmp_path: Path) -> None:
    with RunLogger(tmp_path / "run", observability_mode="offline") as log:
        log.log_run_start({"model": "m"})
        log.log_model_exchange(
            "M3", role="judge", operation="generate", inputs={"q": [1]}, output="a", duration_sec=1.0
        )
    before = without_ours(documents(tmp_path / "run"))
    shutil.rmtree(tmp_path / "run/journal")

    fold_run(outbox_of(tmp_path / "run").run_dir, into=tmp_path / "folded")

    assert without_ours(documents(tmp_path / "folded")) == before
