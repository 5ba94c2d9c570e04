"""Where the journal of a diagnose loop stands, and directories that are used, shared, or somebody else's."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

import spanfold
from spanfold.diagnose import RunLogger
from spanfold.errors import LockedError, UnsafeEntryError
from spanfold.fold import check_documents, show_run
from spanfold.journal import journal_files, open_journals, recover_run, verify_journal
from tests.diagnose.programs import LOOP, told
from tests.diagnose.script import analysis, documents, events, play
from tests.instrument.programs import run

pytestmark = pytest.mark.slow


@pytest.mark.contract("DL-147", "DL-135", "DL-168", "DL-024")
def test_the_next_start_on_the_directory_finishes_a_killed_run_and_goes_on_with_its_numbers(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run(LOOP + 'log.log_run_start({"model": "m"}); call(1); os._exit(1)', run_dir, status=1)

    with RunLogger(run_dir, observability_mode="offline") as log:
        log.log_stage_skipped("M4", "nothing")

    found = events(run_dir)
    assert [(e["event_seq"], e["event"]) for e in found] == [(1, "run_start"), (2, "model_call"), (3, "stage_skipped")]
    assert len({e["trace_id"] for e in found}) == 1
    assert verify_journal(run_dir).sealed
    assert not check_documents(run_dir)


@pytest.mark.contract("DL-135", "DL-168", "DL-160", "DL-039", "DL-012")
def test_a_directory_that_was_used_keeps_its_documents_and_its_numbers_go_on(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with RunLogger(run_dir, observability_mode="offline") as first:
        first.log_run_start({"model": "one"})
        first.log_analysis(0, analysis(run_dir))
    before = events(run_dir)

    with RunLogger(run_dir, observability_mode="offline") as second:
        second.log_run_start({"model": "two"})
        second.log_analysis(1, analysis(run_dir))

    after = events(run_dir)
    run_json = documents(run_dir)["run.json"]
    assert second.trace_id == first.trace_id
    assert [e for e in after if e["event"] != "run_start"][:2] == [e for e in before if e["event"] != "run_start"]
    assert run_json["run_start"]["model"] == "two"
    assert [start["model"] for start in run_json["run_starts"]] == ["one", "two"]
    numbers = [e["event_seq"] for e in [run_json["run_starts"][0], *after]]
    assert sorted(numbers) == list(range(1, 7))
    assert verify_journal(run_dir).sealed
    assert not check_documents(run_dir)


@pytest.mark.contract("DL-135", "DL-168")
def test_a_directory_of_another_logger_is_gone_on_with_and_loses_nothing(tmp_path: Path) -> None:
    seed = pytest.importorskip("evalrx.eval_agent.run_logger_v2")
    run_dir = tmp_path / "run"
    play(seed.RunLoggerV2(run_dir, observability_mode="offline"), tmp_path)
    before = documents(run_dir)
    trace = json.loads((run_dir / "langfuse_trace.json").read_text(encoding="utf-8"))

    with RunLogger(run_dir, observability_mode="offline") as log:
        log.log_stage_skipped("M4", "nothing")

    bundle = json.loads((run_dir / "langfuse_trace.json").read_text(encoding="utf-8"))
    for part in ("spans", "generations", "scores"):
        assert bundle[part][: len(trace[part])] == trace[part]
    assert bundle["trace"]["metadata"] == trace["trace"]["metadata"]
    loop = show_run(run_dir).loop
    assert loop is not None
    assert [h.verdict for h in loop.hypotheses] == ["supported", None, None]
    after = documents(run_dir)
    skipped = after["M4/log.json"].pop("stage_skipped")
    assert after == before
    assert skipped[0]["event_seq"] == 1 + max(e["event_seq"] for e in events(run_dir) if e["event"] != "stage_skipped")
    assert log.trace_id == before["run.json"]["trace_id"]
    assert not check_documents(run_dir)


@pytest.mark.contract("DL-137")
def test_a_second_writer_is_refused_by_name_and_the_first_loses_nothing(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    log = RunLogger(run_dir, observability_mode="offline")
    log.log_run_start({"model": "m"})
    other = "from spanfold.diagnose import RunLogger; import sys; RunLogger(sys.argv[1])"

    with pytest.raises(LockedError, match="is being recorded"):
        RunLogger(run_dir)
    refused = run(other, run_dir, status=1)
    assert "LockedError" in refused.err
    with pytest.raises(LockedError):
        recover_run(run_dir)
    log.log_stage_skipped("M4", "nothing")
    log.close()

    assert [e["event_seq"] for e in events(run_dir)] == [1, 2]
    RunLogger(run_dir, observability_mode="offline").close()


@pytest.mark.contract("DL-186", "DL-089", "DL-090")
def test_a_logger_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    for mode, error in (("live", RuntimeError), ("sometimes", ValueError)):
        with pytest.raises(error):
            RunLogger(tmp_path / "run", observability_mode=mode)
    assert os.listdir(tmp_path) == []
    assert open_journals() == []
    assert journal_files(tmp_path) == []


@pytest.mark.contract("DL-137")
def test_a_run_of_another_machine_is_not_taken_for_one_whose_process_died(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run(LOOP + 'log.log_run_start({"model": "m"}); os._exit(1)', run_dir, status=1)
    [place] = open_journals()
    pointer = place.folder / "pointer.json"
    pointer.write_text(pointer.read_text(encoding="utf-8").replace(place.host, "another.example"), encoding="utf-8")

    for attempt in (lambda: RunLogger(run_dir, observability_mode="offline"), lambda: recover_run(run_dir)):
        with pytest.raises(LockedError, match=r"another\.example"):
            attempt()

    assert recover_run(run_dir, assume_dead=True).came_home
    RunLogger(run_dir, observability_mode="offline").close()


@pytest.mark.contract("DL-135")
def test_a_run_of_another_kind_is_not_gone_on_with(tmp_path: Path) -> None:
    with spanfold.run("native", dir=tmp_path / "run"):
        pass
    before = (tmp_path / "run" / "run.json").read_bytes()

    with pytest.raises(UnsafeEntryError, match="run of another kind"):
        RunLogger(tmp_path / "run", observability_mode="offline")

    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_a_child_process_that_joins_the_loop_records_into_its_journal(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    log = RunLogger(run_dir, observability_mode="offline")
    child = "import spanfold\nwith spanfold.stage('M2', cycle=3):\n    spanfold.event('from the child')"

    run(child, env=spanfold.child_env())
    log.log_stage_skipped("M4", "r")
    log.close()

    beside = json.loads((run_dir / "traced" / "M2" / "log.json").read_text(encoding="utf-8"))
    assert (len(beside["stage"]), beside["event"][0]["name"]) == (1, "from the child")
    assert len(journal_files(run_dir)) == 2
    assert open_journals() == []
    assert verify_journal(run_dir).sealed
    assert not check_documents(run_dir)


@pytest.mark.contract("DL-147")
def test_a_place_that_a_killed_process_left_empty_is_removed_by_the_next_start(tmp_path: Path) -> None:
    program = "import os, sys\nfrom pathlib import Path\nfrom spanfold.journal import claim_journal\n"
    run(program + "claim_journal(Path(sys.argv[1]), 't'); os._exit(1)", tmp_path / "killed", status=1)
    state = Path.home() / ".local" / "state" / "spanfold" / "open"
    [left] = state.iterdir()
    old = left.stat().st_mtime - 3600
    os.utime(left, (old, old))

    log = RunLogger(tmp_path / "run", observability_mode="offline")
    assert left not in state.iterdir()
    log.close()

    assert list(state.iterdir()) == []
    assert state.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("home", ["no home", "no place at all"])
def test_a_user_without_a_home_is_recorded_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setenv("HOME", "/dev/null/home")
    if home == "no place at all":
        monkeypatch.setenv("SPANFOLD_STATE_DIR", "/dev/null/state")
    log = RunLogger(tmp_path / "run", observability_mode="offline")
    log.log_stage_skipped("M4", "r")
    assert (tmp_path / "run" / "journal").exists() == (home == "no place at all")
    log.close()

    assert told(tmp_path / "run") == Counter(stage_skipped=1)
    assert verify_journal(tmp_path / "run").sealed
    assert not check_documents(tmp_path / "run")
    assert open_journals() == []


@pytest.mark.contract("DL-175")
def test_a_place_that_somebody_else_has_planted_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = tmp_path / "state"
    planted.mkdir()
    planted.chmod(0o777)
    monkeypatch.setenv("SPANFOLD_STATE_DIR", str(planted))
    log = RunLogger(tmp_path / "run", observability_mode="offline")
    log.log_stage_skipped("M4", "r")
    log.close()

    assert list(planted.iterdir()) == []
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("SPANFOLD_STATE_DIR", str(link))
    RunLogger(tmp_path / "again", observability_mode="offline").close()
    assert not (tmp_path / "elsewhere").exists()
    assert verify_journal(tmp_path / "run").sealed
    assert verify_journal(tmp_path / "again").sealed


@pytest.mark.contract("DL-175")
def test_files_of_a_run_and_of_its_open_journal_are_private(tmp_path: Path) -> None:
    log = RunLogger(tmp_path / "run", observability_mode="offline")
    log.log_stage_skipped("M4", "r")
    [place] = open_journals()
    modes = {
        path: path.stat().st_mode & 0o777
        for base in (place.folder, tmp_path / "run")
        for path in (base, *base.rglob("*"))
    }
    log.close()

    assert {mode for path, mode in modes.items() if path.suffix} == {0o600}
    assert set(modes.values()) == {0o600, 0o700}


@pytest.mark.contract("DL-133", "DL-134", "DL-132", "DL-187")
def test_a_document_that_cannot_be_written_is_counted_and_whole_as_soon_as_it_can(tmp_path: Path) -> None:
    log = RunLogger(tmp_path / "run", observability_mode="offline")
    log.log_stage_skipped("M3", "before")
    (tmp_path / "run" / "M4" / "log.json").mkdir(parents=True)
    log.log_stage_skipped("M4", "in the way")
    assert log.losses["tries to bring documents up to date"] >= 1
    (tmp_path / "run" / "M4" / "log.json").rmdir()
    log.log_stage_skipped("M4", "after")

    assert [e["reason_code"] for e in events(tmp_path / "run")] == ["before", "in the way", "after"]
    log.close()
    assert not check_documents(tmp_path / "run")
