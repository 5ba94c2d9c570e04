"""Journals that stand outside their run directory while the run is open, and their way home.

A recorder whose callers hide every file of the run directory for a while keeps
its journal here:

    <state>/open/<16 hex of the run directory's path>/
      pointer.json     run_dir, trace_id
      lock             held by the process that records
      journal/         as it would stand in the run directory

`<state>` is private to the user: `SPANFOLD_STATE_DIR`, else `spanfold` in
`XDG_STATE_HOME` or `~/.local/state`, else a folder of the user in the system's
temporary folder. When the run ends its journal is moved into the run directory, file
by file, each copied whole and flushed before it is removed here: at every
instant each file is whole in one place. Killed in between, the next process
that opens the run, or `spanfold run recover`, moves the rest.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import orjson

from spanfold.errors import JournalError, LockedError, SpanfoldError
from spanfold.fs import FileLock, FileSpan, SafeRoot
from spanfold.journal._alive import host_name
from spanfold.journal._writer import SUFFIX

__all__ = [
    "OpenJournal",
    "bring_home",
    "claim_journal",
    "journal_elsewhere",
    "open_journals",
    "release_journal",
    "state_folders",
    "take_along",
    "tidy_open_journals",
]

VARIABLE: Final = "SPANFOLD_STATE_DIR"
_OPEN: Final = "open"
_JOURNAL: Final = "journal"
_POINTER: Final = "pointer.json"
_LOCK: Final = "lock"
_ACKS: Final = ".deliver"
_NEW_S: Final = 60.0
_NOT_MOVED: Final = frozenset({".fold", ".recover.lock"})


@dataclass(slots=True)
class OpenJournal:
    """The journal of a run, outside of its run directory."""

    run_dir: Path
    """Where it belongs, absolute."""
    folder: Path
    """What holds the journal folder, the pointer and the lock."""
    trace_id: str
    """Trace id of the documents, as their recorder wrote it down."""
    host: str = ""
    """Machine of the process that records it; empty when that is not told."""
    lock: FileLock | None = None
    """Held while this process records."""

    @property
    def journal(self) -> Path:
        """The journal folder."""
        return self.folder / _JOURNAL

    @property
    def is_elsewhere(self) -> bool:
        """Whether it was recorded on another machine, with which this one shares the folder."""
        return self.host not in ("", host_name())

    def is_recorded(self) -> bool:
        """Whether a living process records into it, or one of another machine, which cannot be seen from here."""
        if self.is_elsewhere:
            return True
        try:
            with FileLock(SafeRoot(self.folder), _LOCK):
                return False
        except LockedError:
            return True
        except (OSError, SpanfoldError):
            return False


def state_folders() -> Iterator[Path]:
    """Yield the folders that may hold open journals, the preferred one first; the journals are in `open` in each."""
    given = os.environ.get(VARIABLE)
    if given:
        yield Path(os.path.abspath(given))
        return
    base = os.environ.get("XDG_STATE_HOME")
    if base and os.path.isabs(base):
        yield Path(base) / "spanfold"
    else:
        with contextlib.suppress(RuntimeError):  # a user without a home
            yield Path.home() / ".local" / "state" / "spanfold"
    from spanfold.fs.scratch import shared_temporary  # loads more than most programs need

    yield shared_temporary() / f"spanfold-{os.getuid() if hasattr(os, 'getuid') else 'state'}"


def _key(run_dir: Path) -> str:
    return hashlib.sha256(os.fsencode(os.path.realpath(run_dir))).hexdigest()[:16]


def _is_private(folder: Path) -> bool:
    """Whether a folder is ours alone: in a shared place somebody else may have planted one."""
    found = os.lstat(folder)
    return not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o022)


def claim_journal(run_dir: Path, trace_id: str) -> OpenJournal | None:
    """Take the place for the journal of a run, for as long as this process lives or until `release_journal`.

    Args:
        run_dir: The run directory.
        trace_id: Trace id of its documents.

    Returns:
        The place; None when no folder of the user can be written to.

    Raises:
        LockedError: A living process, or this one, records this run already.
    """
    for state in state_folders():
        try:
            root = SafeRoot(state, create=True)
            if not _is_private(state):
                continue
            name = f"{_OPEN}/{_key(run_dir)}"
            root.ensure_dir(f"{name}/{_JOURNAL}")
            folder = root.subroot(name)
            lock = FileLock(folder, _LOCK)
            lock.acquire()
            before = _read(state / name)
            if before is not None and before.is_elsewhere and _has_files(before.journal):
                lock.release()
                raise LockedError(f"recorded on {before.host}; `spanfold run recover --assume-dead` if that is over")
        except LockedError as error:
            raise LockedError(
                f"{run_dir}: expected a run directory nobody records into, found one that is being recorded. Close the "
                f"other logger first, or give this one a directory of its own. ({error})"
            ) from None
        except (OSError, SpanfoldError):
            continue
        place = OpenJournal(Path(os.path.realpath(run_dir)), state / name, trace_id, host_name(), lock)
        _point(folder, place)
        return place
    return None


def _point(folder: SafeRoot, place: OpenJournal) -> None:
    told = {
        "schema": "spanfold.open_journal/1",
        "run_dir": str(place.run_dir),
        "trace_id": place.trace_id,
        "host": host_name(),
    }
    with contextlib.suppress(OSError, SpanfoldError):  # a full disk: the journal is found by its name all the same
        folder.replace_atomic(_POINTER, orjson.dumps(told) + b"\n", durable=False)


def tidy_open_journals() -> None:
    """Remove places without a journal, which processes left that were killed before their first record or after their last."""
    for state in state_folders():
        with contextlib.suppress(OSError):
            for folder in (state / _OPEN).iterdir():
                # A place that is new may not be locked yet.
                if _has_files(folder / _JOURNAL) or time.time() - folder.stat().st_mtime < _NEW_S:
                    continue
                with contextlib.suppress(OSError, SpanfoldError), FileLock(SafeRoot(folder), _LOCK):
                    _forget(OpenJournal(Path(), folder, ""))


def open_journals() -> list[OpenJournal]:
    """Return every journal of this user that stands outside of its run directory, sorted by run directory."""
    found: dict[Path, OpenJournal] = {}
    for state in state_folders():
        with contextlib.suppress(OSError):
            for folder in sorted((state / _OPEN).iterdir()):
                place = _read(folder)
                if place is not None and _has_files(place.journal):
                    found.setdefault(place.run_dir, place)
    return [found[run_dir] for run_dir in sorted(found)]


def _read(folder: Path) -> OpenJournal | None:
    try:
        told: Any = orjson.loads(SafeRoot(folder).read_bytes(_POINTER))
    except (OSError, SpanfoldError, ValueError):
        return None
    if not isinstance(told, dict):
        return None
    known = cast("dict[str, Any]", told)
    run_dir, trace_id = known.get("run_dir"), known.get("trace_id")
    if not (type(run_dir) is str and os.path.isabs(run_dir)):
        return None
    host = known.get("host")
    return OpenJournal(
        Path(run_dir), folder, trace_id if type(trace_id) is str else "", host if type(host) is str else ""
    )


def _has_files(journal: Path) -> bool:
    try:
        with os.scandir(journal) as entries:
            return any(entry.name.endswith(SUFFIX) for entry in entries)
    except OSError:
        return False


def journal_elsewhere(run_dir: Path) -> OpenJournal | None:
    """Return the journal of a run that stands outside of its run directory; None when there is none.

    A run directory that was moved while its run was open is known by the trace
    id in its run.json.
    """
    key = _key(run_dir)
    for state in state_folders():
        folder = state / _OPEN / key
        if _has_files(folder / _JOURNAL):
            return _read(folder) or OpenJournal(Path(os.path.realpath(run_dir)), folder, "")
    return _of_moved(run_dir)


def _of_moved(run_dir: Path) -> OpenJournal | None:
    places = [place for place in open_journals() if place.trace_id and not place.run_dir.exists()]
    if not places:
        return None
    try:
        document: Any = orjson.loads(SafeRoot(run_dir.resolve()).read_bytes("run.json"))
    except (OSError, SpanfoldError, ValueError):
        return None
    trace_id = cast("dict[str, Any]", document).get("trace_id") if isinstance(document, dict) else None
    return next((place for place in places if place.trace_id == trace_id), None)


# -- moving


def take_along(place: OpenJournal) -> None:
    """Move what a run directory has of its journal to a claimed place, so that the run goes on there.

    Raises:
        JournalError: A file of the same name and other content is in the way.
        OSError, SpanfoldError: As the system says; what was moved stays moved.
    """
    home = place.run_dir / _JOURNAL
    if home.is_dir() and not home.is_symlink():
        _move(SafeRoot(home), SafeRoot(place.journal, create=True))
        _remove_empty(SafeRoot(place.run_dir), _JOURNAL)


def bring_home(run_dir: Path, *, assume_dead: bool = False) -> bool:
    """Move a journal that its process left elsewhere into the run directory; whether there was one.

    Args:
        run_dir: The run directory.
        assume_dead: Go on although the run was recorded on another machine.

    Raises:
        LockedError: The process that records it still lives.
        JournalError, OSError, SpanfoldError: As `take_along`.
    """
    place = journal_elsewhere(run_dir)
    if place is None:
        return False
    if place.is_elsewhere and not assume_dead:
        raise LockedError(
            f"{run_dir}: expected a run recorded here, found one of {place.host}, whose processes cannot be seen from here. "
            "Recover it there, or say that it is over: `spanfold run recover --assume-dead`."
        )
    lock = FileLock(SafeRoot(place.folder), _LOCK)
    try:
        lock.acquire()
    except LockedError as error:
        raise LockedError(
            f"{run_dir}: expected a run whose process has ended, found one that is being recorded. {error}"
        ) from None
    place.lock, place.run_dir = lock, Path(os.path.realpath(run_dir))
    release_journal(place)
    return True


def release_journal(place: OpenJournal) -> None:
    """Move the journal of a claimed place into its run directory and give the place up.

    Raises:
        JournalError, OSError, SpanfoldError: As `take_along`; the place is given up all the same.
    """
    try:
        if _has_files(place.journal):
            root = SafeRoot(place.run_dir, create=True)
            root.ensure_dir(_JOURNAL)
            _move(SafeRoot(place.journal), SafeRoot(place.run_dir / _JOURNAL, durable=True))
        _forget(place)
    finally:
        if place.lock is not None:
            place.lock.release()
            place.lock = None


def _forget(place: OpenJournal) -> None:
    """Remove an empty place. Somebody who waits for its lock finds that the file he has locked has no name any more."""
    with contextlib.suppress(OSError, SpanfoldError):
        root = SafeRoot(place.folder)
        for entry in list(root.walk()):
            # Locks of those that fold, recover or send: nobody holds them any more, or he will find them gone. And what
            # a fold that was killed has left, which is made of the journal.
            is_left = entry.path.endswith(".lock") or entry.path.startswith(f"{_JOURNAL}/.fold/")
            if is_left and not entry.is_dir and entry.path.startswith(f"{_JOURNAL}/"):
                root.unlink(entry.path)
        for name in (f"{_JOURNAL}/.fold", f"{_JOURNAL}/{_ACKS}", _JOURNAL):
            _remove_empty(root, name)
        for name in (_POINTER, _LOCK):
            with contextlib.suppress(FileNotFoundError):
                root.unlink(name)
        _remove_empty(SafeRoot(place.folder.parent), place.folder.name)


def _remove_empty(root: SafeRoot, rel: str) -> None:
    with contextlib.suppress(OSError, SpanfoldError):
        root.remove_dir(rel)


def _move(source: SafeRoot, target: SafeRoot) -> None:
    """Move every file of a journal folder; acknowledgements first, since records without them would be sent again."""
    names = [entry.path for entry in source.walk() if not entry.is_dir and not _stays(entry.path)]
    for name in sorted(names, key=lambda name: (not name.startswith(f"{_ACKS}/"), name)):
        above = name.rpartition("/")[0]
        if above:
            target.ensure_dir(above)
        _move_file(source, target, name)


def _stays(path: str) -> bool:
    return path.partition("/")[0] in _NOT_MOVED or path.endswith(".lock")


def _move_file(source: SafeRoot, target: SafeRoot, name: str) -> None:
    size = source.stat(name).st_size
    with source.open_read(name) as file:
        span = [FileSpan(file.fileno(), 0, size)] if size else []
        try:
            target.create_exclusive(name, span)
        except FileExistsError:
            # A move that was cut short has left it in both places. Acknowledgements only grow, so the longer is the newer.
            if not _begins_with(source, target, name):
                raise JournalError(
                    f"{target.path / name}: expected the beginning of {source.path / name}, found another file. Both are "
                    "kept; move one of them aside and run `spanfold run recover` again."
                ) from None
            if target.stat(name).st_size < size:
                target.replace_atomic(name, span, durable=True)
    source.unlink(name)


def _begins_with(source: SafeRoot, target: SafeRoot, name: str) -> bool:
    """Whether one of two files is the beginning of the other."""
    with source.open_read(name) as ours, target.open_read(name) as theirs:
        while True:
            one, other = ours.read(1 << 20), theirs.read(1 << 20)
            length = min(len(one), len(other))
            if one[:length] != other[:length]:
                return False
            if not length:
                return True
