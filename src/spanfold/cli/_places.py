"""Find the run a user means."""

import os
from pathlib import Path
from typing import Final

from spanfold import names
from spanfold.cli._exits import NotFound
from spanfold.fs import is_temporary
from spanfold.settings import resolve

LATEST: Final = "latest"
BUNDLE_SUFFIX: Final = ".tar.zst"
"""How the name of a bundle ends."""
_SCRATCH: Final = ".spanfold-"
"""How the names of files begin that are renamed when they are whole."""
_VARIABLE: Final = "SPANFOLD_RUN_DIR"


def run_folder() -> Path:
    """Return the folder that holds run directories: `SPANFOLD_RUN_DIR`, or `runs` here."""
    # Only this variable: who looks at runs need not have settings that recording could use.
    configured = resolve({_VARIABLE: os.environ.get(_VARIABLE, "")}).run_dir
    return Path("runs") if configured is None else near(configured)


def find_run(text: str) -> Path:
    """Return the directory a run was named by.

    Args:
        text: A directory; else a name below the run folder; else `latest`.

    Raises:
        NotFound: There is no such directory, or no run at all.
    """
    given = Path(text)
    if given.is_dir():
        return given
    folder = run_folder()
    if not given.is_absolute() and (folder / given).is_dir():
        return folder / given
    if text == LATEST:
        return latest_run(folder)
    if given.is_file() and text.endswith(BUNDLE_SUFFIX):
        raise NotFound(
            f"{text}: expected a run directory, found a bundle. `spanfold bundle verify {text}` checks it; "
            f"`tar --zstd -xf {text}` unpacks it, and the run directory is then run/."
        )
    found = "a file" if given.exists() else "nothing"
    raise NotFound(
        f"{text}: expected a run directory, found {found} there"
        + ("" if given.is_absolute() else f" and none of that name in {folder}")
        + ". `spanfold run list` shows what there is."
    )


def latest_run(folder: Path) -> Path:
    """Return the newest run of a folder.

    Raises:
        NotFound: There is none.
    """
    from spanfold.fold import list_runs

    runs = list_runs(folder) if folder.is_dir() else []
    if not runs:
        raise NotFound(
            f"{folder}: expected runs, found none. `spanfold demo` makes two; SPANFOLD_RUN_DIR names another folder."
        )
    return runs[0].run_dir


def near(path: Path) -> Path:
    """Return a path as seen from here, if it lies below."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


def nearest(path: Path) -> Path:
    """Return a path, or the folder above it that is there."""
    there = path.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    return there


def is_writable(folder: Path) -> bool:
    """Whether a folder can be written to, or made."""
    there = nearest(folder)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def is_ours(name: str) -> bool:
    """Whether a file or folder of this name is our own bookkeeping: nothing that was recorded, and nothing of the user."""
    return name in names.BOOKKEEPING or name.startswith(_SCRATCH) or is_temporary(name)
