"""langfuse_trace.json: the run as one trace, in the records of DL 10.2."""

import json
from pathlib import Path

import pytest

from spanfold import names
from spanfold.fold import Engine, fold_run
from tests.fold.journals import ROOT, TRACE, JournalFile, set_fields, span_id


def test_the_trace_holds_spans_generations_and_scores(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started(task="digits")
    journal.model_call(2, parent=1, start=1, end=2, attributes=set_fields({"attempt": 1}))
    journal.event(names.EVENT_SCORE, at=3, span=1, attributes={names.SCORE_NAME: "accuracy", names.SCORE_VALUE: 0.5})
    journal.stage("M2", 1, 0, start=1, end=4, status_code=2, attributes={names.ERROR_TYPE: "KeyError"})
    journal.span("timing", "load", 5, attributes={names.STAGE: "load"})
    journal.run_ended(end=10)
    fold_run(run_dir)

    text = (run_dir / "langfuse_trace.json").read_bytes()
    value = json.loads(text)
    assert text == json.dumps(value, indent=2, ensure_ascii=False).encode()
    assert list(value) == ["trace", "spans", "generations", "scores", "events"]
    assert value["trace"]["id"] == TRACE
    assert value["trace"]["name"] == "digits"
    assert value["trace"]["metadata"]["task"] == "digits"
    assert value["trace"]["metadata"]["created_at"] == 1769850307.000123
    assert value["trace"]["duration_sec"] == 10.0
    assert [(s["name"], s["stage"], s["status"]) for s in value["spans"]] == [
        ("M2", "M2", "failed"),
        ("load", "load", "completed"),
    ]
    assert value["spans"][0]["parent_id"] == ROOT
    assert value["spans"][0]["error_type"] == "KeyError"
    assert value["generations"] == [
        {
            "id": span_id(2),
            "trace_id": TRACE,
            "span_id": span_id(1),
            "name": "chat some-model",
            "model": "some-model",
            "prompt": "Hi",
            "completion": "Hello",
            "usage": {"input_tokens": 12, "output_tokens": 3},
            "metadata": {"stage": "M2", "attempt": 1},
            "timestamp": 1769850309.000123,
            "start_time": 1769850308.000123,
            "duration_sec": 1.0,
            "status": "completed",
        }
    ]
    assert value["scores"] == [
        {"name": "accuracy", "value": 0.5, "comment": "", "span_id": span_id(1), "timestamp": 1769850310.000123}
    ]
    assert value["events"] == []


def test_the_trace_appears_when_the_run_is_closed_and_not_before(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    engine = Engine(run_dir)
    journal.model_call(2)
    engine.catch_up(force=True)
    before = (run_dir / "langfuse_trace.json").exists()
    journal.run_ended()
    engine.close()

    assert not before
    assert (run_dir / "langfuse_trace.json").exists()


@pytest.mark.case("C-070")
def test_a_wrapped_call_says_so(run_dir: Path, journal: JournalFile) -> None:
    journal.started("model_call", "chat m", 1)
    attributes = {names.GENAI_OPERATION: "chat", names.GENAI_MODEL: "m"}
    journal.span(None, "chat m", 2, parent=1, attributes=attributes, scope="litellm")
    journal.model_call(1)
    fold_run(run_dir)

    generations = json.loads((run_dir / "langfuse_trace.json").read_bytes())["generations"]
    assert [g["metadata"].get("wrapped", False) for g in generations] == [True, False]
