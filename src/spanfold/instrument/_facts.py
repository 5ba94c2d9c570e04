"""What is known of a span: fields, attributes, events, links, status, exceptions, message content.

Values are stored when they are set, in the form an attribute holds them, so that changing them later changes nothing.
"""

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self, cast

from opentelemetry import trace
from opentelemetry.trace import SpanContext, Status, StatusCode

from spanfold import names
from spanfold.instrument._exceptions import Trail, ending, exception_event, is_same, message, trail
from spanfold.instrument._guard import losing_only, lost
from spanfold.instrument._near import Anchor, OfThisProcess, Recorder
from spanfold.instrument._own_time import OwnTime
from spanfold.instrument._stored import FIELD_KEYS, as_text, attribute_key, stored_attributes
from spanfold.journal import AttributeValue, Fragment, JsonText, dump, encode_messages, store, to_json, to_tree

if TYPE_CHECKING:
    from spanfold.instrument._span import RecordedSpan

_INT64: Final = 1 << 63
_HUGE: Final = 1e300
"""Any float between is an ordinary number: neither infinite nor NaN."""
_perf = time.perf_counter_ns
NO_TOLD: Final[Mapping[str, AttributeValue]] = MappingProxyType({})
"""What the started event of a span told that has none."""


class Facts(OwnTime, OfThisProcess, trace.Span):
    """The facts of a span; `PythonSpan` has its life."""

    run: Recorder
    name: str
    stage: str | None
    cycle: int | None
    _trace: bytes
    _id: bytes
    _before: Fragment
    """Attributes that are encoded already."""
    _attributes: dict[str, AttributeValue]
    # Defaults of what most spans never set: a class attribute costs nothing at the start of a span.
    parent: "RecordedSpan | Anchor | None" = None
    ended = False
    _status = 0
    _status_message = ""
    _seen_error: Trail | None = None
    _told: Mapping[str, AttributeValue] = NO_TOLD
    _notes: dict[str, str] | None = None
    _links: list[tuple[str, str, Mapping[str, AttributeValue]]] | None = None
    _is_moved = False
    """Whether name or cycle were changed after the start."""
    mirrored: Any = None
    """The same span as the host's provider is shown it, where the host has one."""

    def set(self, /, **fields: Any) -> Self:
        """Set fields of the record; each becomes an attribute `spanfold.<name>`.

        Any value is taken: text, numbers and booleans as they are, everything
        else as JSON text of its data (docs/formats/values.md), copied now.
        """
        if not self.ended:
            for name, value in fields.items():
                kind = type(value)  # pyright: ignore[reportUnknownVariableType]  # the host's
                if name == "cycle":
                    self._set_cycle(value)
                elif not self._told and (
                    kind is str
                    or (kind is int and -_INT64 <= value < _INT64)
                    or (kind is float and -_HUGE < value < _HUGE)
                ):
                    self._attributes[FIELD_KEYS.get(name) or attribute_key(name)] = value
                else:
                    self._store(attribute_key(name), value)
        return self

    def _set_cycle(self, value: Any) -> None:
        """Take a cycle given late. One that is no whole number cannot route records and is kept as a plain field."""
        if type(value) is int and -_INT64 <= value < _INT64:
            self.cycle, self._is_moved = value, True
        else:
            self._store(f"{names.FIELD}cycle", value)

    def _store(self, key: str, value: Any) -> None:
        if key in self._told:
            self._recall()
        kind = type(value)  # pyright: ignore[reportUnknownVariableType]  # the host's
        if kind is str or kind is bool or (kind is int and -_INT64 <= value < _INT64):
            self._attributes[key] = value
            return
        with losing_only("field values"):
            stored, note = store(value)
            self._attributes[key] = stored
            if note:
                self._note(key, note)

    def _put(self, key: str, value: AttributeValue) -> None:
        """Set an attribute whose value is in its stored form."""
        if key in self._told:
            self._recall()
        self._attributes[key] = value

    def _note(self, key: str, note: str) -> None:
        if self._notes is None:
            self._notes = {}
        self._notes[key] = note

    def set_attribute(self, key: str, value: Any) -> None:
        """Set an OpenTelemetry attribute under its own key."""
        if self.ended or not isinstance(key, str) or not key:  # pyright: ignore[reportUnnecessaryIsInstance]  # callers are untyped
            return
        if self.run.content != "all" and names.is_content(key):
            if self.run.content == "none":
                return
            self._put(names.CONTENT, "local")
        kind = type(value)  # pyright: ignore[reportUnknownVariableType]  # the host's
        if kind is list or kind is tuple:
            with losing_only("attribute values"):
                scalars = tuple(store(v)[0] for v in cast("Sequence[Any]", value))
                if not any(type(v) is JsonText for v in scalars):
                    self._put(key, scalars)
                    return
        elif kind is bytes:
            self._put(key, value)
            return
        self._store(key, value)

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set several OpenTelemetry attributes under their own keys."""
        with losing_only("attribute values"):
            for key, value in attributes.items():
                self.set_attribute(key, value)

    def event(self, name: str, /, **fields: Any) -> None:
        """Record a moment of this span: on disk when this returns, with the fields as attributes."""
        attributes: dict[str, AttributeValue] = {}
        notes: dict[str, str] = {}
        with losing_only("events"):
            for field, value in fields.items():
                key = attribute_key(field)
                attributes[key], note = store(value)
                if note:
                    notes[key] = note
            self._write_event(name, attributes, notes)

    def add_event(self, name: str, attributes: Mapping[str, Any] | None = None, timestamp: int | None = None) -> None:
        """Record an OpenTelemetry event of this span, at once."""
        with losing_only("events"):
            stored, notes = stored_attributes(attributes)
            self._write_event(name, stored, notes, time_ns=timestamp)

    def _write_event(
        self,
        name: str,
        attributes: dict[str, AttributeValue],
        notes: dict[str, str] | None = None,
        *,
        time_ns: int | None = None,
        severity: int = 9,
    ) -> None:
        if self.ended:
            lost("events of spans that have ended")
            return
        name = as_text(name)
        if type(time_ns) is not int:
            time_ns = self.clock()
        journal = self.run.journal
        body, is_clean = journal.encoder.event(
            trace_id=self._trace,
            span_id=self._id,
            name=name,
            time_ns=time_ns,
            attributes={**self._place(), **attributes},
            notes=notes,
            severity=severity,
        )
        journal.event(body, is_clean)
        if self.run.is_watched:
            self.run.recorded("event")
        if self.mirrored is not None:
            self.mirrored.keep_event(name, attributes, time_ns)

    def _place(self) -> dict[str, AttributeValue]:
        """Return where this span stands: what routes its records to a document."""
        place: dict[str, AttributeValue] = {}
        if self.stage is not None:
            place[names.STAGE] = self.stage
        if self.cycle is not None:
            place[names.CYCLE] = self.cycle
        return place

    def add_link(self, context: SpanContext, attributes: Mapping[str, Any] | None = None) -> None:
        """Link this span to another one."""
        if self.ended:
            return
        with losing_only("links"):
            link = f"{context.trace_id:032x}", f"{context.span_id:016x}", stored_attributes(attributes)[0]
            if self._links is None:
                self._links = []
            self._links.append(link)

    def update_name(self, name: str) -> None:
        """Change the span's name."""
        if not self.ended:
            with losing_only("span names"):
                self.name, self._is_moved = as_text(name), True

    def is_recording(self) -> bool:
        """Whether facts can still be added: until the end."""
        return not self.ended

    @property
    def status(self) -> tuple[int, str]:
        """OpenTelemetry status: code (0 unset, 1 ok, 2 error) and description."""
        return self._status, self._status_message

    @property
    def links(self) -> Sequence[tuple[str, str, Mapping[str, AttributeValue]]]:
        """Links so far: trace id, span id, attributes."""
        return self._links or ()

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the OpenTelemetry status; once OK it stays."""
        if self.ended or self._status == 1:
            return
        code = status.status_code if isinstance(status, Status) else status
        if isinstance(status, Status):
            description = status.description
        if code is StatusCode.OK:
            self._status, self._status_message = 1, ""
        elif code is StatusCode.ERROR:
            self._status = 2
            with losing_only("status descriptions"):
                self._status_message = as_text(description) if description is not None else ""

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Record an exception as an event, redacted."""
        with losing_only("exception events"):
            stored, notes = stored_attributes(attributes)
            found = {**exception_event(exception), **stored}
            self._write_event(names.EVENT_EXCEPTION, found, notes, time_ns=timestamp, severity=17)

    def clock(self) -> int:
        """Return what time it is by this span: its start plus the monotonic time since, in nanoseconds."""
        return self.start_ns + _perf() - self._mono

    def failed(
        self, error: BaseException, *, time_ns: int | None = None, is_told: bool = True, is_failure: bool = True
    ) -> None:
        """Take over an exception that leaves the span: outcome, status, `error.type`, and one event.

        However many spans it leaves, it has one event, of the innermost.

        Args:
            error: The exception; only read.
            time_ns: When it left; by default now.
            is_told: Whether it may have an event.
            is_failure: Whether it decides about the status.
        """
        if self.ended:
            return
        with losing_only("exceptions"):
            end = ending(error)
            if end.outcome:
                self._put(names.OUTCOME, end.outcome)
            if end.exit_code is not None:
                self._put(names.EXIT_CODE, end.exit_code)
            if end.status_code and is_failure and self._status != 1:
                self._status = 2
                self._status_message = message(error)
                self._put(names.ERROR_TYPE, end.error_type)
            if not end.is_error:
                return
            found = trail(error)
            if is_told and (self._seen_error is None or not is_same(self._seen_error, found)):
                self.record_exception(error, timestamp=time_ns)
            # The same exception usually goes on through the enclosing spans: they need not tell it again.
            if self.parent is not None:
                self.parent._seen_error = found  # pyright: ignore[reportPrivateUsage]  # the same, or its stand-in

    def _recall(self) -> None:
        """Take what was encoded at the start back, because part of it is set again."""
        told = self._told
        self._told = NO_TOLD
        self._attributes = {**told, **self._attributes}
        self._before = self.run.journal.encoder.fragment(
            {k: v for k, v in self._static_attributes().items() if k not in self._attributes}
        )

    def _static_attributes(self) -> dict[str, AttributeValue]:
        """Return the attributes this type of span encodes before it starts."""
        return {}

    # -- content

    def _content(self, value: Any, shared: str, own: str, form_key: str, role: str) -> None:
        """Store message content in the conventions' form when it fits exactly, else in the caller's (DESIGN 4)."""
        policy = self.run.content
        if self.ended or policy == "none":
            return
        try:
            encoded = encode_messages(value, role)
            if encoded is None:
                self._store(own, value)
            else:
                self._attributes[shared], self._attributes[form_key] = encoded
            if policy == "local":
                self._put(names.CONTENT, "local")
        except Exception as error:
            lost("message content", error)

    def input(self, value: Any) -> Self:
        """Record what went in: a text, a list of messages, or anything else."""
        self._content(value, names.GENAI_INPUT, names.INPUT, names.INPUT_FORM, "user")
        return self

    def output(self, value: Any) -> Self:
        """Record what came out: a text, a list of messages, or anything else."""
        self._content(value, names.GENAI_OUTPUT, names.OUTPUT, names.OUTPUT_FORM, "assistant")
        return self

    def add_artifact(self, facts: Mapping[str, Any]) -> None:
        """Note an artifact on the span: name, path and hash, so that the span alone proves the file."""
        if names.ARTIFACTS in self._told:
            self._recall()
        known = self._attributes.get(names.ARTIFACTS)
        inside = known[1:-1] + "," if isinstance(known, JsonText) else ""
        self._attributes[names.ARTIFACTS] = JsonText(f"[{inside}{to_json(dict(facts))[0]}]")

    def captured(self, key: str, value: Any, *, max_nodes: int, max_text: int, max_chars: int) -> None:
        """Record content nobody asked for by name (arguments, results of a decorated function): bounded."""
        if self.ended or self.run.content == "none":
            return
        with losing_only("captured values"):
            if type(value) is str and len(value) <= max_text:
                self._attributes[key] = value
            elif type(value) in (bool, int, float):
                self._store(key, value)
            else:
                if type(value) is dict and _is_small(cast("dict[str, Any]", value)):
                    text, note = to_json(value)
                else:
                    tree, note = to_tree(value, max_nodes=max_nodes, max_text=max_text, max_chars=max_chars)
                    text = dump(tree)
                self._attributes[key] = JsonText(text)
                if note:
                    self._note(key, note)
            if self.run.content == "local":
                self._put(names.CONTENT, "local")


def _is_small(values: dict[str, Any]) -> bool:
    """Whether a dictionary holds a few short plain values, as the arguments of most calls."""
    return len(values) <= 32 and all(
        type(v) in _PLAIN or (type(v) is str and len(v) <= _SHORT) for v in values.values()
    )


_PLAIN: Final = frozenset({int, float, bool, type(None)})
_SHORT: Final = 2_048
