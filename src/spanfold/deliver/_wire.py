"""OTLP's protobuf as bytes, without building messages in between.

A message object for each value, copied into its parent and then written out,
costs more than everything else delivery does. Field numbers and types are those
of opentelemetry-proto 1.x, where they are stable; the tests decode what this
writes with the official messages.

A `tag` is the number and the type of a field: `number << 3 | type`, type 0 for
a varint, 1 for eight bytes, 2 for a length and so many bytes, 5 for four bytes.
"""

import functools
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

_FIXED64: Final = struct.Struct("<Q").pack
_FIXED32: Final = struct.Struct("<I").pack
_DOUBLE: Final = struct.Struct("<d").pack
_SHORT: Final = tuple(bytes((n,)) for n in range(128))
_INT64: Final = 1 << 63


def attributes(tag: bytes, found: Mapping[str, Any]) -> bytes:
    """Return attributes as fields of a `KeyValue` each; a value OTLP has no form for cannot occur in a journal."""
    out: list[bytes] = []
    for key, value in found.items():
        name, content = _key(key), _value(value)
        size = varint(len(content))
        out += (tag, varint(len(name) + 1 + len(size) + len(content)), name, b"\x12", size, content)
    return b"".join(out)


@functools.lru_cache(maxsize=4096)
def _key(key: str) -> bytes:
    return field(b"\x0a", key.encode())


def _value(value: Any) -> bytes:
    """Return an `AnyValue`; none of its fields is what stands for null."""
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]  # whatever a journal line holds
    if kind is str:
        return field(b"\x0a", value.encode())
    if kind is bool:
        return b"\x10\x01" if value else b"\x10\x00"
    if kind is int:
        if -_INT64 <= value < _INT64:
            return b"\x18" + varint(value if value >= 0 else value + (_INT64 << 1))
        return field(b"\x0a", str(value).encode())
    if kind is float:
        return b"\x21" + _DOUBLE(value)
    if kind is bytes:
        return field(b"\x3a", value)
    if kind is list or kind is tuple:
        return field(b"\x2a", b"".join([field(b"\x0a", _value(v)) for v in value]))
    if kind is dict:
        return field(b"\x32", attributes(b"\x0a", value))
    return b""


def field(tag: bytes, content: bytes) -> bytes:
    """Return a field of bytes, a text or a message."""
    return tag + varint(len(content)) + content


def text(tag: bytes, found: str) -> bytes:
    """Return a field of a text; an empty one is not there."""
    return field(tag, found.encode()) if found else b""


def number(tag: bytes, found: int) -> bytes:
    """Return a field of a number from 0 to 2**31 - 1; 0 is what is not there."""
    if not 0 <= found < 1 << 31:
        raise ValueError("a number that OTLP cannot hold")
    return tag + varint(found) if found else b""


def fixed64(number: int) -> bytes:
    """Return a number of 64 bits without sign, without a tag."""
    return _fixed(_FIXED64, number)


def fixed32(number: int) -> bytes:
    """Return a number of 32 bits without sign, without a tag."""
    return _fixed(_FIXED32, number)


def _fixed(pack: Callable[[int], bytes], number: int) -> bytes:
    try:
        return pack(number)
    except struct.error:
        raise ValueError("a number that OTLP cannot hold") from None


def varint(number: int) -> bytes:
    """Return a number that is 0 or more, seven bits to a byte, the lowest first."""
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
