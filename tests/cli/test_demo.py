"""`spanfold demo`: the first thing a newcomer runs, whole."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from spanfold.cli._exits import Exit
from tests.cli.conftest import HANG_S, Answer, Spanfold, check

pytestmark = pytest.mark.slow

HANG_DEMO_S = 5 * HANG_S


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


def run(folder: Path, *words: str) -> Answer:
    done = subprocess.run(
        [sys.executable, "-m", "spanfold", "demo", "runs", "--cases", "60", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=HANG_DEMO_S,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def shown(folder: Path) -> Answer:
    return run(folder)


def test_it_tells_where_everything_is_and_everything_is_there(folder: Path, shown: Answer) -> None:
    assert shown.code == Exit.DONE, shown.err
    for title in ("The verdict", "Where the time went", "Was the second run faster?", "What to try next"):
        assert title in shown.lines
    for name in ("runs/001-waterfall.png", "runs/001-002.png", "runs/001.spanfold.tar.zst"):
        assert name in shown.out
        assert (folder / name).stat().st_size > 1000
    assert "verified" in shown.out
    for name in ("journal/", "run.json", "M1/", "artifacts/", "timings.jsonl", "langfuse_trace.json"):
        assert re.search(rf"──.* ?{re.escape(name)}", shown.out)
    assert "M1 cycle 0" in shown.err  # narrated on stderr
    assert "M1 cycle 0" not in shown.out


def test_every_command_it_proposes_works(folder: Path, shown: Answer) -> None:
    proposed = [line for line in shown.lines if " spanfold " in line]
    assert len(proposed) == 6

    for line in proposed:
        typed = line[line.index("rm ") if "rm " in line else line.index("spanfold ") :]
        for part in typed.split("; "):
            words = shlex.split(part)
            command = words if words[0] == "rm" else [sys.executable, "-m", *words]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False)
            assert done.returncode == 0, f"{part}: {done.stderr}"


def test_where_a_shell_would_not_find_the_program_the_commands_name_its_path(tmp_path: Path) -> None:
    script = Path(sys.executable).parent / "spanfold"

    done = subprocess.run(
        [script, "demo", "runs", "--cases", "40", "--no-compare"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=HANG_DEMO_S,
        check=True,
    )

    (line,) = [line for line in done.stdout.splitlines() if "what happened" in line]
    typed = shlex.split(line.partition("what happened")[2])
    assert typed[1:3] == ["run", "show"]
    shown = subprocess.run(typed, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=True)
    assert "digits" in shown.stdout


def test_as_json_it_is_one_documented_document(folder: Path, shown: Answer) -> None:
    answer = run(folder, "--json", "--no-compare")

    assert answer.code == Exit.DONE, answer.err
    document = json.loads(answer.out)
    check(document)
    assert Path(document["run_dir"]).name == "003"
    assert document["comparison"] is None
    assert document["bundle"]["ok"] is True
    assert document["same_verdict"] is True


def test_too_few_cases_are_refused_before_anything_is_made(spanfold: Spanfold, tmp_path: Path) -> None:
    answer = spanfold("demo", "--cases", "19")

    assert answer.code == Exit.USAGE
    assert len(answer.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_demo_itself_draws_the_same_line(tmp_path: Path) -> None:
    from spanfold.demo import run_demo

    with pytest.raises(ValueError, match="20 or more"):
        run_demo(tmp_path, cases=19, narrate=lambda line: None)


def test_without_its_packages_it_says_what_to_install(spanfold: Spanfold, tmp_path: Path) -> None:
    # A finder that does not find scikit-learn, as on a machine where it was never installed.
    program = (
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "class Without:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        return None if name.split('.')[0] == 'sklearn' else PathFinder.find_spec(name, path, target)\n"
        "sys.meta_path[sys.meta_path.index(PathFinder)] = Without\n"
        "from spanfold.cli import main\n"
        "sys.exit(main(['demo']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False
    )

    assert done.returncode == Exit.FAILED
    assert (
        done.stderr
        == "spanfold: The demo needs the optional packages of spanfold[demo]: pip install 'spanfold[demo]'.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_told_before_anything_runs(spanfold: Spanfold, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    answer = spanfold("demo", "file/runs", strict=False)

    assert answer.code == Exit.USAGE
    assert answer.err == (
        "spanfold: file/runs: expected a folder that can be written to, found none. "
        "`spanfold demo DIR` records into another.\n"
    )
