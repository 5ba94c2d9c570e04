"""`timings.jsonl`: one row for every ended span of ours, and for model, tool and agent spans of others (EP 4.3)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from spanfold import names
from spanfold.fold._encoding import line
from spanfold.fold.entry import Entry
from spanfold.fold.family import Composition, Output
from spanfold.fold.run_state import RunState
from spanfold.moments import seconds

LOG: Final = "timings.jsonl"

CONTAINERS: Final = frozenset({"run", "cell", "pass", "batch", "closeout"})
"""Kinds that only enclose others, and so count in no total (EP 7.4)."""
MAX_ATTRIBUTES: Final = 64
MAX_TEXT: Final = 500
"""Characters of one attribute (EP 7.3)."""
_PHASE: Final = frozenset({"phase"})
_OF_A_LOOP: Final = _PHASE | names.DL_CONTENT | {names.DL_EVENT.removeprefix(names.PREFIX)}
"""Fields of an event of a diagnose loop that are message content, or say only which event it is."""
_FACTS: Final = (
    ("model", names.GENAI_MODEL),
    ("served_model", names.GENAI_SERVED_MODEL),
    ("provider", names.GENAI_PROVIDER),
    ("operation", names.GENAI_OPERATION),
    ("agent", names.GENAI_AGENT),
    ("tool", names.GENAI_TOOL),
    ("outcome", names.OUTCOME),
    ("items", names.ITEMS),
)


class TimingsFamily:
    """Writes a row when a span ends, so children stand before their parents."""

    name = "timings"

    def __init__(self, run: RunState) -> None:
        self._run = run

    def begin(self, out: Output) -> None:
        """Do nothing: a missing file means that nothing was timed."""

    def fold(self, entry: Entry, out: Output) -> None:
        """Add the row of an ended span."""
        if entry.span is not None and entry.kind:
            out.line(LOG, line(self._row(entry)))

    def finish(self, out: Output) -> None:
        """Do nothing: a log is always up to date."""

    def compose(self, document: str, buckets: Sequence[str]) -> Composition | None:
        """Return None: this family has no document."""
        return None

    def state(self) -> Mapping[str, Any]:
        """Return nothing: every row stands for itself."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    def _row(self, entry: Entry) -> dict[str, Any]:
        span, attributes, run = entry.span, entry.attributes, self._run
        assert span is not None
        failed = span.status_code == 2
        depth, parent, phase = attributes.get(names.DEPTH), attributes.get(names.PARENT), entry.fields.get("phase")
        above = attributes.get(names.RECORDED_PARENT)
        return {
            "schema": names.TIMING_SCHEMA,
            "run_id": run.name,
            "cell_id": run.folder if run.folder is not None else run.name,
            "stage": names.timing_token(entry.kind, span.name),
            "phase": phase if type(phase) is str else None,
            "pass": None,
            "parent": parent if type(parent) is str else None,
            "depth": depth if type(depth) is int and depth >= 0 else 0,
            "start": entry.start,
            "end": entry.end,
            "seconds": entry.seconds,
            "ok": not failed,
            "measured": True,
            "attributes": _attributes(entry, span.name),
            "container": entry.kind in CONTAINERS,
            "source": "timer",
            "error": attributes.get(names.ERROR_TYPE) if failed else None,
            "trace_id": span.trace_id,
            "span_id": span.span_id,
            "parent_span_id": (above if type(above) is str else span.parent_span_id) or None,
            "self_seconds": seconds(attributes.get(names.SELF_NS)),
        }


def _attributes(entry: Entry, name: str) -> dict[str, Any]:
    """Return the scalar facts of a span; content is never among them."""
    found: dict[str, Any] = {"kind": entry.kind, "name": name[:MAX_TEXT]}
    if entry.stage is not None and entry.kind != "stage":
        found["stage"] = entry.stage[:MAX_TEXT]
    attributes = entry.attributes
    for key, attribute in _FACTS:
        if attribute in attributes:
            _put(found, key, attributes[attribute])
    if entry.wrapped:
        found["wrapped"] = True
    found.update(entry.usage)
    left_out = _OF_A_LOOP if names.DL_EVENT in attributes else _PHASE
    for key, value in entry.fields.items():
        if key not in left_out and key not in found and len(found) < MAX_ATTRIBUTES:
            _put(found, key, value)
    return found


def _put(found: dict[str, Any], key: str, value: object) -> None:
    if isinstance(value, str):
        found[key] = value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 1] + "…"
    elif isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        found[key] = value
