"""A traced generator behaves to its consumer exactly as the generator it decorates, and its span covers its iteration."""

import contextlib
import contextvars
import gc
import inspect
import logging
import tempfile
import threading
import time
import types
import weakref
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context

import spanfold
from spanfold.journal import content
from tests.instrument.reading import program, span, spans, tree

# A body is a list of steps, and so is a consumer: the same lists drive a plain generator and its traced twin.
Step = tuple[Any, ...]
ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("thrown"),
    "KeyError": lambda: KeyError("k"),
    "StopIteration": lambda: StopIteration("by hand"),
    "GeneratorExit": GeneratorExit,
    "KeyboardInterrupt": KeyboardInterrupt,
}
error_names = st.sampled_from(sorted(ERRORS))
handlers = st.one_of(
    st.just(("swallow",)),
    st.just(("reraise",)),
    st.just(("replace",)),
    st.just(("return", 7)),
    st.just(("yield", "from the handler")),
)
body_steps = st.lists(
    st.one_of(
        st.tuples(st.just("yield"), st.integers(0, 9)),
        st.tuples(st.just("guarded"), st.integers(0, 9), handlers),
        st.tuples(st.just("finally"), st.integers(0, 9)),
        st.tuples(st.just("raise"), error_names),
        st.tuples(st.just("return"), st.integers(0, 9)),
        st.tuples(st.just("nested"), st.integers(0, 3)),
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
    ),
    max_size=8,
)


def body(steps: list[Step], said: list[Any]) -> Generator[Any, Any, Any]:
    for step in steps:
        match step:
            case ("yield", item):
                said.append((yield item))
            case ("guarded", item, handler):
                try:
                    said.append((yield item))
                except BaseException as error:
                    said.append(type(error))
                    if handler[0] == "reraise":
                        raise
                    if handler[0] == "replace":
                        raise RuntimeError("replaced") from error
                    if handler[0] == "return":
                        return handler[1]
                    if handler[0] == "yield":
                        said.append((yield handler[1]))
            case ("finally", item):
                try:
                    said.append((yield item))
                finally:
                    said.append("finally")
            case ("raise", name):
                raise ERRORS[name]()
            case ("return", value):
                return value
            case ("nested", count):
                said.append((yield from (n for n in range(count))))
    return "the end"


def told(error: BaseException) -> list[Any]:
    """Return what a caller can see of an exception: itself and the exceptions it came from."""
    chain: list[Any] = []
    found: BaseException | None = error
    while found is not None:
        chain.append((type(found), found.args, found.__suppress_context__, type(found.__cause__)))
        found = found.__context__
    return chain


def drive(generator: Generator[Any, Any, Any], steps: list[Step]) -> tuple[list[Any], int]:
    """Return what the consumer saw after each step, and how many items were yielded."""
    seen: list[Any] = []
    items = 0
    # A body may refuse to close, and yield from its handlers: it has at most six.
    for step in [*steps, *[("close",)] * 7]:
        try:
            match step:
                case ("next",):
                    seen.append(next(generator))
                case ("send", value):
                    seen.append(generator.send(value))
                case ("throw", name):
                    seen.append(generator.throw(ERRORS[name]()))
                case _:
                    seen.append(("closed", generator.close()))
            items += step != ("close",)
        except BaseException as error:
            seen.append(told(error))
            items += str(error) == "generator ignored GeneratorExit"  # it yielded, and nobody got it
        seen.append(inspect.getgeneratorstate(generator))
        seen.append(trace.get_current_span().get_span_context().span_id)
    return seen, items


@pytest.mark.case("C-005")
@given(inside=body_steps, outside=consumer_steps, recording=st.booleans())
def test_a_traced_generator_answers_every_send_throw_and_close_as_the_plain_one(
    inside: list[Step], outside: list[Step], recording: bool
) -> None:
    traced = spanfold.traced(kind="tool", name="t", capture=True)(body)
    plain_said: list[Any] = []
    traced_said: list[Any] = []

    with tempfile.TemporaryDirectory() as folder:
        with spanfold.run("case", dir=Path(folder) / "run") if recording else contextlib.nullcontext():
            generator = body(inside, plain_said)
            expected, items = drive(generator, outside)
            seen, _ = drive(traced(inside, traced_said), outside)
        recorded = spans(Path(folder) / "run", "execute_tool t") if recording else []

    assert (seen, traced_said) == (expected, plain_said)
    if recording:
        assert [s.attributes["spanfold.items"] for s in recorded] == ([items] if started(outside) else [])


def started(outside: list[Step]) -> bool:
    """Whether the consumer ever ran the body: `send(value)` is refused and `throw` and `close` close it before that."""
    for step in outside:
        match step:
            case ("next",) | ("send", None):
                return True
            case ("send", _):
                continue
            case _:
                return False
    return False


@pytest.mark.case("C-001")
def test_the_span_of_a_generator_lasts_as_long_as_its_iteration_and_encloses_what_it_does(where: Path) -> None:
    @spanfold.traced(stage="M1")
    def slow() -> Iterator[int]:
        time.sleep(0.02)
        with spanfold.timed("inside"):
            yield 1
        yield 2
        time.sleep(0.02)

    with spanfold.run("r", dir=where):
        items = []
        for item in slow():
            with spanfold.timed(f"consumer {item}"):
                items.append(item)

    stage = span(where, "M1")
    assert items == [1, 2]
    assert stage.end_ns - stage.start_ns >= 40_000_000
    assert content(stage, output=True) == [1, 2]
    assert (stage.attributes["spanfold.items"], stage.status_code) == (2, 0)
    assert "spanfold.outcome" not in stage.attributes
    assert tree(where) == {"r": {"M1": {"inside": {}}, "consumer 1": {}, "consumer 2": {}}}


def test_a_span_held_open_across_yields_is_the_parent_inside_and_not_outside(where: Path) -> None:
    @spanfold.traced(name="generator")
    def holding() -> Iterator[int]:
        with spanfold.stage("held"):
            yield 1
            with spanfold.timed("under held"):
                yield 2
        with spanfold.timed("after held"):
            yield 3

    with spanfold.run("r", dir=where):
        for number in holding():
            spanfold.tool(f"consumer {number}").end()

    assert tree(where) == {
        "r": {
            "generator": {"held": {"under held": {}}, "after held": {}},
            **{f"execute_tool consumer {n}": {} for n in (1, 2, 3)},
        }
    }


@pytest.mark.case("C-006")
def test_a_generator_closed_by_its_consumer_ends_its_span_as_closed_early(where: Path) -> None:
    @spanfold.traced(name="g")
    def three() -> Iterator[int]:
        yield from (1, 2, 3)

    with spanfold.run("r", dir=where):
        iterator = three()
        next(iterator)
        next(iterator)
        iterator.close()  # type: ignore[attr-defined]  # a generator
        assert span(where, "g").attributes["spanfold.outcome"] == "closed_early"

    assert span(where, "g").attributes["spanfold.items"] == 2
    assert span(where, "g").status_code == 0


@pytest.mark.case("C-003")
@pytest.mark.parametrize("how", ["del", "cycle"])
def test_a_generator_that_is_dropped_ends_its_span_as_abandoned(where: Path, how: str) -> None:
    @spanfold.traced(name="g")
    def three() -> Iterator[int]:
        yield from (1, 2, 3)

    with spanfold.run("r", dir=where) as run:
        iterator = three()
        next(iterator)
        if how == "cycle":
            ring = [iterator]
            ring.append(ring)  # type: ignore[arg-type]  # a ring
            del ring
        del iterator
        gc.collect()
        (ended,) = spans(where, "g")
        assert trace.get_current_span() is run.span

    assert ended.attributes["spanfold.outcome"] == "abandoned"
    assert ended.attributes["spanfold.items"] == 1


@pytest.mark.slow
@pytest.mark.case("C-003")
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_generator_still_referenced_at_interpreter_exit_ends_abandoned_and_prints_nothing(
    where: Path, kind: str, closed: bool
) -> None:
    script = f"""
import asyncio, os
@spanfold.traced(name="g", capture=False)
def sync(path, mkdir):
    try:
        yield 1
    finally:
        mkdir(path)
@spanfold.traced(name="g", capture=False)
async def asynchronous(path, mkdir):
    try:
        yield 1
    finally:
        mkdir(path)
run = spanfold.run("r", dir={str(where)!r})
with run if {closed} else run.span:
    if {kind!r} == "sync":
        kept = sync({str(where) + ".cleaned"!r}, os.mkdir)
        next(kept)
    else:
        kept = asynchronous({str(where) + ".cleaned"!r}, os.mkdir)
        async def first():
            await anext(kept)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(first())
        loop.close()
"""
    result = program(script)
    # What is said of a run that nobody closed is said of the run, not of the generator.
    said = [line for line in result.err.splitlines() if "while this run was open" not in line]
    assert (result.code, result.out, said) == (0, "", [])
    assert span(where, "g").attributes["spanfold.outcome"] == ("left_open" if closed else "abandoned")
    assert Path(f"{where}.cleaned").exists()


def test_a_generator_body_sees_the_context_variables_of_each_step_as_undecorated() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)

    def body() -> Generator[int, None, None]:
        while True:
            yield variable.get()
            variable.set(variable.get() + 10)

    def steps(generator: Generator[int, None, None]) -> list[int]:
        seen = []
        for value in (1, 2, 3):
            variable.set(value)
            seen.extend((next(generator), variable.get()))
        generator.close()
        return seen

    expected = contextvars.copy_context().run(steps, body())
    with spanfold.run("r"):
        assert contextvars.copy_context().run(steps, spanfold.traced(body)()) == expected


def test_a_generator_sees_baggage_its_consumer_sets_later_and_keeps_its_own(where: Path) -> None:
    def body() -> Generator[Any, None, None]:
        yield baggage.get_baggage("late"), otel_context.get_value("own"), trace.get_current_span()
        otel_context.attach(otel_context.set_value("own", "kept"))
        while True:
            yield baggage.get_baggage("late"), otel_context.get_value("own"), trace.get_current_span()

    with spanfold.run("r", dir=where) as run:
        generator = spanfold.traced(body)()
        before = otel_context.get_current()
        seen = [next(generator)]
        with spanfold.stage("consumer"):
            seen.append(next(generator))
        otel_context.attach(baggage.set_baggage("late", "seen"))
        seen.append(next(generator))
        assert otel_context.get_value("own") is None
        otel_context.attach(before)
        generator.close()

    assert [s[:2] for s in seen] == [(None, None), (None, "kept"), ("seen", "kept")]
    assert {s[2] for s in seen}.isdisjoint({run.span})
    assert len({s[2] for s in seen}) == 1


def test_a_generator_does_not_keep_what_passes_through_it(where: Path) -> None:
    class Item:
        pass

    def body() -> Generator[Item, Item, None]:
        while True:
            sent = yield Item()
            del sent

    with spanfold.run("r", dir=where):
        generator = spanfold.traced(body)()
        yielded = weakref.ref(next(generator))
        assert yielded() is None
        item = Item()
        sent = weakref.ref(item)
        generator.send(item)
        del item
        assert sent() is None
        try:
            generator.throw(ValueError("in"))
        except ValueError as error:
            error.own = Item()  # type: ignore[attr-defined]  # to see when it goes
            thrown = weakref.ref(error.own)  # type: ignore[attr-defined]  # as above
        assert thrown() is None


def test_items_are_recorded_as_they_were_when_they_were_yielded(where: Path) -> None:
    @spanfold.traced(name="g")
    def growing() -> Iterator[list[int]]:
        items: list[int] = []
        for number in range(3):
            items.append(number)
            yield items

    with spanfold.run("r", dir=where):
        list(growing())

    assert content(span(where, "g"), output=True) == [[0], [0, 1], [0, 1, 2]]


def test_only_the_first_items_are_recorded_and_all_are_counted(where: Path) -> None:
    @spanfold.traced(name="g")
    def many() -> Iterator[int]:
        yield from range(1_000)

    with spanfold.run("r", dir=where):
        assert sum(many()) == 499_500

    assert content(span(where, "g"), output=True) == list(range(100))
    assert span(where, "g").attributes["spanfold.items"] == 1_000


def test_a_generator_may_move_between_threads(where: Path) -> None:
    @spanfold.traced(name="g")
    def steps() -> Iterator[int]:
        for number in range(4):
            with spanfold.timed(f"step {number}"):
                yield number

    with spanfold.run("r", dir=where) as run:
        generator = steps()
        seen = [next(generator)]
        thread = threading.Thread(target=lambda: seen.extend((next(generator), next(generator))))
        thread.start()
        thread.join()
        seen.extend(generator)
        assert trace.get_current_span() is run.span

    assert seen == [0, 1, 2, 3]
    assert tree(where) == {"r": {"g": {f"step {n}": {} for n in range(4)}}}


def test_traced_generators_that_delegate_to_each_other_nest(where: Path) -> None:
    @spanfold.traced
    def walk(depth: int) -> Iterator[int]:
        if depth:
            yield from walk(depth - 1)
        yield depth

    with spanfold.run("r", dir=where):
        assert list(walk(20)) == list(range(21))

    found = spans(where)
    assert len(found) == 22
    assert {s.parent_span_id for s in found} == {""} | {s.span_id for s in found} - {found[0].span_id}


def test_a_context_manager_made_of_a_traced_generator_spans_its_block(where: Path) -> None:
    @contextlib.contextmanager
    @spanfold.traced(name="manager")
    def managed() -> Iterator[str]:
        with spanfold.stage("held"):
            yield "value"

    with spanfold.run("r", dir=where), managed() as value:
        assert value == "value"
        spanfold.timed("in the block").end()
    with pytest.raises(KeyError), spanfold.run("r2", dir=where.with_name("second")), managed():
        raise KeyError("in the block")

    assert tree(where) == {"r": {"manager": {"held": {}}, "in the block": {}}}
    assert span(where.with_name("second"), "manager").attributes["error.type"] == "KeyError"


def test_finding_out_who_dropped_a_generator_costs_nothing_with_a_large_young_heap(where: Path) -> None:
    @spanfold.traced(name="g", capture=False)
    def one() -> Iterator[int]:
        yield 1

    gc.disable()
    try:
        young = [[] for _ in range(300_000)]
        with spanfold.run("r", dir=where):
            begun = time.thread_time()
            for _ in range(100):
                next(one())
            took = time.thread_time() - begun
    finally:
        gc.enable()

    assert len(young) == 300_000
    assert took < 1.0
    assert len(spans(where, "g")) == 100


@pytest.mark.parametrize("outermost", ["traced", "coroutine"])
def test_a_generator_based_awaitable_stays_awaitable(where: Path, outermost: str) -> None:
    def body() -> Generator[str, str, str]:
        answer = yield "question"
        return answer.upper()

    decorate: Any = spanfold.traced(name="g")
    decorated = decorate(types.coroutine(body)) if outermost == "traced" else types.coroutine(decorate(body))

    async def waiting() -> str:
        return str(await decorated())

    with spanfold.run("r", dir=where):
        coroutine = waiting()
        assert coroutine.send(None) == "question"
        with pytest.raises(StopIteration) as stop:
            coroutine.send("answer")
    assert stop.value.value == "ANSWER"
    assert span(where, "g").attributes["spanfold.items"] == 1


@pytest.mark.case("C-002")
def test_no_way_to_end_an_iteration_logs_anything(where: Path, caplog: pytest.LogCaptureFixture) -> None:
    @spanfold.traced
    def three() -> Iterator[int]:
        with spanfold.stage("held"):
            yield from (1, 2, 3)

    caplog.set_level(logging.DEBUG)
    with spanfold.run("r", dir=where) as run:
        for _ in three():
            break
        kept = three()
        next(kept)
        context = contextvars.Context()
        context.run(next, kept)
        thread = threading.Thread(target=lambda: list(kept))
        thread.start()
        thread.join()
        dropped = three()
        contextvars.copy_context().run(next, dropped)
        del dropped
        gc.collect()
        assert trace.get_current_span() is run.span

    assert [r.getMessage() for r in caplog.records] == []
