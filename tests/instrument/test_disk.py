"""C-051 and C-052: a run on a disk that is full, not writable or not there, seen from the host's program."""

import json
import os
from pathlib import Path

import pytest

from spanfold.journal import verify_journal
from tests.instrument.programs import Program, run
from tests.journal import raw
from tests.journal.kernel import change_disk, fill, small_disk

pytestmark = pytest.mark.slow

WORK = """
import os, sys, time, spanfold

@spanfold.traced
def half(number):
    return number / 2

def work(count):
    for number in range(count):
        with spanfold.stage("M1", cycle=number):
            spanfold.event("e", number=number, text="x" * 1000)
            assert half(number) == number / 2
"""


def numbers(run_dir: Path) -> list[int]:
    return [e["attributes"]["spanfold.number"] for e in raw.events(run_dir, "e")]


@pytest.mark.case("C-051")
def test_a_program_on_a_full_disk_goes_on_warns_once_and_its_run_is_whole_when_there_is_room(tmp_path: Path) -> None:
    program = (
        WORK
        + """
with spanfold.run("r", dir=sys.argv[1]) as opened:
    work(5)
    print("fill"); sys.stdin.readline()
    work(60)
    print(opened.stats.held > 100, opened.losses)
    print("free"); sys.stdin.readline()
    time.sleep(0.3)
    work(5)
print(opened.stats.held, opened.losses)
"""
    )
    with small_disk(tmp_path / "disk", "1m") as disk, Program(program, disk / "run") as running:
        running.says("fill")
        filler = fill(disk)
        running.tell()
        running.says("True {}")
        running.says("free")
        filler.unlink()
        running.tell()
        ended = running.end()

        assert (ended.status, ended.out) == (0, "0 {}\n"), ended
        about_the_journal = [line for line in ended.err.splitlines() if "the journal cannot be written" in line]
        assert len(about_the_journal) == 1
        assert numbers(disk / "run") == [*range(5), *range(60), *range(5)]
        assert verify_journal(disk / "run").state == "intact"
        assert json.loads((disk / "run" / "run.json").read_text())["run"]["status"] == "completed"


@pytest.mark.case("C-051")
@pytest.mark.parametrize("when", ["flush", "another run", "exit"])
def test_a_run_that_ended_on_a_full_disk_is_finished_when_there_is_room(tmp_path: Path, when: str) -> None:
    program = (
        WORK
        + """
with spanfold.run("r", dir=sys.argv[1]) as opened:
    work(5)
    print("fill"); sys.stdin.readline()
    work(100)
print(opened.journal.is_sealed, opened.stats.held > 50)
print("free"); sys.stdin.readline()
if sys.argv[2] == "flush":
    print(spanfold.flush().held, opened.journal.is_sealed)
elif sys.argv[2] == "another run":
    with spanfold.run("r", dir=sys.argv[1] + "-other"): pass
    print(opened.journal.is_sealed)
"""
    )
    with small_disk(tmp_path / "disk", "1m") as disk, Program(program, disk / "run", when) as running:
        running.says("fill")
        filler = fill(disk)
        running.tell()
        running.says("False True")
        running.says("free")
        filler.unlink()
        running.tell()
        ended = running.end()

        expected = {"flush": "0 True\n", "another run": "True\n", "exit": ""}
        assert (ended.status, ended.out) == (0, expected[when]), ended
        assert numbers(disk / "run") == [*range(5), *range(100)]
        assert verify_journal(disk / "run").state == "intact"
        assert json.loads((disk / "run" / "run.json").read_text())["run"]["status"] == "completed"


@pytest.mark.case("C-051")
def test_a_disk_that_is_full_from_the_beginning_costs_the_record_and_nothing_else(tmp_path: Path) -> None:
    program = (
        WORK
        + """
with spanfold.run("r", dir=sys.argv[1]) as opened:
    work(3)
    print(opened.view(), spanfold.flush(1).held > 0)
    spanfold.artifact("a", {"x": 1})
print("done")
"""
    )
    with small_disk(tmp_path / "disk") as disk:
        fill(disk)
        change_disk(disk, "nr_inodes=2")
        ended = run(program, disk / "run")

        assert ended.out.splitlines() == [f"{disk}/run True", "done"]
        assert "Traceback" not in ended.err


UNWRITABLE = (
    WORK
    + """
with spanfold.run("r", dir=sys.argv[1]) as opened:
    work(3)
    print(opened.stats.held > 5, len(opened.trace_id))
with spanfold.run("named", dir=sys.argv[2]):
    work(1)
print("done")
"""
)


@pytest.mark.case("C-052")
def test_a_run_directory_that_cannot_be_made_is_told_and_other_runs_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")

    ended = run(UNWRITABLE, tmp_path / "file" / "run", tmp_path / "good")

    assert ended.out.splitlines() == ["True 32", "done"]
    assert str(tmp_path / "file" / "run") in ended.err
    assert "Traceback" not in ended.err
    assert numbers(tmp_path / "good") == [0]
    assert (tmp_path / "file").read_text() == "not a folder"


@pytest.mark.case("C-052")
@pytest.mark.parametrize(
    ("where", "why"),
    [("file/run", "File exists"), ("/proc/x", "No such file or directory"), ("n" * 300, "File name too long")],
)
@pytest.mark.parametrize("is_left_open", [False, True])
def test_the_last_line_of_a_program_says_how_many_records_of_which_run_are_lost_and_why(
    tmp_path: Path, where: str, why: str, is_left_open: bool
) -> None:
    (tmp_path / "file").write_text("not a folder")
    program = """
import sys, spanfold
opened = spanfold.run("r", dir=sys.argv[1])
with spanfold.stage("M1"): spanfold.event("e")
if sys.argv[2] == "False": opened.close()
"""
    ended = run(program, where, is_left_open, cwd=tmp_path)

    last = ended.err.splitlines()[-1]
    assert last.startswith(f"{tmp_path / where}: 5 records of this run are lost for good")
    assert why in last
    assert ended.err.count("Name another folder for the run.") == 1
    assert "Free space" not in ended.err
    assert "journal is not affected" not in ended.err


@pytest.mark.case("C-051")
def test_what_a_full_disk_never_took_is_told_at_the_exit_with_the_advice_to_free_space(tmp_path: Path) -> None:
    program = WORK + "\nwith spanfold.run('r', dir=sys.argv[1]): work(3)\n"
    with small_disk(tmp_path / "disk") as disk:
        fill(disk)
        change_disk(disk, "nr_inodes=2")
        ended = run(program, disk / "run")

    assert ended.err.count("Free space.") == 1
    last = ended.err.splitlines()[-1]
    assert "records of this run are lost for good" in last
    assert "No space left on device" in last


@pytest.mark.case("C-052")
def test_a_program_without_home_temporary_folder_or_a_place_to_write_runs_as_if_we_were_not_there(
    tmp_path: Path,
) -> None:
    program = """
import os
del os.environ["HOME"]
import spanfold
with spanfold.run("r") as opened:
    with spanfold.stage("M1"):
        spanfold.event("e", number=1)
    print(opened.stats.held)
print(os.listdir("."))
"""
    with small_disk(tmp_path / "disk") as disk:
        change_disk(disk, "ro")
        env = {"TMPDIR": "/nowhere", "XDG_CACHE_HOME": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"}
        ended = run(program, env=env, cwd=disk)

    assert ended.out.splitlines() == ["4", "[]"]
    assert "Traceback" not in ended.err
    assert len(ended.err.splitlines()) <= 5


@pytest.mark.case("C-052")
def test_importing_writes_nothing_and_looks_for_nothing_in_the_home_of_the_user(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        change_disk(disk, "ro")
        env = {"HOME": str(disk), "TMPDIR": str(disk), "PYTHONDONTWRITEBYTECODE": "1"}
        ended = run("import spanfold, os; print(os.listdir())", env=env, cwd=disk)
        assert (ended.out, ended.err) == ("[]\n", "")


@pytest.mark.case("C-052")
def test_a_working_directory_that_is_gone_matters_only_to_relative_paths(tmp_path: Path) -> None:
    program = (
        WORK
        + """
os.mkdir(sys.argv[1]); os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])
with spanfold.run("absolute", dir=sys.argv[2]) as opened:
    work(2)
    print(opened.stats.held, opened.losses)
with spanfold.run("relative", dir="here") as opened:
    work(2)
    print(opened.stats.held > 5)
    os.chdir("/")
print("done")
"""
    )
    ended = run(program, tmp_path / "gone", tmp_path / "run")

    assert ended.out.splitlines() == ["0 {}", "True", "done"]
    assert "Traceback" not in ended.err
    assert numbers(tmp_path / "run") == [0, 1]
    assert verify_journal(tmp_path / "run").state == "intact"


@pytest.mark.case("C-052")
def test_a_repository_that_cannot_be_read_costs_one_fact_and_no_secret_of_it_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the-content-of-another-file")
    program = "import sys, spanfold\nwith spanfold.run('r', dir=sys.argv[1]) as r: spanfold.event('e', number=1)"
    heads: list[bytes] = [b"\xff\xfe\x00", b"ref: ../../secret", b"ref: " + b"x" * 5000, b"", b"no commit"]
    for number, head in enumerate(heads):
        git = tmp_path / f"repository{number}" / ".git"
        git.mkdir(parents=True)
        (git / "HEAD").write_bytes(head)
        run(program, tmp_path / f"run{number}", cwd=git.parent)

        (root,) = raw.spans(tmp_path / f"run{number}")
        assert "spanfold.git_commit" not in root["attributes"]
        assert root["attributes"]["spanfold.python_version"]
        assert b"the-content-of" not in raw.files(tmp_path / f"run{number}")[0].read_bytes()
    git = tmp_path / "fifo" / ".git"
    git.mkdir(parents=True)
    os.mkfifo(git / "HEAD")
    run(program, tmp_path / "run-fifo", cwd=git.parent)
    assert len(raw.spans(tmp_path / "run-fifo")) == 1
