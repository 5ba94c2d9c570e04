"""The recorder's span: a light OpenTelemetry span whose end is a line in the journal.

It implements `opentelemetry.trace.Span` and is current in the OpenTelemetry
context, so other instrumentors become its children and it becomes theirs. It
has no limits, is always sampled, and never raises: what goes wrong here is
counted (`_guard`). Mutable values are encoded when they are set, so changing
them later changes nothing, and nothing of the host is kept after the end.
"""

import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, cast

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

from spanfold import names
from spanfold.instrument import _ids
from spanfold.instrument._context import SPAN_KEY, get_context, set_context, set_directly
from spanfold.instrument._core import load
from spanfold.instrument._facts import NO_TOLD, Facts
from spanfold.instrument._guard import losing_only, lost
from spanfold.instrument._near import Anchor, Recorder, UnrecordedId
from spanfold.instrument._own_time import Guard
from spanfold.instrument._stored import FIELD_KEYS, attribute_key
from spanfold.journal import (
    EMPTY,
    AttributeValue,
    Fragment,
    Frame,
    Place,
)

_put_into = cast("Callable[[Context, str, object], None]", dict.__setitem__)  # pyright: ignore[reportUnknownMemberType]  # of any dict
"""Sets a key of a new context: a Context itself refuses to be changed."""
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_perf = time.perf_counter_ns


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


class PythonSpan(Facts):
    """One span of a run, without C."""

    # Defaults of what most spans never set: a class attribute costs nothing at the start of a span.
    _entered = False
    _retroactive = False
    _is_recorded = False
    _span_context: SpanContext | None = None
    _context: Context | None = None
    _previous: Context | None = None
    _places: Places | None = None
    frame: Frame | None = None
    """The line around its record, when it is not that of our own scope."""

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
            self.ended_by(error)
        else:
            self.end()
        if self._entered:  # it was ended in another thread or task
            self.leave()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def ended_by(self, error: BaseException, *, is_told: bool = True, is_failure: bool = True) -> None:
        """End the span by an exception that leaves it; see `failed`. What it costs to tell of it is not part of the span."""
        time_ns = self.clock()
        self.failed(error, time_ns=time_ns, is_told=is_told, is_failure=is_failure)
        self.end(time_ns)

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
                self._told = NO_TOLD
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
    no_told=NO_TOLD,
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
