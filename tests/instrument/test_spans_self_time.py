"""Self time of every span equals its definition, however its children overlap, outlive it, or were timed elsewhere."""

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace

import spanfold
from spanfold.instrument import SpanfoldTracerProvider
from spanfold.model import Span
from tests.instrument.hosts import OPENAI, Host
from tests.instrument.reading import spans

SLACK_NS = 400_000
"""Wall clock and monotonic clock are read one after the other; a busy machine may stop between them."""


def by_definition(span: Span, found: list[Span]) -> int:
    """Return the self time of a span from the records alone: EP 8.2."""
    children = [s for s in found if recorded_parent(s) == span.span_id]
    intervals = ((max(s.start_ns, span.start_ns), min(s.end_ns, span.end_ns)) for s in children)
    return max(0, span.end_ns - span.start_ns - union(i for i in intervals if i[0] < i[1]))


def recorded_parent(span: Span) -> str:
    return str(span.attributes.get("spanfold.recorded_parent", span.parent_span_id))


def union(intervals: Iterable[tuple[int, int]]) -> int:
    covered, frontier = 0, -(1 << 80)
    for start, end in sorted(intervals):
        covered += max(0, end - max(start, frontier))
        frontier = max(frontier, end)
    return covered


def assert_all_as_defined(where: Path, slack: int = SLACK_NS) -> list[Span]:
    found = spans(where)
    for span in found:
        if "spanfold.self_ns" in span.attributes:
            recorded, defined = span.attributes["spanfold.self_ns"], by_definition(span, found)
            children = sum(recorded_parent(s) == span.span_id for s in found)
            assert abs(recorded - defined) <= slack * (1 + children), (span.name, recorded, defined)
    return found


# A tree is a list of children, each with what happens before it starts, how it runs, and its own children.
trees: st.SearchStrategy[list[Any]] = st.recursive(
    st.just([]),
    lambda below: st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["block", "thread", "by hand", "left to run"]), below), max_size=3
    ),
    max_leaves=8,
)


def work(tree: list[Any], running: list[threading.Thread]) -> None:
    tracer = SpanfoldTracerProvider().get_tracer("t")
    for pause, how, below in tree:
        time.sleep(pause / 1000)
        if how == "block":
            with spanfold.timed("block"):
                work(below, running)
        elif how == "by hand":
            now = time.time_ns()
            tracer.start_span("by hand", start_time=now - pause * 700_000).end(end_time=now - pause * 100_000)
        else:
            child = spanfold.timed(how)
            thread = threading.Thread(target=run_in, args=(child, below, running))
            thread.start()
            if how == "thread":
                time.sleep(0.001)
                thread.join()
            else:
                running.append(thread)


def run_in(span: Any, below: list[Any], running: list[threading.Thread]) -> None:
    with span:
        time.sleep(0.001)
        work(below, running)


@pytest.mark.contract("EP-063")
@settings(max_examples=30)
@given(tree=trees)
def test_self_time_of_random_trees_in_threads_is_as_defined(tree: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        running: list[threading.Thread] = []
        with spanfold.run("r", dir=Path(folder) / "run"), spanfold.stage("s"):
            work(tree, running)
            for thread in list(running):
                thread.join()
            while running:
                running.pop().join()
        assert_all_as_defined(Path(folder) / "run")


@pytest.mark.contract("EP-063")
@settings(max_examples=20)
@given(tree=trees)
def test_self_time_of_random_trees_of_tasks_is_as_defined(tree: list[Any]) -> None:
    async def grow(below: list[Any]) -> None:
        tasks = []
        for pause, how, deeper in below:
            await asyncio.sleep(pause / 1000)
            if how in ("block", "by hand"):
                with spanfold.timed(how):
                    await asyncio.sleep(0)
                    await grow(deeper)
            else:
                tasks.append(asyncio.create_task(child(how, deeper)))
        await asyncio.gather(*tasks)

    async def child(name: str, below: list[Any]) -> None:
        with spanfold.timed(name):
            await asyncio.sleep(0.001)
            await grow(below)

    with tempfile.TemporaryDirectory() as folder:
        with spanfold.run("r", dir=Path(folder) / "run"), spanfold.stage("s"):
            asyncio.run(grow(tree))
        assert_all_as_defined(Path(folder) / "run")


hand_times = st.lists(st.tuples(st.integers(-50, 150), st.integers(0, 100)), max_size=12)


@pytest.mark.contract("EP-063")
@given(children=hand_times, order=st.randoms(use_true_random=False))
def test_self_time_of_spans_with_times_given_by_hand_is_exact(children: list[tuple[int, int]], order: Any) -> None:
    tracer = SpanfoldTracerProvider().get_tracer("t")
    base = time.time_ns() - 10**9
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "run"
        with spanfold.run("r", dir=where):
            parent = tracer.start_span("parent", start_time=base)
            context = trace.set_span_in_context(parent)
            started = [tracer.start_span("child", context, start_time=base + a * 10**6) for a, _ in children]
            pairs = list(zip(started, children, strict=True))
            order.shuffle(pairs)
            for child, (a, length) in pairs:
                child.end(end_time=base + (a + length) * 10**6)
            parent.end(end_time=base + 100 * 10**6)
        found = spans(where)

    parent_record = next(s for s in found if s.name == "parent")
    assert parent_record.attributes["spanfold.self_ns"] == by_definition(parent_record, found)


def test_self_time_counts_spans_of_the_hosts_instrumentors(where: Path) -> None:
    host = Host()
    spanfold.configure(provider=host)
    tracer, http = host.get_tracer(OPENAI), host.get_tracer("opentelemetry.instrumentation.requests")
    with spanfold.run("r", dir=where), spanfold.stage("s"):
        time.sleep(0.005)
        with tracer.start_as_current_span("chat"), spanfold.timed("in chat"):
            time.sleep(0.005)
        with http.start_as_current_span("POST"):
            time.sleep(0.005)
            with tracer.start_as_current_span("chat"):
                time.sleep(0.005)

    found = assert_all_as_defined(where, slack=5 * SLACK_NS)
    stage = next(s for s in found if s.name == "s")
    assert 9_000_000 <= stage.attributes["spanfold.self_ns"] <= stage.end_ns - stage.start_ns - 9_000_000


@pytest.mark.slow
def test_self_time_stays_exact_and_bounded_with_many_children_of_every_kind(where: Path) -> None:
    host = Host()
    spanfold.configure(provider=host)
    tracer = host.get_tracer(OPENAI)
    with spanfold.run("r", dir=where), spanfold.stage("s") as stage:
        for number in range(3_000):
            with spanfold.timed("ours"):
                pass
            if number % 2:
                tracer.start_span("theirs").end()
            else:
                late = tracer.start_span("theirs", start_time=time.time_ns() - 2_000_000)
                late.end(time.time_ns() - 1_000_000)
        sizes = len(stage._periods or ()), len(stage._extra or ())  # type: ignore[union-attr]  # recorded here

    assert max(sizes) <= 512
    assert_all_as_defined(where, slack=2_000)
