"""Turn journal records into OTLP protobuf: spans with their events on them.

Built straight on the messages of `opentelemetry-proto`. The official exporters
encode SDK spans; a journal record is none, and making one of it only to take it
apart again loses dropped counts and unknown fields (facts 6.6).
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from spanfold import names
from spanfold.model import Event, Scope, Span

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


def message(span: Span, attributes: Mapping[str, Any], events: Sequence[Event]) -> "SpanMessage":
    """Return one span as a protobuf message.

    Args:
        span: The record.
        attributes: What the destination is shown of its attributes.
        events: Its events; those of foreign spans are on the record already.
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
        attributes=key_values(attributes),
        trace_state=span.trace_state,
        flags=span.flags,
    )
    if span.status_code:
        out.status.CopyFrom(Status(code=span.status_code, message=span.status_message))  # type: ignore[arg-type]  # the wire's number
    is_local = span.attributes.get(names.CONTENT) == "local"
    for event in (*span.events, *events):
        if is_local and names.CONTENT_EVENT.match(event.name):
            continue
        found = _without_place(event.attributes)
        out.events.add(
            time_unix_nano=event.time_ns,
            name=event.name,
            attributes=key_values(_without_content(found) if is_local else found),
        )
    for link in span.links:
        out.links.add(
            trace_id=bytes.fromhex(link.trace_id),
            span_id=bytes.fromhex(link.span_id),
            attributes=key_values(_without_content(link.attributes) if is_local else link.attributes),
        )
    return out


def _without_content(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out message content, which stays here when a record is marked `spanfold.content=local`."""
    return {k: v for k, v in attributes.items() if not names.is_content(k)}


def _without_place(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what an event only repeats of its span."""
    return {k: v for k, v in attributes.items() if k not in (names.STAGE, names.CYCLE)}


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


def shown(span: Span) -> dict[str, Any]:
    """Return the attributes any destination is shown: all, without content that must stay here."""
    if span.attributes.get(names.CONTENT) == "local":
        return _without_content(span.attributes)
    return dict(span.attributes)


def cut(attributes: dict[str, Any], limit_bytes: int) -> dict[str, Any]:
    """Return attributes whose texts together fit `limit_bytes`, the longest cut first.

    A text that is JSON stays JSON: an object with the head of the original, its
    size and its SHA-256. The whole value is in the local journal.
    """
    out = dict(attributes)
    excess = sum(len(v.encode()) for v in out.values() if isinstance(v, str)) - limit_bytes
    texts = sorted((k for k, v in out.items() if isinstance(v, str)), key=lambda k: -len(out[k]))
    json_keys: frozenset[str] = frozenset(attributes.get(names.JSON_FIELDS) or ())
    for key in texts:
        if excess <= 0:
            break
        original: str = out[key]
        raw = original.encode()
        keep = max(0, len(raw) - excess - _CUT_ROOM)
        head = raw[:keep].decode("utf-8", "ignore")
        facts = {"size_bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
        is_json = key in json_keys or key.startswith("gen_ai.") or original.startswith(("[", "{"))
        if is_json:
            # JSON inside JSON can double in length: quotes and backslashes are escaped once more.
            head = head[: keep // 2]
            out[key] = json.dumps({"$cut": {**facts, "head": head}}, ensure_ascii=False)
        else:
            out[key] = f"{head}...[cut: {facts['size_bytes']} bytes, sha256 {facts['sha256']}]"
        excess -= len(raw) - len(out[key].encode())
        out[f"spanfold.cut.{key}"] = f"{facts['size_bytes']} bytes, sha256 {facts['sha256']}"
    return out


_CUT_ROOM: Final = 512
"""Bytes the marks of a cut value take."""
