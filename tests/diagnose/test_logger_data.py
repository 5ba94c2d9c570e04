"""Data that is odd, is changed afterwards, or has to come back as it was told."""

import json
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.diagnose import RunLogger
from spanfold.fold import check_documents, fold_run
from tests.diagnose.programs import told
from tests.diagnose.script import analysis, documents, hypothesis, intervention, play


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def _poison() -> dict[str, Any]:
    cyclic: dict[str, Any] = {"a": 1}
    cyclic["self"] = cyclic
    return {
        "tuple keys": {("a", 1): 2},
        "lone surrogate": "\ud800",
        "cyclic": cyclic,
        "hostile": Hostile(),
        "object": object(),
        "set": {1, 2},
        "bytes": b"\xff",
        "nan": float("nan"),
        "huge": 10**400,
        "deep": json.loads("[" * 500 + "]" * 500),
        "generator": (i for i in range(3)),
        "lock": threading.Lock(),
    }


@pytest.mark.contract("DL-131", "DL-134", "DL-148", "DL-181", "DL-166")
@pytest.mark.parametrize("name", list(_poison()))
def test_poisonous_data_is_written_in_a_repaired_form_and_keeps_no_later_event_from_its_document(
    tmp_path: Path, name: str
) -> None:
    run_dir = tmp_path / "run"
    poison = _poison()[name]
    log = RunLogger(run_dir, observability_mode="offline")
    log.log_run_start({"x": poison})
    log.log_model_call(
        cycle=0,
        analyzer="a",
        call_index=1,
        method="generate",
        inputs=poison,
        kwargs={"k": poison},
        output=poison,
        duration_sec=0.1,
        error=None,
    )
    log.log_surgery(0, hypothesis(), intervention({"p": poison}, status=None, confidence_score=poison))
    log.log_analysis(0, analysis(run_dir, stats_plan=poison, findings=[poison]))
    log.log_model_exchange("M5", role="judge", operation="generate", inputs=poison, output=[poison])
    log.log_stage_skipped("M4", "later")
    read = documents(run_dir)
    log.close()

    assert read["M4/log.json"]["stage_skipped"][0]["reason_code"] == "later"
    assert told(run_dir) == Counter(run_start=1, model_call=3, surgery=1, analysis=1, stage_skipped=1), (
        "one call, one exchange, one judge"
    )
    for path in run_dir.rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        json.loads(text, parse_constant=lambda word: pytest.fail(f"no strict JSON: {word}"))
        assert " at 0x" not in text
    assert not check_documents(run_dir)


@pytest.mark.contract("DL-139")
def test_what_is_changed_after_it_was_logged_stays_as_it_was(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    inputs, evidence = {"prompt": ["as it was"]}, {"m4_test_name": "t", "rows": [1]}
    with RunLogger(run_dir, observability_mode="offline") as log:
        log.log_surgery(0, hypothesis(), intervention(evidence))
        log.log_model_call(
            cycle=0,
            analyzer="a",
            call_index=1,
            method="generate",
            inputs=inputs,
            kwargs={},
            output=inputs,
            duration_sec=0.1,
            error=None,
        )
        inputs["prompt"].append("changed")
        evidence["rows"].append(2)

    found = documents(run_dir)
    assert found["M1/log.json"]["model_calls"][0]["inputs"] == {"prompt": ["as it was"]}
    assert found["M4/log.json"]["surgery"][0]["evidence"]["rows"] == [1]
    assert "changed" not in (run_dir / "langfuse_trace.json").read_text(encoding="utf-8")


def test_documents_that_are_gone_are_made_again_to_the_same_bytes(tmp_path: Path) -> None:
    play(RunLogger(tmp_path / "run", observability_mode="offline"), tmp_path)
    names = {
        *(f"M{n}/log.json" for n in range(1, 6)),
        "run.json",
        "spanfold.json",
        "langfuse_trace.json",
        "timings.jsonl",
    }
    before = {name: (tmp_path / "run" / name).read_bytes() for name in names}
    for name in names:
        (tmp_path / "run" / name).unlink()

    fold_run(tmp_path / "run")
    fold_run(tmp_path / "run", into=tmp_path / "elsewhere")

    for folder in ("run", "elsewhere"):
        assert {name: (tmp_path / folder / name).read_bytes() for name in names} == before


DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


# Names that mean something to the journal or to the fold.
KEYS = st.text(min_size=1) | st.sampled_from(
    [
        *("cycle", "stage", "kind", "field.x", "field.stage", "diagnose.x", "input", "output", "input_form", "notes"),
        *(
            "json_fields",
            "run.id",
            "run.losses",
            "seal.head",
            "phase",
            "name",
            "layout",
            "artifacts",
            "span_name",
            "depth",
        ),
        *("self_ns", "outcome", "content", "host", "pid", "argv", "recorded_parent", "usage", "items", "open", "run"),
    ]
)


@pytest.mark.slow
@given(config=st.dictionaries(KEYS, DATA, max_size=6), inputs=DATA, output=DATA, kwargs=DATA)
def test_plain_data_comes_back_from_the_documents_as_it_was_told(
    config: dict[str, Any], inputs: Any, output: Any, kwargs: Any
) -> None:
    envelope = {"ts", "trace_id", "event", "schema_version", "event_seq", "stage", "span_id"}
    config = {key: value for key, value in config.items() if key not in envelope}
    with tempfile.TemporaryDirectory() as folder:
        with RunLogger(Path(folder) / "run", observability_mode="offline") as log:
            log.log_run_start(config)
            log.log_model_exchange("M2", role="r", operation="o", inputs=inputs, output=output, metadata={"k": kwargs})
        found = documents(Path(folder) / "run")

    start, exchange = found["run.json"]["run_start"], found["M2/log.json"]["model_calls"][0]
    assert {key: start[key] for key in config} == config
    assert [key for key in start if key in config] == list(config)
    assert (exchange["inputs"], exchange["output"], exchange["metadata"]) == (inputs, output, {"k": kwargs})
