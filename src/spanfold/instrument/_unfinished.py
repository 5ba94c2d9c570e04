"""Runs that ended while the disk refused their last records: they wait in memory, and are tried again."""

import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from spanfold.instrument._guard import lost
from spanfold.instrument._recording import Recording
from spanfold.instrument._state import state

if TYPE_CHECKING:
    from spanfold.instrument._run import Run

log = logging.getLogger("spanfold")

_MAX_UNFINISHED: Final = 8
"""Runs that wait; each may hold `journal.MAX_HELD_BYTES`."""

_unfinished: "list[Run]" = []
"""The runs, oldest first."""


def keep_unfinished(run: "Run") -> None:
    """Keep a run whose end the disk refused; of too many the oldest are given up."""
    _unfinished.append(run)
    for given_up in _unfinished[:-_MAX_UNFINISHED]:
        _unfinished.remove(given_up)
        tell_unfinished([given_up])
        lost("the last records of a run, which the disk never took")


def finish_unfinished() -> "tuple[Run, ...]":
    """Try again to write the end of runs that ended while the disk refused it; return those that still wait."""
    for run in list(_unfinished):
        if run.finish() and run in _unfinished:
            _unfinished.remove(run)
    return tuple(_unfinished)


def tell_unfinished(recordings: Iterable[Recording]) -> None:
    """Say what is lost of recordings that nobody tries to write any more."""
    for recording in recordings:
        stats = recording.stats
        if stats.held:
            log.error(
                "%s: %d records of this run are lost for good; they could not be written (%s).",
                recording.dir,
                stats.held + stats.lost,
                stats.problem or "the reason was logged",
            )
        elif recording.closed and not recording.journal.is_sealed:
            log.error(
                "%s: the seal of this run could not be written (%s). Its records are; `spanfold run recover` seals it.",
                recording.dir,
                stats.problem or "the reason was logged",
            )


def unfinished() -> tuple[Recording, ...]:
    """Return the recordings of this process that may have something in memory when it exits, after the last try."""
    return tuple(found for found in (*_unfinished, *state.runs.values(), state.joined) if found is not None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unfinished.clear)
