"""What somebody else's tests notice of spanfold being installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SUITE = """
import importlib.metadata
import sys

import pytest


@pytest.mark.parametrize("number", range(4))
def test_of_somebody_else(number):
    assert importlib.metadata.version("spanfold")
    assert [name for name in sys.modules if name.partition(".")[0] == "spanfold"] == []
"""


@pytest.mark.case("C-060")
@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_suite_that_never_uses_spanfold_never_loads_it(tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SPANFOLD_"))}

    command = [sys.executable, "-P", "-m", "pytest", "-n", processes, "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["test_suite.py"]
