"""C-037 and C-078: a signal ends the program as it would have without us, and the record of it is complete."""

import importlib.util
import signal
import time
from itertools import count
from pathlib import Path

import pytest

import spanfold
from spanfold.instrument import RecordedSpan
from spanfold.journal import read_journal, verify_journal
from tests.instrument.programs import Program, run
from tests.journal import raw
from tests.journal.interrupts import Interrupt, interrupted

pytestmark = pytest.mark.slow

NESTED = """
import os, signal, sys, time, spanfold
{before}
run = spanfold.run("r", dir=sys.argv[1])
{after}
with run:
    with spanfold.stage("M1"):
        with spanfold.agent("a"):
            os.write(1, b"ready\\n")
            {work}
            os.write(1, b"went on\\n")
"""


def nested(*, before: str = "", after: str = "", work: str = "time.sleep(60)") -> str:
    return NESTED.replace("{before}", before).replace("{after}", after).replace("{work}", work)


def outcomes(run_dir: Path) -> dict[str, str | None]:
    return {s["name"]: s["attributes"].get("spanfold.outcome") for s in raw.spans(run_dir)}


def is_intact(run_dir: Path) -> bool:
    return verify_journal(run_dir).state == "intact"


ALL_TERMINATED = {"invoke_agent a": "terminated", "M1": "terminated", "r": "terminated"}


@pytest.mark.case("C-037")
def test_sigterm_closes_every_open_span_seals_the_run_and_ends_the_process_as_it_always_does(tmp_path: Path) -> None:
    with Program(nested(), tmp_path / "run") as program:
        program.says("ready")
        program.send(signal.SIGTERM)
        ended = program.end()

    assert (ended.status, ended.out, ended.err) == (-signal.SIGTERM, "", "")
    assert outcomes(tmp_path / "run") == ALL_TERMINATED
    assert [s["status"]["code"] for s in raw.spans(tmp_path / "run")] == [2, 2, 2]
    assert [s["attributes"]["error.type"] for s in raw.spans(tmp_path / "run")] == ["terminated"] * 3
    assert is_intact(tmp_path / "run")


BUSY = """
import os, sys, threading, spanfold

def work():
    while True:
        with spanfold.stage("M1", cycle=1):
            with spanfold.model_call("m", input="x" * 2000) as call:
                call.output("y" * 1000)

run = spanfold.run("r", dir=sys.argv[1])
with run:
    for _ in range(2):
        threading.Thread(target=work, daemon=True).start()
    os.write(1, b"ready\\n")
    work()
"""


@pytest.mark.case("C-037")
@pytest.mark.parametrize("durability", ["process", "machine"])
@pytest.mark.parametrize("delay", [0.01, 0.13, 0.33, 0.5])
def test_sigterm_in_the_middle_of_a_record_finishes_it_first_and_seals_the_run(
    tmp_path: Path, delay: float, durability: str
) -> None:
    with Program(BUSY, tmp_path / "run", env={"SPANFOLD_DURABILITY": durability}) as program:
        program.says("ready")
        time.sleep(delay)
        program.send(signal.SIGTERM)
        ended = program.end()

    assert ended.status == -signal.SIGTERM
    assert is_intact(tmp_path / "run"), verify_journal(tmp_path / "run")
    assert outcomes(tmp_path / "run")["r"] == "terminated"
    # The threads go on until the process is gone, and each may be in the middle of one span.
    started = {e["spanId"] for e in raw.events(tmp_path / "run", "spanfold.span.started")}
    assert len(started - {s["spanId"] for s in raw.spans(tmp_path / "run")}) <= 4


@pytest.mark.case("C-037")
def test_sigterm_in_the_middle_of_a_record_does_not_wait_for_a_thread_that_flushes_and_waits_for_that_record(
    tmp_path: Path,
) -> None:
    # One of six hung, before flushing let go of the journal's lock.
    for number in range(15):
        with Program(BUSY, tmp_path / f"run{number}", env={"SPANFOLD_DURABILITY": "machine"}) as program:
            program.says("ready")
            time.sleep(0.01)
            program.send(signal.SIGTERM)
            assert program.end().status == -signal.SIGTERM


HANDLER = """
def handler(number, frame):
    os.write(1, b"handled\\n")
    {act}
signal.signal(signal.SIGTERM, handler)
"""
ACTS = {
    "raises SystemExit": ("raise SystemExit(5)", 5, "exit"),
    "calls sys.exit": ("sys.exit('bye')", 1, "exit"),
    "raises": ("raise RuntimeError('bye')", 1, None),
}


@pytest.mark.case("C-037")
@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("act", ACTS)
def test_a_handler_of_the_host_runs_once_and_what_it_raises_ends_the_spans(
    tmp_path: Path, where: str, act: str
) -> None:
    code, status, outcome = ACTS[act]
    with Program(nested(**{where: HANDLER.replace("{act}", code)}), tmp_path / "run") as program:
        program.says("ready")
        program.send(signal.SIGTERM)
        ended = program.end()

    assert (ended.status, ended.out) == (status, "handled\n"), ended
    assert set(outcomes(tmp_path / "run").values()) == {outcome}
    assert all(s["status"]["code"] == 2 for s in raw.spans(tmp_path / "run"))
    assert is_intact(tmp_path / "run")


@pytest.mark.case("C-037")
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_handler_that_ignores_the_signal_keeps_the_run_going(tmp_path: Path, where: str) -> None:
    program_text = nested(**{where: HANDLER.replace("{act}", "pass")}, work="time.sleep(0.5)")
    with Program(program_text, tmp_path / "run") as program:
        program.says("ready")
        program.send(signal.SIGTERM)
        ended = program.end()

    assert (ended.status, ended.out) == (0, "handled\nwent on\n")
    assert set(outcomes(tmp_path / "run").values()) == {None}
    assert is_intact(tmp_path / "run")


@pytest.mark.case("C-037")
def test_a_handler_that_leaves_by_os_exit_leaves_what_was_open_visible_as_started(tmp_path: Path) -> None:
    with Program(nested(before=HANDLER.replace("{act}", "os._exit(9)")), tmp_path / "run") as program:
        program.says("ready")
        program.send(signal.SIGTERM)
        assert program.end().status == 9

    started = raw.events(tmp_path / "run", "spanfold.span.started")
    assert [e["attributes"]["spanfold.span_name"] for e in started] == ["r", "M1", "invoke_agent a"]
    assert raw.spans(tmp_path / "run") == []


@pytest.mark.case("C-037")
@pytest.mark.parametrize("delay", [0.05, 0.15, 0.3])
def test_a_handler_installed_later_that_calls_ours_runs_once_and_the_run_is_sealed(
    tmp_path: Path, delay: float
) -> None:
    chained = """
before = signal.getsignal(signal.SIGTERM)
def handler(number, frame):
    os.write(1, b"handled\\n")
    before(number, frame)
signal.signal(signal.SIGTERM, handler)
"""
    work = "while True: spanfold.event('e', text='x' * 2000)"
    with Program(nested(after=chained, work=work), tmp_path / "run") as program:
        program.says("ready")
        time.sleep(delay)
        program.send(signal.SIGTERM)
        ended = program.end()

    assert (ended.status, ended.out) == (-signal.SIGTERM, "handled\n"), ended
    assert outcomes(tmp_path / "run") == ALL_TERMINATED
    assert is_intact(tmp_path / "run")


@pytest.mark.case("C-037", "C-078")
def test_a_server_loop_that_handles_sigterm_itself_stops_as_it_wants(tmp_path: Path) -> None:
    program = """
    import asyncio, signal, sys, spanfold

    async def serve():
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        with spanfold.stage("serve"):
            print("ready")
            await stop.wait()
            spanfold.event("stopping")
        print("stopped")

    with spanfold.run("r", dir=sys.argv[1]):
        asyncio.run(serve())
    """
    with Program(program, tmp_path / "run") as server:
        server.says("ready")
        server.send(signal.SIGTERM)
        ended = server.end()

    assert (ended.status, ended.out, ended.err) == (0, "stopped\n", "")
    assert len(raw.events(tmp_path / "run", "stopping")) == 1
    assert outcomes(tmp_path / "run") == {"serve": None, "r": None}
    assert is_intact(tmp_path / "run")


@pytest.mark.case("C-037")
def test_no_handler_is_installed_where_the_host_does_not_want_one_and_none_is_left_behind(tmp_path: Path) -> None:
    program = """
    import signal, sys, spanfold
    before = signal.getsignal(signal.SIGTERM)
    with spanfold.run("r", dir=sys.argv[1]):
        print(signal.getsignal(signal.SIGTERM) == before)
    spanfold.shutdown()
    print(signal.getsignal(signal.SIGTERM) == before)
    """
    assert run(program, tmp_path / "1", env={"SPANFOLD_SIGNALS": "false"}).out.split() == ["True", "True"]
    unusable = run(program, tmp_path / "3", env={"SPANFOLD_SIGNALS": "maybe"})
    assert unusable.out.split() == ["True", "True"]
    assert "SPANFOLD_SIGNALS" in unusable.err
    assert run(program, tmp_path / "2").out.split() == ["False", "True"]


@pytest.mark.case("C-037", "C-078")
def test_the_first_ctrl_c_ends_the_program_its_spans_and_its_run(tmp_path: Path) -> None:
    with Program(nested(), tmp_path / "run") as program:
        program.says("ready")
        begun = time.monotonic()
        program.send(signal.SIGINT)
        ended = program.end()

    # Python ends a process that was interrupted by sending itself the signal.
    assert ended.status == -signal.SIGINT
    assert time.monotonic() - begun < 30
    assert set(outcomes(tmp_path / "run").values()) == {"interrupted"}
    assert is_intact(tmp_path / "run")


@pytest.mark.case("C-037", "C-078")
def test_ctrl_c_at_any_instant_of_a_busy_program_costs_no_record_that_was_made(tmp_path: Path) -> None:
    hammered = """
    import os, random, signal, sys, threading, time, spanfold

    def ring():
        while not over.wait(random.uniform(0.0, 0.002)):
            os.kill(os.getpid(), signal.SIGINT)

    def handler(number, frame):
        # What Python's own does, once for each time around: the program below must be able to catch it.
        global armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    armed, over = False, threading.Event()
    signal.signal(signal.SIGINT, handler)
    told = interrupts = 0
    with spanfold.run("r", dir=sys.argv[1]):
        thread = threading.Thread(target=ring)
        thread.start()
        ends = time.monotonic() + 60
        while min(told, interrupts) < 300 and time.monotonic() < ends:
            try:
                armed = True
                with spanfold.stage("M1"):
                    with spanfold.timed("t", number=told) as timed:
                        pass
                    told += 1
                    spanfold.event("e", number=told)
                armed = False
            except KeyboardInterrupt:
                interrupts += 1
        over.set()
        thread.join()
    print(told, interrupts)
    """
    ended = run(hammered, tmp_path / "run")
    told, interrupts = map(int, ended.out.split())
    assert told > 100
    assert interrupts > 100

    timed = [s["attributes"]["spanfold.number"] for s in raw.spans(tmp_path / "run") if s["name"] == "t"]

    assert set(timed) >= set(range(told))
    read = read_journal(tmp_path / "run")
    ids = [r.span_id for r in read.records if hasattr(r, "start_ns")]
    assert len(ids) == len(set(ids))
    assert is_intact(tmp_path / "run")


@pytest.mark.case("C-037")
def test_an_end_that_is_interrupted_anywhere_is_on_disk_and_read_once(tmp_path: Path) -> None:
    with spanfold.run("r", dir=tmp_path / "run") as opened:
        ids: list[str] = []
        for place in count(1):
            span = spanfold.timed("t")
            assert isinstance(span, RecordedSpan)
            span.__enter__()
            try:
                met = interrupted(span.end, place)
            except Interrupt:
                met = place
            ids.append(span.span_id)
            if met < place:
                break

    found = [r.span_id for r in read_journal(opened.dir).records if hasattr(r, "start_ns") and r.name == "t"]
    assert len(ids) > 5
    assert sorted(found) == sorted(ids)
    assert is_intact(opened.dir)


@pytest.mark.case("C-037", "C-078")
def test_a_handler_and_a_finalizer_that_record_in_the_middle_of_records_lose_none(tmp_path: Path) -> None:
    program = """
    import gc, itertools, os, random, signal, sys, time, spanfold

    class Finalized:
        def __init__(self): self.me = self
        def __del__(self):
            record("finalized")

    def handler(number, frame):
        record("handled")
        spanfold.flush(0)

    def record(name):
        made[name] = number = next(numbers[name])
        with spanfold.timed(name, number=number, data=[number]): pass

    made = dict.fromkeys(("made", "handled", "finalized"), 0)
    numbers = {name: itertools.count(1) for name in ("made", "handled", "finalized")}
    signal.signal(signal.SIGALRM, handler)
    gc.set_threshold(7, 2, 2)
    with spanfold.run("r", dir=sys.argv[1]):
        ends = time.monotonic() + 60
        while min(made.values()) < 300 and time.monotonic() < ends:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 0.0005))
            Finalized()
            record("made")
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.collect()
        time.sleep(0.01)
    print(*(next(numbers[name]) - 1 for name in ("made", "handled", "finalized")))
    """
    ended = run(program, tmp_path / "run")
    expected = dict(zip(("made", "handled", "finalized"), map(int, ended.out.split()), strict=True))
    assert min(expected.values()) > 100
    assert ended.err == ""

    for name, last in expected.items():
        found = [s["attributes"]["spanfold.number"] for s in raw.spans(tmp_path / "run") if s["name"] == name]
        assert sorted(found) == list(range(1, last + 1)), name
    assert is_intact(tmp_path / "run")


@pytest.mark.case("C-037", "C-078")
def test_a_handler_that_flushes_while_the_device_is_being_flushed_does_not_wait_for_itself(tmp_path: Path) -> None:
    program = """
    import os, signal, sys, time, spanfold

    def handler(number, frame):
        spanfold.event("handled")
        spanfold.flush(1)

    spanfold.configure(durability="machine")
    signal.signal(signal.SIGALRM, handler)
    with spanfold.run("r", dir=sys.argv[1]):
        for number in range(150):
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            spanfold.event("control", number=number)
        signal.setitimer(signal.ITIMER_REAL, 0)
    """
    run(program, tmp_path / "run")

    assert len(raw.events(tmp_path / "run", "control")) == 150
    assert len(raw.events(tmp_path / "run", "handled")) > 3
    assert is_intact(tmp_path / "run")


def test_every_module_under_which_the_end_is_put_off_exists() -> None:
    from spanfold.instrument import _signals

    assert [name for name in _signals._OURS if importlib.util.find_spec(name) is None] == []
