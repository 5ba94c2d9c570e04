"""Look for `doctor` at the runs of a folder: what was interrupted, what was lost, what has not arrived."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from spanfold.cli._places import is_writable, nearest
from spanfold.cli._text import count
from spanfold.deliver import backlogs
from spanfold.fold import ListedRun, list_runs

LOW_BYTES: Final = 100_000_000
"""With less free space than this something is wrong."""
RECENT: Final = 20
"""Of so many runs, the newest ones, it is looked at what destinations have of them: their journals are read for that."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A run that has ended, and that a destination which was sent records of it has not got whole."""

    run_dir: Path
    destination: str
    """Its name."""
    label: str
    """Name and address."""
    refused: int
    """Records refused for good."""
    waiting: int
    """Records neither acknowledged nor refused."""
    reason: str
    """Of the last refusal."""
    key: str
    """Of the destination: what its files begin with, in the journal's folder `.deliver`."""
    is_configured: bool
    """Whether the settings in force still send there."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Where run directories go, and what is there."""

    path: Path
    exists: bool
    writable: bool
    free_bytes: int | None
    n_runs: int
    n_interrupted: int
    """Runs whose process died and that nobody recovered."""
    lost_records: int
    """Records of these runs that could not be written."""
    undelivered: tuple[Undelivered, ...]
    """Among the newest runs."""


class CheckedRuns(NamedTuple):
    """What there is to say of the runs of a folder."""

    folder: Folder
    notes: list[str]
    """What is worth knowing."""
    problems: list[str]
    """What is wrong."""


def check_runs(path: Path, configured: frozenset[str], *, next_sends: bool) -> CheckedRuns:
    """Look at a folder of runs, which need not be there yet.

    Args:
        path: The folder.
        configured: Keys of the destinations that can be sent to.
        next_sends: Whether a new run sends what waits of those beside it.
    """
    runs = list_runs(path) if path.is_dir() else []
    folder = _folder(path, runs, configured)
    notes = [
        f"{run.run_dir} was interrupted; `spanfold run recover {run.run_dir}` finishes it." for run in _left_over(runs)
    ]
    return CheckedRuns(folder, notes, _problems(folder, runs, next_sends=next_sends))


def _folder(path: Path, runs: list[ListedRun], configured: frozenset[str]) -> Folder:
    try:
        stats = os.statvfs(nearest(path))
        free: int | None = stats.f_bavail * stats.f_frsize
    except OSError:
        free = None
    return Folder(
        path=path,
        exists=path.is_dir(),
        writable=is_writable(path),
        free_bytes=free,
        n_runs=len(runs),
        n_interrupted=len(_left_over(runs)),
        lost_records=sum(run.lost_records for run in runs),
        undelivered=tuple(_undelivered(runs[:RECENT], configured)),
    )


def _undelivered(runs: list[ListedRun], configured: frozenset[str]) -> Iterator[Undelivered]:
    for run in runs:
        if run.status in ("running", "unreadable"):
            continue  # the process that records it sends; or its problem is told already
        for backlog in backlogs(run.run_dir):
            if backlog.refused or backlog.waiting:
                yield Undelivered(
                    run.run_dir,
                    backlog.destination,
                    backlog.label,
                    backlog.refused,
                    backlog.waiting,
                    backlog.reason,
                    backlog.key,
                    backlog.key in configured,
                )


def _left_over(runs: list[ListedRun]) -> list[ListedRun]:
    return [run for run in runs if run.status == "interrupted" and not run.is_sealed]


def _problems(folder: Folder, runs: list[ListedRun], *, next_sends: bool) -> list[str]:
    problems: list[str] = []
    if not folder.writable:
        problems.append(
            f"{folder.path}: expected a folder that can be written to, found none; runs would stay in memory."
        )
    if folder.free_bytes is not None and folder.free_bytes < LOW_BYTES:
        problems.append(f"{folder.path}: expected at least 100 MB of free space, found {folder.free_bytes:,} bytes.")
    problems += [
        f"{run.run_dir}: lost {run.lost_records:,} records that could not be written."
        for run in runs
        if run.lost_records
    ]
    problems += [
        f"{run.run_dir}: lost {what} ({count(n, 'time')}) while it was recorded."
        for run in runs
        for what, n in run.losses.items()
    ]
    problems += [_told(found, next_sends=next_sends) for found in folder.undelivered]
    return [*problems, *(run.problem for run in runs if run.problem)]


def _told(found: Undelivered, *, next_sends: bool) -> str:
    where = f"{found.run_dir}: {found.label}"
    parts = (
        [f"{where} has refused {count(found.refused, 'record')} for good ({found.reason})."] if found.refused else []
    )
    if found.waiting:
        waits = f"{'' if parts else f'{where}: '}{count(found.waiting, 'record')} {'waits' if found.waiting == 1 else 'wait'}"
        deliver = f"`spanfold run deliver {found.run_dir}` sends what waits"
        if found.is_configured:
            by_itself = ", and so does the next run beside it" if next_sends else ""
            parts.append(f"{waits}; {deliver}{by_itself}.")
        else:
            parts.append(
                f"{waits}, and it is not configured now. {_name_again(found.destination)}, and {deliver}; or remove "
                f"{found.run_dir / 'journal' / '.deliver' / found.key}.* to give up on it."
            )
    return " ".join(parts)


def _name_again(destination: str) -> str:
    if destination.startswith("langfuse"):
        return "Set LANGFUSE_BASE_URL to that server again, and its keys"
    return "Set OTEL_EXPORTER_OTLP_TRACES_ENDPOINT to that address again"  # which is taken as it is
