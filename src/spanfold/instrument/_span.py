"""The recorder's span: a light OpenTelemetry span whose end is a line in the journal.

It implements `opentelemetry.trace.Span` and is current in the OpenTelemetry
context, so other instrumentors become its children and it becomes theirs. It
has no limits, is always sampled, and never raises: what goes wrong here is
counted (`_guard`). Mutable values are encoded when they are set, so changing
them later changes nothing, and nothing of the host is kept after the end.
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags, TraceState

from spanfold import names
from spanfold.instrument import _ids
from spanfold.instrument._exceptions import ending, exception_event, message
from spanfold.instrument._guard import losing_only, lost
from spanfold.journal import AttributeValue, Journal, JsonText, encode_messages, field_key, store, to_json, to_tree

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_MAX_PERIODS: Final = 512
_perf = time.perf_counter_ns



class _Fork:
    """How often this process was forked: a span of an earlier generation belongs to the parent."""

    generation = 0

    def forked(self) -> None:
        self.generation += 1


_fork = _Fork()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fork.forked)



def fork_generation() -> int:
    """Return how often this process is a fork of one that had imported this module."""
    return _fork.generation


_field_keys: dict[str, str] = {}


def _key(name: str) -> str:
    key = _field_keys.get(name)
    if key is None:
        key = field_key(name)
        if len(_field_keys) < 4096 and len(name) <= 256:
            _field_keys[name] = key
    return key


class Recorder(Protocol):
    """What a span needs of its run."""

    @property
    def journal(self) -> Journal:
        """Where its records go."""
        ...

    @property
    def trace_hex(self) -> bytes:
        """Trace id of the run, 32 hex digits."""
        ...

    @property
    def content(self) -> str:
        """Content policy: none, local or all."""
        ...

    @property
    def open_spans(self) -> dict[bytes, "RecordedSpan"]:
        """Spans that are current somewhere, by id: what a signal has to end."""
        ...

    def recorded(self, kind: str) -> None:
        """Told after each line: documents may be due."""
        ...

    def mirror_start(self, span: "RecordedSpan") -> None:
        """Show a started span to the host's provider, if it has one."""
        ...

    def mirror_end(self, span: "RecordedSpan", end_ns: int, attributes: Mapping[str, AttributeValue]) -> None:
        """Show an ended span to the host's provider, if it has one."""
        ...


class RecordedSpan(trace.Span):
    """One span of a run. Made by `spanfold.stage`, `model_call` ... and by `spanfold`'s own tracer."""

    __slots__ = (
        "_attributes",
        "_context",
        "_covered_ns",
        "_entered",
        "_extra",
        "_generation",
        "_id",
        "_links",
        "_lock",
        "_mono",
        "_notes",
        "_open_children",
        "_parent_id",
        "_period_start",
        "_periods",
        "_previous",
        "_retroactive",
        "_scoped",
        "_seen_error",
        "_span_context",
        "_status",
        "_status_message",
        "_trace",
        "cycle",
        "depth",
        "ended",
        "kind",
        "name",
        "otel_kind",
        "parent",
        "run",
        "stage",
        "start_ns",
        "token",
    )

    def __init__(
        self,
        run: Recorder,
        name: str,
        kind: str,
        *,
        parent: "RecordedSpan | None" = None,
        parent_id: bytes = b"",
        trace_hex: bytes | None = None,
        stage: str | None = None,
        cycle: Any = None,
        attributes: dict[str, AttributeValue] | None = None,
        otel_kind: int = 1,
        start_ns: int | None = None,
        scoped: bool = True,
    ) -> None:
        self.run = run
        self.name = name
        self.kind = kind
        self.parent = parent
        self.otel_kind = otel_kind
        self._trace = trace_hex or run.trace_hex
        self._id = _ids.span_id()
        self._parent_id = parent._id if parent is not None else parent_id
        self.stage = stage
        self.cycle = cycle
        self.depth = 0 if parent is None or parent.kind == "run" else parent.depth + 1
        self.token = names.timing_token(kind, name)
        self._attributes: dict[str, AttributeValue] = attributes if attributes is not None else {}
        self._notes: dict[str, str] | None = None
        self._links: list[tuple[str, str, Mapping[str, AttributeValue]]] | None = None
        self._status = 0
        self._status_message = ""
        self._scoped = scoped
        self._entered = False
        self._seen_error = 0
        self._span_context: SpanContext | None = None
        self._open_children = 0
        self._period_start = 0
        self._covered_ns = 0
        self._periods: list[tuple[int, int]] = []
        self._extra: list[tuple[int, int]] | None = None
        self.ended = False
        self._generation = _fork.generation
        now = time.time_ns()
        self._mono = _perf()
        self._retroactive = start_ns is not None
        if start_ns is not None:
            self._mono -= now - start_ns
        elif parent is not None:
            parent._child_started(self._mono)
        self.start_ns = now if start_ns is None else start_ns

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

    def set(self, **fields: Any) -> Self:
        """Set fields of the record; each becomes an attribute `spanfold.<name>`.

        Any value is taken: text, numbers and booleans as they are, everything
        else as JSON text of its data (docs/formats/values.md), copied now.
        """
        if not self.ended:
            for name, value in fields.items():
                self._store(_key(name), value)
        return self

    def _store(self, key: str, value: Any) -> None:
        kind = type(value)
        if kind is str or kind is bool:
            self._attributes[key] = value
            return
        with losing_only("field values"):
            stored, note = store(value)
            self._attributes[key] = stored
            if note:
                self._note(key, note)

    def _note(self, key: str, note: str) -> None:
        if self._notes is None:
            self._notes = {}
        self._notes[key] = note

    def set_attribute(self, key: str, value: Any) -> None:
        """Set an OpenTelemetry attribute under its own key."""
        if self.ended or not isinstance(key, str) or not key:  # pyright: ignore[reportUnnecessaryIsInstance]  # callers are untyped
            return
        kind = type(value)
        if kind is list or kind is tuple:
            with losing_only("attribute values"):
                scalars = tuple(store(v)[0] for v in cast("Sequence[Any]", value))
                if not any(type(v) is JsonText for v in scalars):
                    self._attributes[key] = scalars
                    return
        elif kind is bytes:
            self._attributes[key] = value
            return
        self._store(key, value)

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set several OpenTelemetry attributes under their own keys."""
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def event(self, name: str, **fields: Any) -> None:
        """Record a moment of this span: on disk when this returns, with the fields as attributes."""
        attributes: dict[str, AttributeValue] = {}
        notes: dict[str, str] = {}
        with losing_only("events"):
            for field, value in fields.items():
                key = _key(field)
                attributes[key], note = store(value)
                if note:
                    notes[key] = note
            self._write_event(name, attributes, notes)

    def add_event(self, name: str, attributes: Mapping[str, Any] | None = None, timestamp: int | None = None) -> None:
        """Record an OpenTelemetry event of this span, at once."""
        with losing_only("events"):
            stored: dict[str, AttributeValue] = {}
            notes: dict[str, str] = {}
            for key, value in (attributes or {}).items():
                stored[key], note = store(value)
                if note:
                    notes[key] = note
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
        body, sensitive = self.run.journal.encoder.event(
            trace_id=self._trace,
            span_id=self._id,
            name=name,
            time_ns=self.start_ns + _perf() - self._mono if time_ns is None else time_ns,
            attributes={**self._place(), **attributes},
            notes=notes,
            severity=severity,
        )
        self.run.journal.event(body, sensitive)
        self.run.recorded("event")

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
            stored = {k: store(v)[0] for k, v in (attributes or {}).items()}
            if self._links is None:
                self._links = []
            self._links.append((f"{context.trace_id:032x}", f"{context.span_id:016x}", stored))

    def update_name(self, name: str) -> None:
        """Change the span's name."""
        if not self.ended:
            self.name = name

    def is_recording(self) -> bool:
        """Whether facts can still be added: until the end."""
        return not self.ended

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the OpenTelemetry status; once OK it stays."""
        if self.ended or self._status == 1:
            return
        code = status.status_code if isinstance(status, Status) else status
        if isinstance(status, Status):
            description = status.description
        if code is StatusCode.UNSET:
            return
        self._status = 1 if code is StatusCode.OK else 2
        self._status_message = (description or "") if self._status == 2 else ""

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Record an exception as an event, redacted, once however many spans it passes through."""
        with losing_only("exception events"):
            found: dict[str, AttributeValue] = dict(exception_event(exception))
            for key, value in (attributes or {}).items():
                found[key] = store(value)[0]
            self._write_event(names.EVENT_EXCEPTION, found, time_ns=timestamp, severity=17)

    def failed(self, error: BaseException) -> None:
        """Take over an exception that leaves the span: outcome, status, `error.type`, and one event."""
        if self.ended:
            return
        with losing_only("exceptions"):
            end = ending(error)
            if end.outcome:
                self._attributes[names.OUTCOME] = end.outcome
            if end.exit_code is not None:
                self._attributes[names.EXIT_CODE] = end.exit_code
            if end.status_code:
                self._status = 2
                self._status_message = message(error)
                self._attributes[names.ERROR_TYPE] = end.error_type
            if end.is_error and self._seen_error != id(error):
                self.record_exception(error)
            # The same exception usually goes on through the enclosing spans: they need not tell it again.
            if self.parent is not None:
                self.parent._seen_error = id(error)

    # -- time of children: self time without keeping a row of each child

    def _child_started(self, mono: int) -> None:
        with _children:
            if self._open_children == 0:
                self._period_start = mono
            self._open_children += 1

    def _child_ended(self, mono: int) -> None:
        with _children:
            self._open_children -= 1
            # While at least one child is open the union of their intervals has no gap,
            # so a whole busy period is one interval, however many children it had.
            if self._open_children == 0:
                self._add_period(self._period_start, mono)

    def _child_reported(self, start: int, end: int) -> None:
        """Count a child whose times were given by hand."""
        with _children:
            if self._extra is None:
                self._extra = []
            self._extra.append((start, end))

    def _add_period(self, start: int, end: int) -> None:
        if len(self._periods) >= _MAX_PERIODS:
            self._covered_ns += sum(e - s for s, e in self._periods)
            self._periods.clear()
        self._periods.append((start, end))

    def _self_ns(self, end_mono: int) -> int:
        start = self._mono
        with _children:
            periods = list(self._periods)
            if self._open_children:
                periods.append((self._period_start, end_mono))
            if self._extra:
                periods += self._extra
        covered, frontier = self._covered_ns, start
        for begin, finish in sorted(periods) if self._extra else periods:
            begin, finish = max(begin, frontier), min(finish, end_mono)
            if begin < finish:
                covered += finish - begin
                frontier = finish
        return max(0, end_mono - start - covered)

    # -- life

    def announce(self) -> None:
        """Journal that this span was started, so that it is visible if it never ends (P2)."""
        with losing_only("started events"):
            attributes: dict[str, AttributeValue] = {names.SPAN_NAME: self.name, names.KIND: self.kind}
            if self._parent_id:
                attributes[names.SPAN_PARENT] = self._parent_id.decode()
            attributes.update(self._place())
            attributes[names.DEPTH] = self.depth
            for key, value in self._attributes.items():
                if key not in CONTENT_KEYS:
                    attributes[key] = value
            body, sensitive = self.run.journal.encoder.event(
                trace_id=self._trace,
                span_id=self._id,
                name=names.EVENT_STARTED,
                time_ns=self.start_ns,
                attributes=attributes,
                notes=self._notes,
            )
            self.run.journal.event(body, sensitive)
            self.run.recorded("started")

    def make_current(self) -> None:
        """Make this span the current one of the OpenTelemetry context."""
        self._previous = otel_context.get_current()
        self._context = trace.set_span_in_context(self, self._previous)
        otel_context.attach(self._context)
        self._entered = True
        self.run.open_spans[self._id] = self

    def detached_context(self) -> Context:
        """Return a context in which this span is current, without making it so; the span counts as open work."""
        self.run.open_spans[self._id] = self
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
        self._entered = False
        current = otel_context.get_current()
        if current is self._context or self._is_above(trace.get_current_span(current)):
            otel_context.attach(self._previous)
        self._previous = self._context = cast("Context", None)

    def _is_above(self, span: trace.Span) -> bool:
        """Whether `span` is a descendant of this one that was left open."""
        while isinstance(span, RecordedSpan):
            if span is self:
                return True
            if span.parent is None:
                return False
            span = span.parent
        return False

    def __enter__(self) -> Self:
        if self._scoped and not self.ended:
            with losing_only("the current span"):
                self.make_current()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.failed(error)
        self.end()

    def end(self, end_time: int | None = None) -> None:
        """End the span. When this returns its record is in the operating system; later calls do nothing.

        Args:
            end_time: Wall clock, nanoseconds; by default start plus the monotonic duration. Never before the start.
        """
        if self.ended:
            return
        self.ended = True
        mono = _perf()
        try:
            self._finish(mono, end_time)
        except Exception as error:  # noqa: BLE001 - the guard of the hot path: a context manager costs as much as the line
            lost("spans", error)
        finally:
            self.parent = None
            self._attributes = {}
            self._links = self._notes = self._extra = None

    def _finish(self, mono: int, end_time: int | None) -> None:
        if self._entered:
            self.leave()
        run = self.run
        run.open_spans.pop(self._id, None)
        if self._generation != _fork.generation:
            return  # a forked child unwinds a span of its parent: the parent records it
        if end_time is not None:
            mono = self._mono + max(0, end_time - self.start_ns)
        end_ns = self.start_ns + mono - self._mono
        parent = self.parent
        if parent is not None:
            if self._retroactive:
                parent._child_reported(self._mono, mono)
            else:
                parent._child_ended(mono)
        attributes: dict[str, AttributeValue] = {names.KIND: self.kind}
        if self.stage is not None:
            attributes[names.STAGE] = self.stage
        if self.cycle is not None:
            attributes[names.CYCLE] = self.cycle
        attributes[names.DEPTH] = self.depth
        if self.depth and parent is not None:
            attributes[names.PARENT] = parent.token
        attributes[names.SELF_NS] = self._self_ns(mono)
        attributes.update(self._attributes)
        body, sensitive = run.journal.encoder.span(
            trace_id=self._trace,
            span_id=self._id,
            parent_span_id=self._parent_id,
            name=self.name,
            otel_kind=self.otel_kind,
            start_ns=self.start_ns,
            end_ns=end_ns,
            attributes=attributes,
            notes=self._notes,
            links=self._links or (),
            status_code=self._status,
            status_message=self._status_message,
        )
        run.journal.span(body, sensitive)
        run.recorded(self.kind)
        run.mirror_end(self, end_ns, attributes)

    # -- content

    def _content(self, value: Any, shared: str, own: str, form_key: str, role: str) -> None:
        """Store message content in the conventions' form when it fits exactly, else in the caller's (DESIGN 4)."""
        if self.ended or self.run.content == "none":
            return
        with losing_only("message content"):
            encoded = encode_messages(value, role)
            if encoded is None:
                self._store(own, value)
            else:
                self._attributes[shared], self._attributes[form_key] = encoded
            if self.run.content == "local":
                self._attributes[names.CONTENT] = "local"

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
        known = self._attributes.get(names.ARTIFACTS)
        inside = known[1:-1] + "," if isinstance(known, JsonText) else ""
        self._attributes[names.ARTIFACTS] = JsonText(f"[{inside}{to_json(dict(facts))[0]}]")

    def captured(self, key: str, value: Any, *, max_nodes: int, max_text: int) -> None:
        """Record content nobody asked for by name (arguments, results of a decorated function): bounded."""
        if self.ended or self.run.content == "none":
            return
        with losing_only("captured values"):
            if type(value) is str and len(value) <= max_text:
                self._attributes[key] = value
            elif type(value) in (bool, int, float):
                self._store(key, value)
            else:
                tree, note = to_tree(value, max_nodes=max_nodes, max_text=max_text)
                self._attributes[key] = JsonText(to_json(tree)[0])
                if note:
                    self._note(key, note)
            if self.run.content == "local":
                self._attributes[names.CONTENT] = "local"


class UsageSpan(RecordedSpan):
    """A span that can say how many tokens it used."""

    __slots__ = ()

    def usage(self, **tokens: int | None) -> Self:
        """Record token counts.

        Args:
            tokens: `input_tokens` and `output_tokens` are totals. `cache_read_tokens`,
                `cache_write_tokens` and `reasoning_tokens` are parts of them. Other
                names become `gen_ai.usage.<name>`. None is skipped; a number that
                is no count (negative, NaN, a text) is refused, counted, and noted.
        """
        if self.ended:
            return self
        for name, count in tokens.items():
            if count is None:
                continue
            key = names.USAGE_KEYS.get(name) or f"gen_ai.usage.{name}"
            with losing_only("token counts"):
                whole = _whole(count)
                if whole is None:
                    lost("token counts that are no counts")
                    self._note(key, "not a count")
                else:
                    self._attributes[key] = whole
        return self


def _whole(count: Any) -> int | None:
    """Return a count as an int >= 0, or None when it is none."""
    if isinstance(count, bool):
        return None
    stored = store(count)[0]
    if type(stored) is float and stored.is_integer():
        stored = int(stored)
    return stored if type(stored) is int and stored >= 0 else None


class ModelCallSpan(UsageSpan):
    """One call of a model."""

    __slots__ = ()

    def served_model(self, name: str) -> Self:
        """Record the exact model that answered."""
        self.set_attribute(names.GENAI_SERVED_MODEL, name)
        return self

    def response_id(self, response_id: str) -> Self:
        """Record the provider's id of the answer."""
        self.set_attribute(names.GENAI_RESPONSE_ID, response_id)
        return self

    def finish_reasons(self, *reasons: str) -> Self:
        """Record why each choice ended: `stop`, `length`, `tool_call` ..."""
        self.set_attribute(names.GENAI_FINISH_REASONS, list(reasons))
        return self


class AgentSpan(UsageSpan):
    """One invocation of an agent."""

    __slots__ = ()


class ToolSpan(RecordedSpan):
    """One execution of a tool."""

    __slots__ = ()

    def arguments(self, value: Any) -> Self:
        """Record the arguments of the tool, as JSON text."""
        return self._tool(names.GENAI_TOOL_ARGUMENTS, value)

    def result(self, value: Any) -> Self:
        """Record what the tool returned, as JSON text."""
        return self._tool(names.GENAI_TOOL_RESULT, value)

    def output(self, value: Any) -> Self:
        """Record what the tool returned; the same as `result`."""
        return self.result(value)

    def input(self, value: Any) -> Self:
        """Record the arguments of the tool; the same as `arguments`."""
        return self.arguments(value)

    def _tool(self, key: str, value: Any) -> Self:
        if not self.ended and self.run.content != "none":
            self._store(key, value)
            if self.run.content == "local":
                self._attributes[names.CONTENT] = "local"
        return self


_children = threading.RLock()
"""Protects the child counters of all spans; re-entrant because a finalizer can end a span inside of it."""

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
