"""Read the documents of a diagnose loop back as its events, whoever wrote them (DL 14.2, 14.3).

Pure reading: a document that is missing, or is no JSON, has no events, and the
others are read all the same.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, cast

from spanfold.errors import SpanfoldError
from spanfold.fs import SafeRoot
from spanfold.routing import RUN_DOCUMENT, RUN_LABEL, STAGES

Event = dict[str, Any]

EVENT_OF_BUCKET: Final[Mapping[str, str]] = {
    "cases": "case_record",
    "model_calls": "model_call",
    "diagnose_reports": "diagnose_report",
    "agent_decisions": "agent_decision",
    "agent_tool_calls": "agent_tool",
}
"""Bucket -> event name, where they differ (DL 4.1)."""
RUN_KEY: Final = "run"
"""In the run.json of every run of spanfold that is no diagnose loop."""
SPAN_FIELD: Final = "otel_span_id"
_RUN_BUCKETS: Final = (
    *("cases", "report_published", "diagnose_reports", "loop_end"),
    *("agent_decisions", "agent_tool_calls", "unrouted"),
)


@dataclass(frozen=True, slots=True)
class Documents:
    """What the documents of a run say."""

    run_dir: Path
    """The directory that holds `run.json`."""
    run: Mapping[str, Any]
    """Content of `run.json`."""
    events: list[Event]
    """Every event, in order, with an `event_seq` each."""

    @property
    def trace_id(self) -> str:
        """Trace id of the documents: that of the first event that has one, else of `run.json`; empty when none has."""
        found = (event.get("trace_id") for event in (*self.events, self.run))
        return next((text for text in found if isinstance(text, str) and text), "")

    @property
    def run_start(self) -> Mapping[str, Any]:
        """The record of the start; empty when there is none."""
        return table(self.run.get("run_start"))

    def last(self, event: str, **wanted: Any) -> Event | None:
        """Return the last event of a name with these values; None when there is none."""
        for found in reversed(self.events):
            if found["event"] == event and all(found.get(key) == value for key, value in wanted.items()):
                return found
        return None


def find_documents(run_dir: str | Path) -> Path:
    """Return the directory that holds the documents of a run: the one named, or `logs` in it.

    Raises:
        FileNotFoundError: There is no run.
    """
    for folder in (Path(run_dir), Path(run_dir) / "logs"):
        if (folder / RUN_DOCUMENT).is_file() and any((folder / stage / "log.json").is_file() for stage in STAGES):
            return folder
    raise FileNotFoundError(
        f"{run_dir}: expected a run of a diagnose loop (run.json and at least one of M1/log.json to M5/log.json, there or in "
        "logs/), found none. Give the directory that holds run.json."
    )


def read_documents(run_dir: str | Path) -> Documents:
    """Read the documents of a run.

    Raises:
        FileNotFoundError: There is no run.
    """
    folder = find_documents(run_dir)
    root = SafeRoot(folder.resolve())
    run = _document(root, RUN_DOCUMENT)
    events = _events(root, run)
    trace_id = run.get("trace_id")
    for event in events:
        event.setdefault("trace_id", trace_id)
    return Documents(folder, run, _in_order(events))


def recorder_of(run_dir: str | Path) -> Literal["spanfold", "other", ""]:
    """Return who wrote the documents of a diagnose loop; empty when a directory has none.

    Records of spanfold name the spans of the journal that they were made from.
    """
    for folder in (Path(run_dir), Path(run_dir) / "logs"):
        if not (folder / RUN_DOCUMENT).is_file():
            continue
        root = SafeRoot(folder.resolve())
        run = _document(root, RUN_DOCUMENT)
        if "run_start" in run and RUN_KEY not in run:
            events = _events(root, run)
            return "other" if events and not any(SPAN_FIELD in event for event in events) else "spanfold"
    return ""


def _events(root: SafeRoot, run: Mapping[str, Any]) -> list[Event]:
    events = list(_run_events(run))
    for stage in STAGES:
        for bucket, rows in _document(root, f"{stage}/log.json").items():
            events += _rows(bucket, rows, stage)
    return events


def _run_events(run: Mapping[str, Any]) -> Iterator[Event]:
    yield from _rows("run_start", run.get("run_starts", [run.get("run_start")]), RUN_LABEL)
    for bucket in _RUN_BUCKETS:
        yield from _rows(bucket, run.get(bucket), RUN_LABEL)


def _rows(bucket: str, rows: object, stage: str) -> Iterator[Event]:
    for row in cast("list[object]", rows) if isinstance(rows, list) else ():
        if isinstance(row, dict):
            event = dict(cast("Event", row))
            event.setdefault("event", EVENT_OF_BUCKET.get(bucket, bucket))
            event.setdefault("stage", stage)
            if event["event"] in ("surgery", "fix"):
                event.setdefault("module", "fix" if event["event"] == "fix" else stage.lower())
            yield event


def _in_order(events: list[Event]) -> list[Event]:
    if all(type(event.get("event_seq")) is int for event in events):
        return sorted(events, key=lambda event: cast("int", event["event_seq"]))
    found = sorted(events, key=lambda event: str(event.get("ts", "")))
    for number, event in enumerate(found, start=1):
        event["event_seq"] = number
    return found


def _document(root: SafeRoot, path: str) -> dict[str, Any]:
    try:
        return table(json.loads(root.read_bytes(path)))
    except (OSError, SpanfoldError, ValueError, RecursionError):
        return {}


# -- values of records


def table(value: object) -> dict[str, Any]:
    """Return a JSON object; an empty one for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def rows(value: object) -> list[dict[str, Any]]:
    """Return the JSON objects of a list; none for anything else."""
    found = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in found if isinstance(item, dict)]


def number(value: object) -> float | None:
    """Return a finite JSON number; None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    return None


def epoch_ns(ts: object) -> int | None:
    """Return a timestamp of a record as nanoseconds since the epoch; None when it is none."""
    try:
        moment = datetime.fromisoformat(str(ts))
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    # Whole numbers: a double of today's epoch resolves a quarter of a microsecond.
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
