"""The records a journal holds, as plain frozen data without I/O.

`Span` and `Event` are what readers, the fold, delivery and bundles see. The
recorder itself never builds one: it encodes its own span objects straight
into journal lines (journal/codec.py), and both directions meet there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

Attributes = Mapping[str, Any]
"""Attribute key -> OTLP value (str, bool, int, float, bytes, None, list, dict), in written order."""

StatusCode = Literal[0, 1, 2]
"""OTLP: 0 unset, 1 ok, 2 error."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The library that made a record."""

    name: str
    version: str = ""
    attributes: Attributes = field(default_factory=dict[str, Any])


class Link(NamedTuple):
    """A pointer to another span."""

    trace_id: str
    span_id: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Position:
    """Where a record stands in its journal."""

    path: Path
    offset: int
    """First byte of the line."""
    length: int
    """Bytes of the line, newline included."""
    seq: int
    """The writer's sequence number, from 1; 0 for a foreign line without one."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something with a duration, ended."""

    trace_id: str
    """32 lower-case hex digits."""
    span_id: str
    """16 lower-case hex digits."""
    parent_span_id: str
    """16 lower-case hex digits, or empty for a root."""
    name: str
    otel_kind: int
    """OTLP SpanKind: 1 internal, 2 server, 3 client, 4 producer, 5 consumer."""
    start_ns: int
    """Wall clock, nanoseconds since the epoch."""
    end_ns: int
    """`start_ns` plus the monotonic duration."""
    attributes: Attributes
    status_code: StatusCode
    status_message: str
    scope: Scope
    resource: Attributes
    links: tuple[Link, ...] = ()
    trace_state: str = ""
    flags: int = 0
    events: tuple["Event", ...] = ()
    """Span events of foreign spans; ours are `Event` records of their own."""
    position: Position | None = None

    @property
    def time_ns(self) -> int:
        """When the record was made: the end."""
        return self.end_ns


@dataclass(frozen=True, slots=True)
class Event:
    """A moment: an OTLP log record with an event name."""

    trace_id: str
    """32 hex digits, or empty."""
    span_id: str
    """16 hex digits of the span it belongs to, or empty."""
    name: str
    time_ns: int
    """Wall clock, nanoseconds since the epoch."""
    attributes: Attributes
    scope: Scope
    resource: Attributes
    severity: int = 9
    """OTLP severity number; 9 is INFO."""
    body: str = ""
    position: Position | None = None


Record = Span | Event


def seconds(span: Span) -> float:
    """Return the duration of a span in seconds, rounded to 6 decimals (EP 3.3)."""
    return round((span.end_ns - span.start_ns) / 1e9, 6)
