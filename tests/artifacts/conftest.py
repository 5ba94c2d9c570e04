from pathlib import Path

import pytest

from spanfold.fs import SafeRoot


@pytest.fixture
def root(tmp_path: Path) -> SafeRoot:
    """A run directory."""
    return SafeRoot(tmp_path / "run", create=True)
