"""Spans and requests as the bytes of OTLP's protobuf, without building messages in between.

A message object for each value, copied into its parent and then written out,
costs more than everything else delivery does. The bytes of a span are made
once here; a request is those of its spans behind one another. Field numbers
and types are those of opentelemetry-proto 1.x, where they are stable; the tests
decode what this writes with the official messages.
"""

import functools
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

from spanfold import names
from spanfold.deliver._encode import Shown
from spanfold.model import Scope, Span

_FIXED64: Final = struct.Struct("<Q").pack
_FIXED32: Final = struct.Struct("<I").pack
_DOUBLE: Final = struct.Struct("<d").pack
_SHORT: Final = tuple(bytes((n,)) for n in range(128))
_INT64: Final = 1 << 63


def request(spans: Iterable[tuple[Span, bytes]]) -> bytes:
    """Return one export request, grouped by resource and scope in the order they first occur.

    Args:
        spans: Each with what `span` made of it.
    """
    groups: dict[bytes, dict[bytes, list[bytes]]] = {}
    # The records of one journal file share their resource: one object for all, encoded once.
    resources: dict[int, bytes] = {}
    for record, content in spans:
        resource = resources.get(id(record.resource))
        if resource is None:
            resource = _field(b"\x0a", _attributes(b"\x0a", record.resource))
            resources[id(record.resource)] = resource
        scopes = groups.setdefault(resource, {})
        scope = (
            _scope_key(record.scope.name, record.scope.version) if not record.scope.attributes else _scope(record.scope)
        )
        parts = scopes.setdefault(scope, [])
        parts += (b"\x12", _varint(len(content)), content)
    out: list[bytes] = []
    for resource, scopes in groups.items():
        body = [resource]
        for scope, parts in scopes.items():
            body.append(_field(b"\x12", scope + b"".join(parts)))
        out.append(_field(b"\x0a", b"".join(body)))
    return b"".join(out)


def span(record: Span, shown: Shown) -> bytes:
    """Return one span.

    Raises:
        ValueError: A time, flag, kind or id of it is none that OTLP can hold.
        TypeError: The same, for what is no number or text at all.
    """
    parts = [
        _field(b"\x0a", bytes.fromhex(record.trace_id)),
        _field(b"\x12", bytes.fromhex(record.span_id)),
        _text(b"\x1a", record.trace_state),
        _field(b"\x22", bytes.fromhex(record.parent_span_id)) if record.parent_span_id else b"",
        _text(b"\x2a", record.name),
        _number(b"\x30", record.otel_kind),
        b"\x39" + _time(record.start_ns),
        b"\x41" + _time(record.end_ns),
        _attributes(b"\x4a", shown.attributes),
    ]
    for event in shown.events:
        body = b"\x09" + _time(event.time_ns) + _text(b"\x12", event.name) + _attributes(b"\x1a", event.attributes)
        parts.append(_field(b"\x5a", body))
    parts.append(_number(b"\x60", shown.dropped_events))
    for link in shown.links:
        ids = _field(b"\x0a", bytes.fromhex(link.trace_id)) + _field(b"\x12", bytes.fromhex(link.span_id))
        parts.append(_field(b"\x6a", ids + _attributes(b"\x22", link.attributes)))
    parts.append(_number(b"\x70", shown.dropped_links))
    if record.status_code:
        parts.append(_field(b"\x7a", _text(b"\x12", shown.status_message) + _number(b"\x18", record.status_code)))
    if record.flags:
        parts.append(b"\x85\x01" + _fixed(_FIXED32, record.flags))
    return b"".join(parts)


def _scope(scope: Scope) -> bytes:
    return _scope_key(scope.name, scope.version, _attributes(b"\x1a", scope.attributes))


@functools.lru_cache(maxsize=256)
def _scope_key(name: str, version: str, attributes: bytes = b"") -> bytes:
    """Return the scope of a group of spans, with the schema of what is in it."""
    body = _field(b"\x0a", _text(b"\x0a", name) + _text(b"\x12", version) + attributes)
    return body + (_text(b"\x1a", names.GENAI_CONVENTIONS) if name == names.SCOPE else b"")


def _attributes(tag: bytes, attributes: Mapping[str, Any]) -> bytes:
    """Return attributes as fields of a `KeyValue` each; a value OTLP has no form for cannot occur in a journal."""
    out: list[bytes] = []
    for key, value in attributes.items():
        name, content = _key(key), _value(value)
        size = _varint(len(content))
        out += (tag, _varint(len(name) + 1 + len(size) + len(content)), name, b"\x12", size, content)
    return b"".join(out)


@functools.lru_cache(maxsize=4096)
def _key(key: str) -> bytes:
    return _field(b"\x0a", key.encode())


def _value(value: Any) -> bytes:
    """Return an `AnyValue`; empty for none, which is what the tests of other readers take null for."""
    kind = type(value)
    if kind is str:
        return _field(b"\x0a", value.encode())
    if kind is bool:
        return b"\x10\x01" if value else b"\x10\x00"
    if kind is int:
        if -_INT64 <= value < _INT64:
            return b"\x18" + _varint(value if value >= 0 else value + (_INT64 << 1))
        return _field(b"\x0a", str(value).encode())
    if kind is float:
        return b"\x21" + _DOUBLE(value)
    if kind is bytes:
        return _field(b"\x3a", value)
    if kind is list or kind is tuple:
        return _field(b"\x2a", b"".join([_field(b"\x0a", _value(v)) for v in value]))
    if kind is dict:
        return _field(b"\x32", _attributes(b"\x0a", value))
    return b""


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _text(tag: bytes, text: str) -> bytes:
    return _field(tag, text.encode()) if text else b""


def _number(tag: bytes, number: int) -> bytes:
    """Return a number that is 0 or more; 0 is what is not there."""
    if not 0 <= number < 1 << 31:
        raise ValueError("a number that OTLP cannot hold")
    return tag + _varint(number) if number else b""


def _time(time_ns: int) -> bytes:
    return _fixed(_FIXED64, time_ns)


def _fixed(pack: Any, number: int) -> bytes:
    try:
        packed: bytes = pack(number)
    except struct.error:
        raise ValueError("a number that OTLP cannot hold") from None
    return packed


def _varint(number: int) -> bytes:
    if number < 128:
        return _SHORT[number]
    if number < 16_384:
        return bytes((number & 127 | 128, number >> 7))
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
