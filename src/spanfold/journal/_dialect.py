"""Say what kind of trace file a foreign file is, from its first bytes."""

import re
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from spanfold.fs import SafeRoot
from spanfold.journal._decode import NotOtlp, decode_line, line_seal

__all__ = ["Dialect", "dialect"]

_LOOK_BYTES: Final = 1 << 20
_HEX: Final = re.compile(rb"(?:[0-9a-fA-F]{32}|[0-9a-fA-F]{16})\Z")
_TRACE_ID: Final = re.compile(rb'"(?:traceId|trace_id|spanId|span_id)"\s*:\s*"([^"]*)"')
_MAGIC: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}


class Dialect(NamedTuple):
    """What a file is."""

    name: str
    """`spanfold-journal`, `otlp-json-lines`, `otlp-json-pretty`, `otlp-json-array`, `otlp-json-base64-ids`,
    `otlp-json-empty-ids`, `otlp-json-snake-case`, `otlp-protobuf`, `sdk-console`, `jaeger-json`, `zipkin-json`,
    `json`, `compressed`, `empty` or `unknown`."""
    readable: bool
    """Whether `read_journal` reads it."""
    detail: str
    """What that means and what to do, one sentence."""


def dialect(path: Path) -> Dialect:
    """Name the dialect of a trace file. Looks at its first MiB only.

    Raises:
        UnsafeEntryError: It is a link or no regular file.
        FileNotFoundError: It is missing.
    """
    with SafeRoot(path.parent).open_read(path.name) as file:
        data = file.read(_LOOK_BYTES)
    packing = next((name for magic, name in _MAGIC.items() if data.startswith(magic)), "")
    if packing:
        return Dialect("compressed", False, f"A {packing} archive; unpack it first.")
    text = data.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r\n\0")
    if not text:
        return Dialect("empty", False, "There is nothing in it.")
    return _json_dialect(text) if text[:1] in b"{[" else _other_dialect(data)


def _json_dialect(text: bytes) -> Dialect:
    first = text.split(b"\n", 1)[0]
    if b'"resource_spans"' in text or b'"resource_logs"' in text:
        return Dialect(
            "otlp-json-snake-case",
            False,
            "Protobuf field names in place of the camelCase that OTLP demands; export it again.",
        )
    if b'"resourceSpans"' not in text and b'"resourceLogs"' not in text:
        return _foreign_json(text)
    if (found := _id_dialect(text)) is not None:
        return found
    if text[:1] == b"[":
        return Dialect("otlp-json-array", False, "A JSON array of requests; write each on a line of its own.")
    try:
        list(decode_line(first))
    except NotOtlp:
        if b"\n" in text and not _is_json(first):
            return Dialect(
                "otlp-json-pretty", False, "One request over many lines; write each on a line of its own (jq -c .)."
            )
        return Dialect("otlp-json-lines", False, "Lines of OTLP JSON whose first one cannot be read.")
    if line_seal(first)[0]:
        return Dialect("spanfold-journal", True, "A journal of spanfold, chained.")
    return Dialect(
        "otlp-json-lines", True, "One OTLP JSON request per line, as the collector's file exporter writes it."
    )


def _id_dialect(text: bytes) -> Dialect | None:
    """Tell from the first ids whether they are the hex that OTLP demands; log records may have none."""
    ids = [match[1] for match in _TRACE_ID.finditer(text[:65536])]
    if b'"resourceSpans"' in text and ids and not any(ids):
        return Dialect("otlp-json-empty-ids", False, "Spans whose ids are empty: no tree can be made of them.")
    if all(_HEX.match(found) for found in ids if found):
        return None
    return Dialect(
        "otlp-json-base64-ids",
        False,
        "Ids in base64, as a plain protobuf-to-JSON conversion makes them; OTLP demands hex. Export it again with an OTLP exporter.",
    )


def _foreign_json(text: bytes) -> Dialect:
    if b'"context"' in text and re.search(rb'"trace_id"\s*:\s*"0x', text):
        return Dialect(
            "sdk-console", False, "What the OpenTelemetry SDK's console exporter prints; it is no interchange format."
        )
    if b'"traceID"' in text and b'"spans"' in text:
        return Dialect("jaeger-json", False, "Jaeger's own JSON; export the trace as OTLP.")
    if re.search(rb'"localEndpoint"|"parentId"', text) and b'"traceId"' in text:
        return Dialect("zipkin-json", False, "Zipkin's JSON; send it through a collector with a Zipkin receiver.")
    return Dialect("json", False, "JSON that is no trace format known here.")


def _other_dialect(data: bytes) -> Dialect:
    # The collector's file exporter puts the length of each message before it, in 4 bytes.
    if _is_protobuf(data) or _is_protobuf(data[4:]):
        return Dialect("otlp-protobuf", False, "OTLP in protobuf; this library reads OTLP JSON lines.")
    return Dialect("unknown", False, "Neither JSON nor OTLP protobuf.")


def _is_protobuf(data: bytes) -> bool:
    """Whether field 1 (resource spans or logs) comes first, and in it field 1 or 2 (resource, scope)."""
    length = shift = 0
    for at, byte in enumerate(data[1:6], 1):
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return data[:1] == b"\x0a" and length > 0 and data[at + 1 : at + 2] in (b"\x0a", b"\x12")
    return False


def _is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True
