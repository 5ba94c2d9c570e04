"""A private folder for work in progress, gone when the work is done."""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_folder(above: Path | None = None) -> Generator[Path]:
    """Make an empty folder that only this user may enter, and remove it with all that is in it.

    A process that is killed leaves it behind; its name is hidden and starts with `.spanfold-`.

    Args:
        above: Where to make it; by default the system's folder for temporary files (`TMPDIR`).

    Raises:
        OSError: It cannot be made.
    """
    with tempfile.TemporaryDirectory(prefix=".spanfold-", dir=above) as name:
        yield Path(name).resolve()


def shared_temporary() -> Path:
    """Return the folder for temporary files of all users; what is in it may have been put there by anybody."""
    return Path(tempfile.gettempdir())
