"""Fold a run that somebody else records or has recorded."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from spanfold.errors import JournalMissing
from spanfold.fold.engine import JOURNAL, Engine, FoldResult
from spanfold.fold.witness import require_whole
from spanfold.journal import journal_files, journal_folder

POLL_S: Final = 0.25


def fold_run(run_dir: Path, *, into: Path | None = None, force: bool = False) -> FoldResult:
    """Make every document of a run again, from nothing but its journal.

    Args:
        run_dir: The run directory.
        into: Write the documents here instead of into the run directory.
        force: Replace the documents though the journal has lost something that they may still hold.

    Raises:
        JournalMissing: There is no journal, or only that is named and not the run directory around it.
        JournalCorrupt: Recorded bytes of the journal are changed or gone. Nothing was written; choose `into`, or `force`.
        LockedError: The run is being folded in place by a living process; choose `into`.
        FoldError: A record cannot be folded.
        OSError: The documents cannot be written; those that were there are intact.
    """
    _require_foldable(run_dir, into, force=force)
    engine = Engine(run_dir, into=into)
    engine.fold_again()
    return engine.result()


def follow(
    run_dir: Path, *, stop: Callable[[], bool], into: Path | None = None, poll_s: float = POLL_S, force: bool = False
) -> FoldResult:
    """Keep the documents of a run up to date while another process records it.

    Returns when the run was sealed, with its documents finished, or when `stop`
    says so; then another call goes on from there.

    Args:
        run_dir: The run directory.
        stop: Asked after each look at the journal.
        into: Write the documents here instead of into the run directory.
        poll_s: Seconds between two looks.
        force: As for `fold_run`.

    Raises:
        JournalMissing: There is no journal, or only that is named and not the run directory around it.
        JournalCorrupt: As `fold_run`, before anything is followed.
        LockedError: Another process folds this run into the same place.
        FoldError: A record cannot be folded.
        OSError: The documents cannot be written; those that were there are intact.
    """
    _require_foldable(run_dir, into, force=force)
    engine = Engine(run_dir, into=into)
    try:
        engine.tick()
        while not (engine.is_sealed or stop()):
            time.sleep(poll_s)
            if journal_folder(engine.run_dir) != engine.journal_dir:
                engine.release()  # the journal of a diagnose loop that has ended went into the run directory
                engine = Engine(run_dir, into=into)
            engine.tick()
    except BaseException:
        engine.release()
        raise
    if engine.is_sealed:
        engine.close()
    else:
        engine.release()
    return engine.result()


def _require_foldable(run_dir: Path, into: Path | None, *, force: bool) -> None:
    """Refuse what is no run, and to replace documents that may be all that is left of lost records."""
    files, run = journal_files(run_dir), run_dir.resolve()
    is_in_place = into is None or into.resolve() == run
    if not files or (is_in_place and run.name == JOURNAL and files[0].parent == run):
        raise JournalMissing(run_dir)  # the documents would stand among the journal files
    if is_in_place and not force:
        require_whole(run_dir)
