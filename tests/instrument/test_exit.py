"""C-042: the end of a process, of a run and of the recorder, each more than once and in any order."""

import json
import threading
import time
from pathlib import Path

import pytest

import spanfold
from spanfold.journal import verify_journal
from tests.instrument.programs import run
from tests.journal import raw

pytestmark = pytest.mark.slow


def outcomes(run_dir: Path) -> dict[str, str | None]:
    return {s["name"]: s["attributes"].get("spanfold.outcome") for s in raw.spans(run_dir)}


@pytest.mark.case("C-042", "C-006")
@pytest.mark.parametrize(
    ("leave", "status"), [("", 0), ("sys.exit(3)", 3), ("raise RuntimeError('x')", 1), ("exit_in_thread()", 0)]
)
def test_a_run_that_nobody_closed_is_closed_and_sealed_when_the_process_exits(
    tmp_path: Path, leave: str, status: int
) -> None:
    program = f"""
    import sys, threading, spanfold

    def exit_in_thread():
        thread = threading.Thread(target=sys.exit)
        thread.start()
        thread.join()

    opened = spanfold.run("r", dir=sys.argv[1])
    opened.__enter__()
    spanfold.stage("M1").__enter__()
    spanfold.agent("a").__enter__()
    {leave}
    """
    ended = run(program, tmp_path / "run", status=status)

    assert outcomes(tmp_path / "run") == {"invoke_agent a": "abandoned", "M1": "abandoned", "r": "abandoned"}
    assert verify_journal(tmp_path / "run").state == "intact"
    assert (tmp_path / "run" / "run.json").exists()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["run"]["status"] == "interrupted"
    (told,) = [line for line in ended.err.splitlines() if "spanfold" in line.replace("File", "")]
    assert told.startswith(f"{tmp_path / 'run'}: the program ended while this run was open")
    assert "Use `with spanfold.run(...)`" in told


@pytest.mark.case("C-042")
def test_threads_that_record_while_the_process_exits_neither_hang_it_nor_spoil_the_seal(tmp_path: Path) -> None:
    program = """
    import sys, threading, time, spanfold

    def work():
        while True:
            with spanfold.stage("M1"):
                with spanfold.timed("t"): pass

    with spanfold.run("r", dir=sys.argv[1]):
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
    time.sleep(0.1)
    """
    begun = time.monotonic()
    run(program, tmp_path / "run")

    assert time.monotonic() - begun < 60
    assert len(raw.spans(tmp_path / "run")) > 10
    assert verify_journal(tmp_path / "run").state == "intact"


@pytest.mark.case("C-042")
def test_what_is_recorded_after_the_end_of_a_run_is_counted_and_leaves_it_as_it_was_sealed(tmp_path: Path) -> None:
    program = """
    import sys, threading, spanfold
    with spanfold.run("r", dir=sys.argv[1]) as opened:
        with spanfold.stage("M1") as stage:
            context = spanfold.traced_executor
            late = spanfold.timed("late")
    before = {p: p.read_bytes() for p in opened.dir.rglob("*") if p.is_file()}
    late.end()
    stage.event("late")
    opened.event("late")
    opened.set(late=1)
    with stage: spanfold.event("late")
    opened.close()
    spanfold.shutdown()
    assert before == {p: p.read_bytes() for p in opened.dir.rglob("*") if p.is_file()}
    print(sum(spanfold.instrument.losses.values()) >= 3, spanfold.flush().lost >= 3)
    """
    ended = run(program, tmp_path / "run")

    assert f"{tmp_path / 'run' / 'journal'}: expected records until the end of the run, found one after it" in ended.err
    assert "Wait for threads and tasks before the run ends" in ended.err
    assert ended.out.split() == ["True", "True"]
    assert verify_journal(tmp_path / "run").state == "intact"
    assert "Traceback" not in ended.err


@pytest.mark.case("C-042")
def test_records_that_were_lost_for_another_reason_than_the_disk_are_not_said_to_be_its_fault(tmp_path: Path) -> None:
    program = """
    import sys, spanfold
    with spanfold.run("r", dir=sys.argv[1]) as opened:
        opened.stats.lost += 3
    """
    ended = run(program, tmp_path / "run")

    assert ended.err == f"{tmp_path / 'run'}: the run ended with 3 records lost.\n"


@pytest.mark.case("C-042")
def test_shutdown_twice_and_configure_again_start_everything_again(tmp_path: Path) -> None:
    program = """
    import atexit, sys, threading, spanfold
    atexit.register(spanfold.shutdown)
    for number in range(3):
        spanfold.configure(durability="machine" if number == 1 else "process")
        with spanfold.run("r", dir=f"{sys.argv[1]}/{number}"):
            with spanfold.stage("M1"):
                spanfold.shutdown()
                spanfold.event("after shutdown")
                thread = threading.Thread(target=spanfold.shutdown, daemon=True)
                thread.start()
                thread.join()
        spanfold.shutdown()
        spanfold.shutdown(0)
    print(spanfold.instrument.losses)
    """
    ended = run(program, tmp_path)

    assert (ended.out, ended.err) == ("Counter()\n", "")
    for number in range(3):
        assert len(raw.events(tmp_path / str(number), "after shutdown")) == 1
        assert verify_journal(tmp_path / str(number)).state == "intact"


@pytest.mark.case("C-042")
def test_a_run_is_open_with_the_settings_it_was_opened_with(tmp_path: Path) -> None:
    spanfold.configure(content="none")
    with spanfold.run("first", dir=tmp_path / "first"):
        spanfold.configure(content="all")
        with spanfold.model_call("m", input="the question"):
            pass
        with spanfold.run("second", dir=tmp_path / "second"), spanfold.model_call("m", input="the question"):
            pass

    assert b"the question" not in raw.files(tmp_path / "first")[0].read_bytes()
    assert b"the question" in raw.files(tmp_path / "second")[0].read_bytes()


@pytest.mark.case("C-042")
def test_a_run_closed_twice_by_hand_by_its_block_and_by_other_threads_is_sealed_once(tmp_path: Path) -> None:
    program = """
    import sys, threading, spanfold
    with spanfold.run("r", dir=sys.argv[1]) as opened:
        threads = [threading.Thread(target=opened.close) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        opened.close()
    opened.close()
    """
    run(program, tmp_path / "run")

    (path,) = raw.files(tmp_path / "run")
    raw.seal(path)
    assert raw.names(raw.spans(tmp_path / "run")) == ["r"]
    assert verify_journal(tmp_path / "run").state == "intact"


@pytest.mark.case("C-042", "C-012")
def test_a_thread_whose_stage_was_ended_by_the_end_of_its_run_records_into_the_next_run_after_its_block(
    tmp_path: Path,
) -> None:
    entered, leave, left, record = (threading.Event() for _ in range(4))

    def work() -> None:
        with spanfold.stage("first"):
            entered.set()
            leave.wait(30)
        left.set()
        record.wait(30)
        with spanfold.stage("second"):
            pass

    thread = threading.Thread(target=work)
    with spanfold.run("first run", dir=tmp_path / "1"):
        thread.start()
        assert entered.wait(30)
    leave.set()
    assert left.wait(30)
    with spanfold.run("second run", dir=tmp_path / "2"):
        record.set()
        thread.join()

    assert outcomes(tmp_path / "1") == {"first": "left_open", "first run": None}
    assert outcomes(tmp_path / "2") == {"second": None, "second run": None}


@pytest.mark.case("C-042")
def test_a_run_closed_in_another_thread_is_not_current_behind_its_block(tmp_path: Path) -> None:
    with spanfold.run("outer", dir=tmp_path / "outer") as outer:
        with spanfold.run("inner", dir=tmp_path / "inner") as inner:
            thread = threading.Thread(target=inner.close)
            thread.start()
            thread.join()
        assert spanfold.current_run() is outer
