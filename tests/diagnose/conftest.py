"""What every test of the diagnose room needs."""

import shutil
import warnings
from pathlib import Path

import pytest
from evalrx.eval_agent.run_logger_v2 import RunLoggerV2

from tests.diagnose.script import play
from tests.langfuse import langfuse  # noqa: F401 - a fixture


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that the logger of evalrx wrote."""
    work = tmp_path_factory.mktemp("seed").resolve()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        play(RunLoggerV2(work / "run", observability_mode="offline"), work)
    return work / "run"


@pytest.fixture
def seed_run(played: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(played, tmp_path / "run"))
