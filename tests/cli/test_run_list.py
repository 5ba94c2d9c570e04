"""`run list`: every run below a folder, and how it stands."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spanfold.cli._exits import Exit
from tests.cli.conftest import Spanfold, check, finish


def by_name(document: dict) -> dict[str, dict]:
    return {Path(run["run_dir"]).name: run for run in document["runs"]}


def test_each_run_is_listed_with_how_it_stands_newest_first(spanfold: Spanfold, runs: Path) -> None:
    document = spanfold("run", "list", "--json").document

    listed = by_name(document)
    assert {name: run["status"] for name, run in listed.items()} == {
        "ok": "completed",
        "fail": "failed",
        "kill": "interrupted",
        "evil": "completed",
    }
    starts = [run["start"] for run in document["runs"]]
    assert starts == sorted(starts, reverse=True)
    for name, run in listed.items():
        lines = sum(path.read_bytes().count(b"\n") for path in (runs / name / "journal").glob("*.otlp.jsonl"))
        assert run["records"] == lines
        assert run["name"] == "loop"
    assert listed["kill"]["seconds"] is None
    assert listed["kill"]["age_seconds"] > 0
    assert listed["ok"]["seconds"] == json.loads((runs / "ok" / "run.json").read_text())["run"]["seconds"]


def test_a_killed_run_is_shown_as_interrupted_with_its_age_and_what_to_do(spanfold: Spanfold, runs: Path) -> None:
    answer = spanfold("run", "list")

    assert re.search(r"runs/kill +loop +interrupted, \d+ (s|min) ago", answer.out)
    assert "`spanfold run recover runs/kill`" in answer.err


def test_a_run_goes_from_running_to_completed(spanfold: Spanfold, live: subprocess.Popen[bytes]) -> None:
    assert by_name(spanfold("run", "list", "--json").document)["live"]["status"] == "running"

    finish(live)

    assert by_name(spanfold("run", "list", "--json").document)["live"]["status"] == "completed"


def test_the_journal_decides_when_documents_are_missing_or_behind(spanfold: Spanfold, runs: Path) -> None:
    behind = json.loads((runs / "ok" / "run.json").read_text())
    behind["run"]["status"] = "running"  # as it is when a process is killed right after its last record
    (runs / "ok" / "run.json").write_text(json.dumps(behind, indent=2))
    (runs / "fail" / "run.json").unlink()
    (runs / "evil" / "run.json").write_text("{}")

    listed = by_name(spanfold("run", "list", "--json").document)

    assert [listed[name]["status"] for name in ("ok", "fail", "evil")] == ["completed", "failed", "completed"]


def test_a_run_of_another_machine_is_neither_called_running_nor_dead(spanfold: Spanfold, runs: Path) -> None:
    for path in (runs / "kill").rglob("*.json*"):
        text = path.read_bytes()
        host = json.loads((runs / "ok" / "run.json").read_text())["run"]["host"]
        path.write_bytes(text.replace(b'"%b"' % host.encode(), b'"elsewhere"'))

    answer = spanfold("run", "list")

    assert re.search(r"runs/kill +loop +running\? ", answer.out)
    assert "another machine" in answer.err


def test_runs_are_found_at_any_depth_and_never_through_a_link(spanfold: Spanfold, runs: Path, tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "deep"
    shutil.copytree(runs / "ok", deep)
    (tmp_path / "a" / "link").symlink_to(runs)
    (tmp_path / "a" / ".hidden").mkdir()
    shutil.copytree(runs / "ok", tmp_path / "a" / ".hidden" / "run")

    document = spanfold("run", "list", "a", "--json").document

    assert [run["run_dir"] for run in document["runs"]] == ["a/b/deep"]


def test_a_damaged_run_is_listed_and_costs_the_others_nothing(spanfold: Spanfold, runs: Path) -> None:
    shutil.rmtree(runs / "fail" / "journal")
    (runs / "fail" / "journal").symlink_to(runs / "ok" / "journal")
    (runs / "kill" / "run.json").unlink()
    for path in (runs / "kill" / "journal").glob("*.otlp.jsonl"):
        path.write_bytes(b"\0" * 1000)

    listed = by_name(spanfold("run", "list", "--json").document)

    assert "fail" not in listed
    assert listed["kill"]["records"] == 0
    assert listed["ok"]["status"] == "completed"


def test_an_edited_run_document_is_told_with_what_to_do(spanfold: Spanfold, runs: Path) -> None:
    path = runs / "ok" / "run.json"
    path.write_text(path.read_text().replace('"status": "completed"', '"status": "perfect"'))

    answer = spanfold("run", "list")

    assert answer.code == Exit.DONE
    assert "`spanfold run verify runs/ok`" in answer.err
    spanfold("run", "fold", "runs/ok")
    assert "run verify" not in spanfold("run", "list").err


def test_many_runs_are_listed_from_the_ends_of_their_documents(spanfold: Spanfold, runs: Path, tmp_path: Path) -> None:
    # A run.json may be large; what is asked for stands at its end, so the journal and the rest are not read.
    document = (runs / "ok" / "run.json").read_text()
    large = document.replace('"cases": []', '"cases": [' + ", ".join(['{"id": "x"}'] * 50_000) + "]")
    journal = next((runs / "ok" / "journal").glob("*.otlp.jsonl"))
    many = tmp_path / "many"
    for number in range(300):
        run = many / f"{number:03d}"
        (run / "journal").mkdir(parents=True)
        (run / "run.json").write_text(large if number == 7 else document)
        (run / "journal" / journal.name).write_bytes(b"this would be damage\n")

    listed = spanfold("run", "list", "many", "--json").document["runs"]

    assert len(listed) == 300
    assert {run["status"] for run in listed} == {"completed"}
    assert {run["records"] for run in listed} == {journal.read_bytes().count(b"\n")}


def test_the_run_folder_is_the_default_and_can_be_configured(spanfold: Spanfold, runs: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    answer = spanfold("run", "list", "--json", cwd=elsewhere, SPANFOLD_RUN_DIR=str(runs))

    assert len(answer.document["runs"]) == 4
    # A setting that only recording needs does not keep anybody from looking.
    assert spanfold("run", "list", SPANFOLD_CONTENT="nonsense").code == Exit.DONE


@pytest.mark.parametrize("place", ["nowhere", "a file"])
def test_a_folder_that_is_not_there_is_not_found(spanfold: Spanfold, tmp_path: Path, place: str) -> None:
    (tmp_path / "a file").touch()

    answer = spanfold("run", "list", place)

    assert answer.code == Exit.NOT_FOUND
    assert answer.err.startswith(f"spanfold: {place}: expected a folder with runs, found")
    assert len(answer.err.splitlines()) == 1


def test_an_empty_folder_has_no_runs(spanfold: Spanfold, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()

    answer = spanfold("run", "list")

    assert answer == (type(answer))(Exit.DONE, "", "0 runs below runs.\n")
    assert spanfold("run", "list", "--json").document["runs"] == []


@pytest.mark.parametrize("closed", ["fail", "fail/journal"])
def test_a_folder_that_may_not_be_read_is_told_and_the_others_are_listed(runs: Path, closed: str) -> None:
    program = [sys.executable, "-m", "spanfold"]
    if os.geteuid() == 0:
        # Root may read everything, unless it gives that right up.
        if shutil.which("setpriv") is None:
            pytest.skip("needs setpriv to give up the rights of root")
        os.chown(runs / closed, 65534, 65534)
        program = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", *program]
    (runs / closed).chmod(0o700 if os.geteuid() == 0 else 0)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*program, *words], cwd=runs.parent, capture_output=True, text=True, timeout=60, check=False
        )

    listed, as_json, shown = run("run", "list"), run("run", "list", "--json"), run("run", "show", "fail")
    (runs / closed).chmod(0o755)

    assert listed.returncode == 0
    assert "runs/ok" in listed.stdout
    assert f"! 1 folder below it cannot be read by you, such as runs/{closed}" in listed.stderr
    document = json.loads(as_json.stdout)
    check(document)
    assert document["unreadable"] == [f"runs/{closed}"]
    assert shown.returncode == 1
    assert shown.stderr.startswith("spanfold: runs/fail")
    assert "expected what you may read, found Permission denied" in shown.stderr


def test_runs_of_the_working_directory_are_counted_in_words(spanfold: Spanfold, tmp_path: Path) -> None:
    assert spanfold("run", "list", ".").err.endswith(" in and below this folder.\n")


def test_a_recovered_run_is_called_so_and_nobody_is_told_to_recover_it(spanfold: Spanfold, runs: Path) -> None:
    assert spanfold("run", "recover", "kill").code == Exit.DONE

    answer = spanfold("run", "list")

    assert re.search(r"runs/kill +loop +interrupted \(recovered\) ", answer.out)
    assert "run recover" not in answer.err
