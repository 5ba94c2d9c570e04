"""Find the runs below a folder and say of each how it stands, quickly.

A run that ended is known from the end of its `run.json`, whose size may be
anything. One that is not known to have ended is looked at more closely: is its
process alive, and if not, what does the journal say?
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from spanfold.errors import SpanfoldError
from spanfold.fold.overview import RunOverview
from spanfold.fold.presence import Presence, Writers
from spanfold.fold.run_state import Status
from spanfold.fold.show import show_run
from spanfold.journal import SUFFIX, documented_run, file_heads, host_name, journal_files, journal_folder, open_journals
from spanfold.routing import STAGES

_JOURNAL: Final = "journal"
_NOT_SEARCHED: Final = frozenset({_JOURNAL, *STAGES, "stages", "artifacts", "media", "node_modules", "__pycache__"})
"""Folders of a run directory that hold no runs, and folders that are large elsewhere."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run directory, and how its run stands."""

    run_dir: Path
    name: str | None
    status: Status | Literal["unreadable"]
    """`running` while the process that records it lives, or lives on a machine that cannot be seen."""
    writer: Presence
    """Of the process that records it; `dead` for a run that ended."""
    start: str | None
    """`2026-11-30T17:52:26.819391Z`."""
    seconds: float | None
    """Duration; None until the run ended."""
    last_record: str | None
    """Time of the last record of a run that was interrupted; None for others."""
    records: int | None
    trace_id: str | None
    host: str | None
    pid: int | None
    is_sealed: bool
    """Whether the journal is sealed; one that ended badly may need `recover_run`."""
    is_recovered: bool
    """Whether `recover_run` finished it."""
    lost_records: int
    """Records that could not be written, as the recorder itself said later."""
    losses: Mapping[str, int]
    """What else the process could not keep while the run was open -> how often; known when the run has ended."""
    problem: str
    """Why the run is `unreadable`."""


def list_runs(folder: Path, *, unreadable: Callable[[Path], None] | None = None) -> list[ListedRun]:
    """Return every run at or below a folder, newest first. Links to folders are not followed.

    Args:
        folder: Where to look; hidden folders and those that spanfold makes inside a run are left out.
        unreadable: Told of each folder that this user may not read: it may be a run, or hold some.

    Raises:
        NotADirectoryError, FileNotFoundError: There is no such folder.
    """
    runs = [_look_at(run_dir) for run_dir in find_runs(folder, unreadable=unreadable)]
    return sorted(runs, key=lambda run: (run.start or "", str(run.run_dir)), reverse=True)


def find_runs(folder: Path, *, unreadable: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """Yield every run directory at or below a folder: one whose `journal` holds a journal file, or that has one elsewhere.

    Args:
        folder: Where to look.
        unreadable: Told of each folder that this user may not read.
    """
    refused = unreadable or _ignore
    elsewhere = {place.run_dir for place in open_journals()}
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        try:
            with os.scandir(here) as entries:
                folders = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError as error:
            if here == folder:
                raise
            if isinstance(error, PermissionError):
                refused(here)
            continue  # or gone meanwhile
        if (_JOURNAL in folders and _has_journal(here / _JOURNAL, refused)) or (
            elsewhere and here.resolve() in elsewhere
        ):
            yield here
        waiting += [here / name for name in folders if name not in _NOT_SEARCHED and not name.startswith(".")]


def _ignore(_: Path) -> None:
    """Nobody wants to be told."""


def _has_journal(folder: Path, refused: Callable[[Path], None]) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.endswith(SUFFIX) for entry in entries)
    except PermissionError:
        refused(folder)
        return False
    except OSError:
        return False


def _look_at(run_dir: Path) -> ListedRun:
    try:
        document = documented_run(run_dir) or None
        if document is not None and document.get("status") != "running" and not _goes_on(run_dir, document):
            return _listed(run_dir, document, writer="dead", records=_sealed_records(document))
        is_running = document is not None and document.get("status") == "running"
        writer = "dead" if document is None or not is_running else _writer(document, Writers(run_dir))
        if document is not None and writer != "dead":
            records = sum(head["seq"] for head in file_heads(journal_folder(run_dir)).values())
            return _listed(run_dir, document, writer=writer, records=records)
        return _of_overview(show_run(run_dir))
    except (SpanfoldError, OSError) as error:
        return ListedRun(
            run_dir=run_dir,
            name=None,
            status="unreadable",
            writer="unknown",
            start=None,
            seconds=None,
            last_record=None,
            records=None,
            trace_id=None,
            host=None,
            pid=None,
            is_sealed=False,
            is_recovered=False,
            lost_records=0,
            losses={},
            problem=str(error),
        )


def _goes_on(run_dir: Path, document: Mapping[str, Any]) -> bool:
    """Whether there are journal files that the seal a document was made from does not know: a later session's."""
    sealed = _table(_table(document.get("seal")).get("files"))
    return bool(sealed) and any(path.name not in sealed for path in journal_files(run_dir))


def _writer(document: Mapping[str, Any], writers: Writers) -> Presence:
    """Return what has become of the process that began a run."""
    if _text(document.get("host")) not in (None, host_name()):
        return "unknown"
    return "alive" if document.get("pid") in writers.living.values() else "dead"


def _sealed_records(document: Mapping[str, Any]) -> int | None:
    """Return how many lines a sealed journal has, the sealing one included; None when that is not told."""
    files = _table(_table(document.get("seal")).get("files"))
    counts = [_table(head).get("seq") for head in files.values()]
    return sum(count for count in counts if type(count) is int) + 1 if counts else None


def _of_overview(run: RunOverview) -> ListedRun:
    pid = run.facts.get("pid")
    return ListedRun(
        run_dir=run.run_dir,
        name=run.name,
        status=run.status,
        writer=run.writer,
        start=run.start,
        seconds=run.seconds,
        last_record=run.last_record if run.status == "interrupted" else None,
        records=run.records,
        trace_id=run.trace_id,
        host=_text(run.facts.get("host")),
        pid=pid if type(pid) is int else None,
        is_sealed=run.is_sealed,
        is_recovered=run.recovered is not None,
        lost_records=run.lost_records,
        losses=run.losses,
        problem="",
    )


def _listed(run_dir: Path, document: Mapping[str, Any], *, writer: Presence, records: int | None) -> ListedRun:
    """Return a run as its document tells, whatever has become of the document."""
    status, seconds, pid, losses = (document.get(key) for key in ("status", "seconds", "pid", "losses"))
    lost = _table(losses).get("journal_records")
    return ListedRun(
        run_dir=run_dir,
        name=_text(document.get("name")),
        status=cast("Status", status) if status in get_args(Status) else "unreadable",
        writer=writer,
        start=_text(document.get("start")),
        seconds=float(seconds) if isinstance(seconds, int | float) else None,
        last_record=_text(document.get("end")) if status == "interrupted" else None,
        records=records,
        trace_id=_text(document.get("otel_trace_id")),
        host=_text(document.get("host")),
        pid=pid if type(pid) is int else None,
        is_sealed=isinstance(document.get("seal"), dict),
        is_recovered=isinstance(document.get("recovered"), dict),
        lost_records=lost if type(lost) is int else 0,
        losses={what: n for what, n in _table(losses).items() if what != "journal_records" and type(n) is int},
        problem="" if status in get_args(Status) else "run.json tells no status that is known here",
    )


def _text(value: Any) -> str | None:
    return value if type(value) is str else None


def _table(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
