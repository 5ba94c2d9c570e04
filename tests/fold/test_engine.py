"""The engine: what is in its document when, what that costs, and what it survives."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import orjson
import pytest

from spanfold import names
from spanfold.errors import FoldError, LockedError, UnsafeEntryError
from spanfold.fold import Engine, fold_run
from tests.fold.journals import JournalFile, documents, set_fields


class Clock:
    """Monotonic seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def documents_of_one_fold(run_dir: Path) -> dict[str, bytes]:
    into = run_dir.parent / "one-fold"
    fold_run(run_dir, into=into)
    return documents(into)


def records(path: Path, bucket: str) -> int:
    return len(orjson.loads(path.read_bytes()).get(bucket, [])) if path.exists() else 0


# -- freshness


@pytest.mark.parametrize("kind", ["stage", "agent", "tool", "event", "score"])
def test_a_control_record_is_in_its_document_when_catch_up_returns(
    run_dir: Path, journal: JournalFile, kind: str
) -> None:
    engine = Engine(run_dir, clock=Clock())
    journal.run_started()
    journal.model_call(2)
    if kind == "event":
        journal.event("e", attributes={names.STAGE: "M2"})
    elif kind == "score":
        journal.event(names.EVENT_SCORE, attributes={names.STAGE: "M2", names.SCORE_NAME: "s"})
    else:
        journal.span(kind, "x", 3, attributes={names.STAGE: "M2"})
    engine.catch_up(force=False)

    assert records(run_dir / "M2" / "log.json", kind) == 1
    assert records(run_dir / "M2" / "log.json", "model_calls") == 1, "what came before it is there too"


def test_model_calls_may_wait_for_the_lag_bound_and_no_longer(run_dir: Path, journal: JournalFile) -> None:
    clock = Clock()
    engine = Engine(run_dir, clock=clock, max_lag_s=1.0)
    journal.run_started()
    engine.catch_up(force=False)
    journal.model_call(2)
    seen: list[tuple[float, int]] = []
    for tick in range(5):
        clock.now = tick * 0.25
        engine.tick()
        seen.append((clock.now, records(run_dir / "M2" / "log.json", "model_calls")))

    assert seen == [(0.0, 0), (0.25, 0), (0.5, 1), (0.75, 1), (1.0, 1)]


def test_force_and_view_bring_everything_up_to_date(run_dir: Path, journal: JournalFile) -> None:
    engine = Engine(run_dir, clock=Clock())
    journal.run_started()
    journal.model_call(2)
    engine.catch_up(force=True)
    forced = records(run_dir / "M2" / "log.json", "model_calls")
    journal.model_call(3)
    paths = engine.view()

    assert forced == 1
    assert records(run_dir / "M2" / "log.json", "model_calls") == 2
    assert paths == tuple(run_dir / name for name in ("M2/log.json", "run.json", "timings.jsonl"))


def test_a_slow_rewrite_is_followed_by_a_rest_of_ten_times_its_length(run_dir: Path, journal: JournalFile) -> None:
    clock = Clock()

    def slow() -> float:
        clock.now += 0.1  # every look at the clock takes long, so a rewrite takes at least that
        return clock.now

    engine = Engine(run_dir, clock=slow)
    journal.run_started()
    journal.model_call(2)
    engine.catch_up(force=True)
    journal.model_call(3)
    begin = clock.now
    while records(run_dir / "M2" / "log.json", "model_calls") < 2:
        engine.tick()
        assert clock.now < 60, "never written"

    assert clock.now - begin > 0.9


@pytest.mark.slow
def test_records_written_to_the_journal_while_it_is_read_do_not_keep_the_call_from_returning(
    run_dir: Path, journal: JournalFile
) -> None:
    journal.run_started()
    lines = [journal.model_call(100 + n, write=False) for n in range(400)]
    engine = Engine(run_dir)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            journal.put(b"".join(lines))  # the same spans again: duplicates, so only reading them takes time

    writer = threading.Thread(target=write)
    writer.start()
    try:
        done = threading.Thread(target=lambda: engine.catch_up(force=True))
        done.start()
        done.join(60)
        assert not done.is_alive()
    finally:
        stop.set()
        writer.join()


# -- cost


def test_the_bytes_written_for_many_model_calls_stay_in_proportion_to_them(run_dir: Path, journal: JournalFile) -> None:
    written: dict[int, float] = {}
    calls = 0
    clock = Clock()
    engine = Engine(run_dir, clock=clock)
    journal.run_started()
    for target in (500, 1000, 2000):
        while calls < target:
            journal.put(b"".join(journal.model_call(10 + calls + n, write=False) for n in range(20)))
            calls += 20
            clock.now += 0.01
            engine.tick()
        engine.catch_up(force=True)
        written[target] = engine.bytes_written / sum(len(d) for d in documents(run_dir).values())

    assert written[2000] < 3
    assert written[2000] < 1.5 * written[500]


def test_a_large_document_is_not_rewritten_for_every_record(run_dir: Path, journal: JournalFile) -> None:
    engine = Engine(run_dir, clock=Clock())
    journal.run_started()
    journal.model_call(2, prompt="p" * 2_000_000)
    engine.catch_up(force=True)
    before = engine.bytes_written
    for number in range(100):
        journal.span("tool", "t", 10 + number, attributes={names.STAGE: "M2"})
        engine.catch_up(force=False)
    waited = engine.bytes_written - before
    journal.stage("M2", 1)
    engine.catch_up(force=False)

    assert waited < 1_000_000
    assert records(run_dir / "M2" / "log.json", "tool") == 100, "a stage never waits, and takes the others along"


def test_who_has_little_time_folds_a_part_and_the_next_call_goes_on(run_dir: Path, journal: JournalFile) -> None:
    clock = Clock()

    def passing() -> float:
        clock.now += 0.001
        return clock.now

    journal.run_started()
    for number in range(1_000):
        journal.stage("M2", 1 + number)
    engine = Engine(run_dir, clock=passing)
    folded = [0]
    while folded[-1] < 1_001:
        begun = clock.now
        engine.catch_up(force=False, within_s=0.2)
        assert clock.now - begun < 0.25, "it stopped when the time was over"
        folded.append(engine.result().records)
        assert folded[-1] > folded[-2], "each call gets on"
    engine.close()
    in_parts = documents(run_dir)

    assert len(folded) > 4
    assert in_parts == documents_of_one_fold(run_dir)


def test_what_a_call_had_no_time_for_is_folded_by_a_tick_within_the_lag_bound(
    run_dir: Path, journal: JournalFile
) -> None:
    """Also when such calls come all the time."""
    clock = Clock()
    engine = Engine(run_dir, clock=clock, max_lag_s=1.0, defer_s=0.5)
    journal.run_started()
    engine.catch_up(force=False)
    for number in range(100):
        journal.stage("M2", 1 + number)
    shown = 0
    while clock.now < 1 and shown < 100:
        clock.now += 0.05
        engine.catch_up(force=False, within_s=0)  # one record
        if round(clock.now / 0.05) % 5 == 0:
            engine.tick()
        shown = records(run_dir / "M2" / "log.json", "stage")

    assert shown == 100


def test_a_document_that_takes_longer_to_write_than_there_is_time_is_left_to_a_tick(
    run_dir: Path, journal: JournalFile
) -> None:
    clock, slow = Clock(), 0.0

    def passing() -> float:
        clock.now += slow
        return clock.now

    engine = Engine(run_dir, clock=passing)
    journal.run_started()
    journal.stage("M2", 2)
    slow = 0.1
    engine.catch_up(force=True)
    slow = 0.0
    journal.stage("M2", 3)
    engine.catch_up(force=False, within_s=0.05)
    without = records(run_dir / "M2" / "log.json", "stage")
    engine.tick()

    assert without == 1
    assert records(run_dir / "M2" / "log.json", "stage") == 2


def test_a_tick_does_not_rewrite_a_large_document_each_time_for_stages_either(
    run_dir: Path, journal: JournalFile
) -> None:
    clock = Clock()
    engine = Engine(run_dir, clock=clock, max_lag_s=1.0)
    journal.run_started()
    journal.model_call(2, prompt="p" * 2_000_000)
    engine.catch_up(force=True)
    before = engine.bytes_written
    for number in range(40):  # ten seconds
        journal.stage("M2", 10 + number)
        clock.now += 0.25
        engine.tick()

    assert engine.bytes_written - before < 20 * 2_100_000
    assert records(run_dir / "M2" / "log.json", "stage") >= 38, "within the lag bound all the same"


def test_memory_holds_no_more_than_what_was_not_spooled(run_dir: Path, journal: JournalFile) -> None:
    engine = Engine(run_dir, pending_bytes=10_000, clock=Clock())
    journal.run_started()
    for number in range(200):
        journal.model_call(10 + number, prompt="p" * 1000)
    engine.catch_up(force=False)
    spooled = sum(path.stat().st_size for path in (run_dir / "journal" / ".fold").glob("part-*"))
    engine.close()

    total = sum(len(text) for text in documents(run_dir).values())
    assert spooled > total - 30_000
    assert not (run_dir / "journal" / ".fold").exists(), "the fold's own files are gone after close"


def test_a_short_run_leaves_no_spool_file(run_dir: Path, journal: JournalFile) -> None:
    engine = Engine(run_dir)
    journal.run_started()
    journal.model_call(2)
    engine.catch_up(force=True)

    assert {p.name for p in (run_dir / "journal" / ".fold").iterdir()} == {"owner.json", "lock"}


def test_nothing_is_held_open_between_two_calls(run_dir: Path, journal: JournalFile) -> None:
    before = os.listdir("/proc/self/fd")
    engine = Engine(run_dir, pending_bytes=100, checkpoint_bytes=100)
    journal.run_started()
    for number in range(5):
        journal.model_call(2 + number)
        engine.catch_up(force=True)

    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 100_000, 5_000_000])
def test_records_of_any_size_are_folded(run_dir: Path, journal: JournalFile, size: int) -> None:
    journal.run_started()
    journal.model_call(2, prompt="ä" * size, answer="\n" * size)
    fold_run(run_dir)

    (call,) = orjson.loads((run_dir / "M2" / "log.json").read_bytes())["model_calls"]
    assert call["input"] == "ä" * size
    assert call["output"] == "\n" * size


# -- what disappears


@pytest.mark.parametrize("name", ["run.json", "M2/log.json", "timings.jsonl"])
def test_a_document_deleted_between_two_writes_is_made_whole_at_the_next(
    run_dir: Path, journal: JournalFile, name: str
) -> None:
    engine = Engine(run_dir)
    journal.run_started()
    journal.stage("M2", 1)
    engine.catch_up(force=True)
    (run_dir / name).unlink()
    if name == "M2/log.json":
        (run_dir / "M2").rmdir()
    journal.stage("M2", 2)
    engine.catch_up(force=False)
    again = documents(run_dir)
    fold_run(run_dir, into=run_dir.parent / "other")

    expected = documents(run_dir.parent / "other")
    del expected["langfuse_trace.json"]
    assert again == expected


def test_a_document_deleted_before_the_end_is_there_after_close(run_dir: Path, journal: JournalFile) -> None:
    engine = Engine(run_dir)
    journal.run_started()
    journal.stage("M2", 1)
    engine.catch_up(force=True)
    (run_dir / "M2" / "log.json").unlink()
    engine.close()

    assert records(run_dir / "M2" / "log.json", "stage") == 1


def test_a_run_directory_that_was_removed_is_made_again_with_every_document(
    run_dir: Path, journal: JournalFile
) -> None:
    engine = Engine(run_dir, pending_bytes=100)
    journal.run_started()
    journal.stage("M2", 1)
    engine.catch_up(force=True)
    kept = journal.path.read_bytes()
    shutil.rmtree(run_dir)
    engine.catch_up(force=True)  # no journal: nothing to say, and no error
    journal.path.parent.mkdir(parents=True, exist_ok=True)
    journal.path.write_bytes(kept)  # its writer restores it from its open descriptor
    journal.stage("M2", 2)
    engine.catch_up(force=False)

    assert records(run_dir / "M2" / "log.json", "stage") == 2
    assert orjson.loads((run_dir / "run.json").read_bytes())["run_start"] is not None


def test_removed_spool_files_are_folded_again(run_dir: Path, journal: JournalFile) -> None:
    engine = Engine(run_dir, pending_bytes=100)
    journal.run_started()
    for number in range(20):
        journal.stage("M2", 10 + number)
    engine.catch_up(force=True)
    for path in (run_dir / "journal" / ".fold").glob("part-*"):
        path.unlink()
    journal.stage("M2", 90)
    engine.catch_up(force=False)

    assert records(run_dir / "M2" / "log.json", "stage") == 21


def test_a_journal_that_was_cut_is_folded_as_it_is_now(run_dir: Path, journal: JournalFile) -> None:
    engine = Engine(run_dir)
    journal.run_started()
    journal.stage("M2", 1)
    whole = journal.path.read_bytes()
    journal.stage("M2", 2)
    engine.catch_up(force=True)
    journal.path.write_bytes(whole)
    engine.catch_up(force=True)

    assert records(run_dir / "M2" / "log.json", "stage") == 1


def test_a_link_in_place_of_a_document_is_replaced_and_not_followed(run_dir: Path, journal: JournalFile) -> None:
    outside = run_dir.parent / "outside"
    outside.write_text("mine")
    engine = Engine(run_dir)
    journal.run_started()
    (run_dir / "run.json").symlink_to(outside)
    engine.catch_up(force=True)

    assert outside.read_text() == "mine"
    assert not (run_dir / "run.json").is_symlink()


def test_a_link_in_place_of_a_stage_folder_is_refused(run_dir: Path, journal: JournalFile) -> None:
    outside = run_dir.parent / "outside"
    outside.mkdir()
    journal.run_started()
    journal.stage("M2", 1)
    (run_dir / "M2").symlink_to(outside)
    engine = Engine(run_dir, guarded=True)
    engine.catch_up(force=True)

    assert list(outside.iterdir()) == []
    assert engine.problems == 1
    assert (run_dir / "run.json").exists(), "the other documents are written all the same"


@pytest.mark.parametrize("planted", ["journal/.fold", "journal"])
def test_the_folds_own_files_are_not_written_through_a_link(
    tmp_path: Path, run_dir: Path, journal: JournalFile, planted: str
) -> None:
    journal.run_started()
    journal.stage("M2", 1)
    outside = tmp_path / "outside"
    if planted == "journal":
        (run_dir / planted).rename(outside)
    else:
        outside.mkdir()
    before = sorted(outside.iterdir())
    (run_dir / planted).symlink_to(outside)

    with pytest.raises(UnsafeEntryError):
        fold_run(run_dir)

    assert sorted(outside.iterdir()) == before


def test_a_journal_file_that_is_a_link_costs_only_itself_while_recording(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    (journal.path.parent / "zz.otlp.jsonl").symlink_to(journal.path)
    engine = Engine(run_dir, guarded=True)
    engine.catch_up(force=True)
    journal.stage("M2", 1)
    engine.catch_up(force=True)

    assert engine.problems >= 1
    assert records(run_dir / "M2" / "log.json", "stage") == 1


# -- order and duplicates


def test_a_span_that_comes_twice_is_folded_once(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    line = journal.model_call(2)
    journal.put(line)
    other = JournalFile(run_dir / "journal", "20260131T090508Z-2-00000000")
    other.put(line)
    engine = Engine(run_dir)
    engine.close()

    assert records(run_dir / "M2" / "log.json", "model_calls") == 1
    assert engine.result().duplicates == 2


def test_records_that_arrive_late_from_another_process_are_put_in_order_at_the_end(
    run_dir: Path, journal: JournalFile
) -> None:
    child = JournalFile(run_dir / "journal", "20260131T090507Z-0-00000000")
    engine = Engine(run_dir)
    journal.run_started()
    journal.stage("M2", 1, end=50)
    engine.catch_up(force=True)
    child.stage("M2", 2, end=10)  # ended before, written later
    engine.catch_up(force=True)
    live = orjson.loads((run_dir / "M2" / "log.json").read_bytes())["stage"]
    journal.run_ended()
    engine.close()
    closed = documents(run_dir)
    fold_run(run_dir)

    final = orjson.loads((run_dir / "M2" / "log.json").read_bytes())["stage"]
    assert [r["otel_span_id"][-1] for r in live] == ["1", "2"]
    assert [r["otel_span_id"][-1] for r in final] == ["2", "1"]
    assert [r["event_seq"] for r in final] == [2, 3]
    assert documents(run_dir) == closed


# -- stopping and starting


def test_an_engine_goes_on_where_another_was_released(run_dir: Path, journal: JournalFile) -> None:
    first = Engine(run_dir, pending_bytes=100)
    journal.run_started()
    journal.model_call(2)
    first.release()
    for path in run_dir.glob("*.json*"):
        path.unlink()
    begin = journal.path.stat().st_size
    journal.model_call(3)
    # Nobody can fold these bytes again, so the second engine must have gone on from the checkpoint.
    with journal.path.open("r+b") as file:
        file.write(b"x" * (begin - 1) + b"\n")
    second = Engine(run_dir)
    second.catch_up(force=True)

    assert records(run_dir / "M2" / "log.json", "model_calls") == 2
    assert orjson.loads((run_dir / "run.json").read_bytes())["run_start"] is not None
    assert second.result().records == 3


@pytest.mark.parametrize("damage", ["version", "boot", "not json", "short part", "missing part", "short journal"])
def test_a_checkpoint_that_does_not_fit_is_folded_again_from_nothing(
    run_dir: Path, journal: JournalFile, damage: str
) -> None:
    first = Engine(run_dir, pending_bytes=100)
    journal.run_started()
    journal.model_call(2)
    first.release()
    fold = run_dir / "journal" / ".fold"
    checkpoint = fold / "checkpoint.json"
    state = orjson.loads(checkpoint.read_bytes())
    if damage == "version":
        checkpoint.write_bytes(orjson.dumps({**state, "version": "spanfold.fold/0"}))
    elif damage == "boot":
        checkpoint.write_bytes(orjson.dumps({**state, "boot": "another"}))
    elif damage == "not json":
        checkpoint.write_bytes(b"{")
    elif damage == "short part":
        (fold / "part-00001").write_bytes(b"")
    elif damage == "missing part":
        (fold / "part-00001").unlink()
    else:
        journal.path.write_bytes(journal.path.read_bytes()[:-10])
    shutil.rmtree(run_dir / "M2")
    second = Engine(run_dir)
    second.catch_up(force=True)
    expected = 0 if damage == "short journal" else 1

    assert records(run_dir / "M2" / "log.json", "model_calls") == expected


def test_a_closed_engine_begins_again_when_asked(run_dir: Path, journal: JournalFile) -> None:
    engine = Engine(run_dir)
    journal.run_started()
    journal.run_ended()
    engine.close()
    engine.close()
    engine.tick()
    journal.stage("M2", 1)
    engine.tick()
    before = (run_dir / "M2").exists()
    engine.catch_up(force=False)
    engine.close()

    assert not before
    assert records(run_dir / "M2" / "log.json", "stage") == 1


# -- who folds


def test_a_second_engine_on_a_run_that_is_being_folded_is_refused(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    first = Engine(run_dir)

    with pytest.raises(LockedError, match=f"process {os.getpid()}"):
        Engine(run_dir)
    elsewhere = Engine(run_dir, into=run_dir.parent / "copy")
    elsewhere.close()
    first.close()
    Engine(run_dir).close()

    assert (run_dir.parent / "copy" / "run.json").exists()


def test_an_engine_of_another_living_process_is_the_owner_and_one_of_a_dead_process_is_not(
    run_dir: Path, journal: JournalFile
) -> None:
    journal.run_started()
    script = (
        "import sys; from pathlib import Path; from spanfold.fold import Engine\n"
        "engine = Engine(Path(sys.argv[1])); print('folding', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(run_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"folding\n"
        with pytest.raises(LockedError, match=f"process {child.pid}"):
            Engine(run_dir)
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked for it yet

        Engine(run_dir).close()
        child.communicate(timeout=60)


def test_an_owner_on_another_host_counts_as_living(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    Engine(run_dir).release()
    owner = {"pid": 1, "started": "1@x", "host": "elsewhere", "token": "t"}
    (run_dir / "journal" / ".fold" / "owner.json").write_bytes(orjson.dumps(owner))

    with pytest.raises(LockedError, match="host elsewhere"):
        Engine(run_dir)


def test_an_engine_that_was_forgotten_does_not_own_the_run(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    engine = Engine(run_dir)
    del engine
    gc.collect()

    Engine(run_dir).close()


def test_an_engine_whose_run_was_taken_over_stops_folding(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    first = Engine(run_dir, guarded=True)
    first.catch_up(force=True)
    (run_dir / "journal" / ".fold" / "owner.json").unlink()
    second = Engine(run_dir)
    journal.stage("M2", 1)
    first.catch_up(force=True)

    assert "LockedError" in first.problem
    assert not (run_dir / "M2").exists()
    second.close()


def test_a_forked_child_leaves_the_documents_to_its_parent(run_dir: Path, journal: JournalFile) -> None:
    engine = Engine(run_dir)
    journal.run_started()
    journal.stage("M2", 1)
    pid = os.fork()
    if pid == 0:
        engine.catch_up(force=True)
        engine.close()
        os._exit(0)
    os.waitpid(pid, 0)
    untouched = not (run_dir / "run.json").exists()
    engine.catch_up(force=True)

    assert untouched
    assert records(run_dir / "M2" / "log.json", "stage") == 1


# -- inside the program that is recorded


class Blocked(Clock):
    """A clock that runs `action` when it is looked at for the nth time."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.left = nth
        self.action = lambda: None

    def __call__(self) -> float:
        self.left -= 1
        if self.left == 0:
            self.action()
        return self.now


def test_a_signal_handler_may_catch_up_while_the_same_thread_does(run_dir: Path, journal: JournalFile) -> None:
    clock = Blocked(5)
    engine = Engine(run_dir, clock=clock)
    clock.action = lambda: engine.catch_up(force=True)
    journal.run_started()
    for number in range(5):
        journal.stage("M2", 10 + number)
    engine.catch_up(force=True)

    assert clock.left <= 0
    assert records(run_dir / "M2" / "log.json", "stage") == 5


@pytest.mark.slow
@pytest.mark.parametrize("nth", range(1, 40, 3))
def test_an_interrupt_at_any_moment_leaves_nothing_half_folded(run_dir: Path, journal: JournalFile, nth: int) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    clock = Blocked(nth)
    clock.action = interrupt
    journal.run_started()
    for number in range(5):
        journal.stage("M2", 10 + number)
        journal.model_call(20 + number)
    try:
        engine = Engine(run_dir, clock=clock, guarded=True)
        engine.catch_up(force=True)
    except KeyboardInterrupt:
        pass
    engine = None
    gc.collect()
    engine = Engine(run_dir, clock=Clock())
    engine.catch_up(force=True)
    journal.stage("M2", 90)
    engine.close()
    fold_run(run_dir, into=run_dir.parent / "other")

    assert documents(run_dir) == documents(run_dir.parent / "other")


@pytest.mark.slow
@pytest.mark.parametrize("nth", range(1, 60, 3))
def test_an_engine_that_was_interrupted_goes_on_itself(run_dir: Path, journal: JournalFile, nth: int) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    clock = Clock()
    blocked = Blocked(0)
    blocked.action = interrupt
    engine = Engine(run_dir, clock=lambda: blocked() + clock(), pending_bytes=500)
    blocked.left = nth
    journal.run_started()
    for number in range(10):
        journal.stage("M2", 10 + number)
        journal.model_call(30 + number)
        try:
            engine.catch_up(force=number % 2 == 0)
        except KeyboardInterrupt:
            pass
    engine.close()
    fold_run(run_dir, into=run_dir.parent / "other")

    assert documents(run_dir) == documents(run_dir.parent / "other")


def test_threads_that_catch_up_at_once_each_find_their_record(run_dir: Path, journal: JournalFile) -> None:
    engine = Engine(run_dir)
    journal.run_started()
    lock = threading.Lock()
    missing: list[int] = []

    def work(thread: int) -> None:
        for number in range(20):
            with lock:
                journal.stage(f"stage{thread}", 1000 * thread + number + 1)
            engine.catch_up(force=False)
            if records(run_dir / "stages" / f"stage{thread}" / "log.json", "stage") != number + 1:
                missing.append(thread)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert missing == []


def test_a_guarded_engine_counts_what_goes_wrong_and_tries_again(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    engine = Engine(run_dir, guarded=True)
    (run_dir / "M2").write_text("in the way")
    journal.stage("M2", 1)
    engine.catch_up(force=False)
    engine.tick()
    in_the_way = engine.problems
    (run_dir / "M2").unlink()
    engine.tick()

    assert in_the_way == 2
    assert engine.problem.startswith("UnsafeEntryError")
    assert records(run_dir / "M2" / "log.json", "stage") == 1


def test_an_unguarded_engine_says_what_is_in_the_way(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    engine = Engine(run_dir)
    (run_dir / "run.json").mkdir()

    with pytest.raises(Exception, match=r"run\.json"):
        engine.catch_up(force=True)


def test_a_guarded_engine_that_may_not_write_at_all_raises_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    engine = Engine(blocked / "run", guarded=True)
    engine.catch_up(force=True)
    engine.tick()
    engine.view()
    engine.close()

    assert engine.problems > 0


def test_a_record_no_family_can_take_is_named_with_file_and_byte(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    at = journal.path.stat().st_size
    journal.stage("M2", 2)
    engine = Engine(run_dir)
    broken = _BreaksOnStages()
    engine._reduction.families = (*engine._reduction.families, broken)

    with pytest.raises(FoldError, match=rf"{journal.path.name}, byte {at}: .*ZeroDivisionError"):
        engine.catch_up(force=True)


class _BreaksOnStages:
    """A family with a bug."""

    name = "broken"

    def begin(self, out: object) -> None:
        pass

    def fold(self, entry: object, out: object) -> None:
        if getattr(entry, "kind", "") == "stage":
            raise ZeroDivisionError

    def finish(self, out: object) -> None:
        pass

    def compose(self, document: str, buckets: object) -> None:
        return None

    def state(self) -> dict[str, object]:
        return {}

    def restore(self, state: object) -> None:
        pass


def test_fields_of_a_recorder_are_never_in_a_message(
    run_dir: Path, journal: JournalFile, caplog: pytest.LogCaptureFixture
) -> None:
    journal.run_started()
    journal.stage("M2", 1, attributes=set_fields({"key": "sk-secret-value"}))
    (run_dir / "M2").write_text("in the way")
    engine = Engine(run_dir, guarded=True)
    engine.catch_up(force=True)

    assert engine.problems == 1
    assert "documents cannot be brought up to date" in caplog.text
    assert "sk-secret-value" not in caplog.text


def test_who_has_no_time_does_not_wait_for_another_thread_that_folds_much(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    for number in range(5_000):
        journal.stage("M2", 1 + number)
    engine = Engine(run_dir)
    folding = threading.Thread(target=lambda: engine.catch_up(force=True))
    folding.start()
    while not (run_dir / "journal" / ".fold").exists():  # it has begun
        pass
    engine.catch_up(force=False, within_s=0.001)
    assert folding.is_alive(), "it came back before the other was done"

    folding.join()
    engine.catch_up(force=False, within_s=0.001)
    assert records(run_dir / "M2" / "log.json", "stage") == 5_000
    engine.close()
