"""Decode OTLP JSON lines into records: ours, and those other OTLP writers made.

Accepts what the OTLP JSON encoding allows on reading: 64-bit integers as text
or number, enums as number or name, hex ids in any case, missing defaults.
Needs no SDK.
"""

import base64
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import orjson

from spanfold import names
from spanfold.journal import _messages
from spanfold.journal._encode import field_name
from spanfold.journal._values import load
from spanfold.model import Event, Link, Position, Record, Scope, Span, StatusCode

_KINDS: Final = {f"SPAN_KIND_{n}": i for i, n in enumerate(("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"))}
_STATUS: Final = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}


class NotOtlp(ValueError):
    """The bytes are not one OTLP JSON export request; `str()` says what they are instead."""


def decode_line(line: bytes, path: Path = Path(), offset: int = 0) -> Iterator[Record]:
    """Yield the records of one journal line, in written order.

    Args:
        line: The bytes, with or without the final newline.
        path: File and first byte, for `Position`.
        offset: See `path`.

    Raises:
        NotOtlp: The line is not an OTLP JSON export request.
    """
    try:
        tree = orjson.loads(line)
    except ValueError:
        raise NotOtlp("bytes that are not JSON" if line.strip(b"\0 \r\n") else "NUL bytes or blanks") from None
    if type(tree) is not dict or not ("resourceSpans" in tree or "resourceLogs" in tree):
        raise NotOtlp("JSON that is not an OTLP export request")
    try:
        yield from _records(cast("dict[str, Any]", tree), path, offset, len(line))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise NotOtlp(f"an OTLP export request with a field of the wrong type ({type(error).__name__})") from None


def line_seal(line: bytes) -> tuple[int, str]:
    """Return sequence number and previous hash of a journal line, (0, "") for a line without them."""
    start = line.find(_SEQ)
    if start < 0:
        return 0, ""
    start += len(_SEQ)
    end = line.find(b'"', start)
    prev = line.find(_PREV, end)
    if prev < 0 or not line[start:end].isdigit():
        return 0, ""
    prev += len(_PREV)
    return int(line[start:end]), line[prev : prev + 64].decode("ascii", "replace")


_SEQ: Final = b'{"key":"%b","value":{"intValue":"' % names.LINE_SEQ.encode()
_PREV: Final = b'{"key":"%b","value":{"stringValue":"' % names.LINE_PREV.encode()


def _records(tree: dict[str, Any], path: Path, offset: int, length: int) -> Iterator[Record]:
    for group in tree.get("resourceSpans", ()):
        resource = attributes(group.get("resource", {}).get("attributes", ()))
        for scoped in group.get("scopeSpans", ()):
            scope, position = _scope(scoped.get("scope", {}), path, offset, length)
            for span in scoped.get("spans", ()):
                yield _span(span, scope, resource, position)
    for group in tree.get("resourceLogs", ()):
        resource = attributes(group.get("resource", {}).get("attributes", ()))
        for scoped in group.get("scopeLogs", ()):
            scope, position = _scope(scoped.get("scope", {}), path, offset, length)
            for record in scoped.get("logRecords", ()):
                yield _event(record, scope, resource, position)


def _scope(scope: dict[str, Any], path: Path, offset: int, length: int) -> tuple[Scope, Position]:
    found = attributes(scope.get("attributes", ()))
    seq = found.pop(names.LINE_SEQ, 0)
    found.pop(names.LINE_PREV, None)
    return Scope(scope.get("name", ""), scope.get("version", ""), found), Position(path, offset, length, seq)


def _span(raw: dict[str, Any], scope: Scope, resource: Mapping[str, Any], position: Position) -> Span:
    status = raw.get("status") or {}
    kind = raw.get("kind", 1)
    code = status.get("code", 0)
    return Span(
        trace_id=raw["traceId"].lower(),
        span_id=raw["spanId"].lower(),
        parent_span_id=(raw.get("parentSpanId") or "").lower(),
        name=raw.get("name", ""),
        otel_kind=_KINDS.get(kind, 0) if isinstance(kind, str) else int(kind),
        start_ns=int(raw.get("startTimeUnixNano", 0)),
        end_ns=int(raw.get("endTimeUnixNano", 0)),
        attributes=attributes(raw.get("attributes", ())),
        status_code=cast("StatusCode", _STATUS.get(code, 0) if isinstance(code, str) else int(code)),
        status_message=status.get("message", ""),
        scope=scope,
        resource=resource,
        links=tuple(
            Link(link["traceId"].lower(), link["spanId"].lower(), attributes(link.get("attributes", ())))
            for link in raw.get("links") or ()
        ),
        trace_state=raw.get("traceState", ""),
        flags=int(raw.get("flags", 0)),
        events=tuple(_span_event(e, raw, scope, resource) for e in raw.get("events") or ()),
        position=position,
    )


def _span_event(raw: dict[str, Any], span: dict[str, Any], scope: Scope, resource: Mapping[str, Any]) -> Event:
    return Event(
        trace_id=span["traceId"].lower(),
        span_id=span["spanId"].lower(),
        name=raw.get("name", ""),
        time_ns=int(raw.get("timeUnixNano", 0)),
        attributes=attributes(raw.get("attributes", ())),
        scope=scope,
        resource=resource,
    )


def _event(raw: dict[str, Any], scope: Scope, resource: Mapping[str, Any], position: Position) -> Event:
    found = attributes(raw.get("attributes", ()))
    body = any_value(raw["body"]) if raw.get("body") else ""
    return Event(
        trace_id=raw.get("traceId", "").lower(),
        span_id=raw.get("spanId", "").lower(),
        name=raw.get("eventName") or found.get("event.name", ""),
        time_ns=int(raw.get("timeUnixNano") or raw.get("observedTimeUnixNano") or 0),
        attributes=found,
        scope=scope,
        resource=resource,
        severity=int(raw.get("severityNumber", 0)),
        body=body if isinstance(body, str) else orjson.dumps(body).decode(),
        position=position,
    )


def attributes(pairs: Any) -> dict[str, Any]:
    """Return an OTLP attribute list as a dictionary in its order."""
    return {pair["key"]: any_value(pair.get("value") or {}) for pair in pairs}


def any_value(value: Mapping[str, Any]) -> Any:
    """Return the Python value of an OTLP AnyValue; an empty one is None."""
    for kind, content in value.items():
        if kind == "stringValue" or kind == "boolValue":
            return content
        if kind == "intValue":
            return int(content)
        if kind == "doubleValue":
            return _double(content)
        if kind == "arrayValue":
            return [any_value(v) for v in (content or {}).get("values") or ()]
        if kind == "kvlistValue":
            return attributes((content or {}).get("values") or ())
        if kind == "bytesValue":
            return base64.b64decode(content)
    return None


def _double(content: Any) -> float:
    named = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    return named[content] if content in named else float(content)


def fields(record: Record) -> dict[str, Any]:
    """Return the fields of a record of ours, exactly as they were given, in order.

    JSON text becomes the value again; structural attributes and those of the
    conventions are left out (`content` and the fold read these).
    """
    json_keys = frozenset(record.attributes.get(names.JSON_FIELDS) or ())
    out: dict[str, Any] = {}
    for key, value in record.attributes.items():
        name = field_name(key)
        if name is not None:
            out[name] = load(value) if key in json_keys else value
    return out


def value_of(record: Record, key: str) -> Any:
    """Return one attribute of a record, JSON text turned back into its value; None when absent."""
    value = record.attributes.get(key)
    if value is not None and key in (record.attributes.get(names.JSON_FIELDS) or ()):
        return load(value)
    return value


def content(record: Record, *, output: bool) -> Any:
    """Return the input or output of a span in the form its caller passed, None when there is none."""
    own, shared, form = (
        (names.OUTPUT, names.GENAI_OUTPUT, names.OUTPUT_FORM) if output else (names.INPUT, names.GENAI_INPUT, names.INPUT_FORM)
    )
    if own in record.attributes:
        return value_of(record, own)
    if form in record.attributes:
        return _messages.decode_messages(value_of(record, shared), record.attributes[form])
    return value_of(record, shared)
