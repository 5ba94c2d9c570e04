"""Our spans as the span processors of a host's OpenTelemetry SDK want them. Imports the SDK; loaded only with a host's.

Everything shown passes the gate first: it leaves through somebody else's
exporter. Message content is shown with `content="all"` only.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from spanfold import names
from spanfold.instrument._foreign import MirroredSpan
from spanfold.instrument._guard import losing_only
from spanfold.instrument._span import RecordedSpan
from spanfold.instrument._state import process_resource, state, version
from spanfold.journal import AttributeValue, JsonText, dump, load, scrub_bytes, scrub_tree

MAX_EVENTS: Final = 128
"""Events of one span shown to the host, as many as the SDK keeps by default; the journal has all."""
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class Shown(ReadableSpan, MirroredSpan):
    """One of our spans in the SDK's form. Between start and end a processor may stamp attributes on it."""

    def is_recording(self) -> bool:
        """Whether processors may still add attributes: until the end."""
        return self.end_time is None

    def set_attribute(self, key: str, value: Any) -> None:
        """Take an attribute a processor of the host stamps on every span."""
        cast("dict[str, Any]", self._attributes)[key] = value

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Take attributes a processor of the host stamps on every span."""
        cast("dict[str, Any]", self._attributes).update(attributes)

    def keep_event(self, name: str, attributes: Mapping[str, AttributeValue], time_ns: int) -> None:
        """Remember an event of the span, redacted, for when it ends."""
        with losing_only("events shown to the host's provider"):
            kept = cast("list[Event]", self._events)
            if len(kept) < MAX_EVENTS:
                kept.append(Event(_text(name), _values(attributes), time_ns))

    def ignore(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the span is ours, and a processor only looks at it."""

    add_event = add_link = update_name = set_status = record_exception = end = ignore


def shown(
    span: RecordedSpan,
    provider: Any,
    attributes: Mapping[str, AttributeValue],
    *,
    end_ns: int | None = None,
    started: Shown | None = None,
) -> Shown:
    """Return one of our spans in the SDK's form.

    Args:
        span: The span.
        provider: The host's; its resource is shown, since its processors expect it.
        attributes: What is known of the span.
        end_ns: When it ended; None at its start.
        started: What was shown at the start, with what processors stamped on it.
    """
    content = span.run.content
    found = _values({k: v for k, v in attributes.items() if content == "all" or not names.is_content(k)})
    if started is not None:
        found = {**(started.attributes or {}), **found}
    context = span.get_span_context()
    parent = int(span.parent_span_id, 16) if span.parent_span_id else 0
    return Shown(
        name=_text(span.name),
        context=context,
        parent=SpanContext(context.trace_id, parent, False, _SAMPLED) if parent else None,
        resource=getattr(provider, "resource", None) or Resource(process_resource()),
        attributes=found,
        events=[] if started is None else started.events,
        links=[
            Link(SpanContext(int(trace_id, 16), int(span_id, 16), True, _SAMPLED), _values(linked))
            for trace_id, span_id, linked in span.links
        ],
        kind=SpanKind(span.otel_kind - 1),
        status=_status(span),
        start_time=span.start_ns,
        end_time=end_ns,
        instrumentation_scope=InstrumentationScope(names.SCOPE, version()),
    )


def _status(span: RecordedSpan) -> Status:
    code, description = span.status
    return Status(StatusCode(code), _text(description) or None) if code == 2 else Status(StatusCode(code))


def _text(text: str) -> str:
    assert state.gate is not None
    return state.gate.scrub_text(text)


def _values(attributes: Mapping[str, AttributeValue]) -> dict[str, Any]:
    """Return attributes redacted, in the form the SDK holds them."""
    return {_text(key): _value(key, value) for key, value in attributes.items()}


def _value(key: str, value: AttributeValue) -> Any:
    assert state.gate is not None
    kind = type(value)
    if kind is bool or kind is int or kind is float:
        is_secret = state.gate.is_sensitive_name(key) and kind is not bool
        return state.gate.scrub_value({key: value})[key] if is_secret else value
    if kind is bytes and not state.gate.is_sensitive_name(key):
        return scrub_bytes(cast("bytes", value), state.gate)
    if kind is tuple:
        value = cast("Any", list(cast("tuple[Any, ...]", value)))
    tree = load(str.__str__(cast("str", value))) if kind is JsonText else value
    clean = next(iter(scrub_tree({key: tree}, state.gate).values()))
    if isinstance(clean, list):
        return tuple(cast("list[Any]", clean))
    return dump(clean) if kind is JsonText else clean
