"""Turn journal records into OTLP protobuf: spans with their events on them.

The official exporters encode SDK spans; a journal record is none, and making
one of it only to take it apart again loses dropped counts and unknown fields
(facts 6.6). The bytes of a span are made once; a request is those of its spans
behind one another.
"""

import base64
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from spanfold import names
from spanfold.deliver import _wire as wire
from spanfold.model import Event, Link, Span

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


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


def message(span: Span, shown: Shown) -> bytes:
    """Return one span as the bytes of its message.

    Raises:
        ValueError: A time, flag, kind or id of it is none that OTLP can hold.
        TypeError: The same, for what is no number or text at all.
    """
    parts = [
        wire.field(b"\x0a", bytes.fromhex(span.trace_id)),
        wire.field(b"\x12", bytes.fromhex(span.span_id)),
        wire.text(b"\x1a", span.trace_state),
        wire.field(b"\x22", bytes.fromhex(span.parent_span_id)) if span.parent_span_id else b"",
        wire.text(b"\x2a", span.name),
        wire.number(b"\x30", span.otel_kind),
        b"\x39" + wire.fixed64(span.start_ns),
        b"\x41" + wire.fixed64(span.end_ns),
        wire.attributes(b"\x4a", shown.attributes),
    ]
    for event in shown.events:
        body = (
            b"\x09"
            + wire.fixed64(event.time_ns)
            + wire.text(b"\x12", event.name)
            + wire.attributes(b"\x1a", event.attributes)
        )
        parts.append(wire.field(b"\x5a", body))
    parts.append(wire.number(b"\x60", shown.dropped_events))
    for link in shown.links:
        ids = wire.field(b"\x0a", bytes.fromhex(link.trace_id)) + wire.field(b"\x12", bytes.fromhex(link.span_id))
        parts.append(wire.field(b"\x6a", ids + wire.attributes(b"\x22", link.attributes)))
    parts.append(wire.number(b"\x70", shown.dropped_links))
    if span.status_code:
        parts.append(
            wire.field(b"\x7a", wire.text(b"\x12", shown.status_message) + wire.number(b"\x18", span.status_code))
        )
    if span.flags:
        parts.append(b"\x85\x01" + wire.fixed32(span.flags))
    return b"".join(parts)


def request(spans: Iterable[tuple[Span, bytes]]) -> bytes:
    """Return one export request, grouped by resource and scope in the order they first occur.

    Args:
        spans: Each with what `message` made of it.
    """
    groups: dict[bytes, dict[bytes, list[bytes]]] = {}
    # The records of one journal file share their resource: one object for all, encoded once.
    resources: dict[int, bytes] = {}
    for span, content in spans:
        resource = resources.get(id(span.resource))
        if resource is None:
            resource = resources[id(span.resource)] = wire.field(b"\x0a", wire.attributes(b"\x0a", span.resource))
        scopes = groups.setdefault(resource, {})
        scope = _scope(span.scope.name, span.scope.version, wire.attributes(b"\x1a", span.scope.attributes))
        parts = scopes.setdefault(scope, [])
        parts += (b"\x12", wire.varint(len(content)), content)
    out: list[bytes] = []
    for resource, scopes in groups.items():
        body = [resource]
        for scope, parts in scopes.items():
            body.append(wire.field(b"\x12", scope + b"".join(parts)))
        out.append(wire.field(b"\x0a", b"".join(body)))
    return b"".join(out)


@functools.lru_cache(maxsize=256)
def _scope(name: str, version: str, encoded: bytes) -> bytes:
    """Return the scope of a group of spans, and the schema of what is in it."""
    body = wire.field(b"\x0a", wire.text(b"\x0a", name) + wire.text(b"\x12", version) + encoded)
    return body + (wire.text(b"\x1a", names.GENAI_CONVENTIONS) if name == names.SCOPE else b"")


def _without_content(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out message content, which stays here when a record is marked `spanfold.content=local`."""
    return {k: v for k, v in attributes.items() if not names.is_content(k)}


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
