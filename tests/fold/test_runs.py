"""fold_run and follow: the fold of a run that somebody else records."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import orjson
import pytest

from spanfold import names
from spanfold.errors import JournalCorrupt, JournalMissing, LockedError
from spanfold.fold import Engine, fold_run, follow
from tests.fold.journals import JournalFile, documents, json_text


def test_fold_run_says_what_it_made_of_what(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.put(journal.stage("M2", 1))
    journal.put(b"garbage\n")
    journal.run_ended()
    journal.put(b'{"resourceSpans":[{"torn')

    result = fold_run(run_dir, force=True)

    assert result.documents == tuple(
        run_dir / name for name in ("M2/log.json", "langfuse_trace.json", "run.json", "timings.jsonl")
    )
    assert result.files == (journal.path,)
    assert (result.records, result.duplicates, result.status) == (3, 1, "completed")
    assert [d.kind for d in result.damage] == ["malformed", "torn"]


def test_documents_are_not_replaced_by_what_is_left_of_a_damaged_journal(
    run_dir: Path, journal: JournalFile, tmp_path: Path
) -> None:
    journal.run_started()
    for number in range(3):
        journal.stage("M2", number)
    fold_run(run_dir)
    before = documents(run_dir)
    lines = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(b"".join(lines[:2] + lines[3:]))

    with pytest.raises(JournalCorrupt, match=journal.path.name) as refused:
        fold_run(run_dir)
    with pytest.raises(JournalCorrupt):
        fold_run(run_dir, into=run_dir / ".")
    with pytest.raises(JournalCorrupt):
        follow(run_dir, stop=lambda: True)

    assert refused.value.path == journal.path
    assert documents(run_dir) == before
    fold_run(run_dir, into=tmp_path / "view")
    fold_run(run_dir, force=True)
    assert documents(run_dir) == documents(tmp_path / "view") != before


def test_a_run_that_lost_its_seal_alone_is_folded(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.run_ended()

    assert fold_run(run_dir).status == "completed"


def test_fold_run_into_another_folder_leaves_the_run_alone(run_dir: Path, journal: JournalFile, tmp_path: Path) -> None:
    journal.run_started()
    before = {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")}
    result = fold_run(run_dir, into=tmp_path / "a" / "b")

    assert result.documents[0].parent == tmp_path / "a" / "b"
    assert {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")} == before


def test_fold_run_of_a_run_that_is_recorded_is_refused(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    engine = Engine(run_dir)

    with pytest.raises(LockedError):
        fold_run(run_dir)
    engine.close()


@pytest.mark.parametrize("call", [fold_run, lambda path: follow(path, stop=lambda: True)])
def test_a_folder_without_a_journal_is_named_and_nothing_is_made_in_it(tmp_path: Path, call: object) -> None:
    with pytest.raises(JournalMissing, match=tmp_path.name):
        call(tmp_path / "no")  # type: ignore[operator]  # one of the two above
    assert list(tmp_path.iterdir()) == []


def test_follow_keeps_up_and_finishes_when_the_run_is_sealed(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    done = threading.Event()
    following = threading.Thread(target=lambda: (follow(run_dir, stop=lambda: False, poll_s=0.01), done.set()))
    following.start()
    journal.stage("M2", 1)
    deadline = time.monotonic() + 60
    while not (run_dir / "M2" / "log.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    seen = (run_dir / "M2" / "log.json").exists()
    journal.run_ended()
    journal.event(names.EVENT_SEALED, at=101, attributes={"spanfold.heads": json_text({})})
    following.join(60)

    assert seen
    assert done.is_set()
    assert orjson.loads((run_dir / "run.json").read_bytes())["run"]["status"] == "completed"
    assert (run_dir / "langfuse_trace.json").exists()


def test_follow_that_was_stopped_is_gone_on_with(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.model_call(2)
    first = follow(run_dir, stop=lambda: True)
    journal.model_call(3)
    second = follow(run_dir, stop=lambda: True)
    fold_run(run_dir, into=run_dir.parent / "other")

    assert (first.records, second.records) == (2, 3)
    expected = documents(run_dir.parent / "other")
    del expected["langfuse_trace.json"]
    assert documents(run_dir) == expected


def test_follow_that_is_interrupted_lets_go_of_the_run(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()

    def stop() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(run_dir, stop=stop)
    Engine(run_dir).close()


def test_another_process_on_another_day_folds_the_same_bytes(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.model_call(2, attributes={"b": 1, "a": 2})
    journal.run_ended()
    fold_run(run_dir)
    here = documents(run_dir)
    script = "import sys; from pathlib import Path; from spanfold.fold import fold_run; fold_run(Path(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-c", script, str(run_dir)],
        check=True,
        env={"TZ": "Asia/Kolkata", "PYTHONHASHSEED": "7", "LC_ALL": "C", "PYTHONPATH": ":".join(sys.path)},
    )

    assert documents(run_dir) == here


def test_a_run_reached_through_a_link_is_folded_in_its_place(
    run_dir: Path, journal: JournalFile, tmp_path: Path
) -> None:
    journal.run_started()
    (tmp_path / "latest").symlink_to(run_dir)
    result = fold_run(tmp_path / "latest")

    assert result.documents[0].parent == run_dir


def test_a_journal_folder_is_not_taken_for_its_run_directory(
    run_dir: Path, journal: JournalFile, tmp_path: Path
) -> None:
    journal.run_started()
    journal.run_ended()
    for named in (run_dir / "journal", run_dir / "journal" / ".." / "journal"):
        with pytest.raises(JournalMissing, match="expected a run directory"):
            fold_run(named)
    assert list((run_dir / "journal").iterdir()) == [journal.path]

    fold_run(run_dir / "journal", into=tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "run.json").is_file()
