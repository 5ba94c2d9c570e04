"""Context over threads, pools and processes: each piece of work under the span that asked for it, each run by itself."""

import asyncio
import contextvars
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context, trace

import spanfold
from tests.instrument.reading import Lost, events, program, span, spans, tree


@spanfold.traced(kind="timing", name="task")
def task(number: int) -> tuple[int, int]:
    spanfold.event("in task", number=number)
    return number * 2, os.getpid()


@spanfold.traced(name="asks")
def asks(prompt: str) -> str:
    with spanfold.model_call("m", input=prompt) as call:
        call.output("answer")
    return prompt


@spanfold.traced(name="fails")
def fails() -> None:
    raise ValueError("in a worker")


def plainly(number: int) -> int:
    return number + 1


# -- threads


def test_a_thread_without_context_works_under_the_only_run(where: Path) -> None:
    with spanfold.run("r", dir=where), spanfold.stage("s"):
        thread = threading.Thread(target=task, args=(1,))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(task, 2).result()

    assert {s.parent_span_id for s in spans(where, "task")} == {span(where, "r").span_id}


def test_a_thread_without_context_is_counted_when_several_runs_are_open(tmp_path: Path, lost: Lost) -> None:
    with spanfold.run("one", dir=tmp_path / "1"), spanfold.run("two", dir=tmp_path / "2"):
        thread = threading.Thread(target=task, args=(1,))
        thread.start()
        thread.join()

    assert list(lost().values()) == [2]
    assert tree(tmp_path / "1") == {"one": {}}
    assert tree(tmp_path / "2") == {"two": {}}


def test_a_traced_executor_takes_every_context_variable_along(where: Path) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    def work(number: int) -> str:
        task(number)
        seen = variable.get()
        variable.set("changed inside")
        return seen

    with spanfold.run("r", dir=where), spanfold.traced_executor(ThreadPoolExecutor(4)) as pool:
        for name in ("a", "b"):
            with spanfold.stage(name, cycle=3):
                variable.set(name)
                assert list(pool.map(work, range(20))) == [name] * 20
                assert [f.result() for f in [pool.submit(work, number=n) for n in range(5)]] == [name] * 5
                assert variable.get() == name

    for name in ("a", "b"):
        below = [s for s in spans(where, "task") if s.parent_span_id == span(where, name).span_id]
        assert len(below) == 25
        assert {
            (s.attributes["spanfold.stage"], s.attributes["spanfold.cycle"], s.attributes["spanfold.depth"])
            for s in below
        } == {(name, 3, 1)}


def test_a_traced_executor_passes_on_what_the_executor_offers(where: Path) -> None:
    class Inline(Executor):
        """An executor of somebody else: it calls at once, and its `map` takes an option of its own."""

        speed = 3

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)
            return future

        def map(self, fn: Callable[..., Any], *iterables: Any, retries: int = 0, **_: Any) -> Iterator[Any]:
            return iter([fn(*args) for args in zip(*iterables, strict=True)] + [retries])

    pool: Any = spanfold.traced_executor(Inline())
    with spanfold.run("r", dir=where), spanfold.stage("s"):
        assert pool.submit(plainly, 1).result() == 2
        assert list(pool.map(plainly, [1, 2], retries=5)) == [2, 3, 5]
        assert type(pool.submit(fails).exception()) is ValueError
        assert pool.submit(dict, fn=1, self=2).result() == {"fn": 1, "self": 2}
    assert pool.speed == 3
    with pytest.raises(AttributeError):
        assert pool.unknown
    assert span(where, "fails").parent_span_id == span(where, "s").span_id


def test_the_default_executor_of_a_loop_takes_a_traced_one(where: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with spanfold.stage("s"):
            await loop.run_in_executor(pool, task, 1)
            await asyncio.to_thread(task, 2)

    with spanfold.run("r", dir=where), spanfold.traced_executor(ThreadPoolExecutor(1)) as pool:
        asyncio.run(main())

    assert {s.parent_span_id for s in spans(where, "task")} == {span(where, "s").span_id}


@pytest.mark.case("C-012")
def test_thirty_runs_in_eight_threads_keep_apart(tmp_path: Path) -> None:
    def one(number: int) -> None:
        with spanfold.run(f"run {number}", dir=tmp_path / str(number), number=number) as run:
            for step in range(5):
                with spanfold.stage(f"M{step + 1}", cycle=number):
                    task(number)
                    assert spanfold.current_run() is run
            spanfold.score("s", number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(30)))

    for number in range(30):
        found = spans(tmp_path / str(number))
        assert [s.name for s in found if s.attributes["spanfold.kind"] == "stage"] == ["M1", "M2", "M3", "M4", "M5"]
        assert {s.attributes.get("spanfold.cycle") for s in found} == {None, number}
        assert found[-1].attributes["spanfold.run.id"] == f"run {number}"
        assert len({s.trace_id for s in found}) == 1
        assert [
            e.attributes["gen_ai.evaluation.score.value"]
            for e in events(tmp_path / str(number), "gen_ai.evaluation.result")
        ] == [number]
    assert spanfold.current_run() is None


def test_a_run_inside_a_run_is_a_trace_of_its_own_that_links_to_where_it_was_started(tmp_path: Path) -> None:
    with spanfold.run("outer", dir=tmp_path / "1") as outer, spanfold.stage("s") as stage:
        with spanfold.run("inner", dir=tmp_path / "2") as inner:
            assert spanfold.current_run() is inner
            task(1)
        assert spanfold.current_run() is outer
        task(2)

    assert tree(tmp_path / "1") == {"outer": {"s": {"task": {}}}}
    assert tree(tmp_path / "2") == {"inner": {"task": {}}}
    (link,) = span(tmp_path / "2", "inner").links
    assert (link.trace_id, link.span_id) == (outer.trace_id, stage.span_id)
    assert inner.trace_id != outer.trace_id


def test_runs_opened_with_a_traceparent_in_the_environment_keep_apart(tmp_path: Path) -> None:
    result = program(
        f"""
import threading
def one(number):
    with spanfold.run(f"run {{number}}", dir={str(tmp_path)!r} + f"/{{number}}"), spanfold.stage(f"stage {{number}}"):
        barrier.wait()
        spanfold.event(f"event {{number}}")
barrier = threading.Barrier(4)
threads = [threading.Thread(target=one, args=(n,)) for n in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
""",
        TRACEPARENT="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )

    assert result == (0, "", "")
    traces = set()
    for number in range(4):
        found = spans(tmp_path / str(number))
        assert [s.name for s in found] == [f"stage {number}", f"run {number}"]
        traces.add(found[0].trace_id)
    assert len(traces) == 4
    assert "0af7651916cd43dd8448eb211c80319c" in traces


# -- processes


@pytest.fixture(params=["fork", "spawn", "forkserver"])
def processes(request: pytest.FixtureRequest) -> Iterator[ProcessPoolExecutor]:
    # One worker: what the second task finds is what the first one left behind.
    with ProcessPoolExecutor(1, mp_context=get_context(request.param)) as pool:
        yield pool


@pytest.mark.slow
@pytest.mark.case("C-017")
def test_a_child_process_with_a_run_of_its_own_records_apart_and_in_the_trace_of_its_parent(tmp_path: Path) -> None:
    child = f"""
import spanfold
with spanfold.run("first", dir={str(tmp_path / "first")!r}), spanfold.run("second", dir={str(tmp_path / "second")!r}):
    pass
"""
    with spanfold.run("parent", dir=tmp_path / "parent") as parent, spanfold.agent("worker") as worker:
        subprocess.run([sys.executable, "-c", child], env=spanfold.child_env(), check=True, timeout=60)

    assert tree(tmp_path / "parent") == {"parent": {"invoke_agent worker": {}}}
    assert [s.name for s in spans(tmp_path / "first")] == ["first"]
    first = span(tmp_path / "first", "first")
    assert (first.trace_id, first.parent_span_id) == (parent.trace_id, worker.span_id)
    assert span(tmp_path / "second", "second").trace_id != parent.trace_id


@pytest.mark.slow
@pytest.mark.case("C-017", "C-039")
def test_a_pool_that_outlives_runs_works_for_each_of_them_in_turn(
    tmp_path: Path, processes: ProcessPoolExecutor
) -> None:
    pool = spanfold.traced_executor(processes)
    pids = set()
    with spanfold.run("one", dir=tmp_path / "1"), spanfold.run("two", dir=tmp_path / "2"):
        pass
    first = spanfold.run("first", dir=tmp_path / "first")
    second = spanfold.run("second", dir=tmp_path / "second")
    for step in range(3):
        for run in (first, second):
            with trace.use_span(run.span), spanfold.stage(f"stage {step}", cycle=step), spanfold.timed("around"):  # type: ignore[union-attr]  # recorded here
                if step == 2:
                    run.close()
                    continue
                result, pid = pool.submit(task, step).result()
                assert result == step * 2
                pids.add(pid)
    assert len(pids) == 1
    assert pool.submit(plainly, 1).result() == 2

    for name in ("first", "second"):
        found = spans(tmp_path / name)
        assert len(list((tmp_path / name / "journal").glob("*.otlp.jsonl"))) == 2
        tasks = [s for s in found if s.name == "task"]
        arounds = {s.attributes["spanfold.cycle"]: s.span_id for s in found if s.name == "around"}
        assert [(s.parent_span_id, s.attributes["spanfold.cycle"]) for s in tasks] == [(arounds[0], 0), (arounds[1], 1)]


@pytest.mark.slow
@pytest.mark.case("C-017")
def test_work_in_another_process_stands_where_it_would_stand_in_this_one(
    where: Path, processes: ProcessPoolExecutor
) -> None:
    pool = spanfold.traced_executor(processes)
    with spanfold.run("r", dir=where), pool:
        assert pool.submit(task, 1).result()[0] == 2
        with spanfold.stage("M2", cycle=7), spanfold.timed("Odd name!"):
            task(2)
            assert pool.submit(task, 3).result()[0] == 6
            assert [r[0] for r in pool.map(task, [4, 5, 6], chunksize=2)] == [8, 10, 12]
            with pytest.raises(ValueError, match="in a worker"):
                pool.submit(fails).result()
            with pytest.raises((pickle.PicklingError, AttributeError)):
                pool.submit(lambda: 1).result()

    at_root, here, *others = sorted(spans(where, "task"), key=lambda s: s.start_ns)
    place = ("spanfold.stage", "spanfold.cycle", "spanfold.depth", "spanfold.parent")
    assert [at_root.attributes.get(p) for p in place] == [None, None, 0, None]
    assert at_root.parent_span_id == span(where, "r").span_id
    for other in others:
        assert [other.attributes[p] for p in place] == [here.attributes[p] for p in place] == ["M2", 7, 2, "odd_name_"]
        assert other.parent_span_id == here.parent_span_id
        assert other.resource["process.pid"] != here.resource["process.pid"]
    assert span(where, "fails").attributes["error.type"] == "ValueError"
    assert len(events(where, "in task")) == 6


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["none", "local"])
def test_the_content_policy_of_a_run_holds_in_its_workers(
    where: Path, processes: ProcessPoolExecutor, policy: Any
) -> None:
    spanfold.configure(content=policy)
    with spanfold.run("r", dir=where), spanfold.traced_executor(processes) as pool:
        assert pool.submit(asks, "canary of the content").result() == "canary of the content"
        script = "import spanfold; spanfold.model_call('m', input='canary of the content').end()"
        subprocess.run([sys.executable, "-c", script], env=spanfold.child_env(), check=True, timeout=60)

    text = b"".join(p.read_bytes() for p in (where / "journal").iterdir()).decode()
    assert len(spans(where, "chat m")) == 2
    assert ("canary of the content" in text) is (policy == "local")
    if policy == "local":
        assert {s.attributes["spanfold.content"] for s in spans(where, "chat m")} == {"local"}


@pytest.mark.slow
def test_a_subprocess_joins_with_the_environment_made_for_it(where: Path) -> None:
    script = """
import sys, spanfold
@spanfold.traced(name="child")
def child(depth):
    if depth:
        import subprocess
        subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[1], str(depth - 1)], env=spanfold.child_env(), check=True)
child(int(sys.argv[2]))
"""
    with spanfold.run("r", dir=where), spanfold.stage("M4", cycle=1):
        before = dict(os.environ)
        env = spanfold.child_env({"EXTRA": "1"})
        assert dict(os.environ) == before
        assert env["EXTRA"] == "1"
        assert env["PATH"] == before["PATH"]
        subprocess.run([sys.executable, "-c", script, script, "2"], env=env, check=True, timeout=120)

    children = spans(where, "child")
    below = {s.parent_span_id: s for s in children}
    assert len(list((where / "journal").glob("*.otlp.jsonl"))) == 4
    parent = span(where, "M4")
    for depth in (1, 2, 3):
        child = below[parent.span_id]
        assert (child.attributes["spanfold.depth"], child.attributes["spanfold.stage"]) == (depth, "M4")
        assert child.trace_id == parent.trace_id
        parent = child


@pytest.mark.slow
@pytest.mark.parametrize(
    "env",
    [
        {"SPANFOLD_PARENT_RUN_DIR": "/nowhere/at/all"},
        {"SPANFOLD_PARENT_RUN_DIR": "relative/path"},
        {"SPANFOLD_PARENT_RUN_DIR": "{tmp}"},
        {"SPANFOLD_PARENT_RUN_DIR": "\udcff"},
        {"TRACEPARENT": "00-zz-1-01", "SPANFOLD_PARENT_RUN_DIR": "{run}"},
        {"TRACEPARENT": "", "SPANFOLD_PARENT_RUN_DIR": "{run}"},
        {"SPANFOLD_DISABLED": "true"},
        {"OTEL_SDK_DISABLED": "true"},
    ],
)
def test_an_environment_that_names_no_run_records_nothing_and_breaks_nothing(
    where: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    with spanfold.run("r", dir=where):
        filled = {k: v.format(tmp=tmp_path, run=where) for k, v in env.items()}
        made = spanfold.child_env() | filled
        script = "import spanfold\nwith spanfold.stage('child') as s: print(s.is_recording())"
        result = subprocess.run(
            [sys.executable, "-c", script], env=made, capture_output=True, text=True, timeout=60, check=True
        )

    assert result.stdout == "False\n"
    assert [s.name for s in spans(where)] == ["r"]
    assert len(result.stderr.splitlines()) <= 1


def test_odd_values_of_the_environment_are_left_out(where: Path) -> None:
    with spanfold.run("r", dir=where):
        env = spanfold.child_env()
        env |= {
            "SPANFOLD_PARENT_CYCLE": "1e9",
            "SPANFOLD_PARENT_DEPTH": "-3",
            "SPANFOLD_PARENT_TOKEN": "No token",
            "SPANFOLD_PARENT_STAGE": "ü\n",
        }
        subprocess.run(
            [sys.executable, "-c", "import spanfold; spanfold.timed('child').end()"], env=env, check=True, timeout=60
        )

    attributes = span(where, "child").attributes
    assert attributes["spanfold.depth"] == 0
    assert attributes["spanfold.stage"] == "ü\n"
    assert "spanfold.cycle" not in attributes
    assert "spanfold.parent" not in attributes


def test_a_worker_that_is_given_work_while_no_run_is_open_just_does_it(tmp_path: Path) -> None:
    with spanfold.traced_executor(ProcessPoolExecutor(1, mp_context=get_context("spawn"))) as pool:
        assert pool.submit(task, 3).result()[0] == 6

    assert list(tmp_path.iterdir()) == []


def test_work_that_waits_while_a_run_ends_is_done_and_not_recorded_in_it(where: Path, lost: Lost) -> None:
    with spanfold.traced_executor(ThreadPoolExecutor(1)) as pool:
        blocked = threading.Event()
        with spanfold.run("r", dir=where):
            pool.submit(blocked.wait)
            waiting = pool.submit(task, 2)
            time.sleep(0.01)
        blocked.set()
        assert waiting.result()[0] == 4

    assert tree(where) == {"r": {}}
    assert set(lost()) == {"records made after the end of their run"}


@pytest.mark.slow
def test_a_finalizer_that_records_while_a_span_becomes_current_brings_no_interpreter_down(tmp_path: Path) -> None:
    # Each time the collector runs one allocation later, until it has run in the middle of `ContextVar.set` too. What
    # Python frees then is overwritten, so that going on with it does not pass unnoticed.
    answer = program(
        f"""
import contextvars, gc
others = [contextvars.ContextVar(str(n)) for n in range(200)]
for other in others:
    other.set(1)
kept = []
class Garbage:
    def __init__(self):
        self.itself = self
    def __del__(self):
        with spanfold.timed("from a finalizer"):
            kept.append([{{}} for _ in range(5)])
with spanfold.run("r", dir={str(tmp_path / "run")!r}):
    gc.disable()
    gc.collect()
    gc.freeze()
    for number in range(1500):
        one = spanfold.timed("one")
        gc.collect()
        Garbage()
        gc.set_threshold(1 + number % 150, 1_000, 1_000)
        gc.enable()
        with one:
            kept.append([{{}} for _ in range(5)])
        gc.disable()
        gc.collect()
""",
        PYTHONMALLOC="debug",
    )
    assert answer.code == 0, answer.err
    assert len(spans(tmp_path / "run")) == 3_001


@pytest.mark.parametrize("are_ended", [False, True])
def test_spans_that_were_entered_again_inside_of_each_other_do_not_make_another_search_for_ever(
    where: Path, are_ended: bool
) -> None:
    with spanfold.run("r", dir=where):
        elsewhere = spanfold.timed("elsewhere")
        contextvars.copy_context().run(elsewhere.__enter__)
        a, b = spanfold.timed("a"), spanfold.timed("b")
        for span_ in (a, b, a):
            span_.__enter__()
        if are_ended:
            contextvars.Context().run(a.end)
            contextvars.Context().run(b.end)
        elsewhere.end()
        a.__exit__(None, None, None)
        b.__exit__(None, None, None)
        context.attach(context.Context())
    assert len(spans(where)) == 4
