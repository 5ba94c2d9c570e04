"""The benchmarks, started by somebody who has not set them up."""

import subprocess
import sys
from pathlib import Path

CLONE = Path(__file__).parents[2]


def test_benchmarks_without_their_packages_say_in_one_line_what_to_install():
    # -S: without the packages of this environment.
    result = subprocess.run(
        [sys.executable, "-S", "-m", "bench", "--help"],
        cwd=CLONE,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "make setup" in result.stderr
    assert ".venv/bin/python -m bench" in result.stderr
