"""Find the runs beside a new one that a destination was meant to get and has not got whole.

A run is meant for a destination when the process that recorded it began to send
it there: it has an acknowledgement file of that destination then (`_acks`).
Runs of others, runs that a living process records, and runs that another
machine records, as far as can be seen from here, are left alone. Nothing is
changed, no link is followed, and a folder of any size takes bounded time and
memory.
"""

import contextlib
import heapq
import os
import stat
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from spanfold import names
from spanfold.deliver._acks import ACKED, FOLDER, anything_waits, is_event
from spanfold.errors import SpanfoldError
from spanfold.fs import SafeRoot
from spanfold.journal import (
    SUFFIX,
    NotOtlp,
    OpenJournal,
    Tail,
    decode_line,
    documented_run,
    host_name,
    journal_files,
    live_writer,
    open_journals,
)

MAX_RUNS: Final = 1000
"""Runs of one folder that are looked at, the newest ones."""
LOOK_S: Final = 5.0
"""Seconds that one look may take; the newest runs are looked at first."""
MAX_FIRST_LINES: Final = 100
"""Journal files of a run in which its beginning is looked for."""
_JOURNAL: Final = "journal"


@dataclass(slots=True)
class Found:
    """What a look at a folder has found."""

    waiting: list[tuple[Path, list[str]]] = field(default_factory=list[tuple[Path, list[str]]])
    """Run directories with the keys of the destinations they wait for, newest first."""
    left: Counter[str] = field(default_factory=Counter[str])
    """Why other runs are left alone -> how many; those for which nothing waits are not counted."""


def look_beside(folder: Path, keys: Collection[str], deadline: float) -> Found:
    """Look for runs in a folder that wait for destinations, and rest for as long as it has kept the processor from others.

    Args:
        folder: Holds run directories; those in folders of it are not looked for.
        keys: Of the destinations.
        deadline: Monotonic seconds after which no further run is looked at.
    """
    found = Found()
    folder = Path(os.path.realpath(folder))  # it was chosen by the user, who may reach it through a link
    try:
        newest = _newest(folder, deadline, found.left)
        root = SafeRoot(folder)
    except (OSError, SpanfoldError):
        return found
    # Listed once: of a diagnose loop that was killed the journal stands outside of its run directory.
    elsewhere = {place.run_dir: place for place in open_journals() if place.run_dir.parent == folder} if newest else {}
    seen: dict[str, _Seen] = {}
    for number, name in enumerate(newest):
        if time.monotonic() > deadline:
            found.left["no time left to look at them"] += len(newest) - number
            break
        begun = time.thread_time()
        try:
            seen[name] = _look_at(root, name, elsewhere, keys, deadline)
        except FileNotFoundError:
            continue  # no run, one of this process, or one that was never sent anywhere
        except (OSError, SpanfoldError) as error:
            found.left[f"cannot be read ({type(error).__name__})"] += 1
        # The program that has just begun gets the processor every other time.
        time.sleep(min(1.0, time.thread_time() - begun))
    # Whether a copy waits its acknowledgements do not tell: they may be older than those of the original, or the other way round.
    alike = Counter(run.file for run in seen.values())
    for name, run in seen.items():
        why = "shares its journal with another run, as a copy does" if run.waiting and alike[run.file] > 1 else run.why
        if why:
            found.left[why] += 1
        elif run.waiting:
            found.waiting.append((folder / name, run.waiting))
    return found


class _Seen(NamedTuple):
    """A run that was meant to be sent somewhere."""

    file: str
    """First file of its journal: no two runs have the same."""
    waiting: list[str]
    """Keys of the destinations that it waits for."""
    why: str
    """Why it is left alone; empty when it is not."""


def _newest(folder: Path, deadline: float, left: Counter[str]) -> list[str]:
    """Return the names of the folders in a folder that were changed last, the newest first."""

    def entries() -> Iterator[tuple[int, str]]:
        with os.scandir(folder) as found:
            for entry in found:
                if time.monotonic() > deadline:
                    left["no time left to list them"] += 1
                    return
                if entry.name.startswith("."):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # gone meanwhile
                if stat.S_ISDIR(status.st_mode) and _is_yours(status):
                    yield status.st_mtime_ns, entry.name

    return [name for _, name in heapq.nlargest(MAX_RUNS, entries())]


def _look_at(
    root: SafeRoot, name: str, elsewhere: Mapping[Path, OpenJournal], keys: Collection[str], deadline: float
) -> _Seen:
    """Look at one run.

    Raises:
        FileNotFoundError: It is none, one of this process, or was never meant to be sent to any of these destinations.
        OSError, SpanfoldError: It cannot be looked at.
    """
    place = elsewhere.get(root.path / name)
    journal = SafeRoot(place.journal) if place is not None else root.subroot(f"{name}/{_JOURNAL}")
    meant = [key for key in keys if _has_file(journal, f"{FOLDER}/{key}{ACKED}")]
    if not meant:
        raise FileNotFoundError
    files = _files(journal.path)
    if os.getpid() in _living(files):
        raise FileNotFoundError  # this process sends it already
    if _is_any_alive(files):
        return _Seen(min(files), [], "recorded by a process that lives")
    waiting = [key for key in meant if anything_waits(journal.path, key, deadline)]
    if waiting and _may_be_recorded_elsewhere(root.path / name, journal.path, place):
        return _Seen(min(files), [], "recorded on another machine and not ended")
    return _Seen(min(files, default=""), waiting, "")


def _has_file(journal: SafeRoot, name: str) -> bool:
    try:
        status = journal.stat(name)
    except FileNotFoundError:
        return False
    # What somebody else has put here says nothing of what was meant to be sent.
    return stat.S_ISREG(status.st_mode) and _is_yours(status)


def _is_yours(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def why_left(journal_dir: Path, key: str) -> str:
    """Return why a run that was found must be left alone by now; empty when it need not."""
    files = _files(journal_dir)
    if not files or not _has_file(SafeRoot(journal_dir), f"{FOLDER}/{key}{ACKED}"):
        return "was moved meanwhile"
    return "recorded by a process that lives" if _is_any_alive(files) else ""


def _files(journal_dir: Path) -> list[str]:
    with os.scandir(journal_dir) as entries:
        return [entry.name for entry in entries if entry.name.endswith(SUFFIX)]


def _is_any_alive(files: Iterable[str]) -> bool:
    return bool(_living(files))


def _living(files: Iterable[str]) -> set[int]:
    """Return the ids of the processes that write these files and live."""
    found = (live_writer(name.removesuffix(SUFFIX)) for name in files)
    return {pid for pid in found if pid is not None}


def _may_be_recorded_elsewhere(run_dir: Path, journal_dir: Path, place: OpenJournal | None) -> bool:
    """Whether a run may still be recorded by a process that cannot be seen from here."""
    if place is not None:
        return place.is_elsewhere
    return documented_run(run_dir).get("status") in (None, "running") and _recorded_host(journal_dir) != host_name()


def _recorded_host(journal_dir: Path) -> str:
    """Return the machine that a run says it was recorded on; this one if it says nothing."""
    for path in journal_files(journal_dir)[:MAX_FIRST_LINES]:
        first = next(Tail(path).lines(), None)
        if first is None or not is_event(names.EVENT_STARTED, first.data):
            continue
        with contextlib.suppress(NotOtlp):
            for record in decode_line(first.data, path):
                host = record.attributes.get(f"{names.PREFIX}host")
                if isinstance(host, str):
                    return host
    return host_name()
