"""What a killed process, a full disk, a fork and many threads leave of a diagnose loop."""

import json
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

import spanfold
from spanfold.diagnose import RunLogger
from spanfold.fold import check_documents, fold_run, show_run
from spanfold.journal import journal_files, open_journals, recover_run, verify_journal
from tests.diagnose.programs import LOOP, told
from tests.diagnose.script import documents, events
from tests.instrument.programs import Program, run
from tests.journal.kernel import Flush, fill, small_disk, watched


@pytest.mark.slow
@pytest.mark.contract("DL-128", "DL-129", "DL-156", "DL-147")
def test_a_killed_loop_loses_nothing_that_returned_and_the_stage_it_was_in_is_visible(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    program = (
        LOOP
        + """
log.log_run_start({"model": "m"})
log.log_diagnosis(0, SimpleNamespace(model_name="m", hypotheses=[], raw_judge_output="r", prompt="p"), duration_sec=1.5)
log.log_cases([{"id": "case-1"}])
for i in range(200):
    call(i)
    print(i)
time.sleep(60)
"""
    )
    with Program(program, run_dir) as running:
        while running.line() != "150":
            pass
        running.send(signal.SIGKILL)
        ended = running.end()
    last = int(ended.out.split()[-1]) if ended.out.split() else 150

    assert not (run_dir / "journal").exists(), "the journal stands outside while the run is open"
    assert [place.run_dir for place in open_journals()] == [run_dir]
    seen = show_run(run_dir)
    assert seen.status == "interrupted"
    assert {("stage", "M1"), ("step", "probe a")} <= {(work.kind, work.name) for work in seen.open}

    recovered = recover_run(run_dir)
    fold_run(run_dir)

    assert recovered.sealed
    assert open_journals() == []
    calls = documents(run_dir)["M1/log.json"]["model_calls"]
    assert [call["output"] for call in calls][: last + 1] == [str(i) for i in range(last + 1)]
    assert told(run_dir) - Counter(model_call=1000) == Counter(run_start=1, diagnosis=1, case_record=1)
    bundle = json.loads((run_dir / "langfuse_trace.json").read_text(encoding="utf-8"))
    assert list(bundle) == ["trace", "spans", "generations", "scores", "events"]
    generations = Counter(row["name"].partition(" #")[0] for row in bundle["generations"])
    assert generations == {"a · generate": 50, "AI Doctor Diagnostician": 1}
    names = {span["name"] for span in bundle["spans"]}
    assert names == {"M3: Root-Cause Diagnosis (Cycle 0)", "M1: without a result", "Probe: a (failed)"}
    assert verify_journal(run_dir).sealed
    assert not check_documents(run_dir)


@pytest.mark.slow
@pytest.mark.contract("DL-138")
def test_a_forked_child_neither_repeats_numbers_nor_damages_the_documents(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    program = (
        LOOP
        + """
log.log_run_start({"model": "m"})
call(1)
children = []
for number in range(3):
    pid = os.fork()
    if not pid:
        for i in range(20):
            call(100 * (number + 1) + i, f"child {number}")
        log.log_stage_skipped("M4", f"child {number}")
        os._exit(0)
    children.append(pid)
for i in range(20):
    call(i)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
log.log_stage_skipped("M5", "parent")
log.close()
print(log.losses)
"""
    )

    ended = run(program, run_dir)

    assert ended.out == "{}\n", ended
    found = events(run_dir)
    assert [e["event_seq"] for e in found] == list(range(1, 1 + 1 + 1 + 3 * 21 + 20 + 1)), told(run_dir)
    assert len({(e.get("analyzer"), e.get("call_index")) for e in found if e["event"] == "model_call"}) == 80
    assert verify_journal(run_dir).sealed
    assert not check_documents(run_dir)


@pytest.mark.slow
@pytest.mark.contract("DL-133", "DL-134", "DL-187", "DL-132")
def test_a_full_disk_never_reaches_the_loop_and_what_was_told_meanwhile_is_there_afterwards(tmp_path: Path) -> None:
    program = (
        LOOP
        + """
log.log_run_start({"model": "m"})
log.log_stage_skipped("M2", "before")
print("fill"); sys.stdin.readline()
for i in range(100):
    call(i)
    log.log_stage_skipped("M4", f"{i}")
assert log.save_artifact_json("big.json", "x" * 300_000) is None
print("free", log.losses); sys.stdin.readline()
time.sleep(0.3)
log.log_stage_skipped("M3", "after")
log.close()
print(sorted(log.problems))
"""
    )
    with small_disk(tmp_path / "disk", "3m") as disk:
        state = {"SPANFOLD_STATE_DIR": str(disk / "state")}
        with Program(program, disk / "run", env=state) as running:
            running.says("fill")
            filler = fill(disk)
            running.tell()
            assert running.line().startswith("free")
            held = documents(disk / "run")
            filler.unlink()
            running.tell()
            ended = running.end()

        assert (ended.status, ended.out) == (0, "['an artifact, which could not be kept']\n"), ended
        assert held["M2/log.json"]["stage_skipped"][0]["reason_code"] == "before", "the old documents stay whole"
        assert told(disk / "run") == Counter(run_start=1, stage_skipped=102, model_call=100)
        assert [e["event_seq"] for e in events(disk / "run")] == list(range(1, 204))
        assert verify_journal(disk / "run").sealed
        assert not check_documents(disk / "run")


@pytest.mark.slow
@pytest.mark.contract("DL-146", "DL-118", "DL-025", "DL-169", "DL-143")
@pytest.mark.parametrize("threads", [8, 100])
def test_threads_that_log_together_lose_nothing_and_keep_one_order(tmp_path: Path, threads: int) -> None:
    run_dir = tmp_path / "run"
    each = 800 // threads
    log = RunLogger(run_dir, observability_mode="offline")
    log.log_run_start({"model": "m"})
    start = threading.Barrier(threads)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            start.wait()
            for i in range(each):
                log.log_model_call(
                    cycle=0,
                    analyzer=f"a{number}",
                    call_index=i,
                    method="generate",
                    inputs="q",
                    kwargs={},
                    output="a",
                    duration_sec=0.1,
                    error=None,
                )
            log.log_cases([{"id": f"case-{i}"} for i in range(10)])
            log.log_model_exchange("M5", role="judge", operation="generate", inputs="q", output="a")
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    log.close()

    assert failures == []
    assert log.losses == {}
    found = events(run_dir)
    assert [e["event_seq"] for e in found] == list(range(1, len(found) + 1))
    assert [e["ts"] for e in found] == sorted(e["ts"] for e in found)
    assert told(run_dir) == Counter(run_start=1, model_call=800 + threads, case_record=10)
    for rows in (rows for d in documents(run_dir).values() for rows in d.values() if isinstance(rows, list)):
        numbers = [row["event_seq"] for row in rows]
        assert numbers == sorted(numbers)
    calls = documents(run_dir)["M1/log.json"]["model_calls"]
    assert sorted(call["seq"] for call in calls) == list(range(1, 801))
    assert not check_documents(run_dir)


@pytest.mark.slow
@pytest.mark.contract("DL-145", "DL-126")
def test_memory_and_the_cost_of_a_call_do_not_grow_with_the_number_of_calls(tmp_path: Path) -> None:
    program = (
        LOOP
        + """
import resource
def work(first):
    for i in range(first, first + 1000):
        log.log_model_call(cycle=0, analyzer=f"a{i % 8}", call_index=i, method="generate", inputs="x" * 20_000, kwargs={},
                           output="y" * 5_000, duration_sec=0.01, error=None)
    log.log_stage_skipped("M4", "told")  # everything before it is in its document now
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
work(0)
begun = [work(1000)]
for first in (2000, 3000, 4000):
    begun.append(work(first))
log.close()
print([b[0] for b in begun], [y[1] - x[1] for x, y in zip(begun, begun[1:])])
"""
    )

    memory, seconds = (
        json.loads(part) for part in run(program, tmp_path / "run").out.replace("] [", "]\n[").splitlines()
    )

    assert memory[-1] - memory[0] < 20_000, "kilobytes, for 75 megabytes of calls"
    # Processor time of the calling thread, the rewrite of the document included; a guard, not a measurement.
    assert seconds[-1] < 3 * seconds[0] + 0.5
    assert len(documents(tmp_path / "run")["M1/log.json"]["model_calls"]) == 5000


@pytest.mark.contract("DL-130")
def test_with_durability_machine_an_event_was_flushed_to_the_device_when_its_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPANFOLD_DURABILITY", "machine")
    spanfold.configure()
    log = RunLogger(tmp_path / "run", observability_mode="offline")

    def act(flushes: list[Flush]) -> tuple[list[Flush], list[Flush], int]:
        log.log_stage_skipped("M4", "r")
        [place] = open_journals()
        size = sum(path.stat().st_size for path in journal_files(place.journal))
        return [f for f in flushes if f.path.name.endswith(".otlp.jsonl")], list(flushes), size

    journal, everything, size = watched(act)
    log.close()
    monkeypatch.delenv("SPANFOLD_DURABILITY")
    spanfold.configure()

    assert journal[-1].size == size
    assert any("log.json" in str(flush.path) for flush in everything), "and so is its document"


@pytest.mark.slow
@pytest.mark.contract("DL-132", "DL-147")
@pytest.mark.parametrize("end", ["returns", "raises", "SIGTERM"])
def test_a_loop_that_never_closes_its_logger_leaves_everything_finished_and_in_its_directory(
    tmp_path: Path, end: str
) -> None:
    ends = {
        "returns": "",
        "raises": "raise SystemExit('stop')",
        "SIGTERM": "import signal; os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
    }
    program = LOOP + 'log.log_run_start({"model": "m"}); call(1)\n' + ends[end]

    run(program, tmp_path / "run", status={"returns": 0, "raises": 1, "SIGTERM": -signal.SIGTERM}[end])

    assert told(tmp_path / "run") == Counter(run_start=1, model_call=1)
    assert (tmp_path / "run" / "langfuse_trace.json").is_file()
    assert open_journals() == []
    assert verify_journal(tmp_path / "run").sealed
    assert not check_documents(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.contract("DL-140", "DL-150")
def test_what_the_disk_does_not_take_leaves_the_old_file_whole_and_no_half_one(tmp_path: Path) -> None:
    program = (
        LOOP
        + """
import resource, warnings
import numpy as np
warnings.simplefilter("ignore")
assert log.save_artifact_json("a.json", "old") == "artifacts/a.json"
Path("big.png").write_bytes(b"x" * 300_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
assert log.save_artifact_json("a.json", "x" * 300_000) is None
log.log_probe(0, {"a": SimpleNamespace(findings={}, artifacts={"big": np.arange(50_000)})})
log.log_cases([SimpleNamespace(id="c", inputs=SimpleNamespace(image="big.png"))])
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.close()
print(sorted(log.problems))
"""
    )

    ended = run(program, tmp_path / "run")

    assert ended.out == "['an artifact, which could not be kept']\n", ended
    assert json.loads((tmp_path / "run" / "artifacts" / "a.json").read_text(encoding="utf-8")) == "old"
    probe = documents(tmp_path / "run")["M1/log.json"]["probe"][0]
    assert "File too large" in probe["artifacts_not_stored"]["a/big"]["reason"]
    assert documents(tmp_path / "run")["run.json"]["cases"][0]["media_refused"][0]["slot"] == "image"
    assert not [path for path in (tmp_path / "run").rglob(".*") if path.is_file()]
    assert list((tmp_path / "run" / "M1").glob("artifacts/*")) == []
