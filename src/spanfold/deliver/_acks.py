"""What a destination has acknowledged of a run, and what it has refused: the files of `journal/.deliver`.

`<key>.ack.jsonl` says how far the destination has come in each journal file:
everything before the last offset of a file was acknowledged or refused for
good. Its first line names the destination, so that one that never answered can
be seen too. `<key>.refused.jsonl` names what was refused, and why.
`<key>.lock` is held by whoever sends. Key: name of the destination and 8 hex
digits of its address (`Destination.key`).

A torn or foreign line is passed over: what it acknowledged is sent again.
"""

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import orjson

from spanfold import names
from spanfold.deliver._destination import Destination
from spanfold.errors import LockedError, SpanfoldError
from spanfold.fs import FileLock, SafeRoot
from spanfold.journal import Tail, journal_files, journal_folder

log = logging.getLogger("spanfold")

FOLDER: Final = ".deliver"
ACKED: Final = ".ack.jsonl"
REFUSED: Final = ".refused.jsonl"
LOCK: Final = ".lock"
MAX_UNWRITTEN: Final = 10_000
"""Lines kept in memory while the disk refuses them."""
_KEY: Final = re.compile(r"[a-z][a-z0-9-]*-[0-9a-f]{8}")


class Acknowledgements:
    """The acknowledgements of one destination for one run, for the one that sends."""

    def __init__(self, journal_dir: Path, destination: Destination) -> None:
        self._journal_dir = journal_dir
        self._destination = destination
        self._lock: FileLock | None = None
        self._unwritten: list[tuple[str, bytes]] = []
        self._is_begun = False
        self.offsets = acked_offsets(journal_dir, destination.key)
        """Journal file -> end of what needs no sending any more."""

    def claim(self) -> bool:
        """Become the one that sends; harmless when repeated.

        Returns:
            Whether somebody else has sent meanwhile, so that what was read must be read again.

        Raises:
            LockedError: Another process, or another part of this one, sends these records to this destination.
            OSError: The folder cannot be written to.
        """
        if self._lock is not None and self._lock.is_held:
            return False
        root = SafeRoot(self._journal_dir)
        root.ensure_dir(FOLDER)
        lock = FileLock(root, f"{FOLDER}/{self._destination.key}{LOCK}")
        try:
            lock.acquire()
        except LockedError:
            raise LockedError(
                f"{self._journal_dir.parent}: expected nobody to send it to {self._destination.label}, found a process that "
                "does. It sends what waits; look again when it has ended."
            ) from None
        self._lock = lock
        before, self.offsets = self.offsets, acked_offsets(self._journal_dir, self._destination.key)
        self._is_begun = _is_there(root, self._acked)
        if not self.offsets:
            self._append(ACKED, {"destination": self._destination.label, "time_ns": time.time_ns()})
        return self.offsets != before

    def release(self) -> None:
        """Let others send; harmless when repeated."""
        self._write()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def settle(self, offsets: Mapping[str, int], *, sent: int, refused: int) -> None:
        """Note that everything before these offsets has arrived or was refused for good.

        Never raises: what has arrived must not be sent again because a line
        could not be written. It is written later, or the process ends first.
        """
        self.offsets.update(offsets)
        for file, offset in offsets.items():
            line = {"file": file, "offset": offset, "sent": sent, "refused": refused, "time_ns": time.time_ns()}
            self._append(ACKED, line)

    def refuse(self, line: Mapping[str, Any]) -> None:
        """Note a record that was refused for good; never raises."""
        self._append(REFUSED, {**line, "time_ns": time.time_ns()})

    @property
    def _acked(self) -> str:
        return f"{FOLDER}/{self._destination.key}{ACKED}"

    def _append(self, end: str, line: Mapping[str, Any]) -> None:
        self._unwritten.append((end, orjson.dumps(line) + b"\n"))
        self._write()

    def _write(self) -> None:
        if not self._unwritten:
            return
        waiting, self._unwritten = self._unwritten, []
        try:
            root = SafeRoot(self._journal_dir)
            if self._is_begun and not _is_there(root, self._acked):
                # The journal is moving: another file of this name would be in the way when it comes back.
                raise FileNotFoundError(self._acked)
            for end in (REFUSED, ACKED):
                data = b"".join(line for at, line in waiting if at == end)
                if data:
                    with root.open_append(f"{FOLDER}/{self._destination.key}{end}", mend_tail=True) as handle:
                        handle.append(data)
                    waiting = [item for item in waiting if item[0] != end]
            self._is_begun = True
        except (OSError, SpanfoldError) as error:
            log.warning(
                "%s: what %s has acknowledged cannot be written (%s). It is tried again; if this process ends before, "
                "those records are sent once more.",
                self._journal_dir,
                self._destination.label,
                type(error).__name__,
            )
            self._unwritten = waiting[-MAX_UNWRITTEN:]


def _is_there(root: SafeRoot, name: str) -> bool:
    try:
        root.stat(name)
    except FileNotFoundError:
        return False
    return True


def acked_offsets(journal_dir: Path, key: str) -> dict[str, int]:
    """Return how far a destination has come in each journal file."""
    acked: dict[str, int] = {}
    for line in read_lines(journal_dir, key + ACKED):
        file, offset = line.get("file"), line.get("offset")
        if type(file) is str and type(offset) is int:
            acked[file] = max(acked.get(file, 0), offset)
    return acked


def read_lines(journal_dir: Path, name: str, offset: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of the folder, from an offset on, without reading all of it into memory."""
    try:
        for line in Tail(journal_dir / FOLDER / name, offset).lines():
            try:
                found: Any = orjson.loads(line.data)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield cast("dict[str, Any]", found)
    except (OSError, SpanfoldError):
        return


# --- what others see of it ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Backlog:
    """What one destination has not got of one run."""

    key: str
    """Of the destination: its name, and eight digits that stand for its address."""
    label: str
    """Its name and address, without credentials."""
    refused: int
    """Records it refused for good."""
    waiting: int
    """Records it has neither acknowledged nor refused."""
    reason: str
    """Of the last refusal; empty when there was none."""

    @property
    def destination(self) -> str:
        """Name of the destination."""
        return self.key.rpartition("-")[0]


def backlogs(run_dir: Path) -> list[Backlog]:
    """Return a backlog for each destination that records of a run were ever meant for, also if it never answered.

    Nothing is changed. A run that was sent nowhere so far has none.
    """
    journal_dir = _journal(run_dir)
    try:
        found = sorted(entry.name for entry in (journal_dir / FOLDER).iterdir())
    except OSError:
        return []
    keys = dict.fromkeys(name.removesuffix(end) for name in found for end in (ACKED, REFUSED) if name.endswith(end))
    return [_backlog(journal_dir, key) for key in keys if _KEY.fullmatch(key)]


def refusals(run_dir: Path, key: str) -> tuple[int, str]:
    """Return how many records of a run a destination has refused for good so far, and why the last of them."""
    return _refusals(_journal(run_dir), key)


def _journal(run_dir: Path) -> Path:
    try:
        return journal_folder(run_dir)
    except (OSError, SpanfoldError):
        return run_dir / "journal"  # `run verify` says what is wrong with it


def _refusals(journal_dir: Path, key: str) -> tuple[int, str]:
    total, reason = 0, ""
    for line in read_lines(journal_dir, key + REFUSED):
        spans, told = line.get("spans"), line.get("reason")
        total += spans if type(spans) is int else 1
        reason = told if type(told) is str else reason
    return total, reason


def _backlog(journal_dir: Path, key: str) -> Backlog:
    refused, reason = _refusals(journal_dir, key)
    label = key
    for line in read_lines(journal_dir, key + ACKED):
        if type(line.get("destination")) is str:
            label = line["destination"]
            break
    return Backlog(key, label, refused, _waiting(journal_dir, key), reason)


def _waiting(journal_dir: Path, key: str) -> int:
    try:
        return sum(_unsettled(journal_dir, key))
    except (OSError, SpanfoldError):
        return 0  # `run verify` says what is wrong with the journal


def anything_waits(journal_dir: Path, key: str, deadline: float) -> bool:
    """Whether a destination has neither acknowledged nor refused some record of a journal; false when the time is over.

    Raises:
        OSError, SpanfoldError: The journal cannot be read.
    """
    for waits in _unsettled(journal_dir, key):
        if waits or time.monotonic() > deadline:
            return waits
    return False


def _unsettled(journal_dir: Path, key: str) -> Iterator[bool]:
    """Yield of each journal line behind what is acknowledged whether the destination wants it."""
    acked, is_wanted = acked_offsets(journal_dir, key), wanted(key.rpartition("-")[0])
    for path in journal_files(journal_dir):
        for line in Tail(path, acked.get(path.name, 0)).lines():
            yield is_wanted(line.data)


def wanted(name: str) -> Callable[[bytes], bool]:
    """Return what tells, from the bytes of a journal line, whether a destination of this name wants it."""
    event = {"langfuse-scores": names.EVENT_SCORE, "langfuse-media": names.EVENT_ARTIFACT}.get(name)
    return _is_span if event is None else partial(is_event, event)


def _is_span(line: bytes) -> bool:
    return line.startswith(b'{"resourceSpans"')


def is_event(name: str, line: bytes) -> bool:
    """Whether a journal line holds an event of this name, or may do so."""
    # Inside of a text the quotes would be escaped.
    return line.startswith(b'{"resourceLogs"') and f'"{name}"'.encode() in line
