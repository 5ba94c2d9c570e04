"""C-012, C-048, C-049: many runs in one process, many processes in one run, few descriptors."""

import json
import os
import re
from pathlib import Path

import pytest

import spanfold
from spanfold.journal import read_journal, verify_journal
from spanfold.model import Event
from tests.instrument.programs import run
from tests.journal import raw


@pytest.mark.slow
@pytest.mark.case("C-049")
def test_many_processes_and_threads_write_large_records_into_one_run_and_none_is_lost_or_doubled(
    tmp_path: Path,
) -> None:
    child = """
import random, sys, spanfold
number = int(sys.argv[1])
with spanfold.stage(f"child {number}"):
    for record in range(200):
        spanfold.event("large", writer=number, record=record, text="x" * 300_000)
"""
    program = f"""
    import subprocess, sys, threading, spanfold

    def work(number):
        for record in range(200):
            spanfold.event("large", writer=number, record=record, text="x" * 300_000)

    with spanfold.run("r", dir=sys.argv[1]):
        env = spanfold.child_env()
        children = [subprocess.Popen([sys.executable, "-c", {child!r}, str(n)], env=env) for n in range(5)]
        threads = [threading.Thread(target=work, args=(10 + n,)) for n in range(2)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert [c.wait() for c in children] == [0] * 5
    """
    run(program, tmp_path / "run")

    expected = {(writer, record) for writer in (0, 1, 2, 3, 4, 10, 11) for record in range(200)}
    assert len(raw.files(tmp_path / "run")) == 6
    found: list[tuple[int, int]] = []
    latest: dict[Path, int] = {}
    newest = 0
    for record in read_journal(tmp_path / "run").records:
        if isinstance(record, Event) and record.name == "large":
            found.append((record.attributes["spanfold.writer"], record.attributes["spanfold.record"]))
            assert len(record.attributes["spanfold.text"]) == 300_000
            # Files are merged by time; in one file threads may have taken turns after they took the time.
            assert record.position is not None
            latest[record.position.path] = max(latest.get(record.position.path, 0), record.time_ns)
            assert latest[record.position.path] >= newest
            newest = latest[record.position.path]
    assert len(found) == len(expected)
    assert set(found) == expected
    assert verify_journal(tmp_path / "run").state == "intact"
    for path in raw.files(tmp_path / "run"):
        path.unlink()  # 420 MB


@pytest.mark.slow
@pytest.mark.case("C-048")
@pytest.mark.parametrize(
    ("count", "at_once", "documents"),
    [(300, False, True), (300, True, True), (2000, False, False), (2000, True, False)],
)
def test_thousands_of_runs_need_no_more_descriptors_than_one_process_has(
    tmp_path: Path, count: int, at_once: bool, documents: bool
) -> None:
    program = """
    import os, resource, sys, spanfold
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    mine = [open(os.devnull) for _ in range(120)]
    count, at_once, documents = int(sys.argv[2]), sys.argv[3] == "True", sys.argv[4] == "True"
    if not documents:
        spanfold.instrument.state.connector = None
    opened = []
    for number in range(count):
        run = spanfold.run("r", dir=f"{sys.argv[1]}/{number}", number=number)
        run.event("e", number=number)
        opened.append(run)
        if not at_once:
            run.event("e", number=number)
            opened.pop().close()
    for number, run in enumerate(opened):
        run.event("e", number=number)
    for run in opened:
        run.close()
    print(spanfold.instrument.losses, len(os.listdir("/proc/self/fd")))
    """
    ended = run(program, tmp_path, count, at_once, documents)

    lost, descriptors = ended.out.rsplit(maxsplit=1)
    assert lost == "Counter()"
    assert int(descriptors) < 175
    assert ended.err == ""
    for number in range(0, count, 31):
        folder = tmp_path / str(number)
        assert [e["attributes"]["spanfold.number"] for e in raw.events(folder, "e")] == [number, number]
        assert [s["attributes"]["spanfold.number"] for s in raw.spans(folder)] == [number]
        assert verify_journal(folder).state == "intact"
        assert (folder / "run.json").exists() == documents


@pytest.mark.slow
@pytest.mark.case("C-012")
def test_thirty_runs_in_eight_threads_keep_apart(tmp_path: Path) -> None:
    program = """
    import concurrent.futures, sys, spanfold

    def work(number):
        with spanfold.run(f"run-{number}", dir=f"{sys.argv[1]}/run-{number}"):
            for stage in range(5):
                with spanfold.stage(f"stage-{stage}", cycle=number):
                    spanfold.event("e", number=number)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(30)))
    print(spanfold.instrument.losses)
    """
    assert run(program, tmp_path).out.strip() == "Counter()"

    assert sorted(os.listdir(tmp_path)) == sorted(f"run-{n}" for n in range(30))
    for number in range(30):
        folder = tmp_path / f"run-{number}"
        spans = raw.spans(folder)
        assert sorted(raw.names(spans)) == [f"run-{number}", *(f"stage-{s}" for s in range(5))]
        assert {s["attributes"].get("spanfold.cycle", number) for s in spans} == {number}
        assert {s["traceId"] for s in spans} == {r["traceId"] for r in raw.journal(folder) if r["traceId"]}
        assert json.loads((folder / "run.json").read_text())["run"]["name"] == f"run-{number}"


@pytest.mark.slow
@pytest.mark.case("C-048")
def test_fifty_runs_leave_nothing_of_one_in_another_and_cost_the_same_each(tmp_path: Path) -> None:
    program = """
    import contextlib, sys, threading, spanfold

    def fill(number):
        with spanfold.stage("M1"):
            with spanfold.model_call("m", input=f"mark-{number:04d}-"): pass
            spanfold.artifact("a", {"mark": f"mark-{number:04d}-"})

    for number in range(40):
        with spanfold.run("r", dir=f"{sys.argv[1]}/{number}"):
            fill(number)
    with contextlib.ExitStack() as stack:
        for number in range(40, 50):
            with spanfold.run("r", dir=f"{sys.argv[1]}/{number}"):
                fill(number)
    print(threading.active_count(), len(spanfold.instrument.state.runs))
    """
    ended = run(program, tmp_path)
    assert int(ended.out.split()[0]) <= 2
    assert ended.out.split()[1] == "0"

    sizes = []
    for number in range(50):
        files = [p for p in (tmp_path / str(number)).rglob("*") if p.is_file()]
        data = b"".join(p.read_bytes() for p in files)
        assert {int(mark[5:9]) for mark in re.findall(rb"mark-\d{4}-", data)} == {number}
        sizes.append(len(data))
    assert max(sizes) - min(sizes) < 2000


@pytest.mark.case("C-012", "C-048")
def test_a_run_inside_a_run_and_two_side_by_side_keep_their_records_apart(tmp_path: Path) -> None:
    with spanfold.run("outer", dir=tmp_path / "outer") as outer:
        with spanfold.stage("A"), spanfold.run("inner", dir=tmp_path / "inner") as inner:
            with spanfold.stage("B"):
                pass
            assert spanfold.current_run() is inner
        assert spanfold.current_run() is outer
        with spanfold.stage("C"):
            pass

    assert raw.names(raw.spans(tmp_path / "outer")) == ["A", "C", "outer"]
    assert raw.names(raw.spans(tmp_path / "inner")) == ["B", "inner"]
    (link,) = raw.spans(tmp_path / "inner")[1]["links"]
    assert link["spanId"] == raw.spans(tmp_path / "outer")[0]["spanId"]


@pytest.mark.slow
@pytest.mark.case("C-048")
def test_runs_of_a_process_that_was_given_a_trace_context_do_not_share_their_records(tmp_path: Path) -> None:
    program = """
    import sys, spanfold
    with spanfold.run("a", dir=sys.argv[1] + "/a") as a, spanfold.run("b", dir=sys.argv[1] + "/b") as b:
        with spanfold.stage("in b"): pass
        print(a.trace_id, b.trace_id)
    with spanfold.run("c", dir=sys.argv[1] + "/c") as c:
        print(c.trace_id)
    """
    trace = "0af7651916cd43dd8448eb211c80319c"
    ended = run(program, tmp_path, env={"TRACEPARENT": f"00-{trace}-b7ad6b7169203331-01"})

    a, b, c = ended.out.split()
    assert a == c == trace != b
    assert raw.names(raw.spans(tmp_path / "a")) == ["a"]
    assert raw.names(raw.spans(tmp_path / "b")) == ["in b", "b"]
    assert [s["parentSpanId"] for s in raw.spans(tmp_path / "a")] == ["b7ad6b7169203331"]


@pytest.mark.case("C-051")
def test_a_process_without_a_free_descriptor_keeps_its_records_until_there_is_one(tmp_path: Path) -> None:
    program = """
    import os, resource, sys, spanfold
    with spanfold.run("r", dir=sys.argv[1]) as opened:
        spanfold.event("e", number=0)
        opened.journal.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        mine = []
        try:
            while True: mine.append(os.open(os.devnull, os.O_RDONLY))
        except OSError: pass
        for number in range(1, 20):
            spanfold.event("e", number=number)
        print(opened.stats.held, opened.stats.problem)
        for fd in mine: os.close(fd)
    print(opened.stats.held, opened.losses)
    """
    ended = run(program, tmp_path / "run")

    assert ended.out.splitlines() == ["19 OSError: Too many open files", "0 {}"]
    assert [e["attributes"]["spanfold.number"] for e in raw.events(tmp_path / "run", "e")] == list(range(20))
    assert ended.err.count("\n") == ended.err.count("Too many open files") > 0
    assert verify_journal(tmp_path / "run").state == "intact"


@pytest.mark.slow
@pytest.mark.case("C-046")
def test_spans_that_never_end_and_spans_that_did_leave_nothing_in_memory(tmp_path: Path) -> None:
    program = """
    import gc, sys, tracemalloc, spanfold
    spanfold.instrument.state.connector = None  # documents have tests of their own

    class Held:
        alive = 0
        def __init__(self): Held.alive += 1
        def __del__(self): Held.alive -= 1

    def grown(act, count):
        act()
        gc.collect()
        tracemalloc.start()
        for _ in range(count): act()
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return size

    def never_ended():
        spanfold.stage("M1", held=Held())

    def ended():
        with spanfold.timed("t", held=Held()): pass

    with spanfold.run("r", dir=sys.argv[1]):
        print(grown(never_ended, 20_000), grown(ended, 20_000), Held.alive)
    """
    never_ended, ended, alive = map(int, run(program, tmp_path / "run").out.split())

    assert alive == 0
    assert never_ended < 200_000
    assert ended < 200_000
