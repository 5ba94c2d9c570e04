"""The documents of a run that eight threads record at once."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import spanfold

ENVELOPE = {
    "event": str,
    "schema_version": int,
    "trace_id": str,
    "event_seq": int,
    "stage": str,
    "span_id": str,
    "ts": str,
}


def record(number: int) -> None:
    """Record something of every kind under one of five stages, or under none."""
    stage = ("M1", "M2", "M3", "fix", "load", None)[number % 6]
    with spanfold.stage(stage, cycle=number) if stage else spanfold.timed("aside"):
        with spanfold.model_call("m", provider="p", input="q") as call, spanfold.tool("grep"):
            call.output("a")
        with spanfold.agent("reviewer"):
            spanfold.score("accuracy", number)
        spanfold.event("seen", number=number)


@pytest.fixture
def documents(tmp_path: Path) -> list[dict[str, Any]]:
    with spanfold.run("r", dir=tmp_path / "run"), ThreadPoolExecutor(8) as pool:
        list(spanfold.traced_executor(pool).map(record, range(48)))
    return [json.loads(path.read_bytes()) for path in (tmp_path / "run").rglob("*.json") if "langfuse" not in path.name]


@pytest.mark.contract("DL-024", "DL-025")
def test_sequence_numbers_rise_in_every_list_and_have_no_gap(documents: list[dict[str, Any]]) -> None:
    lists = [[r["event_seq"] for r in v] for d in documents for v in d.values() if isinstance(v, list)]
    found = [n for numbers in lists for n in numbers] + [
        d["run_start"]["event_seq"] for d in documents if "run_start" in d
    ]

    assert all(numbers == sorted(set(numbers)) for numbers in lists)
    assert sorted(found) == list(range(1, len(found) + 1))
    assert len(found) == 1 + 48 * 5 + 40  # the work aside is a row of timings.jsonl and no record


@pytest.mark.contract("DL-021", "DL-023")
def test_every_record_of_every_document_has_the_whole_envelope(documents: list[dict[str, Any]]) -> None:
    records = [r for d in documents for v in d.values() if isinstance(v, list) for r in v]
    records += [d["run_start"] for d in documents if "run_start" in d]

    assert len(records) > 200
    for found in records:
        assert {name: type(found.get(name)) for name in ENVELOPE} == ENVELOPE
        assert found["schema_version"] == 6
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", found["ts"])
