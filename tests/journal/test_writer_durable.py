"""`durability="machine"`: what was promised to survive a power cut was handed to the device before the promise."""

import threading
from pathlib import Path

import pytest

import spanfold
from spanfold.journal import Journal
from tests.journal import raw
from tests.journal.kernel import Flush, watched
from tests.journal.test_writer_disk import add, numbers, opened

pytestmark = pytest.mark.case("C-051")


def flushed(flushes: list[Flush], path: Path) -> int:
    """Return how much of a file was there when a flush of it began."""
    return max((f.size for f in flushes if f.path == path), default=0)


def test_a_sync_flushes_every_line_before_it_and_the_names_that_lead_to_it(tmp_path: Path) -> None:
    journal = opened(tmp_path / "run", durable=True)

    def act(flushes: list[Flush]) -> None:
        add(journal, 1, 2)
        assert journal.sync()
        (path,) = raw.files(tmp_path / "run")
        assert flushed(flushes, path) == path.stat().st_size
        assert {path.parent, path.parent.parent} <= {f.path for f in flushes}
        count = len(flushes)
        assert journal.sync()
        assert len(flushes) == count

    watched(act)


def test_without_it_nothing_waits_for_the_device(tmp_path: Path) -> None:
    journal = opened(tmp_path)

    def act(flushes: list[Flush]) -> None:
        add(journal, 1)
        assert journal.sync()
        journal.close()
        assert flushes == []

    watched(act)


def test_threads_that_wait_for_the_device_at_once_share_a_flush(tmp_path: Path) -> None:
    journal = opened(tmp_path, durable=True)
    add(journal, 0)
    (path,) = raw.files(tmp_path)
    unflushed: list[int] = []

    def work(flushes: list[Flush], first: int) -> None:
        for number in range(first, first + 10):
            add(journal, number)
            end = journal.position.size
            assert journal.sync()
            if flushed(flushes, path) < end:
                unflushed.append(number)

    def act(flushes: list[Flush]) -> int:
        threads = [threading.Thread(target=work, args=(flushes, 1 + 10 * n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(flushes)

    count = watched(act, delay_s=0.005)

    assert unflushed == []
    assert count < 60
    assert sorted(numbers(tmp_path)) == list(range(81))


@pytest.mark.slow
def test_a_sync_outlives_the_descriptor_that_others_need(tmp_path: Path) -> None:
    journal = opened(tmp_path, durable=True)
    over = threading.Event()

    def release() -> None:
        while not over.is_set():
            journal.release()

    def act(flushes: list[Flush]) -> None:
        thread = threading.Thread(target=release)
        thread.start()
        try:
            for number in range(1, 60):
                add(journal, number)
                assert journal.sync()
                assert flushed(flushes, raw.files(tmp_path)[0]) >= journal.position.size
        finally:
            over.set()
            thread.join()

    watched(act, delay_s=0.001)
    assert numbers(tmp_path) == list(range(1, 60))
    assert journal.stats.problem == ""


@pytest.mark.parametrize("record", ["stage", "event", "score", "flush", "close"])
def test_a_control_record_is_on_the_device_when_its_call_returns(tmp_path: Path, record: str) -> None:
    spanfold.configure(durability="machine")

    def act(flushes: list[Flush]) -> None:
        run = spanfold.run("r", dir=tmp_path / "new" / "run")
        (path,) = raw.files(run.dir)
        with run:
            if record == "flush":
                with spanfold.timed("t"):
                    pass
                spanfold.flush()
            elif record == "stage":
                with spanfold.stage("M1"):
                    pass
            elif record == "event":
                spanfold.event("e")
            elif record == "score":
                spanfold.score("s", 1)
            assert flushed(flushes, path) == path.stat().st_size or record == "close"
        assert flushed(flushes, path) == path.stat().st_size
        # Each name on the way to the file, up to the first folder that was there before.
        assert {tmp_path, tmp_path / "new", run.dir, run.dir / "journal"} <= {f.path for f in flushes}

    watched(act)


def test_the_position_is_that_of_the_whole_journal_when_another_file_was_begun(tmp_path: Path) -> None:
    journal: Journal = opened(tmp_path, durable=True)

    def act(flushes: list[Flush]) -> None:
        add(journal, 1, size=5000)
        assert journal.sync()
        (first,) = raw.files(tmp_path)
        with first.open("ab") as file:
            file.write(b"somebody else's")
        journal._file.next_check = 0.0
        add(journal, 2)
        assert journal.sync()
        (second,) = [p for p in raw.files(tmp_path) if p != first]
        assert flushed(flushes, second) == second.stat().st_size

    watched(act)
