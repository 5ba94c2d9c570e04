"""Turn journal records into OTLP protobuf: spans with their events on them.

Built straight on the messages of `opentelemetry-proto`. The official exporters
encode SDK spans; a journal record is none, and making one of it only to take it
apart again loses dropped counts and unknown fields (facts 6.6).
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from spanfold import names
from spanfold.model import Event, Link, Scope, Span

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage


def request(spans: Iterable[tuple[Span, "SpanMessage"]]) -> "ExportTraceServiceRequest":
    """Return one export request, grouped by resource and scope in the order they first occur."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    out = ExportTraceServiceRequest()
    resources: dict[str, Any] = {}
    scopes: dict[tuple[str, str, str], Any] = {}
    for span, message in spans:
        resource_key = json.dumps(span.resource, default=repr, sort_keys=True)
        group = resources.get(resource_key)
        if group is None:
            group = resources[resource_key] = out.resource_spans.add()
            group.resource.attributes.extend(key_values(span.resource))
        scope_key = (resource_key, span.scope.name, span.scope.version)
        scoped = scopes.get(scope_key)
        if scoped is None:
            scoped = scopes[scope_key] = group.scope_spans.add()
            _fill_scope(scoped, span.scope)
        scoped.spans.append(message)
    return out


def _fill_scope(scoped: Any, scope: Scope) -> None:
    scoped.scope.name = scope.name
    scoped.scope.version = scope.version
    scoped.scope.attributes.extend(key_values(scope.attributes))
    if scope.name == names.SCOPE:
        scoped.schema_url = names.GENAI_CONVENTIONS


class ShownEvent(NamedTuple):
    """An event of a span, as a destination is shown it."""

    time_ns: int
    name: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a destination is shown of a span beside its ids, name and times."""

    attributes: dict[str, Any]
    events: Sequence[ShownEvent]
    links: Sequence[Link]
    status_message: str
    dropped_events: int = 0
    dropped_links: int = 0


def shown(span: Span, events: Iterable[Event], dropped_events: int = 0) -> Shown:
    """Return what any destination is shown of a span: all of it, without content that must stay here.

    Args:
        span: The record.
        events: Its events; those of foreign spans are on the record already.
        dropped_events: How many more there were.
    """
    is_local = span.attributes.get(names.CONTENT) == "local"
    return Shown(
        attributes=_without_content(span.attributes) if is_local else dict(span.attributes),
        events=[
            ShownEvent(event.time_ns, event.name, _of_event(event, is_local))
            for event in (*span.events, *events)
            if not (is_local and names.CONTENT_EVENT.match(event.name))
        ],
        links=[
            link._replace(attributes=_without_content(link.attributes)) if is_local else link for link in span.links
        ],
        status_message=span.status_message,
        dropped_events=dropped_events,
    )


def _of_event(event: Event, is_local: bool) -> Mapping[str, Any]:
    # What an event only repeats of its span is left out.
    found = {k: v for k, v in event.attributes.items() if k not in (names.STAGE, names.CYCLE)}
    return _without_content(found) if is_local else found


def message(span: Span, shown: Shown) -> "SpanMessage":
    """Return one span as a protobuf message.

    Raises:
        ValueError: A time, flag or number of it is none that OTLP can hold.
        TypeError: The same, for what is no number at all.
    """
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
    from opentelemetry.proto.trace.v1.trace_pb2 import Status

    out = SpanMessage(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_span_id),
        name=span.name,
        kind=span.otel_kind,  # type: ignore[arg-type]  # the wire's number
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=key_values(shown.attributes),
        trace_state=span.trace_state,
        flags=span.flags,
        dropped_events_count=shown.dropped_events,
        dropped_links_count=shown.dropped_links,
    )
    if span.status_code:
        out.status.CopyFrom(Status(code=span.status_code, message=shown.status_message))  # type: ignore[arg-type]  # the wire's number
    for event in shown.events:
        out.events.add(time_unix_nano=event.time_ns, name=event.name, attributes=key_values(event.attributes))
    for link in shown.links:
        out.links.add(
            trace_id=bytes.fromhex(link.trace_id),
            span_id=bytes.fromhex(link.span_id),
            attributes=key_values(link.attributes),
        )
    return out


def _without_content(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out message content, which stays here when a record is marked `spanfold.content=local`."""
    return {k: v for k, v in attributes.items() if not names.is_content(k)}


def key_values(attributes: Mapping[str, Any]) -> "list[KeyValue]":
    """Return attributes as protobuf; a value OTLP has no form for cannot occur in a journal."""
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def any_value(value: Any) -> "AnyValue":
    """Return one attribute value as protobuf."""
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValueList

    kind = type(value)  # pyright: ignore[reportUnknownVariableType]  # whatever a journal line holds
    if kind is str:
        return AnyValue(string_value=value)
    if kind is bool:
        return AnyValue(bool_value=value)
    if kind is int:
        return AnyValue(int_value=value) if -(1 << 63) <= value < 1 << 63 else AnyValue(string_value=str(value))
    if kind is float:
        return AnyValue(double_value=value)
    if kind is bytes:
        return AnyValue(bytes_value=value)
    if kind is list or kind is tuple:
        return AnyValue(array_value=ArrayValue(values=[any_value(v) for v in value]))
    if kind is dict:
        return AnyValue(kvlist_value=KeyValueList(values=key_values(value)))
    return AnyValue()


def otlp_json(request: "ExportTraceServiceRequest") -> bytes:
    """Return a request as OTLP JSON: protobuf's own JSON form with the ids in hex instead of base64."""
    from google.protobuf import json_format

    tree = json_format.MessageToDict(request, use_integers_for_enums=True)
    for group in tree.get("resourceSpans", ()):
        for scoped in group.get("scopeSpans", ()):
            for span in scoped.get("spans", ()):
                for part in (span, *span.get("links", ())):
                    for key in ("traceId", "spanId", "parentSpanId"):
                        if key in part:
                            part[key] = base64.b64decode(part[key]).hex()
    tree.setdefault("resourceSpans", [])  # what readers know a request by
    return json.dumps(tree, separators=(",", ":")).encode()
