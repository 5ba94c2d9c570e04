"""C-039 and C-017: a child process has a journal file of its own, the right parent, and nothing of its parent's work."""

import copy
import os
import pickle
import signal
import time
from pathlib import Path

import pytest

import spanfold
from spanfold.journal import read_journal, verify_journal
from spanfold.model import Span
from tests.instrument.programs import Program, run
from tests.journal import raw

FORK = """
import os, sys, threading, time, spanfold

def child():
    with spanfold.stage("child"):
        with spanfold.timed("work"): pass
    {leave}

with spanfold.run("r", dir=sys.argv[1]) as opened:
    with spanfold.stage("parent") as stage:
        with spanfold.timed("queued"): pass
        pid = os.fork()
        if pid == 0:
            child()
        else:
            _, status = os.waitpid(pid, 0)
            print(os.waitstatus_to_exitcode(status))
if pid == 0:
    print("child went on")
"""
LEAVES = {
    "return": ("return", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "os._exit": ("os._exit(4)", 4),
    "SIGTERM": ("import signal; os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", -signal.SIGTERM),
    "SIGKILL": ("import signal; os.kill(os.getpid(), signal.SIGKILL); time.sleep(30)", -signal.SIGKILL),
    "exception": ("raise RuntimeError('child')", 1),
}


def by_name(run_dir: Path) -> dict[str, Span]:
    """Return the spans of a run by name; each must have been recorded once, in the files taken together."""
    written = raw.spans(run_dir)
    assert len({s["spanId"] for s in written}) == len(written)
    found = [r for r in read_journal(run_dir).records if isinstance(r, Span)]
    assert len({s.name for s in found}) == len(found)
    return {s.name: s for s in found}


def pids(run_dir: Path) -> dict[str, int]:
    return {r["name"]: r["resource"]["process.pid"] for r in raw.spans(run_dir)}


@pytest.mark.slow
@pytest.mark.case("C-039")
@pytest.mark.parametrize("leave", LEAVES)
def test_a_forked_child_records_into_a_file_of_its_own_however_it_leaves(tmp_path: Path, leave: str) -> None:
    code, status = LEAVES[leave]
    ended = run(FORK.replace("{leave}", code), tmp_path / "run")
    assert str(status) in ended.out.split()

    found = by_name(tmp_path / "run")

    assert set(found) == {"queued", "work", "child", "parent", "r"}
    assert found["child"].parent_span_id == found["parent"].span_id
    assert found["work"].parent_span_id == found["child"].span_id
    assert all("spanfold.outcome" not in s.attributes and s.status_code == 0 for s in found.values())
    files = {path: raw.records(path) for path in raw.files(tmp_path / "run")}
    assert sorted(len({r["resource"]["service.instance.id"] for r in records}) for records in files.values()) == [1, 1]
    where = pids(tmp_path / "run")
    assert where["child"] == where["work"] != where["r"] == where["parent"] == where["queued"]
    assert verify_journal(tmp_path / "run").state == "intact"


@pytest.mark.case("C-039")
def test_a_fork_of_a_fork_has_a_third_file_and_its_own_parent(tmp_path: Path) -> None:
    program = """
    import os, sys, spanfold

    def nest(depth):
        with spanfold.stage(f"depth {depth}"):
            if depth < 3:
                pid = os.fork()
                if pid == 0:
                    nest(depth + 1)
                    os._exit(0)
                os.waitpid(pid, 0)

    with spanfold.run("r", dir=sys.argv[1]):
        nest(0)
    """
    run(program, tmp_path / "run")

    found = by_name(tmp_path / "run")

    assert [found[f"depth {n}"].parent_span_id for n in range(4)] == [
        found["r"].span_id,
        *(found[f"depth {n}"].span_id for n in range(3)),
    ]
    assert len(raw.files(tmp_path / "run")) == len(set(pids(tmp_path / "run").values())) == 4


@pytest.mark.slow
@pytest.mark.case("C-039")
def test_forks_while_other_threads_hold_every_lock_of_ours_neither_hang_nor_take_their_work_along(
    tmp_path: Path,
) -> None:
    program = """
    import os, sys, threading, spanfold

    def busy(number):
        count = 0
        while not over.is_set():
            count += 1
            with spanfold.stage(f"S{number}", cycle=count, key=f"k{count}"):
                with spanfold.model_call("m", input="x" * 500): pass

    over = threading.Event()
    with spanfold.run("r", dir=sys.argv[1]):
        threads = [threading.Thread(target=busy, args=(n,)) for n in range(4)]
        for thread in threads: thread.start()
        for number in range(60):
            pid = os.fork()
            if pid == 0:
                with spanfold.timed("forked", number=number): pass
                spanfold.flush(1)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            assert status == 0
        over.set()
        for thread in threads: thread.join()
    """
    run(program, tmp_path / "run")

    spans = raw.spans(tmp_path / "run")
    assert sorted(s["attributes"]["spanfold.number"] for s in spans if s["name"] == "forked") == list(range(60))
    assert len({s["spanId"] for s in spans}) == len(spans)
    files = [raw.records(path) for path in raw.files(tmp_path / "run")]
    assert sorted(len(records) for records in files)[:-1] == [1] * 60
    assert verify_journal(tmp_path / "run").state == "intact"


# spawn and forkserver run the script again, so it needs a file.
SCRIPT = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"
POOL = """
import concurrent.futures, multiprocessing, os, sys, spanfold

@spanfold.traced(kind="timing", name="task")
def task(number):
    return number * 2

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[2])
    with spanfold.run("r", dir=sys.argv[1]):
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            traced = spanfold.traced_executor(pool)
            with spanfold.stage("first", cycle=1):
                results = [f.result() for f in [traced.submit(task, n) for n in range(4)]]
            with spanfold.stage("second", cycle=2):
                results += traced.map(task, range(4, 8), chunksize=2)
    print(*results)
"""


@pytest.mark.slow
@pytest.mark.case("C-039", "C-017")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_tasks_of_a_process_pool_are_children_of_the_span_they_were_submitted_in(
    tmp_path: Path, method: str
) -> None:
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    ended = run(SCRIPT, script, tmp_path / "run", method)
    assert ended.out.split() == [str(n * 2) for n in range(8)]

    spans = raw.spans(tmp_path / "run")
    stages = {s["name"]: s["spanId"] for s in spans if s["name"] in ("first", "second")}
    tasks = {
        stage: [s for s in spans if s["name"] == "task" and s["parentSpanId"] == id_] for stage, id_ in stages.items()
    }
    assert {stage: len(found) for stage, found in tasks.items()} == {"first": 4, "second": 4}
    assert {(s["attributes"]["spanfold.stage"], s["attributes"]["spanfold.cycle"]) for s in tasks["second"]} == {
        ("second", 2)
    }
    assert pids(tmp_path / "run")["r"] not in {s["resource"]["process.pid"] for s in tasks["first"] + tasks["second"]}
    assert verify_journal(tmp_path / "run").state == "intact"


@pytest.mark.slow
@pytest.mark.case("C-039")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_process_that_does_not_join_the_run_returns_what_it_would_without_us(tmp_path: Path, method: str) -> None:
    script = tmp_path / "pool.py"
    script.write_text("""
import multiprocessing, sys, spanfold

@spanfold.traced
def task(number):
    with spanfold.stage("in pool"):
        return number * 2

if __name__ == "__main__":
    with spanfold.run("r", dir=sys.argv[1]):
        context = multiprocessing.get_context(sys.argv[2])
        with context.Pool(2) as pool:
            print(*pool.map(task, range(4)))
        process = context.Process(target=task, args=(1,))
        process.start()
        process.join()
        print(process.exitcode)
""")
    ended = run(SCRIPT, script, tmp_path / "run", method)
    assert ended.out.split() == ["0", "2", "4", "6", "0"]
    spans = raw.spans(tmp_path / "run")
    # A forked process is inside the run as its parent was; one that starts anew has to be told (child_env).
    assert sum(s["name"] == "task" for s in spans) == (5 if method == "fork" else 0)
    assert verify_journal(tmp_path / "run").ok


@pytest.mark.case("C-039", "C-037")
def test_sigterm_ends_a_child_as_it_always_does_and_nothing_of_its_parent(tmp_path: Path) -> None:
    program = """
    import os, sys, time, spanfold
    with spanfold.run("r", dir=sys.argv[1]):
        with spanfold.stage("parent"):
            pid = os.fork()
            if pid == 0:
                with spanfold.stage("child"):
                    os.write(1, f"{os.getpid()}\\n".encode())
                    time.sleep(60)
            _, status = os.waitpid(pid, 0)
            os.write(1, f"{os.waitstatus_to_exitcode(status)}\\n".encode())
            sys.stdin.read()
    """
    with Program(program, tmp_path / "run") as running:
        child = int(running.line())
        os.kill(child, signal.SIGTERM)
        running.says(str(-signal.SIGTERM))
        assert raw.names(raw.spans(tmp_path / "run")) == []
        ended = running.end()

    assert ended.status == 0
    found = by_name(tmp_path / "run")
    assert {n: s.attributes.get("spanfold.outcome") for n, s in found.items()} == {
        "parent": None,
        "r": None,
    }
    assert verify_journal(tmp_path / "run").state == "intact"


@pytest.mark.slow
@pytest.mark.case("C-039")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_workers_of_a_pool_keep_the_default_action_of_sigterm_after_they_joined(
    tmp_path: Path, method: str
) -> None:
    script = tmp_path / "pool.py"
    script.write_text("""
import concurrent.futures, multiprocessing, signal, sys, spanfold

@spanfold.traced
def task(number):
    return signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

if __name__ == "__main__":
    with spanfold.run("r", dir=sys.argv[1]):
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(sys.argv[2])) as pool:
            print(*spanfold.traced_executor(pool).map(task, range(2)))
""")
    assert run(SCRIPT, script, tmp_path / "run", method).out.split() == ["True", "True"]
    assert sum(s["name"] == "task" for s in raw.spans(tmp_path / "run")) == 2


@pytest.mark.slow
@pytest.mark.case("C-039")
def test_a_pool_whose_workers_wait_is_ended_at_once(tmp_path: Path) -> None:
    program = """
    import multiprocessing, sys, spanfold
    with spanfold.run("r", dir=sys.argv[1]):
        for _ in range(40):
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(abs, [-1, -2]) == [1, 2]
    """
    with Program(program, tmp_path / "run") as running:
        ended = running.end()
    assert ended.status == 0


@pytest.mark.slow
@pytest.mark.case("C-017")
def test_a_child_started_with_child_env_joins_the_run_under_the_span_that_started_it(tmp_path: Path) -> None:
    child = "import spanfold, sys\nwith spanfold.stage('child'): spanfold.score('s', 1)\nprint(spanfold.current_run())"
    program = f"""
    import subprocess, sys, spanfold
    with spanfold.run("r", dir=sys.argv[1]):
        with spanfold.stage("M2", cycle=4) as stage:
            print(stage.span_id)
            subprocess.run([sys.executable, "-c", {child!r}], env=spanfold.child_env(), check=True)
    """
    ended = run(program, tmp_path / "run")

    found = by_name(tmp_path / "run")
    assert found["child"].parent_span_id == found["M2"].span_id == ended.out.split()[0]
    assert found["child"].trace_id == found["r"].trace_id
    assert found["child"].attributes["spanfold.cycle"] == 4
    assert len(raw.files(tmp_path / "run")) == 2
    assert verify_journal(tmp_path / "run").state == "intact"


@pytest.mark.case("C-017")
def test_a_decorated_function_can_be_pickled_and_objects_that_hold_a_span_or_run_can_be_copied(tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(decorated))(2) == 4

    with spanfold.run("r", dir=tmp_path / "run") as opened, spanfold.stage("M1") as stage:
        holder = {"run": opened, "spans": [stage]}
        for copied in (copy.copy(holder), copy.deepcopy(holder)):
            assert copied["run"] is opened
            assert copied["spans"][0] is stage
        for held in (opened, stage):
            with pytest.raises(TypeError, match="traced_executor"):
                pickle.dumps(held)


@spanfold.traced
def decorated(number: int) -> int:
    return number * 2


@pytest.mark.slow
@pytest.mark.case("C-039")
def test_a_fork_inside_a_signal_handler_in_the_middle_of_a_record_leaves_the_parents_file_to_the_parent(
    tmp_path: Path,
) -> None:
    program = """
    import os, random, signal, sys, time, spanfold

    def handler(number, frame):
        if os.fork() == 0:
            with spanfold.timed("forked"): pass
            global is_child
            is_child = True

    is_child = False
    signal.signal(signal.SIGALRM, handler)
    with spanfold.run("r", dir=sys.argv[1]):
        for number in range(200):
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 0.0001))
            spanfold.event("made", number=number, text="x" * 1000)
            if is_child:
                os._exit(0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        while True:
            try: os.wait()
            except ChildProcessError: break
    """
    begun = time.monotonic()
    run(program, tmp_path / "run")
    assert time.monotonic() - begun < 100

    files = sorted((raw.records(path) for path in raw.files(tmp_path / "run")), key=len)
    made = [r["attributes"]["spanfold.number"] for r in files[-1] if r.get("eventName") == "made"]
    assert made == list(range(200))
    assert sum(r.get("name") == "forked" for records in files for r in records) > 10
    parents = max(raw.files(tmp_path / "run"), key=lambda path: path.stat().st_size)
    assert [f for f in verify_journal(tmp_path / "run").findings if f.path.name == parents.name] == []
