"""`@traced`: record calls of a function without changing what it is to its callers.

Same signature, types, return value, exceptions and, for generators, protocol:
`send`, `throw`, `close` and the return value pass through, sync and async. A
generator's span covers its iteration; it is current only while the generator
runs, so what the consumer does between two items is not its child.

Outside a run a decorated function costs one check.
"""

import functools
import gc
import inspect
import sys
import types
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import Any, Final, Literal, TypeVar, cast, overload

from opentelemetry import context as otel_context

from spanfold import names
from spanfold.instrument._api import begin_span, current_parent, is_idle
from spanfold.instrument._guard import losing_only
from spanfold.instrument._span import RecordedSpan

F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any] | classmethod[Any, ..., Any] | property")

SpanKindName = Literal["stage", "model_call", "agent", "tool", "timing", "span"]
Capture = bool | Literal["input", "output"] | Sequence[str]

CAPTURE_NODES: Final = 1_000
"""Values kept of captured arguments or results; more are cut and noted."""
CAPTURE_TEXT: Final = 65_536
"""Characters kept of each captured text."""
CAPTURE_ITEMS: Final = 100
"""Items kept of what a generator yielded."""


@overload
def traced(func: F, /) -> F: ...
@overload
def traced(
    *,
    stage: str | None = None,
    kind: SpanKindName | None = None,
    name: str | None = None,
    capture: Capture = True,
) -> Callable[[F], F]: ...
def traced(
    func: F | None = None,
    /,
    *,
    stage: str | None = None,
    kind: SpanKindName | None = None,
    name: str | None = None,
    capture: Capture = True,
) -> F | Callable[[F], F]:
    """Record each call of a function as a span: `@traced` or `@traced(stage="M1")`.

    Works on functions, coroutine functions, generators and async generators,
    on methods, class and static methods (above or below their decorator),
    properties, partials and callable objects; on a class it decorates the
    public methods the class defines.

    Args:
        func: What is decorated, in the bare form.
        stage: Make it a stage of this name; an argument named `cycle` becomes its cycle.
        kind: `stage`, `model_call`, `agent`, `tool`, `timing` or `span` (default).
        name: Name of the span; default the function's qualified name without `<locals>`.
        capture: Record arguments and result (True, bounded), neither (False), only `"input"` or
            `"output"`, or these arguments by name. A method's receiver is never recorded.
    """
    plan = _Plan(stage, kind or ("stage" if stage else "span"), name, capture)

    def decorate(target: F) -> F:
        return cast("F", _decorate(target, plan))

    return decorate if func is None else decorate(func)


class _Plan:
    """What the decorator was asked for."""

    __slots__ = ("capture", "kind", "name", "stage")

    def __init__(self, stage: str | None, kind: str, name: str | None, capture: Capture) -> None:
        self.stage, self.kind, self.name, self.capture = stage, kind, name, capture

    @property
    def wants_output(self) -> bool:
        return self.capture is True or self.capture == "output"

    @property
    def wants_input(self) -> bool:
        return self.capture not in (False, "output")


def _decorate(target: Any, plan: _Plan) -> Any:
    if isinstance(target, (staticmethod, classmethod)):
        kind = type(cast("Any", target))
        return kind(_decorate(target.__func__, plan))
    if isinstance(target, property):
        parts = [None if f is None else _decorate(f, plan) for f in (target.fget, target.fset, target.fdel)]
        return property(parts[0], parts[1], parts[2], target.__doc__)
    if isinstance(target, type):
        for attribute, member in list(vars(target).items()):
            if not attribute.startswith("_") and isinstance(member, (types.FunctionType, staticmethod, classmethod)):
                setattr(target, attribute, _decorate(member, plan))
        return target
    if not callable(target):
        raise TypeError(f"traced: expected a function, method or class, found a {type(target).__name__}.")
    call = _Call(target, plan)
    if _is(inspect.isasyncgenfunction, target):
        wrapper: Any = _async_generator(target, call)
    elif _is(inspect.iscoroutinefunction, target):
        wrapper = _coroutine(target, call)
    elif _is(inspect.isgeneratorfunction, target):
        wrapper = _generator(target, call)
    else:
        wrapper = _function(target, call)
    call.wrapper = weakref.ref(wrapper)
    return wrapper


def _is(test: Callable[[Any], bool], target: Any) -> bool:
    return test(target) or (not inspect.isroutine(target) and test(getattr(target, "__call__", None)))  # noqa: B004 - an object's


class _Call:
    """Starts and ends the span of one decorated function."""

    def __init__(self, func: Callable[..., Any], plan: _Plan) -> None:
        self.plan = plan
        self.wrapper: Any = None
        inner = func
        while isinstance(inner, functools.partial):
            inner = inner.func
        self.func_name: str = getattr(inner, "__name__", type(inner).__name__)
        qualified: str = getattr(inner, "__qualname__", type(inner).__qualname__)
        self.label = qualified.rpartition("<locals>.")[2]
        self.function = f"{getattr(inner, '__module__', '')}.{qualified}"
        self.in_class = "." in self.label
        self.name = plan.name or plan.stage or self.label
        code = getattr(inner, "__code__", None)
        self.positional: tuple[str, ...] = code.co_varnames[: code.co_argcount] if code is not None else ()
        self.default_cycle = _default(inner, "cycle")
        self._receivers: dict[int, bool] = {}

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, current: bool = True) -> RecordedSpan | None:
        """Start the span of a call and make it current, None where nothing is recorded."""
        if is_idle():
            return None
        with losing_only("traced calls"):
            near, parent_id = current_parent()
            if near is None:
                return None
            plan = self.plan
            named = self._named(args, kwargs) if plan.wants_input or plan.kind == "stage" else {}
            cycle = named.get("cycle", self.default_cycle) if plan.kind == "stage" else None
            span = begin_span(
                plan.kind,
                self.name,
                near,
                parent_id,
                stage=plan.stage or (self.name if plan.kind == "stage" else None),
                cycle=cycle if type(cycle) is int else None,
                function=self.function,
            )
            if plan.wants_input:
                self._record_input(span, named)
            if current:
                span.make_current()
            return span
        return None

    def _record_input(self, span: RecordedSpan, named: dict[str, Any]) -> None:
        if not isinstance(self.plan.capture, (bool, str)):
            named = {k: v for k, v in named.items() if k in self.plan.capture}
        if named:
            key = names.GENAI_TOOL_ARGUMENTS if span.kind == "tool" else names.INPUT
            span.captured(key, named, max_nodes=CAPTURE_NODES, max_text=CAPTURE_TEXT)

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, without a method's receiver."""
        first = 1 if args and self.in_class and self._is_receiver(args[0]) else 0
        named = dict(zip(self.positional[first:], args[first:], strict=False))
        if len(args) > len(self.positional):
            named["*args"] = args[max(first, len(self.positional)) :]
        named.update(kwargs)
        return named

    def _is_receiver(self, candidate: Any) -> bool:
        """Whether the first argument is the object this function was looked up on.

        Decided by the class's own dictionary, since at decoration time a method
        cannot be told from a static method.
        """
        cls: type = candidate if isinstance(candidate, type) else type(candidate)
        known = self._receivers.get(id(cls))
        if known is None:
            known = self._found_in(cls)
            if len(self._receivers) < 1_024:
                self._receivers[id(cls)] = known
        return known

    def _found_in(self, cls: type) -> bool:
        wrapper = self.wrapper() if self.wrapper is not None else None
        for base in cls.__mro__:
            for raw in (base.__dict__.get(self.func_name), *_accessors(base.__dict__.get(self.func_name))):
                if isinstance(raw, staticmethod):
                    return False
                member = getattr(raw, "__func__", raw)
                while member is not None:
                    if member is wrapper:
                        return True
                    member = getattr(member, "__wrapped__", None)
        return False

    def finish(self, span: RecordedSpan, result: Any) -> None:
        """Record the result and end the span."""
        if self.plan.wants_output and result is not None:
            key = names.GENAI_TOOL_RESULT if span.kind == "tool" else names.OUTPUT
            span.captured(key, result, max_nodes=CAPTURE_NODES, max_text=CAPTURE_TEXT)
        span.end()


def _default(func: Any, name: str) -> Any:
    """Return the default value of a parameter, None when it has none."""
    code, defaults = getattr(func, "__code__", None), getattr(func, "__defaults__", None) or ()
    if code is None:
        return None
    positional = code.co_varnames[: code.co_argcount]
    found = dict(zip(positional[len(positional) - len(defaults) :], defaults, strict=True))
    found.update(getattr(func, "__kwdefaults__", None) or {})
    return found.get(name)


def _accessors(raw: Any) -> tuple[Any, ...]:
    return (raw.fget, raw.fset, raw.fdel) if isinstance(raw, property) else ()


def _function(func: Any, call: _Call) -> Any:
    @functools.wraps(func)
    def traced_function(*args: Any, **kwargs: Any) -> Any:
        span = call.start(args, kwargs)
        if span is None:
            return func(*args, **kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            span.failed(error)
            span.end()
            raise
        call.finish(span, result)
        return result

    return traced_function


def _coroutine(func: Any, call: _Call) -> Any:
    @functools.wraps(func)
    async def traced_coroutine(*args: Any, **kwargs: Any) -> Any:
        span = call.start(args, kwargs)
        if span is None:
            return await func(*args, **kwargs)
        try:
            result = await func(*args, **kwargs)
        except BaseException as error:
            span.failed(error)
            span.end()
            raise
        call.finish(span, result)
        return result

    return traced_coroutine


class _Iteration:
    """The span of one iteration of a generator: current while it runs, not while it is suspended."""

    __slots__ = ("call", "items", "kept", "outside", "inside", "own", "span")

    def __init__(self, call: _Call, span: RecordedSpan, own: "weakref.ref[Any] | None") -> None:
        self.call, self.span, self.own = call, span, own
        self.items = 0
        self.kept: list[Any] = []
        self.outside = otel_context.get_current()
        self.inside = span.detached_context()

    def resume(self) -> None:
        """The generator runs: what was current inside it when it was suspended is current again."""
        self.outside = otel_context.get_current()
        otel_context.attach(self.inside)

    def suspend(self) -> None:
        """The generator is suspended or over: the consumer's context is current again."""
        self.inside = otel_context.get_current()
        otel_context.attach(self.outside)

    def yielded(self, item: Any) -> None:
        self.items += 1
        if self.call.plan.wants_output and len(self.kept) < CAPTURE_ITEMS:
            self.kept.append(item)

    def end(self, error: BaseException | None = None) -> None:
        with losing_only("generator spans"):
            span = self.span
            if error is not None:
                span.failed(error)
            if isinstance(error, GeneratorExit) and self.own is not None and self.own() is None:
                span.set_attribute(names.OUTCOME, "abandoned")  # nobody closed it: the collector did
            span.set_attribute(names.ITEMS, self.items)
            if self.kept:
                key = names.GENAI_TOOL_RESULT if span.kind == "tool" else names.OUTPUT
                span.captured(key, self.kept, max_nodes=CAPTURE_NODES, max_text=CAPTURE_TEXT)
            span.end()
        self.kept = []


def _own_reference(kind: type, frame_attribute: str, frame: types.FrameType) -> "weakref.ref[Any] | None":
    """Return a weak reference to the generator that executes `frame`, None when it cannot be found.

    Only the youngest objects are looked at: a generator is nearly always
    iterated right after it was made. The reference is dead while the collector
    finalises the generator and alive when somebody called `close()`: nothing
    else tells an abandoned generator from one closed early.
    """
    for found in gc.get_objects(generation=0):
        if type(found) is kind and getattr(found, frame_attribute) is frame:
            return weakref.ref(found)
    return None


def _generator(func: Any, call: _Call) -> Any:
    @functools.wraps(func)
    def traced_generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        span = call.start(args, kwargs, current=False)
        if span is None:
            return (yield from func(*args, **kwargs))
        own = _own_reference(types.GeneratorType, "gi_frame", sys._getframe())  # pyright: ignore[reportPrivateUsage]  # documented
        iteration = _Iteration(call, span, own)
        try:
            result = yield from _drive(func(*args, **kwargs), iteration)
        except BaseException as error:
            iteration.end(error)
            raise
        if call.plan.wants_output and result is not None and not iteration.kept:
            iteration.kept = [result]
        iteration.end()
        return result

    return traced_generator


def _drive(generator: Generator[Any, Any, Any], iteration: _Iteration) -> Generator[Any, Any, Any]:
    """`yield from generator`, with the context switched at every suspension (PEP 380 spelled out)."""
    step: Callable[[Any], Any] = generator.send
    sent: Any = None
    while True:
        iteration.resume()
        try:
            item = step(sent)
        except StopIteration as stop:
            return stop.value
        finally:
            iteration.suspend()
        iteration.yielded(item)
        try:
            sent = yield item
            step = generator.send
        except GeneratorExit:
            iteration.resume()
            try:
                generator.close()
            finally:
                iteration.suspend()
            raise
        except BaseException as error:  # noqa: BLE001 - thrown in by the consumer: the generator's to handle
            sent = error
            step = generator.throw


def _async_generator(func: Any, call: _Call) -> Any:
    @functools.wraps(func)
    async def traced_async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        span = call.start(args, kwargs, current=False)
        generator = func(*args, **kwargs)
        if span is None:
            iteration = None
        else:
            own = _own_reference(types.AsyncGeneratorType, "ag_frame", sys._getframe())  # pyright: ignore[reportPrivateUsage]  # documented
            iteration = _Iteration(call, span, own)
        step: Callable[[Any], Any] = generator.asend
        sent: Any = None
        try:
            while True:
                if iteration is not None:
                    iteration.resume()
                try:
                    item = await step(sent)
                except StopAsyncIteration:
                    break
                finally:
                    if iteration is not None:
                        iteration.suspend()
                if iteration is not None:
                    iteration.yielded(item)
                try:
                    sent = yield item
                    step = generator.asend
                except GeneratorExit:
                    if iteration is not None:
                        iteration.resume()
                    try:
                        await generator.aclose()
                    finally:
                        if iteration is not None:
                            iteration.suspend()
                    raise
                except BaseException as error:  # noqa: BLE001 - thrown in by the consumer: the generator's to handle
                    sent = error
                    step = generator.athrow
        except BaseException as error:
            if iteration is not None:
                iteration.end(error)
            raise
        if iteration is not None:
            iteration.end()

    return traced_async_generator
