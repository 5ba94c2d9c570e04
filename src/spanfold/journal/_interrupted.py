"""End the spans that a dead process left open, from what their started events said.

Pure functions over records: what is written, and where, is decided by
`recover_run`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import orjson

from spanfold import names
from spanfold.journal._core import Encoder
from spanfold.journal._encode import AttributeValue
from spanfold.journal._values import JsonText
from spanfold.model import Event, Record, Span

INTERRUPTED: Final = "interrupted"
"""`error.type`, outcome and status message of a span that recovery ended."""

Key = tuple[str, str]
"""Trace id and span id."""

_NOT_OF_THE_SPAN: Final = frozenset(
    {names.SPAN_NAME, names.SPAN_PARENT, names.OPEN_START, names.LINKS, names.JSON_FIELDS, names.NOTES}
)


@dataclass(slots=True)
class OpenSpan:
    """A span that was started and never ended."""

    started: Event
    end_ns: int = 0
    """Time of the last record of its trace, at least its own start."""
    parent_token: str = ""
    """`spanfold.parent` it would have had."""
    _children: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _join_at: int = 1_000

    @property
    def key(self) -> Key:
        """Trace id and span id."""
        return self.started.trace_id, self.started.span_id

    @property
    def parent_key(self) -> Key:
        """Trace id and span id of its parent; the latter empty for a root."""
        return self.started.trace_id, str(self.started.attributes.get(names.SPAN_PARENT) or "")

    @property
    def kind(self) -> str:
        """`spanfold.kind`."""
        return str(self.started.attributes.get(names.KIND) or "")

    @property
    def name(self) -> str:
        """Name of the span."""
        return str(self.started.attributes.get(names.SPAN_NAME) or "")

    @property
    def start_ns(self) -> int:
        """Wall clock, nanoseconds."""
        start = self.started.attributes.get(names.OPEN_START)
        return start if type(start) is int else self.started.time_ns

    def add_child(self, start_ns: int, end_ns: int) -> None:
        """Take the time of a direct child, for self time."""
        self._children.append((start_ns, end_ns))
        if len(self._children) >= self._join_at:
            self._children = _union(self._children)
            self._join_at = max(self._join_at, 2 * len(self._children))

    def self_ns(self) -> int:
        """Return the duration outside all direct children (EP 8.2)."""
        clipped = ((max(s, self.start_ns), min(e, self.end_ns)) for s, e in self._children)
        return self.end_ns - self.start_ns - sum(e - s for s, e in _union(c for c in clipped if c[0] < c[1]))


def _union(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


class OpenSpans:
    """The open spans of a journal. `see` every record once, then `look_again` at every record once."""

    def __init__(self) -> None:
        self.spans: dict[Key, OpenSpan] = {}
        self.last_ns: dict[str, int] = {}
        """Trace id -> time of its last record."""

    def see(self, record: Record) -> None:
        """Take a record of the first pass: what is open, and when a trace was last heard of."""
        trace_id = record.trace_id
        self.last_ns[trace_id] = max(record.time_ns, self.last_ns.get(trace_id, 0))
        if isinstance(record, Span):
            self.spans.pop((trace_id, record.span_id), None)
        elif record.name == names.EVENT_STARTED and record.span_id:
            self.spans.setdefault((trace_id, record.span_id), OpenSpan(record))

    def settle(self) -> None:
        """End the first pass: every open span gets the end it will have."""
        for span in self.spans.values():
            span.end_ns = max(self.last_ns[span.started.trace_id], span.start_ns)
        for span in self.spans.values():
            parent = self.spans.get(span.parent_key)
            if parent is not None:
                parent.add_child(span.start_ns, span.end_ns)
                self._token(span, parent.kind, parent.name)

    def look_again(self, record: Record) -> None:
        """Take a record of the second pass: children of open spans, and parents that ended before them."""
        if not isinstance(record, Span) or names.KIND not in record.attributes:
            return
        parent = self.spans.get((record.trace_id, record.parent_span_id))
        if parent is not None:
            parent.add_child(record.start_ns, record.end_ns)
        for span in self._orphans().get((record.trace_id, record.span_id), ()):
            self._token(span, str(record.attributes[names.KIND]), record.name)

    def _orphans(self) -> Mapping[Key, list[OpenSpan]]:
        if self._waiting is None:
            self._waiting = {}
            for span in self.spans.values():
                if span.parent_key not in self.spans:
                    self._waiting.setdefault(span.parent_key, []).append(span)
        return self._waiting

    _waiting: dict[Key, list[OpenSpan]] | None = None

    @staticmethod
    def _token(span: OpenSpan, kind: str, name: str) -> None:
        if span.started.attributes.get(names.DEPTH):
            span.parent_token = names.timing_token(kind, name)

    def children_first(self) -> list[OpenSpan]:
        """Return the open spans so that each comes before its parent."""
        depth: dict[Key, int] = {}

        def depth_of(span: OpenSpan) -> int:
            way: list[OpenSpan] = []
            at: OpenSpan | None = span
            # A journal somebody edited may hold a circle of parents.
            while at is not None and at.key not in depth and len(way) <= len(self.spans):
                way.append(at)
                at = self.spans.get(at.parent_key)
            below = depth.get(at.key, 0) if at is not None else 0
            for number, one in enumerate(reversed(way), 1):
                depth[one.key] = below + number
            return depth[span.key]

        return sorted(self.spans.values(), key=lambda s: (-depth_of(s), -s.start_ns, s.key))


def encode_interrupted(encoder: Encoder, span: OpenSpan, more: Mapping[str, AttributeValue]) -> bytes:
    """Return the OTLP JSON of an open span, ended as interrupted.

    Args:
        encoder: Of the journal it goes to.
        span: What to end.
        more: Further attributes.
    """
    attributes = span_attributes(span.started)
    if span.parent_token:
        attributes[names.PARENT] = span.parent_token
    attributes[names.SELF_NS] = span.self_ns()
    attributes[names.OUTCOME] = INTERRUPTED
    attributes[names.ERROR_TYPE] = INTERRUPTED
    attributes.update(more)
    # A call of another service is a client span; started events do not say it, the recorder's rule does.
    is_client = span.kind == "model_call" or (span.kind == "agent" and names.GENAI_PROVIDER in attributes)
    body, _ = encoder.span(
        trace_id=span.started.trace_id.encode(),
        span_id=span.started.span_id.encode(),
        parent_span_id=span.parent_key[1].encode(),
        name=span.name,
        otel_kind=3 if is_client else 1,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        attributes=attributes,
        notes=_notes(span.started),
        status_code=2,
        status_message=INTERRUPTED,
    )
    return body


def span_attributes(started: Event) -> dict[str, AttributeValue]:
    """Return what a started event said of its span, in the form the encoder takes."""
    json_keys: frozenset[Any] = frozenset(started.attributes.get(names.JSON_FIELDS) or [])
    return {
        key: JsonText(value) if key in json_keys else encodable(value)
        for key, value in started.attributes.items()
        if key not in _NOT_OF_THE_SPAN
    }


def encodable(value: Any) -> AttributeValue:
    """Return a decoded OTLP value in the form the encoder takes."""
    return tuple(map(encodable, cast("list[Any]", value))) if isinstance(value, list) else value


def _notes(started: Event) -> dict[str, str] | None:
    found = started.attributes.get(names.NOTES)
    try:
        notes = orjson.loads(found) if isinstance(found, str) else None
    except ValueError:
        return None
    return cast("dict[str, str]", notes) if isinstance(notes, dict) else None
