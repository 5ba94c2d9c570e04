"""Both directions between our spans and an OpenTelemetry SDK provider the host has.

Theirs to us: a span processor on the host's provider journals spans of other
instrumentors that belong to an open run by trace and come from an allowed
scope (DESIGN 4). Ours to them: their processors are shown each of our spans as
an SDK `ReadableSpan`, so that their back end shows whole traces. The provider
is joined, never replaced; with `provider="global"` ours is installed only
where the host has none.
"""

import os
import threading
from collections.abc import Mapping
from typing import Any, Final, cast

from opentelemetry import trace
from opentelemetry.context import Context

from spanfold import names
from spanfold.instrument._guard import losing_only
from spanfold.instrument._span import CONTENT_KEYS, RecordedSpan
from spanfold.instrument._state import process_resource, state, version
from spanfold.journal import AttributeValue, JsonText, store

_MAX_TRACKED: Final = 10_000


class Origin:
    """Where an open foreign span stands among ours."""

    __slots__ = ("allowed", "anchor", "recorded_parent")

    def __init__(self, anchor: RecordedSpan, recorded_parent: str, allowed: bool) -> None:
        self.anchor = anchor
        self.recorded_parent = recorded_parent
        self.allowed = allowed


class ForeignProcessor:
    """An SDK span processor (duck-typed, so that importing us loads no SDK) that journals foreign spans."""

    def __init__(self) -> None:
        # Re-entrant: a signal handler or finalizer may end a span in the middle of another.
        self._lock = threading.RLock()
        self._open: dict[int, Origin] = {}

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        """Note where a foreign span stands, before its children start."""
        with losing_only("foreign spans"):
            current = trace.get_current_span(parent_context)
            origin = self._origin(span, current)
            if origin is None:
                return
            with self._lock:
                if len(self._open) >= _MAX_TRACKED:
                    self._open.pop(next(iter(self._open)))
                self._open[span.get_span_context().span_id] = origin

    def _origin(self, span: Any, current: trace.Span) -> Origin | None:
        context = span.get_span_context()
        if f"{context.trace_id:032x}".encode() not in state.runs:
            return None
        allowed = is_allowed(span)
        if isinstance(current, RecordedSpan):
            return Origin(current, current.span_id, allowed)
        above = self._open.get(current.get_span_context().span_id)
        if above is None:
            run = state.runs[f"{context.trace_id:032x}".encode()]
            return Origin(run.span, run.span.span_id, allowed)
        parent = f"{current.get_span_context().span_id:016x}" if above.allowed else above.recorded_parent
        return Origin(above.anchor, parent, allowed)

    def anchor(self, span_id: int) -> RecordedSpan | None:
        """Return the nearest span of ours around an open foreign span."""
        origin = self._open.get(span_id)
        return origin.anchor if origin is not None else None

    def _on_ending(self, span: Any) -> None:
        """Part of the SDK's processor interface; nothing to do."""

    def on_end(self, span: Any) -> None:
        """Journal an ended foreign span of an open run, if its scope is allowed."""
        with losing_only("foreign spans"):
            context = span.get_span_context()
            with self._lock:
                origin = self._open.pop(context.span_id, None)
            run = state.runs.get(f"{context.trace_id:032x}".encode())
            if run is None or isinstance(span, MirroredSpan) or not (is_allowed(span) and origin is not None):
                return
            _journal(run, span, origin)

    def shutdown(self) -> None:
        """Part of the SDK's processor interface; nothing to do."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Part of the SDK's processor interface; nothing waits here."""
        return True


def is_allowed(span: Any) -> bool:
    """Whether a foreign span is journaled: an allowed scope, or any `gen_ai.` attribute."""
    scope = getattr(span, "instrumentation_scope", None)
    if scope is not None and scope.name.startswith(names.SCOPE_ALLOW):
        return True
    return any(isinstance(k, str) and k.startswith("gen_ai.") for k in (span.attributes or ()))


def _journal(run: Any, span: Any, origin: Origin) -> None:
    anchor = origin.anchor
    attributes: dict[str, AttributeValue] = {}
    if anchor.stage is not None:
        attributes[names.STAGE] = anchor.stage
    if anchor.cycle is not None:
        attributes[names.CYCLE] = anchor.cycle
    attributes[names.DEPTH] = anchor.depth + 1
    if anchor.kind != "run":
        attributes[names.PARENT] = anchor.token
    parent = f"{span.parent.span_id:016x}" if span.parent else ""
    if origin.recorded_parent != parent:
        attributes[names.RECORDED_PARENT] = origin.recorded_parent
    attributes.update(_stored(span.attributes))
    context = span.get_span_context()
    scope = span.instrumentation_scope
    start, end = span.start_time or 0, span.end_time or 0
    offset = anchor._mono - anchor.start_ns  # pyright: ignore[reportPrivateUsage]  # same room
    anchor._child_reported(start + offset, end + offset)  # pyright: ignore[reportPrivateUsage]  # same room
    body, sensitive = run.journal.encoder.span(
        trace_id=f"{context.trace_id:032x}".encode(),
        span_id=f"{context.span_id:016x}".encode(),
        parent_span_id=parent.encode(),
        name=span.name,
        otel_kind=span.kind.value + 1,
        start_ns=start,
        end_ns=max(start, end),
        attributes=attributes,
        events=[(e.name, e.timestamp, _stored(e.attributes)) for e in span.events],
        links=[(f"{k.context.trace_id:032x}", f"{k.context.span_id:016x}", _stored(k.attributes)) for k in span.links],
        status_code=span.status.status_code.value,
        status_message=span.status.description or "",
        trace_state=context.trace_state.to_header() if context.trace_state else "",
    )
    frame = run.journal.frame(
        "span",
        scope_name=scope.name if scope else "",
        scope_version=(scope.version or "") if scope else "",
        resource=span.resource.attributes,
        schema_url=(scope.schema_url or "") if scope else "",
    )
    run.journal.span(body, not sensitive and run.journal.passes(body), frame)
    run.recorded("foreign")


def _stored(attributes: Mapping[str, Any] | None) -> dict[str, AttributeValue]:
    out: dict[str, AttributeValue] = {}
    for key, value in (attributes or {}).items():
        if type(value) is tuple and all(type(v) in (str, bool, int, float) for v in cast("tuple[Any, ...]", value)):
            out[key] = value
        elif type(value) is bytes:
            out[key] = value
        else:
            out[key] = store(value)[0]
    return out


class MirroredSpan:
    """Marks the `ReadableSpan`s we make of our own spans, so that our processor ignores them."""


class Bridge:
    """The provider this process is joined to, if any."""

    def __init__(self) -> None:
        self.processor = ForeignProcessor()
        self.provider: Any = None
        """The joined SDK provider, None when there is none."""
        self._readable: Any = None
        self._resource: Any = None
        self._added: set[int] = set()

    @property
    def description(self) -> str:
        """Which provider is used, in words, for `doctor`."""
        if self.provider is None:
            return "spanfold's own; the host has no OpenTelemetry SDK provider that can be joined"
        kind = type(self.provider)
        return f"spanfold's own, joined with the host's {kind.__module__}.{kind.__qualname__}"

    def join(self) -> None:
        """Join the host's SDK provider if it has one we have not joined; called when a run or stage starts."""
        with losing_only("the host's provider"):
            settings = state.settings
            choice = settings.provider if settings is not None else "auto"
            if choice == "own":
                self.provider = None
                return
            found: Any = choice if not isinstance(choice, str) else _global_provider()
            if found is None and choice == "global":
                from spanfold.instrument._provider import SpanfoldTracerProvider

                trace.set_tracer_provider(SpanfoldTracerProvider())
                return
            if found is self.provider or found is None:
                return
            if not hasattr(found, "add_span_processor") or not hasattr(found, "_active_span_processor"):
                return
            if id(found) not in self._added:
                found.add_span_processor(self.processor)
                self._added.add(id(found))
            self._prepare()
            self.provider = found

    def _prepare(self) -> None:
        if self._readable is None:
            from opentelemetry.sdk.trace import ReadableSpan

            class Mirrored(ReadableSpan, MirroredSpan):
                """One of our spans in the SDK's form."""

                def is_recording(self) -> bool:
                    """Whether processors may still add attributes: until the end."""
                    return self.end_time is None

                def set_attribute(self, key: str, value: Any) -> None:
                    """Take an attribute a processor of the host stamps on every span at its start."""
                    cast("dict[str, Any]", self._attributes)[key] = value

                def set_attributes(self, attributes: Mapping[str, Any]) -> None:
                    """Take attributes a processor of the host stamps on every span at its start."""
                    cast("dict[str, Any]", self._attributes).update(attributes)

            self._readable = Mirrored

    def forget(self) -> None:
        """Stop showing spans to the host; the processor stays added, since the SDK cannot remove one, and is idle."""
        self.provider = None

    def mirror_start(self, span: RecordedSpan) -> None:
        """Tell the host's processors that one of our spans started."""
        if self.provider is None:
            return
        with losing_only("spans shown to the host's provider"):
            started = self._build(span, None, {names.KIND: span.kind})
            span._mirrored = started  # type: ignore[attr-defined]  # kept beside the slots, only where a host is joined
            self.provider._active_span_processor.on_start(started, None)

    def mirror_end(self, span: RecordedSpan, end_ns: int, attributes: Mapping[str, AttributeValue]) -> None:
        """Give the host's processors one of our ended spans, redacted."""
        if self.provider is None:
            return
        with losing_only("spans shown to the host's provider"):
            stamped = getattr(getattr(span, "_mirrored", None), "attributes", None) or {}
            shown = {k: v for k, v in attributes.items() if k not in CONTENT_KEYS or names.CONTENT not in attributes}
            self.provider._active_span_processor.on_end(self._build(span, end_ns, {**stamped, **shown}))

    def _build(self, span: RecordedSpan, end_ns: int | None, attributes: Mapping[str, AttributeValue]) -> Any:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode

        if self._resource is None:
            self._resource = Resource(process_resource())
        context = span.get_span_context()
        parent = int(span.parent_span_id, 16) if span.parent_span_id else 0
        scrub = _Scrubber()
        return self._readable(
            name=scrub.text(span.name),
            context=context,
            parent=SpanContext(context.trace_id, parent, False, context.trace_flags) if parent else None,
            resource=self.provider.resource if hasattr(self.provider, "resource") else self._resource,
            attributes={scrub.text(k): scrub.value(k, v) for k, v in attributes.items()},
            kind=SpanKind(span.otel_kind - 1),
            status=Status(StatusCode(span._status), scrub.text(span._status_message) or None)  # pyright: ignore[reportPrivateUsage]  # same room
            if span._status == 2  # pyright: ignore[reportPrivateUsage]  # same room
            else Status(StatusCode(span._status)),  # pyright: ignore[reportPrivateUsage]  # same room
            start_time=span.start_ns,
            end_time=end_ns,
            instrumentation_scope=InstrumentationScope(names.SCOPE, version()),
        )


class _Scrubber:
    """The gate for what leaves through somebody else's exporter: the same rules, value by value."""

    def __init__(self) -> None:
        assert state.gate is not None
        self._gate = state.gate

    def text(self, text: str) -> str:
        return self._gate.scrub_text(text)

    def value(self, key: str, value: AttributeValue) -> Any:
        if isinstance(value, JsonText):
            from spanfold.journal import dump, load

            return dump(self._gate.scrub_value({key: load(value)})[key])
        if isinstance(value, str):
            return self._gate.scrub_value({key: value}).get(key, "")
        if isinstance(value, tuple):
            return tuple(self.text(v) if isinstance(v, str) else v for v in value)
        return value


def _global_provider() -> Any:
    """Return the provider the host installed globally, None while there is only the API's placeholder."""
    provider = trace.get_tracer_provider()
    if type(provider).__module__.startswith("opentelemetry.trace"):
        return None
    return provider


bridge = Bridge()


def _forked() -> None:
    bridge.processor._lock = threading.RLock()  # pyright: ignore[reportPrivateUsage]  # the module's own hook
    bridge._resource = None  # pyright: ignore[reportPrivateUsage]  # the module's own hook




if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
