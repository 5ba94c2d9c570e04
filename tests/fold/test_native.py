"""What the documents of a native run hold, record by record."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from spanfold import names
from spanfold.fold import Engine, fold_run
from tests.fold.journals import ROOT, TRACE, JournalFile, json_text, set_fields, span_id


def folded(run_dir: Path, document: str = "run.json") -> dict[str, Any]:
    fold_run(run_dir, force=True)  # seals and times are made up
    text = (run_dir / document).read_bytes()
    value = json.loads(text)
    assert text == json.dumps(value, indent=2, ensure_ascii=False).encode(), "not the layout of DL section 6"
    assert isinstance(value, dict)
    return value


def test_run_json_has_the_initial_value_of_the_contract_before_anything_happened(run_dir: Path) -> None:
    Engine(run_dir).view()

    value = orjson.loads((run_dir / "run.json").read_bytes())
    assert list(value)[:10] == [
        "trace_id",
        "run_start",
        "cases",
        "report_published",
        "diagnose_reports",
        "manifest",
        "loop_end",
        "agent_decisions",
        "agent_tool_calls",
        "unrouted",
    ]
    assert list(value)[10:] == ["run", "open"]
    assert [value[key] for key in list(value)[:10]] == [None, None, [], [], [], None, [], [], [], []]
    assert value["run"]["status"] == "running"
    assert value["open"] == {}


def test_the_run_is_shown_from_its_start_to_its_end(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started(task="digits", argv=["prog", "--x"])
    engine = Engine(run_dir)
    engine.catch_up(force=False)
    running = orjson.loads((run_dir / "run.json").read_bytes())
    journal.run_ended(end=100, verdict="good", task="digits")
    engine.close()
    ended = orjson.loads((run_dir / "run.json").read_bytes())

    assert running["trace_id"] == TRACE
    assert running["run_start"] == {
        "python_version": "3.11.9",
        "host": "h1",
        "pid": 41,
        "task": "digits",
        "argv": ["prog", "--x"],
        "event": "run_start",
        "schema_version": 6,
        "trace_id": TRACE,
        "event_seq": 1,
        "stage": "RUN",
        "span_id": "run_start",
        "ts": "2026-01-31T09:05:07.000123+00:00",
        "start": "2026-01-31T09:05:07.000123Z",
        "otel_trace_id": TRACE,
        "otel_span_id": ROOT,
    }
    assert running["open"] == {
        ROOT: {"kind": "run", "name": "digits", "stage": None, "cycle": None, "start": "2026-01-31T09:05:07.000123Z"}
    }
    assert running["run"]["status"] == "running"
    assert running["run"]["end"] is None
    assert ended["run_start"] == running["run_start"]
    assert ended["open"] == {}
    assert ended["run"] == {
        "schema": "spanfold.run/1",
        "name": "digits",
        "status": "completed",
        "start": "2026-01-31T09:05:07.000123Z",
        "end": "2026-01-31T09:06:47.000123Z",
        "seconds": 100.0,
        "self_seconds": 5.0,
        "host": "h1",
        "pid": 41,
        "python_version": "3.11.9",
        "argv": ["prog", "--x"],
        "otel_trace_id": TRACE,
        "otel_span_id": ROOT,
        "otel_parent_span_id": None,
        "fields": {"verdict": "good"},
        "totals": {"model_calls": 0, "failed": 0, "wrapped": 0, "usage": {}},
    }


@pytest.mark.contract("DL-020")
def test_a_model_call_is_its_fields_then_the_envelope_then_times_ids_and_status(
    run_dir: Path, journal: JournalFile
) -> None:
    journal.run_started()
    messages = [{"role": "system", "content": "Zähle."}, {"role": "user", "content": "1"}]
    journal.model_call(
        2,
        prompt=messages,
        start=1,
        end=2.5,
        parent=1,
        attributes={
            names.CYCLE: 3,
            names.GENAI_SERVED_MODEL: "some-model-2026",
            names.GENAI_FINISH_REASONS: ("stop",),
            **set_fields({"attempt": 1, "extra": {"a": [None, 2**70]}}),
            names.JSON_FIELDS + "x": "kept as a field",
        },
    )

    value = folded(run_dir, "M2/log.json")

    assert list(value) == ["model_calls"]
    assert value["model_calls"] == [
        {
            "model": "some-model",
            "provider": "openai",
            "operation": "chat",
            "served_model": "some-model-2026",
            "finish_reasons": ["stop"],
            "input": messages,
            "output": "Hello",
            "usage": {"input_tokens": 12, "output_tokens": 3},
            "cycle": 3,
            "attempt": 1,
            "extra": {"a": [None, 2**70]},
            "json_fieldsx": "kept as a field",
            "event": "model_call",
            "schema_version": 6,
            "trace_id": TRACE,
            "event_seq": 2,
            "stage": "M2",
            "span_id": "m2.model_call.2",
            "ts": "2026-01-31T09:05:09.500123+00:00",
            "start": "2026-01-31T09:05:08.000123Z",
            "end": "2026-01-31T09:05:09.500123Z",
            "seconds": 1.5,
            "otel_trace_id": TRACE,
            "otel_span_id": span_id(2),
            "otel_parent_span_id": span_id(1),
            "status": "unset",
        }
    ]
    assert list(value["model_calls"][0])[:8] == [
        "model",
        "provider",
        "operation",
        "served_model",
        "finish_reasons",
        "input",
        "output",
        "usage",
    ]
    assert "Zähle" in (run_dir / "M2" / "log.json").read_text(encoding="utf-8")


@pytest.mark.contract("DL-014")
def test_every_kind_of_record_goes_to_its_list_in_the_document_of_its_stage(
    run_dir: Path, journal: JournalFile
) -> None:
    journal.run_started()
    fold_run(run_dir)
    assert not (run_dir / "M2").exists()
    under = {names.STAGE: "M2", names.CYCLE: 1}
    journal.span("agent", "reviewer", 3, attributes={**under, names.GENAI_AGENT: "reviewer", names.GENAI_MODEL: "m"})
    journal.span(
        "tool",
        "grep",
        4,
        attributes={
            **under,
            names.GENAI_TOOL: "grep",
            names.GENAI_TOOL_CALL_ID: "call-1",
            names.GENAI_TOOL_ARGUMENTS: json_text({"pattern": "x"}),
            names.GENAI_TOOL_RESULT: "two lines",
        },
    )
    journal.event(
        names.EVENT_SCORE,
        at=3,
        span=3,
        attributes={**under, names.SCORE_NAME: "accuracy", names.SCORE_VALUE: 0.93, names.SCORE_COMMENT: "held out"},
    )
    journal.event("decided", at=4, span=3, attributes={**under, **set_fields({"why": ["a"]})})
    journal.stage("M2", 1, 1, end=5, attributes=set_fields({"severity": "high"}))

    value = folded(run_dir, "M2/log.json")

    assert list(value) == ["agent", "tool", "score", "event", "stage"]
    assert [value[k][0]["span_id"] for k in value] == ["m2.agent.2", "m2.tool.3", "m2.score.4", "m2.event.5", "c1.m2"]
    assert {k: value["tool"][0][k] for k in ("tool", "arguments", "result", "call_id", "cycle")} == {
        "tool": "grep",
        "arguments": {"pattern": "x"},
        "result": "two lines",
        "call_id": "call-1",
        "cycle": 1,
    }
    assert value["score"][0] == {
        "name": "accuracy",
        "value": 0.93,
        "comment": "held out",
        "cycle": 1,
        "event": "score",
        "schema_version": 6,
        "trace_id": TRACE,
        "event_seq": 4,
        "stage": "M2",
        "span_id": "m2.score.4",
        "ts": "2026-01-31T09:05:10.000123+00:00",
        "otel_trace_id": TRACE,
        "otel_span_id": span_id(3),
    }
    assert value["event"][0]["name"] == "decided"
    assert value["event"][0]["why"] == ["a"]
    assert value["stage"][0]["name"] == "M2"
    assert value["stage"][0]["severity"] == "high"


def test_another_stage_has_a_document_that_names_it(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.stage("../load data", 1)

    (document,) = (run_dir / "stages").glob("*/log.json") if folded(run_dir) else ()

    value = orjson.loads(document.read_bytes())
    assert list(value) == ["name", "stage"]
    assert value["name"] == "../load data"
    assert value["stage"][0]["stage"] == "../load data"
    assert value["stage"][0]["span_id"] == "c-1.../load data"


def test_what_stands_under_no_stage_goes_to_run_json(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.model_call(2, stage=None)
    journal.event("note", attributes=set_fields({"text": "x"}))

    value = folded(run_dir)

    assert list(value)[9:] == ["unrouted", "model_calls", "event", "run", "open"]
    assert value["model_calls"][0]["stage"] == "RUN"
    assert value["event"][0]["span_id"] == "run.event.3"
    assert not (run_dir / "M2").exists()


def test_a_field_whose_name_the_record_needs_itself_is_kept_under_fields(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    clashing = {"model": "mine", "status": "odd", "event": 1, "fields": {"a": 1}, "free": 2, "start": None}
    journal.model_call(2, attributes=set_fields(clashing))

    (record,) = folded(run_dir, "M2/log.json")["model_calls"]

    assert record["model"] == "some-model"
    assert record["free"] == 2
    assert record["event"] == "model_call"
    assert record["fields"] == {"model": "mine", "status": "odd", "event": 1, "fields": {"a": 1}, "start": None}
    keys = list(record)
    assert keys.index("free") < keys.index("fields") < keys.index("event")


def test_how_a_span_ended_is_shown_when_it_did_not_end_plainly(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.stage(
        "M1",
        1,
        attributes={
            names.ERROR_TYPE: "KeyError",
            names.OUTCOME: "exit",
            names.EXIT_CODE: 3,
            names.NOTES: '{"spanfold.x":"cut"}',
            "my.own": 1,
        },
        status_code=2,
        status_message="'x'",
    )

    (record,) = folded(run_dir, "M1/log.json")["stage"]

    assert list(record)[list(record).index("status") :] == [
        "status",
        "error_type",
        "status_message",
        "outcome",
        "exit_code",
        "notes",
        "otel_attributes",
    ]
    assert record["status"] == "error"
    assert record["notes"] == {"spanfold.x": "cut"}
    assert record["otel_attributes"] == {"my.own": 1}


def test_open_work_is_shown_until_it_ends(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.started("stage", "M2", 1, at=1, stage="M2", cycle=0)
    journal.started("model_call", "chat some-model", 2, at=2, stage="M2", cycle=0)
    engine = Engine(run_dir)
    engine.view()
    before = orjson.loads((run_dir / "run.json").read_bytes())["open"]
    journal.model_call(2, end=3)
    engine.view()
    after = orjson.loads((run_dir / "run.json").read_bytes())["open"]

    assert list(before) == [ROOT, span_id(1), span_id(2)]
    assert before[span_id(2)] == {
        "kind": "model_call",
        "name": "chat some-model",
        "stage": "M2",
        "cycle": 0,
        "start": "2026-01-31T09:05:09.000123Z",
    }
    assert list(after) == [ROOT, span_id(1)]


@pytest.mark.parametrize(
    ("end", "status"),
    [({}, "completed"), ({"status_code": 2}, "failed"), ({"status_code": 1}, "completed"), (None, "running")],
)
def test_the_status_of_a_run_is_that_of_its_root_span(
    run_dir: Path, journal: JournalFile, end: dict[str, Any] | None, status: str
) -> None:
    journal.run_started()
    if end is not None:
        journal.run_ended(**end)

    assert folded(run_dir)["run"]["status"] == status


def test_a_recovered_run_is_interrupted_and_stays_so(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.event(names.EVENT_RECOVERED, at=50, attributes=set_fields({"reason": "killed"}))
    journal.run_ended(status_code=2)

    run = folded(run_dir)["run"]

    assert run["status"] == "interrupted"
    assert run["recovered"] == {"at": "2026-01-31T09:05:57.000123Z", "reason": "killed"}


def test_losses_and_seal_are_shown(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.event(names.EVENT_LOST, attributes=set_fields({"count": 3}))
    journal.event(names.EVENT_LOST, attributes=set_fields({"count": 4}))
    journal.run_ended()
    heads = {journal.path.name: {"seq": 4, "head": "ab" * 32, "size": 99}}
    journal.event(names.EVENT_SEALED, at=101, attributes=set_fields({"heads": heads}))

    run = folded(run_dir)["run"]

    assert run["losses"] == {"journal_records": 7}
    assert run["seal"] == {"head": "ab" * 32, "seq": 4, "files": heads}


@pytest.mark.contract("DL-024")
def test_sequence_numbers_have_no_gap_over_all_documents(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    for number in range(30):
        journal.model_call(100 + number, stage=("M1", "M2", None, "load")[number % 4], end=number)
        journal.event("e", at=number, attributes={names.STAGE: "M3"})
        journal.span("timing", "t", 200 + number, end=number)
    fold_run(run_dir)

    found: list[int] = []
    for path in run_dir.rglob("*.json"):
        if path.name in ("run.json", "log.json"):
            found += _sequence_numbers(json.loads(path.read_bytes()))
    assert sorted(found) == list(range(1, 62))


def _sequence_numbers(value: dict[str, Any]) -> list[int]:
    lists = [[r["event_seq"] for r in v] for v in value.values() if isinstance(v, list)]
    assert all(numbers == sorted(numbers) for numbers in lists)
    start = value.get("run_start")
    return [n for numbers in lists for n in numbers] + ([start["event_seq"]] if start else [])


def test_times_that_no_calendar_has_are_null(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.put(journal.stage("M1", 1, write=False).replace(b'"1769850308000123456"', b'"%d"' % 2**90))
    journal.put(journal.stage("M1", 2, write=False).replace(b'"1769850307000123456"', b'"-99999999999999999999999"'))

    one, other = folded(run_dir, "M1/log.json")["stage"]

    assert one["end"] is None
    assert one["ts"] is None
    assert other["start"] is None


def test_attributes_that_are_not_what_they_claim_to_be_are_shown_as_they_are(
    run_dir: Path, journal: JournalFile
) -> None:
    journal.run_started()
    journal.span(
        "model_call",
        "x",
        2,
        attributes={
            names.STAGE: 7,
            names.JSON_FIELDS: ("spanfold.bad", names.GENAI_INPUT, "spanfold.number"),
            "spanfold.bad": "{not json",
            "spanfold.number": 5,
            names.GENAI_INPUT: '[{"role": 1}]',
            names.INPUT_FORM: "text",
            names.GENAI_OUTPUT: "plain",
            names.OUTPUT_FORM: "messages",
            names.GENAI_INPUT_TOKENS: "many",
            names.NOTES: "{",
            names.SELF_NS: "soon",
            names.DEPTH: -1,
        },
    )

    (record,) = folded(run_dir)["model_calls"]

    assert record["bad"] == "{not json"
    assert record["number"] == 5
    assert record["input"] == '[{"role": 1}]'
    assert record["output"] == "plain"
    assert record["notes"] == "{"
    assert "usage" not in record
