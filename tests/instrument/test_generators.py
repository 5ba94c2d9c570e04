"""A traced generator behaves to its consumer exactly as the generator it decorates, and its span covers its iteration."""

import contextlib
import inspect
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace

import spanfold
from tests.instrument.reading import spans

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
    """Return what the consumer saw after each step, and how many items it got."""
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
