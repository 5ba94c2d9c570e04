"""mypy and pyright, both strict, read the public names as their users' checkers will."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.case("C-015")]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RIGHT, WRONG = HERE / "right_calls.py", HERE / "wrong_calls.py"

Found = dict[int, str]
"""Line to message, for the errors of one file."""


def mypy(file: Path) -> Found:
    # No settings of ours: a user has the installed package and its py.typed, and so has this.
    options = [
        "--config-file=",
        "--strict",
        "--no-pretty",
        "--no-error-summary",
        f"--cache-dir={ROOT / '.cache/mypy-user'}",
    ]
    output = run("mypy", *options, str(file))
    pattern = re.compile(rf"(?:.*/)?{re.escape(file.name)}:(\d+): error: (.*)")
    return {int(m[1]): m[2] for line in output.splitlines() if (m := pattern.fullmatch(line))}


def pyright(file: Path) -> Found:
    report = json.loads(run("pyright", "--outputjson", "--pythonpath", sys.executable, str(file)))
    assert report["summary"]["filesAnalyzed"] == 1
    errors = [d for d in report["generalDiagnostics"] if d["severity"] == "error"]
    return {d["range"]["start"]["line"] + 1: d["message"] for d in errors}


def run(module: str, *arguments: str) -> str:
    # From the root, so that the checkers find their settings; 1 means errors were found, more means it did not work.
    result = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode in (0, 1), result.stdout + result.stderr
    return result.stdout


CHECKERS = pytest.mark.parametrize("checker", [mypy, pyright])


@CHECKERS
def test_a_decorator_keeps_parameter_and_return_types(checker: Callable[[Path], Found]) -> None:
    found = checker(RIGHT)

    assert found == {}


@CHECKERS
def test_a_wrong_call_is_flagged_and_nothing_else(checker: Callable[[Path], Found]) -> None:
    source = WRONG.read_text(encoding="utf-8").splitlines()
    wrong = {number for number, line in enumerate(source, 1) if line.endswith("# wrong")}

    found = checker(WRONG)

    missed = {number: source[number - 1].strip() for number in wrong - found.keys()}
    extra = {number: message for number, message in found.items() if number not in wrong}
    assert (missed, extra) == ({}, {})
