"""Spans of other instrumentors: which belong to a run, where they stand, and how they are journaled.

A span processor on the host's OpenTelemetry provider sees them (`_bridge`).
Journaled is what belongs to an open run by trace and comes from an allowed
scope or speaks of generative AI (DESIGN 4). The others are only followed, so
that what starts below them finds its recorded ancestor.
"""

import threading
import time
from collections.abc import Mapping
from typing import Any, Final, cast

from opentelemetry import trace
from opentelemetry.context import Context

from spanfold import names
from spanfold.instrument._guard import losing_only
from spanfold.instrument._near import Anchor, Stand, UnrecordedId, id_of
from spanfold.instrument._span import RecordedSpan, fork_generation
from spanfold.instrument._state import state
from spanfold.instrument._stored import as_text
from spanfold.journal import AttributeValue, Journal, store

_SCALARS: Final = frozenset({str, bool, int, float})
_NOW_NS: Final = 1_000_000
_MAX_TRACKED: Final = 10_000
"""Open foreign spans followed at once; of the oldest beyond it only the run is known."""


class MirroredSpan:
    """Marks the spans we make of our own for the host's provider, so that they are not taken for foreign ones."""


class Origin:
    """Where an open foreign span stands among ours."""

    __slots__ = ("anchor", "counted", "depth", "generation", "is_allowed", "recorded_parent", "token")

    def __init__(self, anchor: RecordedSpan | Anchor, recorded_parent: bytes, is_allowed: bool) -> None:
        self.anchor = anchor
        """Nearest span of ours around it."""
        self.recorded_parent = recorded_parent
        """Nearest journaled span around it, foreign ones included."""
        self.is_allowed = is_allowed
        self.generation = fork_generation()
        self.counted: RecordedSpan | None = None
        """The span of ours whose time it is part of, when that was known at its start."""
        self.depth = 0 if anchor.kind == "run" else anchor.depth + 1
        self.token = "" if anchor.kind == "run" else anchor.token
        """Timing stage of the recorded span around it."""


class ForeignProcessor:
    """An SDK span processor (duck-typed, so that importing us loads no SDK) that journals foreign spans."""

    def __init__(self) -> None:
        self._open: dict[int, Origin] = {}
        self.forked()

    def forked(self) -> None:
        """Drop a lock that a thread of the parent process may hold."""
        # Re-entrant: a finalizer or signal handler may end a span inside of it.
        self._lock = threading.RLock()

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        """Note where a foreign span stands, before its children start."""
        if not state.runs and state.joined is None:
            return
        with losing_only("foreign spans"):
            if isinstance(span, MirroredSpan):
                return
            context = span.get_span_context()
            run = _run_of(context)
            if run is None:
                return
            origin = self._origin(run, span, trace.get_current_span(parent_context))
            if origin.is_allowed and isinstance(origin.anchor, RecordedSpan) and _is_now(span.start_time):
                origin.counted = origin.anchor
                origin.counted.foreign_child_started(span.start_time)
            forgotten = None
            with self._lock:
                if len(self._open) >= _MAX_TRACKED:
                    forgotten = self._open.pop(next(iter(self._open)))
                self._open[context.span_id] = origin
            if forgotten is not None and forgotten.counted is not None:
                forgotten.counted.foreign_child_ended()

    def _origin(self, run: Any, span: Any, around: trace.Span) -> Origin:
        allowed = is_allowed(_scope_name(span), span.attributes)
        if isinstance(around, RecordedSpan):
            return Origin(around, id_of(around), allowed)
        if isinstance(around, Stand):
            return Origin(around.near, around.parent_id or id_of(around.near), allowed)
        parent_id = span.parent.span_id if span.parent else 0
        above = self._open.get(parent_id)
        if above is None:
            anchor = run.open_spans.get(_hex(parent_id)) or root_of(run)
            return Origin(anchor, id_of(anchor), allowed)
        origin = Origin(above.anchor, _hex(parent_id) if above.is_allowed else above.recorded_parent, allowed)
        origin.depth, origin.token = above.depth + above.is_allowed, above.token
        return origin

    def place_below(self, span_id: int) -> tuple[RecordedSpan | Anchor, bytes] | None:
        """Return the nearest span of ours around an open foreign span, and the id that one has as a parent."""
        origin = self._open.get(span_id)
        if origin is None:
            return None
        if origin.is_allowed:
            return origin.anchor, _hex(span_id)
        return origin.anchor, UnrecordedId(_hex(span_id), origin.recorded_parent)

    def _on_ending(self, span: Any) -> None:
        """Part of the SDK's processor interface; nothing to do."""

    def on_end(self, span: Any) -> None:
        """Journal an ended foreign span of an open run, if its scope is allowed."""
        if not state.runs and state.joined is None:
            return
        with losing_only("foreign spans"):
            if isinstance(span, MirroredSpan):
                return
            context = span.get_span_context()
            with self._lock:
                origin = self._open.pop(context.span_id, None)
            if origin is not None and origin.counted is not None and origin.generation == fork_generation():
                origin.counted.foreign_child_ended(span.end_time)
            run = _run_of(context)
            # Asked again: the attributes that speak of generative AI may have come after the start.
            if run is None or not is_allowed(_scope_name(span), span.attributes):
                return
            if origin is not None and origin.generation != fork_generation():
                return  # a forked child unwinds a span of its parent: the parent records it
            if origin is None:  # it began before this processor was added, or was forgotten
                origin = self._origin(run, span, trace.INVALID_SPAN)
            _journal(run, span, origin)

    def shutdown(self) -> None:
        """Part of the SDK's processor interface; nothing to do."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Part of the SDK's processor interface; nothing waits here."""
        return True


def root_of(run: Any) -> RecordedSpan | Anchor:
    """Return what stands at the top of a run in this process: its root span, or the stand-in for the parent's."""
    root: RecordedSpan | Anchor | None = getattr(run, "span", None)
    return root if root is not None else run.anchor


def is_allowed(scope_name: str, attributes: Mapping[str, Any] | None) -> bool:
    """Whether a foreign span is journaled: an allowed scope, or any `gen_ai.` attribute."""
    if scope_name.startswith(names.SCOPE_ALLOW):
        return True
    # A copy: another thread of the host may be adding attributes.
    return any(key.startswith("gen_ai.") for key in tuple(attributes or ()))


def _run_of(context: trace.SpanContext) -> Any:
    """Return the open or joined run a span belongs to by its trace, None when there is none."""
    trace_hex = f"{context.trace_id:032x}".encode()
    run = state.runs.get(trace_hex)
    if run is None and state.joined is not None and state.joined.trace_hex == trace_hex:
        return state.joined
    return run


def _is_now(start_ns: int | None) -> bool:
    """Whether a span starts when it says it does: instrumentors may report one afterwards."""
    return start_ns is not None and abs(time.time_ns() - start_ns) < _NOW_NS


def _scope_name(span: Any) -> str:
    scope = getattr(span, "instrumentation_scope", None)
    return as_text((scope.name or "") if scope is not None else "")


def _hex(span_id: int) -> bytes:
    return f"{span_id:016x}".encode()


def _journal(run: Any, span: Any, origin: Origin) -> None:
    journal: Journal = run.journal
    parent = _hex(span.parent.span_id) if span.parent else b""
    attributes = _kept(span.attributes, run.content)
    events = [
        (as_text(event.name), event.timestamp, _kept(event.attributes, run.content))
        for event in span.events
        if run.content != "none" or not names.CONTENT_EVENT.match(as_text(event.name))
    ]
    if run.content == "local" and _has_content(attributes, events):
        attributes[names.CONTENT] = "local"
    links = [
        (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}", _kept(link.attributes, run.content))
        for link in span.links
    ]
    start, end = span.start_time or 0, max(span.start_time or 0, span.end_time or 0)
    if origin.counted is None and isinstance(origin.anchor, RecordedSpan):
        origin.anchor.foreign_child(start, end)
    context, scope = span.get_span_context(), span.instrumentation_scope
    body, is_clean = journal.encoder.span(
        trace_id=f"{context.trace_id:032x}".encode(),
        span_id=_hex(context.span_id),
        parent_span_id=parent,
        name=as_text(span.name),
        otel_kind=span.kind.value + 1,
        start_ns=start,
        end_ns=end,
        attributes={**_place(origin, parent), **attributes},
        events=events,
        links=links,
        status_code=span.status.status_code.value,
        status_message=as_text(span.status.description or ""),
        trace_state=context.trace_state.to_header() if context.trace_state else "",
    )
    frame = journal.frame(
        "span",
        scope_name=_scope_name(span),
        scope_version=as_text((scope.version or "") if scope else ""),
        resource=span.resource.attributes,
        schema_url=(scope.schema_url or "") if scope else "",
    )
    journal.span(body, is_clean, frame)
    run.recorded("foreign")


def _place(origin: Origin, parent: bytes) -> dict[str, AttributeValue]:
    anchor = origin.anchor
    place: dict[str, AttributeValue] = {}
    if anchor.stage is not None:
        place[names.STAGE] = anchor.stage
    if anchor.cycle is not None:
        place[names.CYCLE] = anchor.cycle
    place[names.DEPTH] = origin.depth
    if origin.token:
        place[names.PARENT] = origin.token
    if origin.recorded_parent != parent:
        place[names.RECORDED_PARENT] = origin.recorded_parent.decode()
    return place


def _has_content(
    attributes: Mapping[str, AttributeValue], events: list[tuple[str, int, dict[str, AttributeValue]]]
) -> bool:
    return any(map(names.is_content, attributes)) or any(
        names.CONTENT_EVENT.match(name) or any(map(names.is_content, found)) for name, _, found in events
    )


def _kept(attributes: Mapping[str, Any] | None, content: str) -> dict[str, AttributeValue]:
    """Return attributes in the form the encoder takes, without message content where none is wanted."""
    out: dict[str, AttributeValue] = {}
    for key, value in (attributes or {}).items():
        if content == "none" and names.is_content(key):
            continue
        out[key] = cast("AttributeValue", value) if _is_plain(value) else store(value)[0]
    return out


def _is_plain(value: Any) -> bool:
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]  # the host's
    return kind is bytes or (kind is tuple and all(type(v) in _SCALARS for v in cast("tuple[Any, ...]", value)))
