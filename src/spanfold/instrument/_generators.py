"""Traced generators: what the consumer sees is the generator's own, what the generator sees is its own span.

Every `send`, `throw` and `close` of the consumer reaches the generator as it
was made, and what the generator answers reaches the consumer: PEP 380 spelled
out, except that a `GeneratorExit` is thrown in too instead of being turned
into `close()`, so that a generator that survives one does so here as well.

The span covers the iteration and is current only while the generator runs:
what the consumer does between two items is not its child. Nothing the
consumer or the generator passes on is held while they use it.
"""

import functools
import gc
import inspect
import sys
import types
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Final, Protocol, cast

from opentelemetry import context as otel_context
from opentelemetry.context import Context

from spanfold import names
from spanfold.instrument._context import SPAN_KEY, set_context
from spanfold.instrument._guard import losing_only, lost
from spanfold.instrument._span import RecordedSpan
from spanfold.journal import to_tree

CAPTURE_NODES: Final = 1_000
"""Values kept of captured arguments or results; more are cut and noted."""
CAPTURE_TEXT: Final = 65_536
"""Characters kept of each captured text."""
CAPTURE_CHARS: Final = 262_144
"""Characters kept of all captured texts of one call's arguments or result."""
CAPTURE_ITEMS: Final = 100
"""Items kept of what a generator yielded."""
_MAX_YOUNG: Final = 10_000
"""Young objects among which a generator looks for itself; more (collector off) would cost too much."""


class Started(Protocol):
    """What a generator needs of the decorated function (`_traced.Call`)."""

    @property
    def wants_output(self) -> bool:
        """Whether items are recorded."""
        ...

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, current: bool = True) -> RecordedSpan | None:
        """Start the span of a call, None where nothing is recorded."""
        ...


class _Iteration:
    """The span of one iteration of a generator, and the two contexts it is switched between. Never raises."""

    __slots__ = ("closing", "inside", "items", "kept", "outside", "own", "span", "strayed", "wants_output")

    def __init__(self, span: RecordedSpan, own: "weakref.ref[Any] | None", wants_output: bool) -> None:
        self.span, self.own, self.wants_output = span, own, wants_output
        self.items = 0
        self.kept: list[Any] = []
        self.closing = False
        self.strayed = False
        self.outside = otel_context.get_current()
        self.inside = span.detached_context()

    def resume(self) -> None:
        """The generator runs: what was current inside it when it was suspended is current again."""
        try:
            outside = otel_context.get_current()
            if outside is not self.outside:
                self._follow(outside)
            set_context(self.inside)
        except Exception as error:  # the guard, without the cost of a context manager
            lost("the current span of generators", error)

    def _follow(self, outside: Context) -> None:
        """Take over what the consumer changed in its context; what the generator set itself stays."""
        before = self.outside
        own = {key: value for key, value in self.inside.items() if before.get(key) is not value}
        self.outside, self.inside = outside, Context({**outside, **own})

    def suspend(self) -> None:
        """The generator is suspended or over: the consumer's context is current again."""
        try:
            now = otel_context.get_current()
            if self.strayed and not self._is_ours(now):
                return
            self.inside = now
            set_context(self.outside)
        except Exception as error:  # the guard, without the cost of a context manager
            lost("the current span of generators", error)

    def _is_ours(self, now: Context) -> bool:
        current = now.get(SPAN_KEY)
        return now is self.inside or (isinstance(current, RecordedSpan) and self.span.is_above(current))

    def yielded(self, item: Any) -> None:
        """Count an item, and copy it as it is now if it is one of the first."""
        self.items += 1
        if not self.wants_output or len(self.kept) >= CAPTURE_ITEMS:
            return
        with losing_only("captured values"):
            kind = cast("Any", type(item))
            plain = kind is str or kind is int or kind is float or kind is bool or item is None
            self.kept.append(
                item
                if plain
                else to_tree(item, max_nodes=CAPTURE_NODES, max_text=CAPTURE_TEXT, max_chars=CAPTURE_CHARS)[0]
            )

    def end(self, result: Any = None, error: BaseException | None = None) -> None:
        """End the span with what became of the iteration."""
        span = self.span
        time_ns = span.clock()
        with losing_only("generator spans"):
            if error is not None:
                span.failed(error, time_ns=time_ns)
            if self.closing and (error is None or isinstance(error, GeneratorExit)):
                # Dead while the collector finalises the generator, alive when somebody called `close()`.
                abandoned = self.own is not None and self.own() is None
                span.set_attribute(names.OUTCOME, "abandoned" if abandoned else "closed_early")
            span.set_attribute(names.ITEMS, self.items)
            if self.wants_output:
                kept, self.kept = self.kept, []
                if not kept and result is not None:
                    kept = [result]
                if kept:
                    key = names.GENAI_TOOL_RESULT if span.kind == "tool" else names.OUTPUT
                    span.captured(key, kept, max_nodes=CAPTURE_NODES, max_text=CAPTURE_TEXT, max_chars=CAPTURE_CHARS)
        with losing_only("generator spans"):
            span.end(time_ns)


def _iteration(call: Started, span: RecordedSpan, kind: type, of: str, frame: types.FrameType) -> _Iteration | None:
    with losing_only("generator spans"):
        return _Iteration(span, _own_reference(kind, of, frame), call.wants_output)
    span.end()
    return None


def _own_reference(kind: type, of: str, frame: types.FrameType) -> "weakref.ref[Any] | None":
    """Return a weak reference to the generator that executes `frame`, None when it is not found.

    Nothing else tells a generator that was dropped from one that was closed
    early, and a frame does not know its generator. It is nearly always among
    the youngest objects, since iteration begins right after it was made.
    """
    if gc.get_count()[0] > _MAX_YOUNG:
        return None
    for found in reversed(gc.get_objects(generation=0)):
        if (
            type(found) is kind
            and getattr(found, f"{of}_code") is frame.f_code
            and getattr(found, f"{of}_frame") is frame
        ):
            return weakref.ref(found)
    return None


def generator(func: Any, call: Started) -> Any:
    """Return the traced twin of a generator function."""

    @functools.wraps(func)
    def traced_generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        span = call.start(args, kwargs, current=False)
        iteration = None
        if span is not None:
            iteration = _iteration(call, span, types.GeneratorType, "gi", sys._getframe())  # pyright: ignore[reportPrivateUsage]  # documented
        # One element: what is on its way in or out. Popped before it is passed on, so that this frame does not hold it.
        passing: list[Any] = [None]
        result = None
        try:
            inner = func(*args, **kwargs)
            step: Callable[[Any], Any] = inner.send
            while True:
                if iteration is not None:
                    iteration.resume()
                try:
                    passing.append(step(passing.pop()))
                except StopIteration as stop:
                    result = stop.value
                    break
                finally:
                    if iteration is not None:
                        iteration.suspend()
                if iteration is not None:
                    iteration.yielded(passing[0])
                try:
                    passing.append((yield passing.pop()))
                    step = inner.send
                except BaseException as error:  # thrown in by the consumer: the generator's to handle
                    if iteration is not None and isinstance(error, GeneratorExit):
                        iteration.closing = True
                    passing.append(error)
                    step = inner.throw
        except BaseException as error:
            if iteration is not None:
                iteration.end(error=error)
            raise
        if iteration is not None:
            iteration.end(result)
        return result

    if _is_awaitable_generator(func):
        return types.coroutine(traced_generator)
    return traced_generator


def _is_awaitable_generator(func: Any) -> bool:
    code = getattr(func, "__code__", None)
    return code is not None and bool(code.co_flags & inspect.CO_ITERABLE_COROUTINE)


def async_generator(func: Any, call: Started) -> Any:
    """Return the traced twin of an async generator function."""

    @functools.wraps(func)
    async def traced_async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        span = call.start(args, kwargs, current=False)
        iteration = None
        if span is not None:
            iteration = _iteration(call, span, types.AsyncGeneratorType, "ag", sys._getframe())  # pyright: ignore[reportPrivateUsage]  # documented
        passing: list[Any] = [None]
        try:
            inner = func(*args, **kwargs)
            step: Callable[[Any], Any] = functools.partial(_first_step, inner)
            while True:
                if iteration is not None:
                    iteration.resume()
                try:
                    passing.append(await step(passing.pop()))
                except StopAsyncIteration:
                    break
                except GeneratorExit:
                    # It may be that this task is destroyed while it waits: then the context is somebody else's.
                    if iteration is not None:
                        iteration.strayed = True
                    raise
                finally:
                    if iteration is not None:
                        iteration.suspend()
                if iteration is not None:
                    iteration.yielded(passing[0])
                try:
                    passing.append((yield passing.pop()))
                    step = inner.asend
                except BaseException as error:  # thrown in by the consumer: the generator's to handle
                    if iteration is not None and isinstance(error, GeneratorExit):
                        iteration.closing = True
                    passing.append(error)
                    step = inner.athrow
        except BaseException as error:
            if iteration is not None:
                iteration.end(error=error)
            raise
        if iteration is not None:
            iteration.end()

    return traced_async_generator


def _first_step(inner: AsyncGenerator[Any, Any], _: None) -> Any:
    """Start the inner generator without telling the event loop of it.

    A loop closes at its end every async generator it was told of, all at once.
    The inner one is closed by ours; closed by both, it fails as already running.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return inner.asend(None)
    finally:
        sys.set_asyncgen_hooks(*hooks)
