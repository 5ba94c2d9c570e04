"""P1 and P2: what ended is on disk and what was started is visible, whatever kills the process at whatever instant."""

import random
import signal
import time
from pathlib import Path

import pytest

from spanfold.journal import read_journal, recover_run, verify_journal
from tests.instrument.programs import Program, run
from tests.journal import raw

pytestmark = pytest.mark.slow

# Each thread tells the id of a span through the pipe after its end has returned: those must be on disk.
BUSY = """
import os, sys, threading
import spanfold

def work(number):
    while True:
        with spanfold.stage(f"S{number}", cycle=number) as stage:
            with spanfold.model_call("m", input="x" * 3000) as call:
                call.output("y" * 1500)
            os.write(1, f"{call.span_id}\\n".encode())
            spanfold.event("moment", text="z" * 200)
            with spanfold.timed("t") as timed:
                pass
            os.write(1, f"{timed.span_id}\\n".encode())
        os.write(1, f"{stage.span_id}\\n".encode())

run = spanfold.run("busy", dir=sys.argv[1])
run.__enter__()
os.write(1, b"ready\\n")
for number in range(4):
    threading.Thread(target=work, args=(number,), daemon=True).start()
{end}
"""
ENDS = {
    "SIGKILL": "threading.Event().wait()",
    "os._exit": "import time; time.sleep({delay}); os._exit(7)",
    "segfault": "import time, ctypes; time.sleep({delay}); ctypes.string_at(0)",
    "abort": "import time; time.sleep({delay}); os.abort()",
}
STATUS = {"SIGKILL": -9, "os._exit": 7, "segfault": -11, "abort": -6}


@pytest.mark.case("C-037", "C-038")
@pytest.mark.parametrize("end", [*["SIGKILL"] * 4, "os._exit", "segfault", "abort"])
def test_every_span_whose_end_returned_is_on_disk_when_the_process_dies_at_any_instant(
    tmp_path: Path, end: str
) -> None:
    delay = random.Random().uniform(0.05, 0.5)
    with Program(BUSY.replace("{end}", ENDS[end].replace("{delay}", str(delay))), tmp_path / "run") as program:
        program.says("ready")
        if end == "SIGKILL":
            time.sleep(delay)
            program.send(signal.SIGKILL)
        ended = program.end()
    assert ended.status == STATUS[end], ended
    told = ended.out.splitlines()
    if not ended.out.endswith("\n"):
        told.pop()

    found = raw.spans(tmp_path / "run", may_be_torn=True)

    assert len(told) > 10
    on_disk = [s["spanId"] for s in found]
    assert len(set(on_disk)) == len(on_disk)
    assert set(told) <= set(on_disk)
    assert verify_journal(tmp_path / "run").ok
    started = {e["spanId"] for e in raw.events(tmp_path / "run", "spanfold.span.started", may_be_torn=True)}
    recovered = {span.span_id for span in recover_run(tmp_path / "run").ended}
    assert recovered == started - set(on_disk)
    assert verify_journal(tmp_path / "run").state == "intact"


@pytest.mark.case("C-037")
@pytest.mark.parametrize("kind", ["run", "stage", "model_call", "agent"])
def test_what_was_started_is_on_disk_as_started_when_the_process_is_killed_right_after_the_call(
    tmp_path: Path, kind: str
) -> None:
    with Program(
        """
        import os, sys, time, spanfold
        run = spanfold.run("r", dir=sys.argv[1], given="fact")
        spans = {"run": lambda: run.span, "stage": lambda: spanfold.stage("M2", cycle=3, given="fact"),
                 "model_call": lambda: spanfold.model_call("m", provider="p", given="fact"),
                 "agent": lambda: spanfold.agent("a", model="m", given="fact")}
        span = spans[sys.argv[2]]()
        os.write(1, f"{span.span_id}\\n".encode())
        time.sleep(60)
        """,
        tmp_path / "run",
        kind,
    ) as program:
        span_id = program.line()
        program.send(signal.SIGKILL)
        assert program.end().status == -9

    (started,) = [e for e in raw.events(tmp_path / "run", "spanfold.span.started") if e["spanId"] == span_id]

    assert started["attributes"]["spanfold.kind"] == kind
    assert started["attributes"]["spanfold.given"] == "fact"
    assert span_id not in [s["spanId"] for s in raw.spans(tmp_path / "run")]


@pytest.mark.case("C-037")
def test_a_started_span_and_its_end_are_on_disk_while_the_process_still_lives(tmp_path: Path) -> None:
    with Program(
        """
        import os, sys, spanfold
        with spanfold.run("r", dir=sys.argv[1]):
            with spanfold.stage("M1"):
                os.write(1, b"started\\n"); os.read(0, 1)
            os.write(1, b"ended\\n"); os.read(0, 1)
        """,
        tmp_path / "run",
    ) as program:
        program.says("started")
        assert [e["attributes"]["spanfold.span_name"] for e in raw.events(tmp_path / "run")] == ["r", "M1"]
        assert raw.spans(tmp_path / "run") == []


@pytest.mark.case("C-038")
def test_a_run_after_a_crash_leaves_the_torn_line_of_the_first_alone(tmp_path: Path) -> None:
    crash = "import os, sys, spanfold; r = spanfold.run('r', dir=sys.argv[1]); spanfold.event('e'); os._exit(1)"
    run(crash, tmp_path / "run", status=1)
    (path,) = raw.files(tmp_path / "run")
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(whole.splitlines(keepends=True)[-1][:100])
    torn = path.read_bytes()

    ended = run("import sys, spanfold\nwith spanfold.run('r', dir=sys.argv[1]) as r: print(r.dir)", tmp_path / "run")

    assert ended.out.strip() == str(tmp_path / "run-2")
    assert path.read_bytes() == torn
    assert len(list(read_journal(tmp_path / "run").records)) == 2
