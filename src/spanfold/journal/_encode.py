"""Encode records as the inner part of OTLP JSON lines (OTLP 1.x JSON: lowerCamelCase, hex ids, 64-bit as text).

This is the hot path of a traced call, so lines are joined from byte pieces:
the constant part of each attribute is cached by key, and only values go
through the JSON encoder. Attribute values are those `store()` returns, plus
tuples of scalars (OTLP arrays) and bytes.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from spanfold import names
from spanfold.journal._values import JsonText, clean_text, store

AttributeValue = str | bool | int | float | JsonText | bytes | tuple[Any, ...]
"""What the attribute dictionaries of the recorder hold."""

_dumps = orjson.dumps
_STRING: Final = b'stringValue":'
_MAX_CACHED_KEYS: Final = 4096
_SHORT_TEXT: Final = 64
_LONG_DIGITS: Final = 7
"""A number of fewer characters than the shortest secret that can be registered is none."""
_LONG_NUMBER: Final = 10**_LONG_DIGITS


class Fragment(NamedTuple):
    """Encoded attributes, and what has to be said about them once the list is complete."""

    data: bytes
    """OTLP attributes, comma-separated."""
    json_keys: tuple[str, ...] = ()
    """Keys whose value is JSON text."""
    notes: dict[str, str] = {}  # noqa: RUF012 - never changed
    """What had to be changed to store a value."""
    is_clean: bool = False
    """Whether all of it passed the gate and no key names a secret."""


EMPTY: Final = Fragment(b"", is_clean=True)


class Place(NamedTuple):
    """What many spans have in common, encoded."""

    head: bytes
    """Flags, name and kind."""
    attributes: bytes
    """The structural attributes, at least one."""
    is_clean: bool = False
    """Whether it passed the gate."""


def _in_doubt(_part: bytes) -> bool:
    return False


class PythonEncoder:
    """Encodes records and says whether they passed the gate.

    Keys and short texts come again and again: their encoded forms are kept,
    once they passed. Each string of a record lies in one attribute, so one
    whose attributes pass needs no redaction.

    Args:
        is_sensitive: Whether an attribute key names a secret, so that its value must be redacted whatever it is.
        is_clean: Whether an encoded part passes the gate; without one nothing does.
    """

    def __init__(self, is_sensitive: Callable[[str], bool], is_clean: Callable[[bytes], bool] = _in_doubt) -> None:
        self._is_sensitive = is_sensitive
        self.passes = is_clean
        """Whether an encoded part passes the gate."""
        self._keys: dict[str, tuple[bytes, dict[str, bytes]]] = {}
        self._n_texts = 0
        self._json_fields: dict[tuple[str, ...], bytes] = {}

    def forget(self) -> None:
        """Forget what passed the gate: a secret was registered."""
        # Replaced, not cleared: a verdict that another thread is just getting goes into the old ones.
        self._keys, self._n_texts = {}, 0

    def span(
        self,
        *,
        trace_id: bytes,
        span_id: bytes,
        parent_span_id: bytes,
        name: str,
        otel_kind: int,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, AttributeValue],
        notes: dict[str, str] | None = None,
        before: Fragment = EMPTY,
        place: bytes = b"",
        links: Sequence[tuple[str, str, Mapping[str, AttributeValue]]] = (),
        events: Sequence[tuple[str, int, Mapping[str, AttributeValue]]] = (),
        status_code: int = 0,
        status_message: str = "",
        flags: int = 1,
        trace_state: str = "",
    ) -> tuple[bytes, bool]:
        """Return one span as OTLP JSON, and whether it passed the gate.

        Args:
            trace_id: 32 lower-case hex digits.
            span_id: 16 lower-case hex digits.
            parent_span_id: 16 lower-case hex digits, or empty for a root.
            before: Attributes that are encoded already and stand before `attributes`.
            place: Encoded structural attributes that stand before all others.
        """
        fragment = self.fragment(attributes, notes)
        encoded = self._joined(place, before, fragment)
        is_clean = fragment.is_clean and before.is_clean
        text = self._text(name)
        head = (
            b'{"traceId":"%b","spanId":"%b"%b,"flags":%d,"name":%b,"kind":%d,"startTimeUnixNano":"%d","endTimeUnixNano":"%d","attributes":[%b]'
            % (
                trace_id,
                span_id,
                b',"parentSpanId":"%b"' % parent_span_id if parent_span_id else b"",
                flags,
                text,
                otel_kind,
                start_ns,
                end_ns,
                encoded,
            )
        )
        if not (trace_state or events or links or status_code):
            return head + b"}", is_clean and self.passes(text + place)
        parts = [head]
        if trace_state:
            parts.append(b',"traceState":' + self._text(trace_state))
        if events:
            parts.append(b',"events":[%b]' % b",".join(self._span_event(e) for e in events))
        if links:
            parts.append(b',"links":[%b]' % b",".join(self._link(link) for link in links))
        if status_code:
            parts.append(b',"status":{"code":%d,"message":%b}' % (status_code, self._text(status_message)))
        parts.append(b"}")
        body = b"".join(parts)
        is_clean = is_clean and self.passes(body)
        return body, is_clean and all(self.fragment(found).is_clean for *_, found in (*events, *links) if found)

    def place(self, name: str, otel_kind: int, attributes: Mapping[str, AttributeValue]) -> Place:
        """Encode what many spans have in common: name, kind, and where they stand."""
        head = b'"flags":1,"name":%b,"kind":%d' % (self._text(name), otel_kind)
        fragment = self.fragment(attributes)
        return Place(head, self._joined(b"", EMPTY, fragment), fragment.is_clean and self.passes(head))

    def own_span(
        self,
        place: Place,
        trace_id: bytes,
        span_id: bytes,
        parent_span_id: bytes,
        start_ns: int,
        end_ns: int,
        self_ns: int,
        before: Fragment,
        fragment: Fragment,
        status_code: int,
        status_message: str,
        links: Sequence[tuple[str, str, Mapping[str, AttributeValue]]] | None,
        /,
    ) -> bytes:
        """Return a span of ours from encoded parts; like `span`, but by position, since it is called for every one.

        Args:
            place: From `place`.
            before: Attributes encoded at the start.
            fragment: Attributes set since.
        """
        # Joined and not formatted: that copies a long text once less.
        parts = [
            _OWN_SPAN % (trace_id, span_id, parent_span_id, place.head, start_ns, end_ns, place.attributes, self_ns)
        ]
        if before.data:
            parts += (b",", before.data)
        if fragment.data:
            parts += (b",", fragment.data)
        if before.json_keys or before.notes or fragment.json_keys or fragment.notes:
            parts += (b",", self._about(before, fragment))
        if not (status_code or links):
            parts.append(b"]}")
            return b"".join(parts)
        parts.append(b"]")
        if links:
            parts.append(b',"links":[%b]' % b",".join(self._link(link) for link in links))
        if status_code:
            parts.append(b',"status":{"code":%d,"message":%b}' % (status_code, self._text(status_message)))
        parts.append(b"}")
        return b"".join(parts)

    def event(
        self,
        *,
        trace_id: bytes,
        span_id: bytes,
        name: str,
        time_ns: int,
        attributes: Mapping[str, AttributeValue],
        notes: dict[str, str] | None = None,
        severity: int = 9,
    ) -> tuple[bytes, bool]:
        """Return one log record as OTLP JSON, and whether it passed the gate."""
        fragment = self.fragment(attributes, notes)
        text = self._text(name)
        body = (
            b'{"timeUnixNano":"%d","observedTimeUnixNano":"%d","severityNumber":%d,"eventName":%b,"attributes":[%b],"flags":1,"traceId":"%b","spanId":"%b"}'
            % (time_ns, time_ns, severity, text, self._joined(b"", EMPTY, fragment), trace_id, span_id)
        )
        return body, fragment.is_clean and self.passes(text)

    def started(
        self, trace_id: bytes, span_id: bytes, time_ns: int, place: bytes, parent_span_id: bytes, fragment: Fragment, /
    ) -> bytes:
        """Return the event that announces a span, from attributes that are encoded already.

        Args:
            place: Structural attributes, at least one.
            parent_span_id: 16 lower-case hex digits, or empty for a root.
        """
        if parent_span_id:
            place = _WITH_PARENT % (place, parent_span_id)
        if fragment.json_keys or fragment.notes:
            place = self._joined(place, EMPTY, fragment)
        elif fragment.data:
            place = b"%b,%b" % (place, fragment.data)
        return _STARTED % (time_ns, place, trace_id, span_id)

    @staticmethod
    def join(first: Fragment, second: Fragment, /) -> Fragment:
        """Return two fragments as one."""
        if not first.data:
            return second
        if not second.data:
            return first
        return Fragment(
            b"%b,%b" % (first.data, second.data),
            first.json_keys + second.json_keys,
            {**first.notes, **second.notes} if first.notes else second.notes,
            first.is_clean and second.is_clean,
        )

    def attributes(self, attributes: Mapping[str, AttributeValue]) -> bytes:
        """Return the inside of an OTLP attribute list."""
        return self._joined(b"", EMPTY, self.fragment(attributes))

    def _joined(self, place: bytes, before: Fragment, fragment: Fragment) -> bytes:
        return b",".join([part for part in (place, before.data, fragment.data, self._about(before, fragment)) if part])

    def _about(self, before: Fragment, fragment: Fragment) -> bytes:
        """Return the attributes that say which others are JSON text, and what had to be changed."""
        json_keys = before.json_keys + fragment.json_keys
        told = self._json_fields.get(json_keys)
        if told is None:
            told = (
                _JSON_FIELDS % b'},{"stringValue":'.join([self._text(key) for key in json_keys]) if json_keys else b""
            )
            if len(self._json_fields) < _MAX_CACHED_KEYS and sum(map(len, json_keys)) <= _MAX_CACHED_KEYS:
                self._json_fields[json_keys] = told
        if not (before.notes or fragment.notes):
            return told
        notes = {clean_text(key)[0]: note for key, note in (before.notes | fragment.notes).items()}
        return (told + b"," if told else b"") + _NOTES % _dumps(_dumps(notes).decode())

    # -- pieces

    def _span_event(self, event: tuple[str, int, Mapping[str, AttributeValue]]) -> bytes:
        name, time_ns, attributes = event
        return b'{"timeUnixNano":"%d","name":%b,"attributes":[%b]}' % (
            time_ns,
            self._text(name),
            self.attributes(attributes),
        )

    def _link(self, link: tuple[str, str, Mapping[str, AttributeValue]]) -> bytes:
        trace_id, span_id, attributes = link
        return b'{"traceId":"%b","spanId":"%b","attributes":[%b]}' % (
            trace_id.encode(),
            span_id.encode(),
            self.attributes(attributes),
        )

    @staticmethod
    def _text(text: str) -> bytes:
        try:
            return _dumps(text)
        except TypeError:  # a lone surrogate, or a subclass of str
            return _dumps(clean_text(str.__str__(text))[0])

    def fragment(self, attributes: Mapping[str, AttributeValue], notes: dict[str, str] | None = None, /) -> Fragment:
        """Encode attributes, in order, and ask the gate about what it has not seen before."""
        keys = self._keys
        parts: list[bytes] = []
        unseen: list[bytes] = []
        short: list[tuple[dict[str, bytes], str, bytes]] = []
        json_keys: list[str] = []
        odd_keys: list[str] = []
        is_clean = True
        for key, value in attributes.items():
            kind = type(value)
            entry = keys.get(key)
            if entry is None:
                entry, passes = self._new_key(key, keys)
                is_clean = is_clean and passes
            prefix, texts = entry
            if kind is str and len(value) <= _SHORT_TEXT:  # type: ignore[arg-type]  # kind is str
                known = texts.get(value)  # type: ignore[arg-type]  # kind is str
                if known is not None:
                    parts.append(known)
                    continue
            if kind is str:
                try:
                    # Joined and not formatted: that copies a long text once less.
                    part = b"".join((prefix, _STRING, _dumps(value), b"}}"))
                except TypeError:
                    odd_keys.append(key)
                    part = b'%bstringValue":%b}}' % (prefix, self._text(value))  # type: ignore[arg-type]  # kind is str
                else:
                    if len(value) <= _SHORT_TEXT:  # type: ignore[arg-type]  # kind is str
                        short.append((texts, value, part))  # type: ignore[arg-type]  # kind is str
                unseen.append(part)
            elif kind is int:
                part = b'%bintValue":"%d"}}' % (prefix, value)  # type: ignore[str-format]  # kind is int
                if not -_LONG_NUMBER < value < _LONG_NUMBER:  # type: ignore[operator]  # kind is int
                    unseen.append(part)
            elif kind is JsonText:
                json_keys.append(key)
                part = b"".join((prefix, _STRING, _dumps(str.__str__(value)), b"}}"))  # pyright: ignore[reportArgumentType]  # kind is JsonText
                unseen.append(part)
            elif kind is bool:
                part = prefix + (b'boolValue":true}}' if value else b'boolValue":false}}')
            elif kind is float:
                number = _dumps(value)
                part = b'%bdoubleValue":%b}}' % (prefix, number)
                if len(number) > _LONG_DIGITS:
                    unseen.append(part)
            else:
                part = b"%b%b}" % (prefix[:-2], self._any_value(value))
                unseen.append(part)
            parts.append(part)
        if unseen:
            is_clean = is_clean and self.passes(b",".join(unseen))
            if is_clean and short:
                for texts, text, part in short:
                    texts[text] = part
                self._n_texts += len(short)
                if self._n_texts > _MAX_CACHED_KEYS:
                    self.forget()
        if odd_keys:
            notes = {**(notes or NO_NOTES), **dict.fromkeys(odd_keys, "surrogates")}
        return Fragment(b",".join(parts), tuple(json_keys), notes or NO_NOTES, is_clean)

    def _any_value(self, value: Any) -> bytes:
        kind = type(value)  # pyright: ignore[reportUnknownVariableType]  # the type of anything
        if kind is tuple:
            return b'{"arrayValue":{"values":[%b]}}' % b",".join(self._any_value(v) for v in value)
        if kind is bytes:
            return b'{"bytesValue":"%b"}' % base64.b64encode(value)
        stored = value if kind is JsonText else store(value)[0]
        if type(stored) is bool:
            return b'{"boolValue":true}' if stored else b'{"boolValue":false}'
        if type(stored) is int:
            return b'{"intValue":"%d"}' % stored
        if type(stored) is float:
            return b'{"doubleValue":%b}' % _dumps(stored)
        return b'{"stringValue":%b}' % self._text(stored)  # type: ignore[arg-type]  # str or JsonText is left

    def _new_key(
        self, key: str, keys: dict[str, tuple[bytes, dict[str, bytes]]]
    ) -> tuple[tuple[bytes, dict[str, bytes]], bool]:
        """Return the encoded key with a place for its texts, and whether neither it nor what stands under it is secret."""
        prefix = b'{"key":%b,"value":{"' % self._text(key)
        entry: tuple[bytes, dict[str, bytes]] = (prefix, {})
        if self._is_sensitive(key) or not self.passes(prefix):
            return entry, False
        if len(keys) >= _MAX_CACHED_KEYS:
            keys.clear()
        if len(key) <= 256 and type(key) is str:  # a subclass may compare itself, in the middle of a walk in C
            keys[key] = entry
        return entry, True


SELF_KEY: Final = b',{"key":"%b","value":{"intValue":"' % names.SELF_NS.encode()
"""What stands between the structural attributes of a span of ours and its self time."""
STARTED_NAME: Final = b'","severityNumber":9,"eventName":"%b","attributes":[' % names.EVENT_STARTED.encode()
"""What stands between the time and the attributes of a started event."""
PARENT_HEAD: Final = b',{"key":"%b","value":{"stringValue":"' % names.SPAN_PARENT.encode()
"""What stands between the structural attributes and the parent of a started event."""
_OWN_SPAN: Final = (
    b'{"traceId":"%%b","spanId":"%%b","parentSpanId":"%%b",%%b,"startTimeUnixNano":"%%d","endTimeUnixNano":"%%d",'
    b'"attributes":[%%b%b%%d"}}' % SELF_KEY
)
NO_NOTES: Final[dict[str, str]] = {}
"""The notes of most fragments; never changed."""
_STARTED: Final = b'{"timeUnixNano":"%%d%b%%b],"flags":1,"traceId":"%%b","spanId":"%%b"}' % STARTED_NAME
_WITH_PARENT: Final = b'%%b%b%%b"}}' % PARENT_HEAD
_JSON_FIELDS: Final = (
    b'{"key":"%b","value":{"arrayValue":{"values":[{"stringValue":%%b}]}}}' % names.JSON_FIELDS.encode()
)
_NOTES: Final = b'{"key":"%b","value":{"stringValue":%%b}}' % names.NOTES.encode()


def field_key(name: str) -> str:
    """Return the attribute key that carries the field `name` (DESIGN 4); `field_name` is its inverse."""
    key = names.PREFIX + name
    return names.FIELD + name if key in STRUCTURAL or name.startswith("field.") else key


def field_name(key: str) -> str | None:
    """Return the field an attribute key of ours carries, or None when the key is structural or not ours."""
    if key.startswith(names.FIELD):
        return key[len(names.FIELD) :]
    if key in STRUCTURAL or not key.startswith(names.PREFIX):
        return None
    return key[len(names.PREFIX) :]


STRUCTURAL: Final[frozenset[str]] = frozenset(
    {
        names.KIND,
        names.STAGE,
        names.JSON_FIELDS,
        names.NOTES,
        names.OUTCOME,
        names.EXIT_CODE,
        names.ITEMS,
        names.SELF_NS,
        names.CONTENT,
        names.DEPTH,
        names.PARENT,
        names.RUN_ID,
        names.RUN_DIR,
        names.SEAL_HEAD,
        names.SEAL_SEQ,
        names.RECORDED_PARENT,
        names.OPEN_START,
        names.INPUT,
        names.OUTPUT,
        names.INPUT_FORM,
        names.OUTPUT_FORM,
        names.SPAN_NAME,
        names.SPAN_PARENT,
        names.LINKS,
    }
)
"""Attributes of ours that are not fields of a record."""
