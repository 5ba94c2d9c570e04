"""Coroutines and async generators: the protocol of the plain function, right parents across tasks, nothing logged."""

import asyncio
import contextlib
import contextvars
import gc
import inspect
import logging
import sys
import tempfile
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import context as otel_context
from opentelemetry import trace

import spanfold
from tests.instrument.reading import Lost, program, span, spans, tree

Step = tuple[Any, ...]
ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("thrown"),
    "StopAsyncIteration": lambda: StopAsyncIteration("by hand"),
    "StopIteration": lambda: StopIteration("by hand"),
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
}
error_names = st.sampled_from(sorted(ERRORS))
handlers = st.sampled_from(["swallow", "reraise", "replace", "return", "yield", "await"])
body_steps = st.lists(
    st.one_of(
        st.tuples(st.just("yield"), st.integers(0, 9)),
        st.tuples(st.just("guarded"), st.integers(0, 9), handlers),
        st.tuples(st.just("waiting"), handlers),
        st.tuples(st.just("finally"), st.integers(0, 9)),
        st.tuples(st.just("raise"), error_names),
        st.just(("await",)),
        st.just(("return",)),
    ),
    max_size=6,
)
consumer_steps = st.lists(
    st.one_of(
        st.just(("next",)),
        st.just(("next",)),
        st.tuples(st.just("send"), st.one_of(st.none(), st.integers(0, 9))),
        st.tuples(st.just("throw"), error_names),
        st.just(("close",)),
        st.just(("cancel",)),
    ),
    max_size=8,
)


async def body(steps: list[Step], said: list[Any]) -> AsyncGenerator[Any, Any]:
    for step in steps:
        match step:
            case ("yield", item):
                said.append((yield item))
            case ("guarded" | "waiting", *rest):
                try:
                    if step[0] == "waiting":
                        await asyncio.sleep(0.001)
                    else:
                        said.append((yield rest[0]))
                except BaseException as error:
                    said.append(type(error))
                    match rest[-1]:
                        case "reraise":
                            raise
                        case "replace":
                            raise RuntimeError("replaced") from error
                        case "return":
                            return
                        case "yield":
                            said.append((yield "from the handler"))
                        case "await":
                            await asyncio.sleep(0)
            case ("finally", item):
                try:
                    said.append((yield item))
                finally:
                    await asyncio.sleep(0)
                    said.append("finally")
            case ("raise", name):
                raise ERRORS[name]()
            case ("await",):
                await asyncio.sleep(0)
            case ("return",):
                return


def told(error: BaseException) -> list[Any]:
    chain: list[Any] = []
    found: BaseException | None = error
    while found is not None:
        chain.append((type(found), found.args, found.__suppress_context__, type(found.__cause__)))
        found = found.__context__
    return chain


async def drive(generator: AsyncGenerator[Any, Any], steps: list[Step]) -> list[Any]:
    seen: list[Any] = []
    for step in [*steps, *[("close",)] * 7]:
        try:
            match step:
                case ("next",):
                    seen.append(await anext(generator))
                case ("send", value):
                    seen.append(await generator.asend(value))
                case ("throw", name):
                    seen.append(await generator.athrow(ERRORS[name]()))
                case ("close",):
                    seen.append(await generator.aclose())
                case ("cancel",):

                    async def in_a_task() -> Any:
                        return await anext(generator)

                    task = asyncio.create_task(in_a_task())
                    await asyncio.sleep(0)
                    task.cancel()
                    seen.append(await task)
        except BaseException as error:
            seen.append(told(error))
        seen.append(trace.get_current_span().get_span_context().span_id)
    return seen


@contextlib.contextmanager
def unraisable(into: list[Any]) -> Iterator[None]:
    """Collect what Python can only print: a generator that refuses to close makes it do so."""
    before, sys.unraisablehook = sys.unraisablehook, lambda found: into.append((found.exc_type, str(found.exc_value)))
    try:
        yield
        gc.collect()
    finally:
        sys.unraisablehook = before


@pytest.mark.slow
@pytest.mark.case("C-005")
@given(inside=body_steps, outside=consumer_steps, recording=st.booleans())
def test_a_traced_async_generator_answers_every_asend_athrow_aclose_and_cancel_as_the_plain_one(
    inside: list[Step], outside: list[Step], recording: bool
) -> None:
    traced = spanfold.traced(kind="tool", name="t")(body)
    plain_said: list[Any] = []
    traced_said: list[Any] = []
    plain_printed: list[Any] = []
    traced_printed: list[Any] = []

    with tempfile.TemporaryDirectory() as folder:
        with spanfold.run("case", dir=Path(folder) / "run") if recording else contextlib.nullcontext():
            with unraisable(plain_printed):
                expected = asyncio.run(drive(body(inside, plain_said), outside))
            with unraisable(traced_printed):
                seen = asyncio.run(drive(traced(inside, traced_said), outside))
        recorded = spans(Path(folder) / "run", "execute_tool t") if recording else []

    assert (seen, traced_said, traced_printed) == (expected, plain_said, plain_printed)
    assert len(recorded) <= 1


@pytest.mark.case("C-002")
@pytest.mark.parametrize("closed", [True, False])
def test_an_async_iteration_left_early_ends_once_and_logs_nothing(
    where: Path, caplog: pytest.LogCaptureFixture, closed: bool
) -> None:
    @spanfold.traced(name="g")
    async def three() -> AsyncGenerator[int, None]:
        with spanfold.stage("held"):
            try:
                for item in (1, 2, 3):
                    yield item
            finally:
                await asyncio.sleep(0)

    async def main() -> None:
        asyncio.get_running_loop().slow_callback_duration = 60
        generator = three()
        async for _ in generator:
            break
        if closed:
            await generator.aclose()
        del generator
        gc.collect()
        await asyncio.sleep(0.01)
        assert trace.get_current_span().get_span_context() == run.get_span_context()
        assert len(spans(where, "g")) == 1

    caplog.set_level(logging.DEBUG)
    with spanfold.run("r", dir=where) as recorded:
        run = recorded.span
        asyncio.run(main(), debug=True)

    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.INFO] == []
    ended = span(where, "g")
    assert ended.attributes["spanfold.outcome"] == ("closed_early" if closed else "abandoned")
    assert ended.attributes["spanfold.items"] == 1
    assert tree(where) == {"r": {"g": {"held": {}}}}


def test_a_loop_that_ends_closes_open_traced_generators_as_it_closes_plain_ones(where: Path) -> None:
    cleaned: list[str] = []

    async def waiting_to_close(name: str) -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0.001)
            cleaned.append(name)

    async def main(make: Callable[[str], AsyncGenerator[int, None]]) -> list[Any]:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        kept.extend(make(str(number)) for number in range(5))
        for generator in kept:
            await anext(generator)
        return complaints

    kept: list[AsyncGenerator[int, None]] = []
    with spanfold.run("r", dir=where):
        assert asyncio.run(main(waiting_to_close)) == []
        kept.clear()
        assert asyncio.run(main(spanfold.traced(name="g")(waiting_to_close))) == []

    assert sorted(cleaned) == sorted("0123401234")
    assert [s.attributes["spanfold.outcome"] for s in spans(where, "g")] == ["closed_early"] * 5


@pytest.mark.case("C-007")
def test_nested_async_generators_nest(where: Path) -> None:
    @spanfold.traced(name="leaf")
    async def leaf() -> int:
        await asyncio.sleep(0)
        return 1

    @spanfold.traced(name="inner")
    async def inner() -> AsyncIterator[int]:
        yield await leaf()

    @spanfold.traced(name="outer")
    async def outer() -> AsyncIterator[int]:
        async for item in inner():
            yield item

    async def main() -> list[int]:
        return [item async for item in outer()]

    with spanfold.run("r", dir=where):
        assert asyncio.run(main()) == [1]

    assert tree(where) == {"r": {"outer": {"inner": {"leaf": {}}}}}
    assert len({s.trace_id for s in spans(where)}) == 1


@pytest.mark.case("C-008")
@pytest.mark.parametrize("how", ["gather", "taskgroup"])
def test_tasks_started_together_are_siblings_whatever_becomes_of_them(where: Path, how: str) -> None:
    @spanfold.traced(name="work", capture="input")
    async def work(number: int) -> int:
        await asyncio.sleep(0.001 * (number % 7))
        if number == 20:
            raise ValueError("one fails")
        if number == 30:
            await asyncio.sleep(60)
        await inner(number)
        return number

    @spanfold.traced(name="inner")
    async def inner(number: int) -> None:
        await asyncio.sleep(0.001 * (number % 5))

    async def main() -> None:
        if how == "gather":
            tasks = [asyncio.ensure_future(work(number)) for number in range(50)]
            asyncio.get_running_loop().call_later(0.05, tasks[30].cancel)
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(results[n]) for n in (20, 30, 31)] == [ValueError, asyncio.CancelledError, int]
        else:
            with pytest.raises(ExceptionGroup) as group:
                async with asyncio.TaskGroup() as started:
                    for number in range(50):
                        started.create_task(work(number))
            assert [type(e) for e in group.value.exceptions] == [ValueError]
        with spanfold.stage("after"):
            await asyncio.sleep(0)

    with spanfold.run("r", dir=where):
        asyncio.run(main())

    root = span(where, "r")
    works = spans(where, "work")
    assert len(works) == 50
    assert {s.parent_span_id for s in [*works, span(where, "after")]} == {root.span_id}
    assert {s.parent_span_id for s in spans(where, "inner")} <= {s.span_id for s in works}
    outcomes = {s.attributes.get("spanfold.outcome", s.attributes.get("error.type", "ok")) for s in works}
    assert outcomes == {"ok", "ValueError", "cancelled"}
    assert next(s for s in works if s.attributes.get("spanfold.outcome") == "cancelled").status_code == 2


@pytest.mark.case("C-009")
def test_a_caught_failure_leaves_its_siblings_alone(where: Path) -> None:
    @spanfold.traced(name="bad")
    async def bad() -> None:
        await asyncio.sleep(0)
        raise ValueError

    @spanfold.traced(name="good")
    async def good() -> None:
        await asyncio.sleep(0)

    @spanfold.traced(name="parent")
    async def parent() -> None:
        with contextlib.suppress(ValueError):
            await bad()
        await good()

    with spanfold.run("r", dir=where):
        asyncio.run(parent())

    assert tree(where) == {"r": {"parent": {"bad": {}, "good": {}}}}
    assert [s.status_code for s in spans(where)] == [2, 0, 0, 0]


@pytest.mark.case("C-013")
def test_a_stream_consumed_in_another_task_after_its_handler_returned_records_what_it_does(where: Path) -> None:
    @spanfold.traced(name="stream")
    async def stream() -> AsyncIterator[str]:
        for number in range(3):
            current = trace.get_current_span()
            current.set_attribute("number", number)
            yield getattr(current, "span_id")  # noqa: B009 - an OpenTelemetry span to the type checker

    @spanfold.traced(name="handler")
    async def handler() -> AsyncIterator[str]:
        return stream()

    async def consume(body: AsyncIterator[str]) -> list[str]:
        return [chunk async for chunk in body]

    async def main() -> list[str]:
        return await asyncio.create_task(consume(await handler()))

    with spanfold.run("r", dir=where):
        seen = asyncio.run(main())

    assert seen == [span(where, "stream").span_id] * 3
    assert span(where, "stream").attributes["number"] == 2
    assert tree(where) == {"r": {"handler": {}, "stream": {}}}


def test_each_step_of_an_async_generator_may_run_in_another_task(where: Path) -> None:
    @spanfold.traced(name="g")
    async def steps() -> AsyncGenerator[int, None]:
        with spanfold.stage("held"):
            for number in range(4):
                with spanfold.timed(f"step {number}"):
                    await asyncio.sleep(0)
                    yield number

    async def main() -> list[int]:
        generator = steps()
        seen = []
        for number in range(4):
            with spanfold.timed(f"consumer {number}"):
                seen.append(await asyncio.create_task(anext(generator)))  # type: ignore[arg-type]  # a coroutine
        await asyncio.create_task(generator.aclose())  # type: ignore[arg-type]  # a coroutine
        return seen

    with spanfold.run("r", dir=where):
        assert asyncio.run(main()) == [0, 1, 2, 3]

    steps_below = {f"step {number}": {} for number in range(4)}
    others = {f"consumer {number}": {} for number in (1, 2, 3)}
    assert tree(where) == {"r": {"consumer 0": {"g": {"held": steps_below}}, **others}}


def test_a_coroutine_that_is_destroyed_while_it_waits_leaves_the_current_span_alone(where: Path) -> None:
    @spanfold.traced(name="forever")
    async def forever() -> None:
        with spanfold.stage("inside"):
            await asyncio.get_running_loop().create_future()

    @spanfold.traced(name="stream")
    async def stream() -> AsyncIterator[int]:
        with spanfold.stage("inside stream"):
            await asyncio.get_running_loop().create_future()
            yield 1

    async def main() -> list[Any]:
        async def iterate() -> None:
            async for _ in stream():
                pass

        coroutines = [forever(), iterate()]
        context = trace.set_span_in_context(run)
        for coroutine in coroutines:
            contextvars.Context().run(lambda c=coroutine: (otel_context.attach(context), c.send(None)))
        return coroutines

    with spanfold.run("r", dir=where) as recorded:
        run = recorded.span
        coroutines = asyncio.run(main())
        with spanfold.stage("here") as here:
            coroutines.clear()
            gc.collect()
            assert trace.get_current_span() is here
        assert trace.get_current_span() is run

    below = {"forever": {"inside": {}}, "stream": {"inside stream": {}}, "here": {}}
    assert tree(where) == {"r": below}


def test_a_task_that_outlives_its_run_is_not_recorded_in_another_one_and_counted(tmp_path: Path, lost: Lost) -> None:
    @spanfold.traced(name="late")
    async def late() -> None:
        spanfold.event("late")

    async def main() -> None:
        waiting = asyncio.Event()

        async def outlives() -> None:
            await waiting.wait()
            await late()

        with spanfold.run("first", dir=tmp_path / "1"):
            task = asyncio.create_task(outlives())
            await asyncio.sleep(0)
        with spanfold.run("second", dir=tmp_path / "2"):
            waiting.set()
            await task

    asyncio.run(main())

    assert tree(tmp_path / "1") == {"first": {}}
    assert tree(tmp_path / "2") == {"second": {}}
    assert lost() == {"records made after the end of their run": 2}


def test_a_traced_coroutine_sets_context_variables_for_its_caller_as_undecorated() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)

    async def sets() -> int:
        variable.set(variable.get() + 1)
        await asyncio.sleep(0)
        return variable.get()

    async def main(function: Callable[[], Any]) -> tuple[int, int]:
        return await function(), variable.get()

    expected = asyncio.run(main(sets))
    with spanfold.run("r"):
        assert asyncio.run(main(spanfold.traced(sets))) == expected == (1, 1)


@pytest.mark.case("C-020")
@pytest.mark.parametrize("how", ["cancel", "timeout", "wait_for"])
def test_a_cancelled_coroutine_is_cancelled_and_recorded_so(where: Path, how: str) -> None:
    @spanfold.traced(name="slow")
    async def slow() -> None:
        await asyncio.sleep(60)

    async def main() -> type[BaseException]:
        try:
            if how == "cancel":
                task = asyncio.create_task(slow())
                await asyncio.sleep(0.01)
                task.cancel("because")
                await task
            elif how == "timeout":
                async with asyncio.timeout(0.01):
                    await slow()
            else:
                await asyncio.wait_for(slow(), 0.01)
        except BaseException as error:
            return type(error)
        raise AssertionError

    with spanfold.run("r", dir=where):
        raised = asyncio.run(main())

    assert raised is (asyncio.CancelledError if how == "cancel" else TimeoutError)
    slow_span = span(where, "slow")
    assert slow_span.attributes["spanfold.outcome"] == "cancelled"
    assert slow_span.attributes["error.type"] == "asyncio.exceptions.CancelledError"
    assert slow_span.status_code == 2


def test_runs_interleaved_in_one_program_keep_apart(tmp_path: Path) -> None:
    @spanfold.traced
    async def work(run: int, number: int) -> None:
        with spanfold.timed(f"{run}-{number}"):
            await asyncio.sleep(0.001 * ((run * 7 + number) % 5))

    async def one(number: int) -> None:
        with spanfold.run(f"run {number}", dir=tmp_path / str(number)):
            for step in range(5):
                with spanfold.stage(f"stage {number}"):
                    await asyncio.gather(*(work(number, step * 10 + n) for n in range(3)))

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(10)))

    asyncio.run(main())

    for number in range(10):
        found = spans(tmp_path / str(number))
        assert len(found) == 1 + 5 + 15 + 15
        assert len({s.trace_id for s in found}) == 1
        assert {s.name for s in found if s.attributes["spanfold.kind"] == "timing"} == {
            f"{number}-{step * 10 + n}" for step in range(5) for n in range(3)
        }
        assert {s.attributes.get("spanfold.stage") for s in found} == {None, f"stage {number}"}


def test_two_runs_that_end_in_the_order_they_began_leave_nothing_current(tmp_path: Path) -> None:
    first = spanfold.run("first", dir=tmp_path / "1")
    second = spanfold.run("second", dir=tmp_path / "2")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with spanfold.stage("in the second"):
        pass
    second.__exit__(None, None, None)
    with spanfold.stage("in none") as nothing:
        assert not nothing.is_recording()

    assert tree(tmp_path / "1") == {"first": {}}
    assert tree(tmp_path / "2") == {"second": {"in the second": {}}}


@pytest.mark.slow
@pytest.mark.case("C-046")
def test_a_traced_coroutine_called_in_a_loop_does_not_grow_memory(where: Path) -> None:
    @spanfold.traced
    async def step(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def main() -> tuple[int, int]:
        for number in range(200):
            await step(number)
        gc.collect()
        before = len(gc.get_objects())
        for number in range(2_000):
            await step(number)
        gc.collect()
        return before, len(gc.get_objects())

    with spanfold.run("r", dir=where):
        before, after = asyncio.run(main())

    assert after - before < 200


def test_a_traced_coroutine_lets_go_of_what_it_was_given(where: Path) -> None:
    class Thing:
        pass

    @spanfold.traced
    async def take(thing: Thing) -> Thing:
        await asyncio.sleep(0)
        return thing

    async def main() -> weakref.ref[Thing]:
        return weakref.ref(await take(Thing()))

    with spanfold.run("r", dir=where):
        assert asyncio.run(main())() is None


def test_decorated_coroutine_functions_are_recognised_as_such() -> None:
    async def coroutine() -> None: ...

    async def generator() -> AsyncIterator[int]:
        yield 1

    assert inspect.iscoroutinefunction(spanfold.traced(coroutine))
    assert asyncio.iscoroutinefunction(spanfold.traced(coroutine))
    assert inspect.isasyncgenfunction(spanfold.traced(generator))
    assert not inspect.iscoroutinefunction(spanfold.traced(generator))


def test_a_coroutine_never_awaited_is_warned_about_as_undecorated() -> None:
    script = """
import gc
@spanfold.traced
async def forgotten(): pass
with spanfold.run("r"):
    forgotten()
    gc.collect()
"""
    result = program(script)

    assert (result.code, result.out) == (0, "")
    assert result.err.count("RuntimeWarning: coroutine 'forgotten' was never awaited") == 1
    assert "Traceback" not in result.err
