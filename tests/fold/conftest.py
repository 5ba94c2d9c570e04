"""A run directory with a journal file that the test writes itself."""

from pathlib import Path

import pytest

from tests.fold.journals import JournalFile


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def journal(run_dir: Path) -> JournalFile:
    return JournalFile(run_dir / "journal")
