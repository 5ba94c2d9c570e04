"""The recorder's span: a light OpenTelemetry span whose end is a line in the journal.

It implements `opentelemetry.trace.Span` and is current in the OpenTelemetry
context, so other instrumentors become its children and it becomes theirs. It
has no limits, is always sampled, and never raises: what goes wrong here is
counted (`_guard`). Mutable values are encoded when they are set, so changing
them later changes nothing, and nothing of the host is kept after the end.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, cast

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags, TraceState

from spanfold import names
from spanfold.instrument import _ids
from spanfold.instrument._context import SPAN_KEY, get_context, set_context, set_directly
from spanfold.instrument._core import load
from spanfold.instrument._exceptions import Trail, ending, exception_event, is_same, message, trail
from spanfold.instrument._guard import losing_only, lost
from spanfold.instrument._near import Anchor, OfThisProcess, Recorder, UnrecordedId
from spanfold.instrument._own_time import Guard, OwnTime
from spanfold.instrument._stored import FIELD_KEYS, as_text, attribute_key, stored_attributes
from spanfold.journal import (
    EMPTY,
    AttributeValue,
    Fragment,
    Frame,
    JsonText,
    Place,
    dump,
    encode_messages,
    store,
    to_json,
    to_tree,
)

_put_into = cast("Callable[[Context, str, object], None]", dict.__setitem__)  # pyright: ignore[reportUnknownMemberType]  # of any dict
"""Sets a key of a new context: a Context itself refuses to be changed."""
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_INT64: Final = 1 << 63
_HUGE: Final = 1e300
"""Any float between is an ordinary number: neither infinite nor NaN."""
_perf = time.perf_counter_ns
_NO_TOLD: Final[Mapping[str, AttributeValue]] = MappingProxyType({})


class _Fork:
    """How often this process was forked: a span of an earlier generation belongs to the parent."""

    generation = 0

    def forked(self) -> None:
        self.generation += 1
        if native is not None:
            native.forked()


_fork = _Fork()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fork.forked)


def fork_generation() -> int:
    """Return how often this process is a fork of one that had imported this module."""
    return _fork.generation


_T = TypeVar("_T")


def remember(memo: dict[Any, Any], key: tuple[Any, ...], value: _T) -> _T:
    """Put a judged part of records into a run's memo and return it.

    Args:
        memo: The memo as it was before the gate was asked: a secret registered since then has replaced it.
        key: What the part is made of.
        value: The part, with the verdict.
    """
    if len(memo) >= 4096:
        memo.clear()
    memo[key] = value
    return value


class Places(NamedTuple):
    """Where spans of one name stand, encoded and judged."""

    key: tuple[Any, ...]
    """What it was made of: name, kind, OTLP kind, stage, cycle, depth, kind and name of the parent."""
    start: bytes
    """Structural attributes of the started event, without the parent."""
    is_start_clean: bool
    end: Place
    """Of the span."""


class PythonSpan(OwnTime, OfThisProcess, trace.Span):
    """One span of a run, without C."""

    # Defaults of what most spans never set: a class attribute costs nothing at the start of a span.
    parent: "RecordedSpan | Anchor | None" = None
    ended = False
    _status = 0
    _status_message = ""
    _seen_error: Trail | None = None
    _entered = False
    _retroactive = False
    _is_recorded = False
    _told: Mapping[str, AttributeValue] = _NO_TOLD
    _notes: dict[str, str] | None = None
    _links: list[tuple[str, str, Mapping[str, AttributeValue]]] | None = None
    _span_context: SpanContext | None = None
    _context: Context | None = None
    _previous: Context | None = None
    _places: Places | None = None
    _is_moved = False
    """Whether name or cycle were changed after the start."""
    frame: Frame | None = None
    """The line around its record, when it is not that of our own scope."""
    mirrored: Any = None
    """The same span as the host's provider is shown it, where the host has one."""

    def __init__(
        self,
        run: Recorder,
        name: str,
        kind: str,
        parent: "RecordedSpan | Anchor | None" = None,
        *,
        parent_id: bytes = b"",
        stage: str | None = None,
        cycle: int | None = None,
        before: Fragment = EMPTY,
        otel_kind: int = 1,
        start_ns: int | None = None,
        scoped: bool = True,
    ) -> None:
        """Start a span.

        Args:
            run: The recording it belongs to.
            name: Low-cardinality name.
            kind: A `names.Kind`.
            parent: The recorded span around it.
            parent_id: Its real parent, when that is another one (a foreign span between, another process).
            stage: Name of the innermost stage; its own name on a stage.
            cycle: Iteration of the loop.
            before: Attributes that are encoded already.
            otel_kind: OTLP SpanKind.
            start_ns: Wall clock, when it is not now.
            scoped: Whether `with` makes it current.
        """
        self.run = run
        self.name = name
        self.kind = kind
        self.stage = stage
        self.cycle = cycle
        self.otel_kind = otel_kind
        self._trace = run.trace_hex
        self._id = _ids.span_id()
        self._before = before
        self._attributes: dict[str, AttributeValue] = {}
        self._scoped = scoped
        self._generation = _fork.generation
        if parent is None:
            self.depth = 0
            self._parent_id = parent_id
        else:
            self.parent = parent
            self.depth = 0 if parent.kind == "run" else parent.depth + 1
            self._parent_id = parent_id or parent._id  # pyright: ignore[reportPrivateUsage]  # the same, or its stand-in
            if type(parent_id) is UnrecordedId:
                self._attributes[names.RECORDED_PARENT] = parent_id.recorded.decode()
        if type(start_ns) is not int:
            self.start_ns = time.time_ns()
            self._mono = mono = _perf()
            if parent is not None:
                parent._child_started(mono)  # pyright: ignore[reportPrivateUsage]  # the same, or its stand-in
        else:
            self._retroactive = True
            self.start_ns = start_ns
            if isinstance(parent, RecordedSpan):  # so that both stand on one clock, to the nanosecond
                self._mono = parent._mono + start_ns - parent.start_ns
            else:
                self._mono = _perf() - (time.time_ns() - start_ns)

    @property
    def token(self) -> str:
        """Stage name of the span's timing row."""
        return names.timing_token(self.kind, self.name)

    # -- identity

    @property
    def span_id(self) -> str:
        """16 lower-case hex digits."""
        return self._id.decode()

    @property
    def trace_id(self) -> str:
        """32 lower-case hex digits."""
        return self._trace.decode()

    @property
    def parent_span_id(self) -> str:
        """16 lower-case hex digits, empty for a root."""
        return self._parent_id.decode()

    def get_span_context(self) -> SpanContext:
        """Return the OpenTelemetry identity of this span."""
        if self._span_context is None:
            self._span_context = SpanContext(int(self._trace, 16), int(self._id, 16), False, _SAMPLED, TraceState())
        return self._span_context

    # -- facts

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
            time_ns = self.start_ns + _perf() - self._mono
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

    def failed(self, error: BaseException, *, is_told: bool = True, is_failure: bool = True) -> None:
        """Take over an exception that leaves the span: outcome, status, `error.type`, and one event.

        However many spans it leaves, it has one event, of the innermost.

        Args:
            error: The exception; only read.
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
                self.record_exception(error)
            # The same exception usually goes on through the enclosing spans: they need not tell it again.
            if self.parent is not None:
                self.parent._seen_error = found  # pyright: ignore[reportPrivateUsage]  # the same, or its stand-in

    # -- life

    def announce(self) -> None:
        """Journal that this span was started, so that it is visible if it never ends (P2).

        What is known now is encoded once, for this event and for the span's own
        record; content waits for the record.
        """
        try:
            run = self.run
            journal = run.journal
            encoder = journal.encoder
            before = self._before
            attributes = self._attributes
            if attributes or self._notes:
                if CONTENT_KEYS.isdisjoint(attributes):
                    told, held_back = attributes, {}
                else:
                    held_back = {k: v for k, v in attributes.items() if k in CONTENT_KEYS}
                    told = {k: v for k, v in attributes.items() if k not in CONTENT_KEYS}
                if told:
                    fragment = encoder.fragment(told, self._notes)
                    self._before = before = encoder.join(before, fragment) if before.data else fragment
                    self._told, self._attributes, self._notes = told, held_back, None
            self._places = places = self._places_of(run)
            body = encoder.started(self._trace, self._id, self.start_ns, places.start, self._parent_id, before)
            journal.event(body, places.is_start_clean and before.is_clean)
            if run.is_watched:
                run.recorded("started")
        except Exception as error:
            lost("started events", error)

    def _recall(self) -> None:
        """Take what was encoded at the start back, because part of it is set again."""
        told = self._told
        self._told = _NO_TOLD
        self._attributes = {**told, **self._attributes}
        self._before = self.run.journal.encoder.fragment(
            {k: v for k, v in self._static_attributes().items() if k not in self._attributes}
        )

    def _static_attributes(self) -> dict[str, AttributeValue]:
        """Return the attributes this type of span encodes before it starts."""
        return {}

    def _places_of(self, run: Recorder) -> Places:
        """Return the encoded structural attributes of the started event and of the span; most spans share them."""
        depth, parent = self.depth, self.parent
        if depth and parent is not None:
            key = (self.name, self.kind, self.otel_kind, self.stage, self.cycle, depth, parent.kind, parent.name)
        else:
            key = (self.name, self.kind, self.otel_kind, self.stage, self.cycle, depth, "", "")
        memo = run.memo
        found: Places | None = memo.get(key)
        if found is None:
            encoder = run.journal.encoder
            fragment = encoder.fragment(
                {names.SPAN_NAME: self.name, names.KIND: self.kind, **self._place(), names.DEPTH: depth}
            )
            end = encoder.place(self.name, self.otel_kind, self._structure())
            found = remember(memo, key, Places(key, fragment.data, fragment.is_clean, end))
        return found

    def _structure(self) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {names.KIND: self.kind} if self.kind else {}
        attributes.update(self._place())
        attributes[names.DEPTH] = self.depth
        if self.depth and self.parent is not None:
            attributes[names.PARENT] = self.parent.token
        return attributes

    def make_current(self) -> None:
        """Make this span the current one of the OpenTelemetry context."""
        self._previous = previous = get_context()
        self._context = context = Context(previous)
        _put_into(context, SPAN_KEY, self)
        set_context(context)
        self._entered = True
        self.run.open_spans[self._id] = cast("RecordedSpan", self)

    def detached_context(self) -> Context:
        """Return a context in which this span is current, without making it so; the span counts as open work."""
        self.run.open_spans[self._id] = cast("RecordedSpan", self)
        return trace.set_span_in_context(self)

    def leave(self) -> None:
        """Stop being current: go back to what was current before.

        The previous context is attached again instead of detaching by token: a
        token fails, loudly, when a generator or callback is finished by another
        task than the one that started it. There the current context is not
        ours, and stays.
        """
        if not self._entered:
            return
        current = get_context()
        if self._previous is not None:
            above = current.get(SPAN_KEY)
            if current is self._context or self.is_above(above):
                set_context(self._previous)
            elif not self._step_aside(above):
                return  # it is current in another thread or task, whose `with` block goes back when it ends
        self._entered = False
        self._previous = self._context = None

    def _step_aside(self, above: object) -> bool:
        """Let a span that became current after this one, and outlives it, go back to what was current before both."""
        seen: set[object] = set()  # a span that is entered again inside of itself stands above itself
        while isinstance(above, RecordedSpan) and above._previous is not None and above not in seen:
            seen.add(above)
            if above._previous is self._context:
                above._previous = self._previous
                return True
            above = above._previous.get(SPAN_KEY)
        return False

    def is_above(self, span: object) -> bool:
        """Whether `span` is a descendant of this one that was left open."""
        seen: set[object] = set()
        while isinstance(span, RecordedSpan) and span not in seen:
            seen.add(span)
            if span is self:
                return True
            above: object = span.parent
            if above is None and span.ended and span._previous is not None:
                above = span._previous.get(SPAN_KEY)  # it was ended elsewhere, and is still current here
            span = above
        return False

    def __enter__(self) -> Self:
        if self._scoped and not self.ended:
            try:
                self.make_current()
            except Exception as error:
                lost("the current span", error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.failed(error)
        self.end()
        if self._entered:  # it was ended in another thread or task
            self.leave()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def end(self, end_time: int | None = None) -> None:
        """End the span. When this returns its record is in the operating system; later calls do nothing.

        Args:
            end_time: Wall clock, nanoseconds; by default start plus the monotonic duration. Never before the start.
        """
        if self.ended:
            return
        self.ended = True
        mono = 0
        try:
            mono = _perf()
            self._finish(mono, end_time)
        except BaseException as error:
            if not self._end_failed(error, mono, end_time):
                raise
        finally:
            # Nothing of the host is kept: a span object may live on in somebody's hands.
            self.parent = None
            self._attributes = {}
            self._before = EMPTY
            if self._told or self._links or self._notes or self._periods or self._extra:
                self._told = _NO_TOLD
                self._links = self._notes = self._extra = self._periods = None
            if self.mirrored is not None:
                self.mirrored = None

    def _end_failed(self, error: BaseException, mono: int, end_time: int | None) -> bool:
        """Take what came in the middle of the end; whether it was our own fault, which ends here, counted."""
        if isinstance(error, Exception):
            lost("spans", error)
            return True
        if not self._is_recorded:  # Ctrl-C, or what a signal handler raises: the record is not lost with it
            with losing_only("spans"):
                self._finish(mono or _perf(), end_time, is_again=True)
        return False

    def _finish(self, mono: int, end_time: int | None, *, is_again: bool = False) -> None:
        if self._entered:
            previous = self._previous
            if previous is not None and get_context() is self._context:
                set_context(previous)
                self._entered = False
                self._previous = self._context = None
            else:
                self.leave()
        run = self.run
        run.open_spans.pop(self._id, None)
        if self._generation != _fork.generation:
            return  # a forked child unwinds a span of its parent: the parent records it
        if type(end_time) is int:
            mono = self._mono + max(0, end_time - self.start_ns)
        end_ns = self.start_ns + mono - self._mono
        parent = self.parent
        if parent is not None and not is_again:
            if self._retroactive:
                parent._child_reported(self._mono, mono)  # pyright: ignore[reportPrivateUsage]  # the same, or its stand-in
            else:
                parent._child_ended(mono)  # pyright: ignore[reportPrivateUsage]  # the same, or its stand-in
        self_ns = end_ns - self.start_ns - self._covered_ns
        if self._open_children or self._extra or self_ns < 0 or self._retroactive or type(end_time) is int:
            self_ns = self._self_ns(mono)
        journal = run.journal
        encoder = journal.encoder
        places = self._places
        if places is None or self._is_moved or (parent is not None and self.depth and parent.name != places.key[7]):
            places = self._places_of(run)
        place = places.end
        before = self._before
        is_clean = before.is_clean and place.is_clean
        fragment = EMPTY
        if self._attributes or self._notes:
            fragment = encoder.fragment(self._attributes, self._notes)
            is_clean = is_clean and fragment.is_clean
        body = encoder.own_span(
            place,
            self._trace,
            self._id,
            self._parent_id,
            self.start_ns,
            end_ns,
            self_ns,
            before,
            fragment,
            self._status,
            self._status_message,
            self._links,
        )
        if is_clean and (self._status_message or self._links):
            is_clean = encoder.passes(body)
        journal.span(body, is_clean, self.frame)
        self._is_recorded = True
        if run.is_watched:
            run.recorded(self.kind)
        if run.is_mirrored:
            self._show_end(end_ns, self_ns)

    def _show_end(self, end_ns: int, self_ns: int) -> None:
        """Show the ended span to the host's provider."""
        own = {**self._static_attributes(), **self._told, **self._attributes}
        self.run.mirror_end(cast("RecordedSpan", self), end_ns, {**self._structure(), names.SELF_NS: self_ns, **own})

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


_Span = TypeVar("_Span", bound="RecordedSpan")


def _start(
    kind_of: type[_Span],
    run: Recorder,
    name: str,
    kind: str,
    parent: "RecordedSpan | Anchor",
    parent_id: bytes,
    stage: str | None,
    cycle: int | None,
    before: Fragment,
    otel_kind: int,
    /,
) -> _Span:
    return kind_of(
        run, name, kind, parent, parent_id=parent_id, stage=stage, cycle=cycle, before=before, otel_kind=otel_kind
    )


CONTENT_KEYS: Final = frozenset(
    {
        names.INPUT,
        names.OUTPUT,
        names.GENAI_INPUT,
        names.GENAI_OUTPUT,
        names.INPUT_FORM,
        names.OUTPUT_FORM,
        names.GENAI_TOOL_ARGUMENTS,
        names.GENAI_TOOL_RESULT,
    }
)
"""Left out of started events: the span's own record carries them once."""

native: Final = load(
    no_told=_NO_TOLD,
    empty_fragment=EMPTY,
    span_key=SPAN_KEY,
    context=Context,
    get_context=get_context,
    set_context=set_directly,
    span_id=_ids.span_id,
    time_ns=time.time_ns,
    perf=_perf,
    lost=lost,
    guard=Guard,
    field_keys=FIELD_KEYS,
    attribute_key=attribute_key,
    content_keys=CONTENT_KEYS,
    slow_start=_start,
)
"""The module of C, or None."""
IS_NATIVE: Final = native is not None
"""Whether spans live in C; the journal then does too."""

if not TYPE_CHECKING and native is not None:

    class RecordedSpan(native.Span, PythonSpan):
        """One span of a run. Made by `spanfold.stage`, `model_call` ... and by `spanfold`'s own tracer."""

else:

    class RecordedSpan(PythonSpan):
        """One span of a run. Made by `spanfold.stage`, `model_call` ... and by `spanfold`'s own tracer."""


start = _start if native is None else native.start
"""Start a span now; by position, since it is called for every one. Arguments as of the type, all of them."""
