"""Journals of every format version ever released are read for ever, to the same records.

`golden/journal-v1` was written once and is never written again: a reader that
no longer gives `expected.json` for it is the bug.
"""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from spanfold import names
from spanfold.journal._decode import content, fields
from spanfold.journal._reader import read_journal
from spanfold.journal._verify import verify_journal
from spanfold.model import Event, Record, Span

GOLDEN = Path(__file__).parent / "golden"


def plain(value: Any) -> Any:
    """Return a value as JSON shows it: bytes as their base64."""
    if isinstance(value, bytes):
        return f"base64:{base64.b64encode(value).decode()}"
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def shown(record: Record) -> dict[str, Any]:
    position = record.position
    assert position is not None
    out: dict[str, Any] = {
        "line": [position.path.name, position.offset, position.length, position.seq],
        "type": type(record).__name__,
        "name": record.name,
        "trace_id": record.trace_id,
        "span_id": record.span_id,
        "attributes": plain(dict(record.attributes)),
        "fields": plain(fields(record)),
        "scope": [record.scope.name, record.scope.version, dict(record.scope.attributes)],
        "resource": dict(record.resource),
    }
    if isinstance(record, Event):
        return {**out, "time_ns": record.time_ns, "severity": record.severity, "body": record.body}
    return {
        **out,
        "parent_span_id": record.parent_span_id,
        "start_ns": record.start_ns,
        "end_ns": record.end_ns,
        "otel_kind": record.otel_kind,
        "status": [record.status_code, record.status_message],
        "links": [[link.trace_id, link.span_id, dict(link.attributes)] for link in record.links],
        "events": [[e.name, e.time_ns, dict(e.attributes)] for e in record.events],
        "trace_state": record.trace_state,
        "flags": record.flags,
        "input": content(record, output=False),
        "output": content(record, output=True),
    }


def snapshot(run_dir: Path) -> list[dict[str, Any]]:
    return [shown(record) for record in read_journal(run_dir).records]


@pytest.mark.parametrize("version", ["journal-v1"])
def test_a_journal_of_an_earlier_version_is_read_to_the_same_records(version: str) -> None:
    run_dir = GOLDEN / version
    expected = json.loads((run_dir / "expected.json").read_text("utf-8"))

    assert repr(snapshot(run_dir)) == repr(expected)
    assert read_journal(run_dir).damage == []


@pytest.mark.parametrize("version", ["journal-v1"])
def test_a_journal_of_an_earlier_version_verifies(version: str) -> None:
    verdict = verify_journal(GOLDEN / version)

    assert (verdict.findings, verdict.state) == ((), "intact")


def test_the_golden_journal_holds_every_kind_of_record() -> None:
    records = list(read_journal(GOLDEN / "journal-v1").records)
    kinds = {r.attributes.get(names.KIND) for r in records if isinstance(r, Span)}
    events = {r.name for r in records if isinstance(r, Event)}

    assert kinds == {*names.Kind.__args__, None}  # type: ignore[attr-defined]  # None: a foreign span
    assert events >= {
        names.EVENT_STARTED,
        names.EVENT_SCORE,
        names.EVENT_ARTIFACT,
        names.EVENT_EXCEPTION,
        names.EVENT_LOST,
        names.EVENT_SEALED,
    }
    assert {r.span_id for r in records if r.name == names.EVENT_STARTED} == {
        r.span_id for r in records if isinstance(r, Span) and r.attributes.get(names.KIND) in names.OPEN_KINDS
    }


def test_the_example_of_the_format_page_is_a_line_of_the_golden_journal() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats" / "journal-v1.md").read_text("utf-8")
    example = json.loads(page.partition("```json\n")[2].partition("```")[0])

    lines = [
        line
        for path in (GOLDEN / "journal-v1" / "journal").glob("*.jsonl")
        for line in path.read_text("utf-8").split("\n")
    ]

    assert json.dumps(example, ensure_ascii=False, separators=(",", ":")) in lines
