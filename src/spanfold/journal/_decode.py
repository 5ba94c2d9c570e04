"""Decode OTLP JSON lines into records: ours, and those other OTLP writers made.

Accepts what the OTLP JSON encoding allows on reading: 64-bit integers as text
or number, enums as number or name, hex ids in any case, missing defaults.
Needs no SDK.
"""

import base64
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import orjson

from spanfold import names
from spanfold.journal import _messages
from spanfold.journal._encode import field_name
from spanfold.journal._values import load
from spanfold.model import Event, Link, Position, Record, Scope, Span, StatusCode

_KINDS: Final = {
    f"SPAN_KIND_{n}": i for i, n in enumerate(("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"))
}
_STATUS: Final = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}


# JSON null stands for an absent field (protobuf JSON mapping).
_NONE: Final[Any] = ()
_EMPTY: Final[Any] = {}


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
    framed = _framed(line)
    if framed is not None:
        frame, seq, raw = framed
        position = Position(path, offset, len(line), seq)
        try:
            yield _DECODERS[frame.signal](raw, frame.scope, frame.resource, position)
        except _WRONG_TYPE as error:
            raise _wrong_type(error) from None
        return
    try:
        tree: Any = orjson.loads(line)
    except ValueError:
        raise NotOtlp("bytes that are not JSON" if line.strip(b"\0 \r\n") else "NUL bytes or blanks") from None
    if type(tree) is not dict or not ("resourceSpans" in tree or "resourceLogs" in tree):
        raise NotOtlp("JSON that is not an OTLP export request")
    request = cast("dict[str, Any]", tree)
    try:
        records = list(_records(request, path, offset, len(line)))
    except _WRONG_TYPE as error:
        raise _wrong_type(error) from None
    if len(records) == 1:
        _learn_frame(line, request, records[0])
    yield from records


class Start(NamedTuple):
    """What is needed of a started event when the span it announces ends soon after."""

    trace_id: str
    span_id: str
    kind: str
    time_ns: int
    line: bytes
    """The whole event, for whoever needs it after all."""

    def event(self) -> Event:
        """Return the whole event, without its position."""
        return cast("Event", next(decode_line(self.line)))


def brief_start(line: bytes) -> Start | None:
    """Return what a line says that announces a span below the run; None for any other line, and when in doubt."""
    if line.find(_STARTED, 0, _FRAME_BYTES) < 0:
        return None
    framed = _framed(line)
    if framed is None:
        return None
    try:
        _, _, raw = framed
        kind = raw["attributes"][1]
        if raw["eventName"] != names.EVENT_STARTED or kind["key"] != names.KIND:
            return None
        start = Start(
            _hex(raw["traceId"], 32),
            _hex(raw["spanId"], 16),
            _text(kind["value"], "stringValue"),
            int(raw["timeUnixNano"]),
            line,
        )
    except (*_WRONG_TYPE, IndexError):
        return None
    return start if start.kind not in ("", "run") else None


_STARTED: Final = b'"eventName":"%b"' % names.EVENT_STARTED.encode()
_FRAME_BYTES: Final = 4_096
"""Within so many bytes of its beginning a line of ours says what it is."""
_WRONG_TYPE: Final = (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)


def _wrong_type(error: Exception) -> NotOtlp:
    if isinstance(error, NotOtlp):
        return error
    return NotOtlp(f"an OTLP export request with a field of the wrong type ({type(error).__name__})")


def line_seal(line: bytes) -> tuple[int, str]:
    """Return sequence number and previous hash of a journal line, (0, "") for a line without them."""
    start = line.find(_SEQ)
    if start < 0:
        return 0, ""
    start += len(_SEQ)
    end = line.find(b'"', start)
    prev = line.find(_PREV, end)
    if prev < 0 or end - start > _MAX_DIGITS or not line[start:end].isdigit():
        return 0, ""
    prev += len(_PREV)
    return int(line[start:end]), line[prev : prev + 64].decode("ascii", "replace")


_SEQ: Final = b'{"key":"%b","value":{"intValue":"' % names.LINE_SEQ.encode()
_PREV: Final = b'{"key":"%b","value":{"stringValue":"' % names.LINE_PREV.encode()
_MAX_DIGITS: Final = 19


class _Frame(NamedTuple):
    """What all lines of one writer, signal and scope share: the bytes around a record, and what they mean."""

    tail: bytes
    """After the record."""
    opening: bytes
    """Between the chain and the record."""
    signal: str
    scope: Scope
    resource: Mapping[str, Any]


# Parsing and decoding a resource again for every line would cost more than the record itself often does.
_frames: Final[dict[bytes, _Frame]] = {}
_MAX_FRAMES: Final = 1_024
"""A process has two or three, and a run may have been recorded by hundreds of processes."""
_MAX_FRAMES_BYTES: Final = 1 << 20
"""Of all of them together, about: a resource may be long."""
_CHAIN: Final = b'"}},' + _PREV
_PREV_DIGITS: Final = 64


def _framed(line: bytes) -> tuple[_Frame, int, Any] | None:
    """Return frame, sequence number and parsed record of a line whose bytes around the record are known."""
    start = line.find(_SEQ)
    frame = _frames.get(line[:start]) if start > 0 else None
    if frame is None or not line.endswith(frame.tail):
        return None
    number, body = _numbered(line, start, frame.opening)
    if not body:
        return None
    try:
        return frame, int(number), orjson.loads(line[body : -len(frame.tail)])
    except ValueError:
        return None


def _numbered(line: bytes, start: int, opening: bytes) -> tuple[bytes, int]:
    """Return the sequence number of a line and where its record begins, 0 when anything but digits stands between."""
    start += len(_SEQ)
    chain = line.find(_CHAIN, start, start + _MAX_DIGITS + len(_CHAIN))
    prev = chain + len(_CHAIN)
    behind = prev + _PREV_DIGITS
    number = line[start:chain]
    # With digits only in the two gaps, the line is valid JSON exactly when the record is.
    if chain > 0 and number.isdigit() and line[prev:behind].isalnum() and line.startswith(opening, behind):
        return number, behind + len(opening)
    return b"", 0


def _learn_frame(line: bytes, tree: dict[str, Any], record: Record) -> None:
    """Remember the bytes around the only record of a line, if they stand where our writer puts them."""
    signal, scoped, items = (
        ("resourceSpans", "scopeSpans", "spans")
        if type(record) is Span
        else ("resourceLogs", "scopeLogs", "logRecords")
    )
    opening = b'"}}]},"%b":[' % items.encode()
    start = line.find(_SEQ)
    body = line.find(opening, start) + len(opening)
    end = max(line.rfind(b'],"schemaUrl":'), line.rfind(b"]}]}]}"))
    if not (0 < start < body < end) or record.scope.attributes or len(tree) != 1:
        return
    try:
        raw = orjson.loads(line[body:end])
    except ValueError:
        return
    frame = _Frame(line[end:], opening, signal, record.scope, record.resource)
    # Only if the line is nothing but frame, number, hash and record: then any other such line is valid JSON too.
    if raw == tree[signal][0][scoped][0][items][0] and _numbered(line, start, opening)[1] == body:
        if len(_frames) >= _MAX_FRAMES or sum(map(len, _frames)) >= _MAX_FRAMES_BYTES:
            _frames.clear()
        _frames[line[:start]] = frame


def _records(tree: dict[str, Any], path: Path, offset: int, length: int) -> Iterator[Record]:
    for group in tree.get("resourceSpans") or _NONE:
        resource = attributes((group.get("resource") or _EMPTY).get("attributes") or _NONE)
        for scoped in group.get("scopeSpans") or _NONE:
            scope, position = _scope(scoped.get("scope") or _EMPTY, path, offset, length)
            for span in scoped.get("spans") or _NONE:
                yield _span(span, scope, resource, position)
    for group in tree.get("resourceLogs") or _NONE:
        resource = attributes((group.get("resource") or _EMPTY).get("attributes") or _NONE)
        for scoped in group.get("scopeLogs") or _NONE:
            scope, position = _scope(scoped.get("scope") or _EMPTY, path, offset, length)
            for record in scoped.get("logRecords") or _NONE:
                yield _event(record, scope, resource, position)


def _scope(scope: dict[str, Any], path: Path, offset: int, length: int) -> tuple[Scope, Position]:
    found = attributes(scope.get("attributes") or _NONE)
    seq = found.pop(names.LINE_SEQ, 0)
    found.pop(names.LINE_PREV, None)
    return Scope(_text(scope, "name"), _text(scope, "version"), found), Position(path, offset, length, int(seq))


def _span(raw: dict[str, Any], scope: Scope, resource: Mapping[str, Any], position: Position | None) -> Span:
    trace_id, span_id = _hex(raw["traceId"], 32), _hex(raw["spanId"], 16)
    status = raw.get("status") or _EMPTY
    kind = raw.get("kind", 1)
    code = status.get("code", 0)
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=_hex(parent, 16) if (parent := raw.get("parentSpanId")) else "",
        name=_text(raw, "name"),
        otel_kind=_KINDS.get(kind, 0) if isinstance(kind, str) else int(kind),
        start_ns=int(raw.get("startTimeUnixNano") or 0),
        end_ns=int(raw.get("endTimeUnixNano") or 0),
        attributes=attributes(raw.get("attributes") or _NONE),
        status_code=cast("StatusCode", _STATUS.get(code, 0) if isinstance(code, str) else int(code)),
        status_message=_text(status, "message") if status else "",
        scope=scope,
        resource=resource,
        links=tuple(map(_link, links)) if (links := raw.get("links")) else (),
        trace_state=_text(raw, "traceState"),
        flags=int(raw.get("flags") or 0),
        events=tuple([_span_event(e, trace_id, span_id, scope, resource) for e in events])
        if (events := raw.get("events"))
        else (),
        position=position,
    )


def _link(raw: dict[str, Any]) -> Link:
    return Link(_hex(raw["traceId"], 32), _hex(raw["spanId"], 16), attributes(raw.get("attributes") or _NONE))


def _span_event(raw: dict[str, Any], trace_id: str, span_id: str, scope: Scope, resource: Mapping[str, Any]) -> Event:
    return Event(
        trace_id=trace_id,
        span_id=span_id,
        name=_text(raw, "name"),
        time_ns=int(raw.get("timeUnixNano") or 0),
        attributes=attributes(raw.get("attributes") or _NONE),
        scope=scope,
        resource=resource,
    )


def _event(raw: dict[str, Any], scope: Scope, resource: Mapping[str, Any], position: Position | None) -> Event:
    found = attributes(raw.get("attributes") or _NONE)
    body = any_value(raw["body"]) if raw.get("body") else ""
    return Event(
        trace_id=_hex(trace, 32) if (trace := raw.get("traceId")) else "",
        span_id=_hex(span, 16) if (span := raw.get("spanId")) else "",
        name=_text(raw, "eventName") or _text(found, "event.name"),
        time_ns=int(raw.get("timeUnixNano") or raw.get("observedTimeUnixNano") or 0),
        attributes=found,
        scope=scope,
        resource=resource,
        severity=_severity(raw.get("severityNumber") or 0),
        body=body if isinstance(body, str) else orjson.dumps(body, default=_bytes_text).decode(),
        position=position,
    )


def _text(holder: Mapping[str, Any], key: str) -> str:
    text = holder.get(key)
    if type(text) is str:
        return text
    if text is None:
        return ""
    raise TypeError(key)


def _hex(text: str, digits: int) -> str:
    # The protobuf JSON mapping would make ids base64; OTLP wants hex, and guessing would make new ids.
    if len(text) != digits or not text.isalnum():
        raise NotOtlp(f"an OTLP export request with ids that are not {digits} hex digits")
    int(text, 16)
    return text.lower()


def _severity(found: Any) -> int:
    return _SEVERITIES.get(found, 0) if isinstance(found, str) else int(found)


def _bytes_text(value: Any) -> str:
    return base64.b64encode(value).decode("ascii")


_SEVERITIES: Final = {
    f"SEVERITY_NUMBER_{name}{number or ''}": 1 + 4 * level + max(number - 1, 0)
    for level, name in enumerate(("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"))
    for number in (0, 2, 3, 4)
}
_DECODERS: Final[dict[str, Callable[..., Record]]] = {"resourceSpans": _span, "resourceLogs": _event}


def attributes(pairs: Any) -> dict[str, Any]:
    """Return an OTLP attribute list as a dictionary in its order."""
    out: dict[str, Any] = {}
    for pair in pairs:
        value = pair.get("value") or _EMPTY
        # The two common kinds are decoded in place: this loop is half of the time of reading a record.
        if type(text := value.get("stringValue")) is str:
            out[pair["key"]] = text
        elif "intValue" in value:
            out[pair["key"]] = int(value["intValue"])
        else:
            out[pair["key"]] = any_value(value)
    return out


def any_value(value: Mapping[str, Any]) -> Any:
    """Return the Python value of an OTLP AnyValue; an empty one is None."""
    for kind, content in value.items():
        if kind == "stringValue":
            return _text(value, kind)
        if kind == "boolValue":
            return bool(content)
        if kind == "intValue":
            return int(content)
        if kind == "doubleValue":
            return _DOUBLES[content] if isinstance(content, str) and content in _DOUBLES else float(content)
        if kind == "arrayValue":
            return [any_value(v or _EMPTY) for v in (content or _EMPTY).get("values") or _NONE]
        if kind == "kvlistValue":
            return attributes((content or _EMPTY).get("values") or _NONE)
        if kind == "bytesValue":
            return _bytes(content)
    return None


def _bytes(text: str) -> bytes:
    # The protobuf JSON mapping accepts both alphabets on reading, with or without padding.
    text = text.replace("-", "+").replace("_", "/")
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


_DOUBLES: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def fields(record: Record) -> dict[str, Any]:
    """Return the fields of a record of ours, exactly as they were given, in order.

    JSON text becomes the value again; structural attributes and those of the
    conventions are left out (`content` and the fold read these).
    """
    json_keys = frozenset(record.attributes.get(names.JSON_FIELDS) or _NONE)
    out: dict[str, Any] = {}
    for key, value in record.attributes.items():
        name = field_name(key)
        if name is not None:
            out[name] = load(value) if key in json_keys else value
    return out


def value_of(record: Record, key: str) -> Any:
    """Return one attribute of a record, JSON text turned back into its value; None when absent."""
    value = record.attributes.get(key)
    if value is not None and key in (record.attributes.get(names.JSON_FIELDS) or _NONE):
        return load(value)
    return value


def content(record: Record, *, output: bool) -> Any:
    """Return the input or output of a span in the form its caller passed, None when there is none."""
    own, shared, form = (
        (names.OUTPUT, names.GENAI_OUTPUT, names.OUTPUT_FORM)
        if output
        else (names.INPUT, names.GENAI_INPUT, names.INPUT_FORM)
    )
    if own in record.attributes:
        return value_of(record, own)
    if form in record.attributes:
        return _messages.decode_messages(value_of(record, shared), record.attributes[form])
    return value_of(record, shared)
