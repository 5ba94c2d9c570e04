"""`list_runs` reads the end of run.json, and the journal where that does not say enough."""

from pathlib import Path

import orjson
import pytest

from spanfold.fold import ListedRun, find_runs, fold_run, list_runs, show_run
from spanfold.journal import host_name
from tests.fold.journals import JournalFile


def make(folder: Path, name: str, *, ended: bool = True) -> Path:
    journal = JournalFile(folder / name / "journal")
    journal.run_started(name, host=host_name())
    journal.stage("M1", 1, 0)
    if ended:
        journal.run_ended(name)
    fold_run(folder / name)
    return folder / name


def only(runs: list[ListedRun]) -> ListedRun:
    (run,) = runs
    return run


@pytest.mark.parametrize("filler", [0, 100_000, 3_000_000])
def test_the_object_at_the_end_is_found_whatever_stands_before_or_behind_it(tmp_path: Path, filler: int) -> None:
    run = make(tmp_path, "one")
    document = orjson.loads((run / "run.json").read_bytes())
    document["cases"] = ['\n  "run": {"status": "failed"}', "x" * filler]
    document["open"] = {"y": "\n" * (filler // 4), "run": {"status": "failed"}}
    (run / "run.json").write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))

    listed = only(list_runs(tmp_path))

    assert (listed.status, listed.name, listed.seconds) == ("completed", "one", 100.0)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{\n  "run": {', '{\n  "run": []\n}', '{\n  "run": {"schema": "other/1"}\n}', "\0" * 9]
)
def test_a_run_json_of_any_content_is_no_obstacle(tmp_path: Path, text: str) -> None:
    run = make(tmp_path, "one")
    (run / "run.json").write_text(text)

    assert only(list_runs(tmp_path)).status == "completed"


def test_a_status_nobody_knows_is_not_passed_on(tmp_path: Path) -> None:
    run = make(tmp_path, "one")
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace('"status": "completed"', '"status": "paused"'))

    listed = only(list_runs(tmp_path))

    assert listed.status == "unreadable"
    assert listed.problem


def test_an_interrupted_run_is_listed_as_it_is_shown(tmp_path: Path) -> None:
    run = make(tmp_path, "one", ended=False)

    listed, shown = only(list_runs(tmp_path)), show_run(run)

    assert (listed.status, listed.last_record, listed.records) == ("interrupted", shown.last_record, shown.records)


def test_a_journal_without_a_journal_file_makes_no_run(tmp_path: Path) -> None:
    (tmp_path / "one" / "journal").mkdir(parents=True)
    (tmp_path / "one" / "journal" / "notes.txt").touch()

    assert list(find_runs(tmp_path)) == []


def test_a_folder_may_be_a_run_itself_and_hold_others(tmp_path: Path) -> None:
    outer = make(tmp_path, "outer")
    inner = make(outer / "more", "inner")

    assert sorted(find_runs(outer)) == [outer, inner]


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list_runs(tmp_path / "nowhere")
