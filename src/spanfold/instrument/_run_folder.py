"""The directory of a run: found, made, and taken for one run only."""

import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from spanfold.errors import SpanfoldError, UnsafeEntryError
from spanfold.fs import SafeRoot, fsync_folder, safe_name
from spanfold.instrument._guard import losing_only, lost
from spanfold.instrument._state import state

log = logging.getLogger("spanfold")

JOURNAL_FOLDER: Final = "journal"
_MAX_SUFFIX: Final = 1_000


def default_folder(name: str) -> Path:
    """Return the directory of a run that was given none: a new one each time."""
    settings = state.ready()
    assert state.gate is not None
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    folder = f"{safe_name(state.gate.scrub_text(name), limit=48)}-{stamp}-{os.urandom(2).hex()}"
    return (settings.run_dir or Path("runs")) / folder


def claim(folder: Path, *, durable: bool) -> Path:
    """Make the run directory and take it, or the next free name beside it when it already holds a run.

    A used directory is never written to again: its journal is sealed. Making
    the journal folder is atomic, so two processes cannot take the same one. A
    link or file in its place is left alone like a used directory: where it
    leads to, nobody has asked us to write.
    """
    try:
        folder = Path(os.path.abspath(folder))
    except OSError as error:
        lost("the run directory: there is no working directory any more; records are kept in memory only", error)
        return folder
    for number in range(1, _MAX_SUFFIX):
        candidate = folder if number == 1 else folder.parent / f"{folder.name}-{number}"
        try:
            _make(candidate, durable=durable)
        except (FileExistsError, UnsafeEntryError) as error:
            if folder.parent.is_dir():
                continue
            return _memory_only(candidate, error)
        except (OSError, SpanfoldError, ValueError) as error:  # ValueError: no path at all, such as one with NUL in it
            return _memory_only(candidate, error)
        if number > 1:
            log.warning(
                "%s already holds a run or is no plain directory, and is left as it is; this run is recorded in %s.",
                folder,
                candidate,
            )
        return candidate
    lost(f"the run directory {folder}: {_MAX_SUFFIX} names beside it are taken; records are kept in memory only")
    return folder


def _memory_only(folder: Path, error: Exception) -> Path:
    lost(f"the run directory {folder}, which cannot be made; records are kept in memory until it can", error)
    return folder


def _make(folder: Path, *, durable: bool) -> None:
    new = [above for above in (folder, *folder.parents) if durable and not above.exists()]
    SafeRoot(folder, create=True, durable=durable).make_dir_exclusive(JOURNAL_FOLDER)
    with losing_only("the flush of a new folder"):
        for made in new:
            fsync_folder(os.path.realpath(made.parent))
