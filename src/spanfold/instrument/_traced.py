"""`@traced`: record calls of a function without changing what it is to its callers.

Same signature, types, return value, exceptions and, for generators, protocol:
`send`, `throw`, `close` and the return value pass through, sync and async. A
generator's span covers its iteration; it is current only while the generator
runs, so what the consumer does between two items is not its child.

Outside a run a decorated function costs one check.
"""

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Literal, TypeVar, cast, get_args, overload

from spanfold import names
from spanfold.instrument._callables import traced_object
from spanfold.instrument._current import current_parent, is_idle
from spanfold.instrument._generators import CAPTURE_CHARS, CAPTURE_NODES, CAPTURE_TEXT, async_generator, generator
from spanfold.instrument._guard import losses, lost
from spanfold.instrument._span import RecordedSpan
from spanfold.instrument._starting import begin_span

F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any] | classmethod[Any, ..., Any] | property")

SpanKindName = Literal["stage", "model_call", "agent", "tool", "timing", "span"]
Capture = bool | Literal["input", "output"] | Sequence[str]


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

    A call with arguments that do not fit fails as before; of a generator or
    coroutine function at its first step instead of at the call.

    Args:
        func: What is decorated, in the bare form.
        stage: Make it a stage of this name; an argument named `cycle` becomes its cycle.
        kind: `stage`, `model_call`, `agent`, `tool`, `timing` or `span` (default).
        name: Name of the span; default the function's qualified name without `<locals>`.
        capture: Record arguments and result (True, bounded), neither (False), only `"input"` or
            `"output"`, or these arguments by name, as a list. A method's receiver is never recorded.

    Raises:
        ValueError: `kind` or `capture` is none of these.
    """
    plan = _Plan(stage, kind or ("stage" if stage else "span"), name, capture)

    def decorate(target: F) -> F:
        return cast("F", _decorate(target, plan))

    return decorate if func is None else decorate(func)


class _Plan:
    """What the decorator was asked for."""

    __slots__ = ("capture", "kind", "name", "stage", "wants_input", "wants_output")

    def __init__(self, stage: str | None, kind: str, name: str | None, capture: Capture) -> None:
        if kind not in get_args(SpanKindName):
            raise ValueError(
                f"traced: expected one of the kinds {', '.join(get_args(SpanKindName))}, found another text."
            )
        if not _is_capture(capture):
            found = "another text" if isinstance(capture, str) else f"an object of type {type(capture).__name__}"
            raise ValueError(
                "traced: expected capture to be True, False, 'input', 'output' or a list of names of arguments, "
                f"found {found}."
            )
        self.stage, self.kind, self.name, self.capture = stage, kind, name, capture
        self.wants_output = capture is True or capture == "output"
        self.wants_input = capture is not False and capture != "output"


def _is_capture(given: Any) -> bool:
    if isinstance(given, (bool, str)):
        return given in (True, False, "input", "output")
    if not isinstance(given, (list, tuple, set, frozenset)):
        return False
    return all(isinstance(name, str) for name in cast("Collection[Any]", given))


def _decorate(target: Any, plan: _Plan) -> Any:
    """Return the traced twin of whatever can be decorated."""
    if isinstance(target, type):
        return _decorate_class(target, plan)
    if isinstance(target, _METHODS):
        return type(target)(_decorate_callable(target.__func__, plan))
    if isinstance(target, property):
        for part, accept in ((target.fget, "getter"), (target.fset, "setter"), (target.fdel, "deleter")):
            if part is not None:
                target = getattr(target, accept)(_decorate_callable(part, plan))
        return target
    if isinstance(target, functools.partialmethod):
        return functools.partialmethod(_decorate(target.func, plan), *target.args, **target.keywords)
    if isinstance(target, functools.cached_property):
        found = functools.cached_property(_decorate_callable(target.func, plan))
        if target.attrname is not None:
            found.__set_name__(object, target.attrname)
        return found
    if not callable(target):
        raise TypeError(f"traced: expected a function, method, property or class, found a {type(target).__name__}.")
    return _decorate_callable(target, plan)


def _decorate_class(cls: type, plan: _Plan) -> type:
    """Decorate the public methods a class defines, in place; what is traced already stays as it is."""
    twins: dict[int, Any] = {}
    members: list[tuple[str, Any]] = list(vars(cls).items())
    for attribute, member in members:
        if attribute.startswith("_") or not isinstance(member, (types.FunctionType, *_METHODS)):
            continue
        if getattr(member, "__func__", member) in _twins:
            continue
        twin = twins.get(id(member))
        if twin is None:
            twin = twins[id(member)] = _decorate(member, plan)
        setattr(cls, attribute, twin)
    return cls


def _decorate_callable(target: Any, plan: _Plan) -> Any:
    kind = cast("Any", type(target))
    if issubclass(kind, _PARTIAL):
        twin = kind(_decorate_callable(target.func, plan), *target.args, **target.keywords)
        twin.__dict__.update(target.__dict__)
        return twin
    call = Call(target, plan)
    if _is(inspect.isasyncgenfunction, target):
        wrapper: Any = async_generator(target, call)
    elif _is(inspect.iscoroutinefunction, target):
        wrapper = _coroutine(target, call)
    elif _is(inspect.isgeneratorfunction, target):
        wrapper = generator(target, call)
    else:
        wrapper = _function(target, call)
    if isinstance(target, types.MethodType) or not hasattr(kind, "__get__"):
        return traced_object(target, wrapper, functools.partial(_decorate_again, plan))
    wrapper.__annotations__ = getattr(target, "__annotations__", {})
    for attribute in _C_METHODS.get(kind, ()):
        setattr(wrapper, attribute, getattr(target, attribute))
    call.wrapper = weakref.ref(wrapper)
    _twins.add(wrapper)
    return wrapper


def _decorate_again(plan: _Plan, target: Any) -> Any:
    return _decorate_callable(target, plan)


_C_METHODS: Final[dict[type, tuple[str, ...]]] = {
    type(functools.lru_cache(str)): ("cache_info", "cache_clear", "cache_parameters")
}
"""What callables of these types offer besides the call; a function keeps it in its `__dict__`."""

_METHODS: Final[tuple[Any, ...]] = (staticmethod, classmethod)
_PARTIAL: Final[Any] = functools.partial
_LATE: Final[tuple[Any, ...]] = (functools.partialmethod, functools.cached_property)

_twins: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Every traced function."""


def _is(test: Callable[[Any], bool], target: Any) -> bool:
    if test(target):
        return True
    return not isinstance(target, type) and not inspect.isroutine(target) and test(getattr(target, "__call__", None))  # noqa: B004 - an object's


_SCALARS: Final = frozenset({bool, int, float, str})


class Call:
    """Starts and ends the span of one decorated function."""

    def __init__(self, func: Callable[..., Any], plan: _Plan) -> None:
        self.plan = plan
        self.wants_output = plan.wants_output
        self.wrapper: Any = None
        self.func_name: str = getattr(func, "__name__", type(func).__name__)
        qualified: str = getattr(func, "__qualname__", type(func).__qualname__)
        self.label = qualified.rpartition("<locals>.")[2]
        self.function = f"{getattr(func, '__module__', '')}.{qualified}"
        self.name = plan.name or plan.stage or self.label
        named = _innermost(func)
        code = getattr(named, "__code__", None)
        self.positional: tuple[str, ...] = code.co_varnames[: code.co_argcount] if code is not None else ()
        self.has_positional_only = code is not None and code.co_posonlyargcount > 0
        self.default_cycle = _default(named, "cycle")
        self._receivers: dict[int, tuple[weakref.ref[type], bool]] = {}

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, current: bool = True) -> RecordedSpan | None:
        """Start the span of a call and make it current, None where nothing is recorded."""
        if is_idle():
            return None
        try:
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
        except Exception as error:  # the guard, without the cost of a context manager
            lost("traced calls", error)
            return None

    def _record_input(self, span: RecordedSpan, named: dict[str, Any]) -> None:
        if not isinstance(self.plan.capture, (bool, str)):
            named = {k: v for k, v in named.items() if k in self.plan.capture}
        if named:
            key = names.GENAI_TOOL_ARGUMENTS if span.kind == "tool" else names.INPUT
            span.captured(key, named, max_nodes=CAPTURE_NODES, max_text=CAPTURE_TEXT, max_chars=CAPTURE_CHARS)

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, without a method's receiver."""
        first = 1 if args and self._is_receiver(args[0]) else 0
        named = dict(zip(self.positional[first:], args[first:], strict=False))
        if len(args) > len(self.positional):
            named["*args"] = args[max(first, len(self.positional)) :]
        if self.has_positional_only and not named.keys().isdisjoint(kwargs):
            kwargs = {f"**{k}" if k in named else k: v for k, v in kwargs.items()}
        named.update(kwargs)
        return named

    def _is_receiver(self, candidate: Any) -> bool:
        """Whether the first argument is the object this function was looked up on.

        Decided by the class's own dictionary, since at decoration time a method
        cannot be told from a static method, and a name says nothing.
        """
        kind = cast("Any", type(candidate))
        # Not isinstance(), which may run code of the candidate.
        cls: Any = candidate if issubclass(kind, type) else kind
        known = self._receivers.get(id(cls))
        if known is None or known[0]() is not cls:
            known = weakref.ref(cls), self._stands_in(cls)
            if len(self._receivers) >= 1_024:
                self._receivers.clear()
            self._receivers[id(cls)] = known
        return known[1]

    def _stands_in(self, cls: type) -> bool:
        """Whether this function is a method of a class or one of its bases, under any name, as a class or plain method."""
        wrapper = self.wrapper() if self.wrapper is not None else None
        if wrapper is None:
            return False
        for base in cls.__mro__:
            for raw in tuple(base.__dict__.values()):
                for part in (raw.fget, raw.fset, raw.fdel) if isinstance(raw, property) else (raw,):
                    if _leads_to(part, wrapper):
                        return not isinstance(raw, staticmethod)
        return False

    def finish(self, span: RecordedSpan, result: Any) -> None:
        """Record the result and end the span. What it costs to record it is not part of the span."""
        if not self.wants_output or result is None:
            span.end()
            return
        # An end that is given costs more than keeping a scalar does.
        time_ns = None if type(result) in _SCALARS else span.clock()
        key = names.GENAI_TOOL_RESULT if span.kind == "tool" else names.OUTPUT
        span.captured(key, result, max_nodes=CAPTURE_NODES, max_text=CAPTURE_TEXT, max_chars=CAPTURE_CHARS)
        span.end(time_ns)


def _leads_to(part: Any, wrapper: Any) -> bool:
    """Whether what stands in a class is `wrapper`, or was made from it by decorators that say so; runs no host code."""
    for _ in range(32):
        if part is wrapper:
            return True
        if isinstance(part, _METHODS):
            part = part.__func__
        elif isinstance(part, _LATE):
            part = part.func
        else:
            try:
                part = object.__getattribute__(part, "__dict__").get("__wrapped__")
            except AttributeError:
                return False
        if part is None:
            return False
    return False


def _innermost(func: Any) -> Any:
    """Return the function whose parameters the callers of `func` fill: other decorators say what they wrap."""
    try:
        return inspect.unwrap(func)
    except ValueError:  # it wraps itself
        return func


def _default(func: Any, name: str) -> Any:
    """Return the default value of a parameter, None when it has none."""
    code, defaults = getattr(func, "__code__", None), getattr(func, "__defaults__", None) or ()
    if code is None:
        return None
    positional = code.co_varnames[: code.co_argcount]
    found = dict(zip(positional[len(positional) - len(defaults) :], defaults, strict=True))
    found.update(getattr(func, "__kwdefaults__", None) or {})
    return found.get(name)


def _function(func: Any, call: Call) -> Any:
    @functools.wraps(func)
    def traced_function(*args: Any, **kwargs: Any) -> Any:
        span = call.start(args, kwargs)
        if span is None:
            return func(*args, **kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            try:
                span.ended_by(error)
            except Exception:  # near the recursion limit even a guarded call can fail
                losses["failed calls"] += 1
            raise
        call.finish(span, result)
        return result

    return traced_function


def _coroutine(func: Any, call: Call) -> Any:
    @functools.wraps(func)
    async def traced_coroutine(*args: Any, **kwargs: Any) -> Any:
        span = call.start(args, kwargs)
        if span is None:
            return await func(*args, **kwargs)
        try:
            result = await func(*args, **kwargs)
        except BaseException as error:
            try:
                span.ended_by(error)
            except Exception:  # near the recursion limit even a guarded call can fail
                losses["failed calls"] += 1
            raise
        call.finish(span, result)
        return result

    return traced_coroutine
