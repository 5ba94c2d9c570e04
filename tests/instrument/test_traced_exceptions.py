"""Exceptions pass through unchanged, and what they meant is recorded once, where they came from."""

import asyncio
import gc
import sys
import time
import traceback
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import pytest
from opentelemetry import trace

import spanfold
from spanfold.instrument import SpanfoldTracerProvider
from tests.instrument.reading import Lost, events, program, span, spans
from tests.journal import raw

OURS = str(Path(spanfold.__file__).parent)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class ExitingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)


class NotTextError(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # what is tested


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__module__", "__qualname__", "__name__"):
            raise ValueError("no name")
        return super().__getattribute__(name)


class NamelessError(Exception, metaclass=Meta):
    pass


def caused() -> BaseException:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as error:
        error.add_note("a note")
        return error


ERRORS: dict[str, tuple[Callable[[], BaseException], dict[str, Any]]] = {
    "plain": (lambda: ValueError("text"), {"error.type": "ValueError", "status": (2, "text")}),
    "own": (
        lambda: UnprintableError("x"),
        {"error.type": f"{__name__}.UnprintableError", "status": (2, "<unprintable>")},
    ),
    "exiting": (lambda: ExitingError("x"), {"error.type": f"{__name__}.ExitingError", "status": (2, "<unprintable>")}),
    "not text": (lambda: NotTextError("x"), {"error.type": f"{__name__}.NotTextError", "status": (2, "<unprintable>")}),
    "caused": (caused, {"error.type": "ValueError", "status": (2, "outer")}),
    "group": (
        lambda: ExceptionGroup("many", [ValueError("1"), ExceptionGroup("more", [KeyError("2")])]),
        {"error.type": "ExceptionGroup", "status": (2, "many (2 sub-exceptions)")},
    ),
    "surrogate": (lambda: OSError("a\udcff"), {"error.type": "OSError", "status": (2, "a\ufffd")}),
    "long": (
        lambda: RuntimeError("x" * 1_000_000),
        {"error.type": "RuntimeError", "status": (2, "x" * 4096 + "...[1000000 characters]")},
    ),
    "interrupt": (
        KeyboardInterrupt,
        {"error.type": "KeyboardInterrupt", "status": (2, ""), "spanfold.outcome": "interrupted"},
    ),
    "exit 0": (lambda: SystemExit(0), {"status": (0, ""), "spanfold.outcome": "exit", "spanfold.exit_code": 0}),
    "exit None": (SystemExit, {"status": (0, ""), "spanfold.outcome": "exit", "spanfold.exit_code": 0}),
    "exit 3": (
        lambda: SystemExit(3),
        {"error.type": "SystemExit", "status": (2, "3"), "spanfold.outcome": "exit", "spanfold.exit_code": 3},
    ),
    "exit text": (
        lambda: SystemExit("bad"),
        {"error.type": "SystemExit", "status": (2, "bad"), "spanfold.outcome": "exit", "spanfold.exit_code": 1},
    ),
    "cancelled": (
        lambda: asyncio.CancelledError("why"),
        {
            "error.type": "asyncio.exceptions.CancelledError",
            "status": (2, "why"),
            "spanfold.outcome": "cancelled",
        },
    ),
    "generator exit": (GeneratorExit, {"status": (0, ""), "spanfold.outcome": "closed_early"}),
}


def raises(error: BaseException) -> NoReturn:
    raise error


def in_function(error: BaseException, decorate: Any) -> None:
    decorate(raises)(error)


def in_coroutine(error: BaseException, decorate: Any) -> None:
    async def coroutine(error: BaseException) -> None:
        raises(error)

    with_hand(decorate(coroutine)(error))


def in_generator(error: BaseException, decorate: Any) -> None:
    def generator(error: BaseException) -> Iterator[int]:
        yield 1
        raises(error)

    list(decorate(generator)(error))


def in_async_generator(error: BaseException, decorate: Any) -> None:
    async def generator(error: BaseException) -> AsyncIterator[int]:
        yield 1
        raises(error)

    async def consume() -> None:
        async for _ in decorate(generator)(error):
            pass

    with_hand(consume())


def in_block(error: BaseException, decorate: Any) -> None:
    if decorate is plainly:
        raises(error)
    with spanfold.timed("it"):
        raises(error)


def in_tracer_block(error: BaseException, decorate: Any) -> None:
    if decorate is plainly:
        raises(error)
    with SpanfoldTracerProvider().get_tracer("mine").start_as_current_span("it"):
        raises(error)


PLACES = [in_function, in_coroutine, in_generator, in_async_generator, in_block, in_tracer_block]


def with_hand(coroutine: Any) -> None:
    """Run a coroutine that never waits: a loop would handle some of these exceptions itself."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")


def plainly(function: Any) -> Any:
    return function


def frames(tb: TracebackType | None) -> list[tuple[str, int]]:
    return [
        (f.f_code.co_name, line)
        for f, line in traceback.walk_tb(tb)
        if not f.f_code.co_filename.startswith(OURS) and f.f_code.co_filename == __file__
    ]


def seen(error: BaseException, place: Callable[[BaseException, Any], None], decorate: Any) -> tuple[Any, ...]:
    """Return what a caller sees of an exception that passes through a place."""
    kept = error.args, error.__cause__, error.__context__, error.__suppress_context__, dict(vars(error))
    try:
        try:
            raise LookupError("handled meanwhile")
        except LookupError:
            place(error, decorate)
    except BaseException as raised:
        if not isinstance(raised, RuntimeError) or isinstance(error, RuntimeError):
            assert raised is error
        found = [f for f in frames(raised.__traceback__) if f[0] != "in_block" and f[0] != "in_tracer_block"]
        now = raised.args, raised.__cause__, raised.__context__, raised.__suppress_context__, dict(vars(raised))
        return type(raised), found, [repr_safe(n) for n in now], [repr_safe(k) for k in kept]
    raise AssertionError("it did not raise")


def repr_safe(value: Any) -> Any:
    return (type(value), repr(value.args)) if isinstance(value, BaseException) else repr(value)


@pytest.mark.case("C-019", "C-020")
@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("place", PLACES)
def test_the_caller_gets_the_same_exception_with_the_same_frames_and_the_span_says_what_it_meant(
    where: Path, name: str, place: Callable[[BaseException, Any], None]
) -> None:
    make, expected = ERRORS[name]
    plain = seen(make(), place, plainly)
    with spanfold.run("r", dir=where) as run:
        assert seen(make(), place, spanfold.traced(name="it")) == plain
        assert trace.get_current_span().get_span_context().span_id == int(run.span_id, 16)

    recorded = span(where, "it")
    found = {key: recorded.attributes.get(key) for key in ("error.type", "spanfold.outcome", "spanfold.exit_code")}
    assert (recorded.status_code, recorded.status_message) == expected["status"]
    assert found == {key: expected.get(key) for key in found}
    told = [e for e in events(where, "exception") if e.span_id == recorded.span_id]
    assert len(told) == ("spanfold.outcome" not in expected)
    if told:
        assert told[0].attributes["exception.type"] == expected["error.type"]
        assert told[0].attributes["exception.message"] == expected["status"][1]
        assert "raises" in told[0].attributes["exception.stacktrace"]
        assert told[0].severity == 17


def test_an_exception_class_that_hides_its_name_is_recorded_all_the_same(where: Path) -> None:
    # Not among the others: pytest itself cannot show such an exception when a test fails.
    caught = False
    with spanfold.run("r", dir=where):
        try:
            in_function(NamelessError("x"), spanfold.traced(name="it"))
        except Exception as error:
            caught = type(error) is NamelessError

    assert caught
    assert span(where, "it").attributes["error.type"] == f"{__name__}.NamelessError"
    assert "in raises" in events(where, "exception")[0].attributes["exception.stacktrace"]


@pytest.mark.case("C-061")
def test_causes_groups_and_notes_are_in_the_recorded_stack_trace(where: Path) -> None:
    with spanfold.run("r", dir=where):
        for make in (caused, ERRORS["group"][0]):
            with pytest.raises((ValueError, ExceptionGroup)), spanfold.stage("s"):
                raise make()

    first, second = (e.attributes["exception.stacktrace"] for e in events(where, "exception"))
    assert "KeyError: 'inner'" in first
    assert "a note" in first
    assert all(text in second for text in ("many (2 sub-exceptions)", "ValueError: 1", "KeyError: '2'"))


def test_an_exception_is_told_once_however_many_spans_it_leaves(where: Path) -> None:
    @spanfold.traced
    def innermost() -> None:
        raise ValueError("once")

    @spanfold.traced
    def between() -> None:
        with spanfold.stage("block"):
            innermost()

    with pytest.raises(ValueError, match="once"), spanfold.run("r", dir=where), spanfold.stage("outer"):
        between()

    found = spans(where)
    assert [s.attributes["error.type"] for s in found] == ["ValueError"] * 5
    assert [e.span_id for e in events(where, "exception")] == [found[0].span_id]


@pytest.mark.parametrize("how", ["pool", "gather"])
def test_an_exception_that_comes_back_from_other_threads_and_tasks_is_told_once(where: Path, how: str) -> None:
    @spanfold.traced
    def fails() -> None:
        raise ValueError("once")

    @spanfold.traced
    async def fails_later() -> None:
        await asyncio.sleep(0)
        raise ValueError("once")

    async def gathering() -> None:
        await asyncio.gather(fails_later(), asyncio.sleep(0.01))

    with pytest.raises(ValueError, match="once"), spanfold.run("r", dir=where), spanfold.stage("outer"):
        if how == "pool":
            with spanfold.traced_executor(ThreadPoolExecutor(1)) as pool:
                pool.submit(fails).result()
        else:
            asyncio.run(gathering())

    assert len(events(where, "exception")) == 1


def test_a_new_exception_at_the_address_of_an_old_one_is_told(where: Path) -> None:
    addresses = set()
    with spanfold.run("r", dir=where):
        for number in range(20):
            with pytest.raises(ValueError, match="second"), spanfold.stage(f"parent {number}"):
                try:
                    with spanfold.stage("child"):
                        raise ValueError("first")
                except ValueError as error:
                    address = id(error)
                second = ValueError("second")
                addresses.add(address == id(second))
                raise second

    assert True in addresses, "the case did not occur"
    messages = [e.attributes["exception.message"] for e in events(where, "exception")]
    assert messages == ["first", "second"] * 20


def test_an_exception_replaced_on_its_way_is_told_with_its_cause(where: Path) -> None:
    with spanfold.run("r", dir=where), pytest.raises(KeyError), spanfold.stage("outer"):
        try:
            with spanfold.stage("inner"):
                raise ValueError("first")
        except ValueError as error:
            raise KeyError("second") from error

    told = events(where, "exception")
    assert [e.attributes["exception.type"] for e in told] == ["ValueError", "KeyError"]
    assert "ValueError: first" in told[1].attributes["exception.stacktrace"]


def test_no_reference_to_an_exception_or_its_frames_is_kept(where: Path) -> None:
    class OwnError(Exception):
        pass

    class Local:
        pass

    refs: list[weakref.ref[Any]] = []

    @spanfold.traced
    def fails() -> None:
        local = Local()
        error = OwnError()
        refs.extend((weakref.ref(local), weakref.ref(error)))
        try:
            raise error
        finally:
            del error

    @spanfold.traced
    def generates() -> Iterator[int]:
        yield 1
        fails()

    gc.disable()
    try:
        with spanfold.run("r", dir=where), spanfold.stage("s"):
            for call in (fails, lambda: list(generates())):
                try:
                    call()
                except OwnError:
                    pass
                assert [ref() for ref in refs] == [None] * len(refs)
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["chain", "frames", "group", "notes"])
def test_an_exception_of_any_size_is_recorded_in_bounded_time_and_space(where: Path, kind: str) -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError("deep")

    def make() -> BaseException:
        if kind == "chain":
            error: BaseException | None = None
            for number in range(20_000):
                following = ValueError(number)
                following.__context__ = error
                error = following
            assert error is not None
            return error
        if kind == "group":
            return ExceptionGroup("many", [ValueError("x" * 1_000) for _ in range(20_000)])
        error = ValueError("notes")
        for _ in range(2_000):
            error.add_note("n" * 1_000)
        return error

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(12_000)
    try:
        with spanfold.run("r", dir=where):
            begun = time.thread_time()
            with pytest.raises((ValueError, ExceptionGroup)), spanfold.stage("s"):
                if kind == "frames":
                    deep(10_000)
                raise make()
            took = time.thread_time() - begun
    finally:
        sys.setrecursionlimit(limit)

    (told,) = events(where, "exception")
    assert told.attributes["exception.type"] in ("ValueError", "ExceptionGroup")
    assert len(told.attributes["exception.stacktrace"]) <= 70_000
    assert took < 2.0


def test_ctrl_c_in_a_span_ends_the_program_as_it_would_and_is_recorded(where: Path) -> None:
    script = f"""
import os, signal
with spanfold.run("r", dir={str(where)!r}), spanfold.stage("s"):
    os.kill(os.getpid(), signal.SIGINT)
    import time; time.sleep(30)
"""
    result = program(script)

    assert result.code == -2
    assert result.err.rstrip().endswith("KeyboardInterrupt")
    assert [s.attributes["spanfold.outcome"] for s in spans(where)] == ["interrupted", "interrupted"]


@pytest.mark.parametrize("code", [0, 3])
def test_an_exit_in_a_span_ends_the_program_with_its_code(where: Path, code: int) -> None:
    result = program(f"""
import sys
@spanfold.traced
def leave(): sys.exit({code})
with spanfold.run("r", dir={str(where)!r}):
    leave()
""")

    assert result == (code, "", "")
    assert [s.attributes["spanfold.exit_code"] for s in spans(where)] == [code, code]


def test_values_that_raise_when_shown_cost_nothing_but_their_text(where: Path, lost: Lost) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise AssertionError("repr was called")

        __str__ = __hash__ = __iter__ = __len__ = __bool__ = __eq__ = __format__ = __repr__  # type: ignore[assignment]

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"{name} was read")

    @spanfold.traced(name="f")
    def f(argument: Any, *, more: Any) -> Any:
        trace.get_current_span().set_attribute("odd", argument)
        with spanfold.stage("s", field=argument) as stage:
            stage.set(again=argument)
            stage.event("e", field=argument)
            stage.set_attributes({"a": argument, "b": [argument]})
        return argument

    odd = Odd()
    with spanfold.run("r", dir=where):
        result = f(odd, more=[odd])

    assert result is odd
    assert lost() == {}
    assert f"{__name__}" in str(span(where, "f").attributes["spanfold.input"])


def test_what_it_costs_to_tell_of_an_exception_is_not_in_the_time_of_its_span(tmp_path: Path) -> None:
    """The clock is read once, when the exception leaves: its event is at the end of the span."""

    @spanfold.traced
    def fails() -> NoReturn:
        raise ValueError

    @spanfold.traced
    async def fails_later() -> NoReturn:
        raise ValueError

    @spanfold.traced
    def yields() -> Iterator[int]:
        yield 1
        raise ValueError

    def block() -> None:
        with spanfold.timed("block"):
            raise ValueError

    def opentelemetry_block() -> None:
        with SpanfoldTracerProvider().get_tracer("t").start_as_current_span("opentelemetry"):
            raise ValueError

    ways: list[Callable[[], object]] = [
        *(fails, lambda: asyncio.run(fails_later()), lambda: list(yields())),
        *(block, opentelemetry_block),
    ]
    with spanfold.run("r", dir=tmp_path / "run"):
        for way in ways:
            with pytest.raises(ValueError):
                way()

    ended = {span["spanId"]: span for span in raw.spans(tmp_path / "run")}
    told = raw.events(tmp_path / "run", "exception")
    assert len(told) == len(ways)
    assert [event["timeUnixNano"] for event in told] == [ended[event["spanId"]]["endTimeUnixNano"] for event in told]
