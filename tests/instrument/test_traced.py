"""A decorated function is to its callers, to frameworks and to Python what it was before."""

import copy
import functools
import inspect
import math
import operator
import pickle
import sys
import threading
import types
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pytest

import spanfold
from spanfold.journal import content, value_of
from tests.instrument.reading import Lost, program, span, spans

T = TypeVar("T")


# -- what is decorated


def plain(a: int, /, b: "list[T]", *rest: float, key: Annotated[str, "note"] = "k", **more: bytes) -> "dict[str, T]":
    """Say what it does."""
    return {key: b[a]}


async def coroutine(a: int = 1) -> str:
    """Wait."""
    return str(a)


def generator(a: int) -> Iterator[int]:
    """Yield."""
    yield a


async def async_generator(a: int) -> AsyncIterator[int]:
    """Yield slowly."""
    yield a


class Adder:
    """Adds."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.calls = 0

    def __call__(self, a: int, *, twice: bool = False) -> int:
        """Add."""
        self.calls += 1
        return self.base + a * (2 if twice else 1)

    def method(self, a: int) -> int:
        return self.base - a


class AsyncAdder:
    async def __call__(self, a: int) -> int:
        return a


class Streamer:
    def __call__(self, a: int) -> Iterator[int]:
        yield a


@functools.lru_cache
def cached(a: int) -> int:
    return a * 2


@functools.singledispatch
def dispatched(a: object) -> str:
    return "object"


@dispatched.register
def _(a: int) -> str:
    return "int"


def wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return outer


CALLABLES: dict[str, Any] = {
    "function": plain,
    "lambda": lambda a, b=2: a + b,
    "coroutine": coroutine,
    "generator": generator,
    "async generator": async_generator,
    "wrapped": wrapping(plain),
    "partial": functools.partial(plain, 0, key="p"),
    "partial of a partial": functools.partial(functools.partial(plain, 0), key="p"),
    "partial of a coroutine": functools.partial(coroutine, 5),
    "partial of a class": functools.partial(Adder, 3),
    "builtin": math.hypot,
    "builtin without signature": max,
    "bound method": Adder(10).method,
    "bound builtin method": [1, 2].count,
    "method descriptor": str.upper,
    "callable object": Adder(1),
    "async callable object": AsyncAdder(),
    "generating callable object": Streamer(),
    "itemgetter": operator.itemgetter(0),
    "cached": cached,
    "dispatched": dispatched,
}
every_callable = pytest.mark.parametrize("name", CALLABLES)


def asked(question: Callable[[Any], Any], about: Any) -> Any:
    try:
        return question(about)
    except Exception as error:
        return type(error)


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "signature": inspect.signature,
    "hints": typing.get_type_hints,
    "hints with extras": lambda c: typing.get_type_hints(c, include_extras=True),
    "iscoroutinefunction": inspect.iscoroutinefunction,
    "isgeneratorfunction": inspect.isgeneratorfunction,
    "isasyncgenfunction": inspect.isasyncgenfunction,
    "isbuiltin": inspect.isbuiltin,
    "ismethod": inspect.ismethod,
    "isclass": inspect.isclass,
    "doc": inspect.getdoc,
    "module": inspect.getmodule,
    "source": inspect.getsource,
    "coroutine call": lambda c: inspect.iscoroutinefunction(c.__call__),
    "generator call": lambda c: inspect.isgeneratorfunction(c.__call__),
    "__name__": lambda c: c.__name__,
    "__qualname__": lambda c: c.__qualname__,
    "__module__": lambda c: c.__module__,
    "__annotations__": lambda c: c.__annotations__,
    "__isabstractmethod__": lambda c: c.__isabstractmethod__,
}


@pytest.mark.case("C-014")
@every_callable
@pytest.mark.parametrize("options", [{}, {"kind": "tool", "name": "t", "capture": False}, {"stage": "M1"}])
def test_whoever_inspects_a_decorated_callable_sees_the_callable(name: str, options: dict[str, Any]) -> None:
    original = CALLABLES[name]
    decorated = spanfold.traced(**options)(original) if options else spanfold.traced(original)

    assert decorated is not original
    answers = {question: asked(ask, decorated) for question, ask in QUESTIONS.items()}
    expected = {question: asked(ask, original) for question, ask in QUESTIONS.items()}
    if (
        name == "method descriptor"
    ):  # the one built-in that binds, so that its twin is a function and has what functions have
        for question in ("module", "__module__", "__annotations__"):
            del answers[question], expected[question]
    assert answers == expected


def test_a_decorated_callable_unwraps_to_the_callable() -> None:
    assert inspect.unwrap(spanfold.traced(plain)) is plain
    assert inspect.unwrap(spanfold.traced(async_generator)) is async_generator


@pytest.mark.case("C-014")
def test_a_caller_that_injects_by_signature_gives_a_decorated_function_the_same_arguments(where: Path) -> None:
    available: dict[Any, Any] = {int: 4, str: "text", Path: Path("p")}

    def inject(function: Callable[..., Any]) -> Any:
        hints = typing.get_type_hints(function if hasattr(function, "__annotations__") else function.__call__)
        return function(**{p: available[hints[p]] for p in inspect.signature(function).parameters})

    def handler(number: int, *, fn: str, path: "Path") -> list[Any]:
        return [number, fn, path]

    class Handler:
        def __call__(self, number: int, self_: str) -> list[Any]:
            return [number, self_]

    with spanfold.run("r", dir=where):
        for target in (handler, Handler(), Handler().__call__):
            assert inject(spanfold.traced(target)) == inject(target)  # type: ignore[type-var]  # any callable

    assert len(spans(where)) == 4


@pytest.mark.parametrize("recording", [True, False])
def test_a_decorated_callable_returns_and_raises_what_it_did(where: Path, recording: bool) -> None:
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("function", (0, [1, 2]), {}),
        ("function", (0, [1, 2], 3.0), {"key": "x", "a": b"also a", "more": b"m"}),
        ("function", (0, []), {}),
        ("function", (), {}),
        ("function", (1, [1, 2]), {"key": ["unhashable"]}),
        ("lambda", (1,), {}),
        ("wrapped", (0, [1]), {}),
        ("partial", ([1],), {}),
        ("partial", (), {"b": [1]}),
        ("partial of a class", (), {}),
        ("builtin", (3, 4), {}),
        ("builtin", ("no number",), {}),
        ("builtin without signature", (1, 2), {"key": lambda n: -n}),
        ("bound method", (1,), {}),
        ("bound builtin method", (1,), {}),
        ("method descriptor", ("a",), {}),
        ("callable object", (1,), {"twice": True}),
        ("itemgetter", ("abc",), {}),
        ("cached", (3,), {}),
        ("dispatched", (3,), {}),
        ("dispatched", ("x",), {}),
    ]

    def outcome(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            return type(error), error.args, error.__cause__, error.__context__
        return result.base if isinstance(result, Adder) else result

    run = spanfold.run("r", dir=where) if recording else types.SimpleNamespace(close=lambda: None)
    for name, args, kwargs in calls:
        original = CALLABLES[name]
        assert outcome(spanfold.traced(original), args, kwargs) == outcome(original, args, kwargs)
    run.close()
    if recording:
        assert len(spans(where)) == 1 + len(calls)


@pytest.mark.filterwarnings("ignore:functools.partial will be a method descriptor:FutureWarning")
def test_a_decorated_object_keeps_its_attributes_class_and_place_in_a_class(where: Path) -> None:
    adder = Adder(1)
    decorated = spanfold.traced(adder)

    class Holder:
        operation = spanfold.traced(Adder(5))
        length = spanfold.traced(len)
        fixed = spanfold.traced(functools.partial(max, 3))

    with spanfold.run("r", dir=where):
        assert decorated(2) == 3
        decorated.base = 100
        assert (adder.base, adder.calls, decorated.calls, decorated.method(1)) == (100, 1, 1, 99)
        assert Holder().operation(2) == 7
        assert Holder().length("four") == 4
        assert Holder().fixed(2) == 3
    assert isinstance(decorated, Adder)
    del decorated.calls
    assert not hasattr(adder, "calls")
    assert repr(decorated) == repr(adder)
    copied = copy.deepcopy(decorated)
    copied.base = 1
    assert adder.base == 100


def test_a_decorated_cached_function_keeps_its_cache() -> None:
    decorated = spanfold.traced(functools.lru_cache(lambda a: [a]))

    assert decorated(1) is decorated(1)
    assert decorated.cache_info().hits == 1
    decorated.cache_clear()
    assert decorated.cache_info().hits == 0
    assert spanfold.traced(dispatched).registry[int](1) == "int"


@pytest.mark.parametrize("wrong", ["M1", 3, None, [len]])
def test_decorating_what_cannot_be_called_fails_at_once_and_names_its_type(wrong: Any) -> None:
    with pytest.raises(TypeError, match=type(wrong).__name__):
        spanfold.traced()(wrong)


def test_an_unknown_kind_fails_at_once() -> None:
    with pytest.raises(ValueError, match="model_call"):
        spanfold.traced(kind="llm")  # type: ignore[call-overload]  # what is tested


@pytest.mark.parametrize("wrong", ["all", None, 5, 1, b"input", [3], {"query": True}])
def test_a_capture_that_is_none_of_the_values_fails_where_it_is_written(wrong: Any) -> None:
    with pytest.raises(ValueError, match="capture to be True, False, 'input', 'output' or a list of names"):
        spanfold.traced(capture=wrong)


# -- moving between processes and copies


@spanfold.traced
def at_module_level(x: int) -> int:
    return x + 1


class Pickled:
    @spanfold.traced
    def method(self, x: int) -> int:
        return x

    @spanfold.traced
    @classmethod
    def on_class(cls, x: int) -> int:
        return x


module_level_partial = spanfold.traced(functools.partial(plain, 0))
module_level_object = spanfold.traced(Adder(7))


@pytest.mark.case("C-017")
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_decorated_functions_methods_and_objects_pickle(protocol: int) -> None:
    def round_trip(value: Any) -> Any:
        return pickle.loads(pickle.dumps(value, protocol))

    assert round_trip(at_module_level) is at_module_level
    assert round_trip(Pickled.method) is Pickled.method
    assert round_trip(Pickled().method)(1) == 1
    assert round_trip(Pickled.on_class)(1) == 1
    if protocol >= 2:
        assert round_trip(module_level_object)(1) == 8
        assert round_trip(module_level_object) is not module_level_object
        assert round_trip(spanfold.traced(len))("abc") == 3


@pytest.mark.case("C-017")
def test_decorated_functions_copy_as_functions_do() -> None:
    assert copy.copy(at_module_level) is copy.deepcopy(at_module_level) is at_module_level
    holder = {"f": at_module_level, "o": module_level_object, "p": module_level_partial}
    copied = copy.deepcopy(holder)
    assert copied["f"] is at_module_level
    assert copied["o"].base == 7
    assert copied["p"]([9]) == {"k": 9}


# -- what is recorded


def test_arguments_are_recorded_by_name_and_the_result_beside_them(where: Path) -> None:
    @spanfold.traced(name="f")
    def f(a: int, /, b: int, *rest: int, key: str = "k", **more: Any) -> dict[str, int]:
        return {"sum": a + b}

    with spanfold.run("r", dir=where):
        f(1, 2, 3, 4, key="x", a="clash", z=None)

    recorded = span(where, "f")
    assert content(recorded, output=False) == {"a": 1, "b": 2, "*args": [3, 4], "key": "x", "**a": "clash", "z": None}
    assert content(recorded, output=True) == {"sum": 3}
    assert recorded.attributes["code.function.name"].endswith("f")


def test_arguments_are_named_through_decorators_that_say_what_they_wrap(where: Path) -> None:
    @spanfold.traced(name="f", stage="M1")
    @wrapping
    @wrapping
    def f(a: int, /, b: int, *rest: int, cycle: int = 7, **more: int) -> None: ...

    def itself() -> None: ...

    itself.__wrapped__ = itself  # type: ignore[attr-defined]  # what is tested

    with spanfold.run("r", dir=where):
        f(1, 2, 3, c=4)
        spanfold.traced(itself)()

    assert content(span(where, "f"), output=False) == {"a": 1, "b": 2, "*args": [3], "c": 4}
    assert span(where, "f").attributes["spanfold.cycle"] == 7


@pytest.mark.parametrize(
    ("capture", "inputs", "output"),
    [
        (True, {"a": 1, "b": 2}, 3),
        (False, None, None),
        ("input", {"a": 1, "b": 2}, None),
        ("output", None, 3),
        (["b"], {"b": 2}, None),
        ((), None, None),
    ],
)
@pytest.mark.parametrize("kind", ["span", "tool"])
def test_capture_chooses_what_is_recorded(where: Path, capture: Any, inputs: Any, output: Any, kind: Any) -> None:
    @spanfold.traced(name="f", capture=capture, kind=kind)
    def f(a: int, b: int) -> int:
        return a + b

    with spanfold.run("r", dir=where):
        f(1, b=2)

    (recorded, _) = spans(where)
    if kind == "tool":
        found = value_of(recorded, "gen_ai.tool.call.arguments"), value_of(recorded, "gen_ai.tool.call.result")
    else:
        found = content(recorded, output=False), content(recorded, output=True)
    assert found == (inputs, output)


def test_arguments_are_recorded_as_they_were_at_the_call(where: Path) -> None:
    @spanfold.traced(name="f")
    def f(a: list[int]) -> list[int]:
        a.append(2)
        return a

    with spanfold.run("r", dir=where):
        result = f([1])
        result.append(3)

    assert content(span(where, "f"), output=False) == {"a": [1]}
    assert content(span(where, "f"), output=True) == [1, 2]


def test_each_kind_of_decorated_function_is_a_span_of_that_kind(where: Path) -> None:
    def work(cycle: int = 3) -> None: ...

    with spanfold.run("r", dir=where):
        for kind in ("stage", "model_call", "agent", "tool", "timing", "span"):
            spanfold.traced(kind=kind, name=f"a {kind}")(work)()  # type: ignore[call-overload]  # by name
        spanfold.traced(stage="M2")(work)(cycle=7)

    recorded = {s.attributes["spanfold.kind"]: s for s in spans(where)[:6]}
    assert {kind: s.name for kind, s in recorded.items()} == {
        "stage": "a stage",
        "model_call": "chat a model_call",
        "agent": "invoke_agent a agent",
        "tool": "execute_tool a tool",
        "timing": "a timing",
        "span": "a span",
    }
    assert recorded["model_call"].attributes["gen_ai.request.model"] == "a model_call"
    assert recorded["agent"].attributes["gen_ai.agent.name"] == "a agent"
    assert recorded["tool"].attributes["gen_ai.tool.name"] == "a tool"
    assert recorded["stage"].attributes["spanfold.cycle"] == 3
    assert span(where, "M2").attributes["spanfold.cycle"] == 7
    assert "spanfold.cycle" not in recorded["span"].attributes


def test_a_recursive_function_nests_and_fails_at_the_recursion_limit_with_pythons_own_error(
    where: Path, lost: Lost
) -> None:
    @spanfold.traced(name="down")
    def down(n: int) -> int:
        return down(n - 1) if n else 0

    @spanfold.traced(name="for ever")
    def for_ever(n: int) -> int:
        return for_ever(n + 1)

    with spanfold.run("r", dir=where) as run:
        assert down(10) == 0
        with pytest.raises(RecursionError, match="maximum recursion depth exceeded"):
            for_ever(0)
        with spanfold.stage("after"):
            pass

    assert lost()  # there was no room on the stack to record the innermost calls
    assert len(spans(where, "down")) == 11
    assert span(where, "after").parent_span_id == run.span_id
    assert spans(where, "for ever")[-1].attributes["error.type"] == "RecursionError"


def test_a_decorated_function_may_be_called_from_many_threads_at_once(where: Path) -> None:
    @spanfold.traced(name="f")
    def f(n: int) -> int:
        with spanfold.timed(f"in {n}"):
            return n

    results: list[int] = []
    with spanfold.run("r", dir=where):
        threads = [
            threading.Thread(target=lambda t=t: results.extend(f(t * 100 + n) for n in range(50))) for t in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted(results) == sorted(t * 100 + n for t in range(8) for n in range(50))
    below = {s.span_id: content(s, output=True) for s in spans(where, "f")}
    assert len(below) == 400
    assert all(f"in {below[s.parent_span_id]}" == s.name for s in spans(where) if s.name.startswith("in "))


# -- outside a run


def test_a_decorated_function_outside_a_run_starts_no_thread_writes_no_file_and_imports_no_exporter(
    tmp_path: Path,
) -> None:
    script = """
import asyncio, os, sys, threading
before = set(sys.modules)
@spanfold.traced
def f(x): return x
@spanfold.traced
def g(x): yield x
@spanfold.traced
async def h(x): return x
assert (f(1), list(g(2)), asyncio.run(h(3))) == (1, [2], 3)
with spanfold.stage("s") as s, spanfold.model_call("m", input="x") as c:
    s.set(a=1); c.output("y"); c.usage(input_tokens=1); spanfold.score("a", 1); spanfold.event("e")
assert spanfold.current_run() is None and spanfold.artifact("a", "text") is None
assert threading.active_count() == 1, threading.enumerate()
new = sorted(m for m in set(sys.modules) - before if m.split(".")[0] in ("opentelemetry", "spanfold", "requests", "grpc", "langfuse"))
assert not new, new
assert os.listdir() == [], os.listdir()
"""
    assert program(script, HOME=str(tmp_path)) == (0, "", "")


def test_a_decorated_function_outside_a_run_adds_one_check() -> None:
    def f() -> None: ...

    decorated = spanfold.traced(f)
    decorated()
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        decorated()
    finally:
        sys.setprofile(None)

    # The wrapper, the check whether anything is recorded, and the function.
    assert [c for c in calls if "setprofile" not in c] == [
        "_function.<locals>.traced_function",
        "Call.start",
        "is_idle",
        calls[3],
    ]
    assert calls[3].endswith("<locals>.f")
