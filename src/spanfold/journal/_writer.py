"""Write a run's journal: one file per process, one line per record, each chained to the line before.

Promises (docs/formats/journal-v1.md):

- When `span` or `event` returns, the line is in the operating system, or it is
  held in memory because the disk refused it, and counted. I/O never raises.
- A file has one writer. A forked child starts a file of its own.
- A line is complete or absent: a failed write is taken back, never glued to.
- What the disk refused is written, in order, as soon as it takes it again, up
  to `MAX_HELD_BYTES`; what is over that is counted, and the count is journaled.

Safe to call from several threads, from a signal handler and from a finalizer
that interrupts an append in the same thread: the inner record waits until the
outer one is written. An exception that a signal handler raises may hit at any
instant: the record is then written once, at the latest before the next one.
"""

import errno
import hashlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from spanfold import names
from spanfold.errors import JournalSealed, SpanfoldError
from spanfold.journal import _descriptors
from spanfold.journal._core import MIDDLE, Encoder, native
from spanfold.journal._frames import Frame, Frames
from spanfold.journal._own_file import SUFFIX, OwnFile, Position, genesis, writer_name
from spanfold.journal._scrub import Gate, scrub_body
from spanfold.journal._values import JsonText

__all__ = ["SUFFIX", "Frame", "Journal", "Position", "Stats", "describe", "genesis", "writer_name"]

log = logging.getLogger("spanfold")

MAX_HELD_BYTES: Final = 8 * 1024 * 1024
"""Records of one journal kept in memory while the disk refuses them."""
RETRY_INTERVAL_S: Final = 0.2
"""How often a refused write is tried again."""
WARNING_INTERVAL_S: Final = 60.0
"""Refusals that follow each other sooner are only counted."""

_monotonic = time.monotonic
_sha256 = hashlib.sha256
# A copy of it is made quicker than a new one.
_fresh_sha256 = hashlib.sha256()
# ValueError is what a handle says that was closed behind our back.
_REFUSALS: Final = (OSError, SpanfoldError, ValueError)

_Item = tuple[bytes, Frame]


class Stats:
    """What a journal wrote and lost; every number only grows, except `held`."""

    def __init__(self) -> None:
        self.held = 0
        """Records waiting in memory because the disk refuses them."""
        self.lost = 0
        """Records that could not be kept."""
        self.redacted = 0
        """Records in which something was redacted or looked at by the rules."""
        self.restored = 0
        """Times the file was removed, replaced or changed under us, and written again or gone on with in a new one."""
        self.problem = ""
        """Why a write or flush failed last: class and error of the system. Stays when the disk takes records again."""


class PythonJournal:
    """The journal of one run, as far as this process writes it; what it does without C.

    Args:
        folder: The journal folder; made with the first record.
        gate: Every record passes it once, before the file.
        resource: Returns the resource attributes of this process; asked again in a forked child.
        durable: fsync on `sync()` (`durability="machine"`).
        scope_version: Version on our instrumentation scope.
    """

    def __init__(
        self,
        folder: Path,
        *,
        gate: Gate,
        resource: Callable[[], Mapping[str, Any]],
        durable: bool = False,
        scope_version: str = "",
    ) -> None:
        self.folder = folder
        self.encoder = Encoder(gate.is_sensitive_name, gate.is_clean)
        self._gate = gate
        self._resource = resource
        self._durable = durable
        self._scope_version = scope_version
        self._begin()
        _live.add(self)

    def _begin(self) -> None:
        """Start as the journal of this process: nothing is opened and no frame made before the first record."""
        self.stats = Stats()
        # Re-entrant, both: a signal handler may record or flush in the middle of either.
        self._lock = threading.RLock()
        self._sync_lock = threading.RLock()
        self._file = OwnFile(self.folder, durable=self._durable)
        self._frames = Frames(self.encoder, self._gate, self._resource, self._scope_version)
        self._span_frame: Frame | None = None
        self._event_frame: Frame | None = None
        self._busy = False
        self._sealed = False
        self._in_flight: tuple[_Item, bytes, int, int] | None = None
        """The item that is being written, its line, and sequence number and file size when it is."""
        self._waiting: deque[_Item] = deque()
        """Items to be written before any other, oldest first."""
        self._waiting_bytes = 0
        self._unreported = 0
        self._next_try = 0.0
        self._next_warning = 0.0
        self._synced = ("", 0)
        self._sealing: _Item | None = None
        self._errands: deque[Callable[[], object]] = deque()
        """What is to be done when the lock is free: log handlers of the host and other journals have locks of their own."""

    # -- writing

    def span(self, body: bytes, is_clean: bool, frame: Frame | None = None, /) -> None:
        """Append one encoded span.

        Args:
            body: What the encoder made.
            is_clean: What the encoder said of it; what did not pass the gate is redacted.
            frame: The line around it; that of our own spans by default.

        Raises:
            JournalSealed: The run is over.
        """
        self._append(body if is_clean else self._scrubbed(body), frame or self._span_frame or self._own_frame("span"))

    def event(self, body: bytes, is_clean: bool, frame: Frame | None = None, /) -> None:
        """Append one encoded log record; arguments and errors as of `span`."""
        self._append(body if is_clean else self._scrubbed(body), frame or self._event_frame or self._own_frame("event"))

    def frame(
        self,
        signal: str,
        *,
        scope_name: str = names.SCOPE,
        scope_version: str | None = None,
        resource: Mapping[str, Any] | None = None,
        schema_url: str = names.GENAI_CONVENTIONS,
    ) -> Frame:
        """Return the constant part of lines of one signal, scope and resource. Cached.

        Args:
            signal: `span` or `event`.
            scope_name: Instrumentation scope.
            scope_version: Its version; ours by default.
            resource: Attributes of the process that made the record; ours by default.
            schema_url: Schema of the attribute names.
        """
        return self._frames.of(
            signal, scope_name=scope_name, scope_version=scope_version, resource=resource, schema_url=schema_url
        )

    def _own_frame(self, signal: str) -> Frame:
        if signal == "span":
            self._span_frame = frame = self.frame("span")
        else:
            self._event_frame = frame = self.frame("event", schema_url="")
        return frame

    def _scrubbed(self, body: bytes) -> bytes:
        self.stats.redacted += 1
        return scrub_body(body, self._gate)

    def _append(self, body: bytes, frame: Frame) -> None:
        item = (body, frame)
        with self._lock:
            if self._busy or self._waiting or self._in_flight is not None or self._sealed:
                self._append_behind(item)
            else:
                file = self._file
                seq = file.seq
                try:
                    self._busy = True
                    if not file.append(frame, body):
                        self._write(item)
                except BaseException as error:
                    # Written and noted in one go, if it was so: the exception came behind it.
                    is_done = self._in_flight is None and file.torn is None and file.seq != seq
                    if is_done or not self._postponed(item, error):
                        raise
                else:
                    self._in_flight = None
                finally:
                    self._busy = False
                if self._waiting:  # a signal handler or finalizer recorded meanwhile, or the disk refused
                    self._drain()
        if self._errands and not self._busy:
            self._run_errands()

    def _append_failed(self, body: bytes, frame: Frame, error: BaseException) -> None:
        """Keep a record that was not appended at one go; raise what is not the disk's refusal. The lock is held."""
        if not self._postponed((body, frame), error):
            raise error

    def _run_errands(self) -> None:
        while self._errands:
            try:
                self._errands.popleft()()
            except Exception:
                return  # another thread was quicker, or a log handler of the host is broken

    def _write(self, item: _Item) -> None:
        """Write one line. The caller sets `_in_flight` back when it has taken note of that."""
        file = self._file
        now = _monotonic()
        # Others may have closed the descriptor, and opened a file of theirs that got its number.
        if file.handle is None or now >= file.next_check or not file.is_open():
            file = self._ready(now)
        handle = file.handle
        assert handle is not None
        body, frame = item
        seq = file.seq + 1
        line = b"".join((frame.head, b"%d" % seq, MIDDLE, file.head, frame.opening, body, frame.tail))
        size = file.size + len(line)
        self._in_flight = (item, line, seq, size)
        handle.add(line)
        digest = _fresh_sha256.copy()
        digest.update(line)
        file.head = digest.hexdigest().encode()
        file.seq = seq
        file.size = size

    def _ready(self, now: float) -> OwnFile:
        before = self._file
        was_open = before.handle is not None
        self._file = file = before.ready(now)
        if file is not before:
            before.close()
        if not was_open:
            self._errands.append(lambda: _descriptors.opened(self))
        self.stats.restored = file.disturbed
        return file

    # -- what could not be written at once

    def _postponed(self, item: _Item, error: BaseException) -> bool:
        """Keep what may not be written; whether the error ends here, as one of the disk does."""
        torn = self._file.torn
        if torn is not None:  # the C core could not take back a part of it
            self._in_flight, self._file.torn = (item, *torn), None
        self._waiting.appendleft(item)
        if not isinstance(error, _REFUSALS):
            return False
        self._refused(error)
        return True

    def _append_behind(self, item: _Item) -> None:
        if self._sealed:
            raise JournalSealed(self.folder)
        if self._waiting_bytes + len(item[0]) > MAX_HELD_BYTES and not self._busy:
            self._drain()
        if self._waiting_bytes + len(item[0]) > MAX_HELD_BYTES:
            self.stats.lost += 1
            self._unreported += 1
            return
        self._waiting.append(item)
        self._waiting_bytes += len(item[0])
        self.stats.held = len(self._waiting)
        if not self._busy:
            self._drain()

    def _drain(self, *, force: bool = False) -> None:
        """Write what waits, oldest first, as far as the disk takes it."""
        if not force and _monotonic() < self._next_try:
            return
        try:
            self._busy = True
            if self._in_flight is not None:
                self._settle()
            while self._waiting or self._unreported:
                self._write_first()
        except _REFUSALS as error:
            self._refused(error)
        finally:
            self._busy = False
            self.stats.held = len(self._waiting)
            self._waiting_bytes = sum(len(body) for body, _ in self._waiting)

    def _write_first(self) -> None:
        if not self._waiting:
            count, self._unreported = self._unreported, 0
            self._waiting.append(self._own_event(names.EVENT_LOST, {"spanfold.count": count}))
        item = self._waiting[0]
        try:
            self._write(item)
        except _REFUSALS:
            raise
        except Exception:  # a fault of ours, for the second time: this record must not keep all others from the disk
            if self._in_flight is not None:
                self._settle()
            if self._waiting and self._waiting[0] is item:
                self._waiting.popleft()
                self.stats.lost += 1
            return
        self._waiting.popleft()
        self._in_flight = None

    def _settle(self) -> None:
        """Find out whether an append that was cut short is in the file; take note of it, or see to it that it is repeated."""
        assert self._in_flight is not None
        item, line, seq, size = self._in_flight
        first = self._waiting[0] if self._waiting else None
        if self._file.has(line, size - len(line)):
            self._file.head = _sha256(line).hexdigest().encode()
            self._file.seq, self._file.size = seq, size
            self._sealed = item is self._sealing
            if first is item:
                self._waiting.popleft()
        elif first is not item and item is not self._sealing:  # a later seal says where the files end then
            self._waiting.appendleft(item)
        self._in_flight = None

    def _refused(self, error: BaseException) -> None:
        now = _monotonic()
        self._next_try = now + RETRY_INTERVAL_S
        self._file.next_check = 0.0
        self.stats.held = len(self._waiting)
        self._complain(
            now,
            error,
            f"cannot be written (%s). The program goes on; up to {MAX_HELD_BYTES >> 20} MiB of records are kept in memory "
            f"and written when that is possible again. {_advice(error)}",
        )

    def _complain(self, now: float, error: BaseException, text: str) -> None:
        self.stats.problem = problem = describe(error)
        if now >= self._next_warning:
            self._next_warning = now + WARNING_INTERVAL_S
            self._errands.append(lambda: log.warning(f"%s: the journal {text}", self.folder, problem))

    def _own_event(self, name: str, attributes: dict[str, Any]) -> _Item:
        body, _ = self.encoder.event(
            trace_id=b"", span_id=b"", name=name, time_ns=time.time_ns(), attributes=attributes, severity=13
        )
        return body, self._event_frame or self._own_frame("event")

    def take_over(self) -> None:
        """Go on in place of an append that a signal handler interrupted in this thread and that will not be resumed."""
        with self._lock:
            self._busy = False

    # -- the end

    @property
    def written(self) -> int:
        """Lines in this process's file."""
        return self._file.seq

    @property
    def is_sealed(self) -> bool:
        """Whether the run is over and nothing more is taken."""
        return self._sealed

    @property
    def position(self) -> Position:
        """How far this process's file has come; file name empty before its first record."""
        with self._lock:
            return self._file.position

    def heads(self) -> dict[str, dict[str, Any]]:
        """Return where each file of this process ends, as this process wrote it, for the seal: see `file_heads`."""
        with self._lock:
            ends = {**self._file.left, self._file.position.file: self._file.position}
        return {file: {"seq": end.seq, "head": end.head, "size": end.size} for file, end in ends.items() if file}

    def sync(self) -> bool:
        """Write what is held if the disk takes it, and with `durable` make it survive a power cut.

        Threads that wait for the same fsync share it.

        Returns:
            Whether everything recorded before is where it belongs.
        """
        with self._lock:
            if not self._busy:
                self._drain(force=True)
            complete = not self._waiting
        if self._durable:
            complete = self._flushed() and complete
        if self._errands and not self._busy:
            self._run_errands()
        return complete

    def _flushed(self) -> bool:
        try:
            with self._lock:
                file = self._file
                name, target = file.name, file.size
                if not target or self._is_synced(name, target):
                    return True
                if file.handle is None:
                    file = self._ready(_monotonic())
                    name, target = file.name, file.size
                assert file.handle is not None
                # A descriptor of its own: this one may be closed or taken from us while the device is busy.
                handle = file.handle.duplicate()
            # From here on without the journal's lock: a signal handler can stand in the middle of an append, which holds
            # that, and wait for this one.
            with handle, self._sync_lock:
                if not self._is_synced(name, target):
                    size = file.size  # set last, when all of it is in the file
                    handle.sync()
                    self._synced = (name, size)
        except _REFUSALS as error:
            with self._lock:
                self._complain(
                    _monotonic(), error, "cannot be flushed to the device (%s): a power cut now could lose its end."
                )
            return False
        return True

    def _is_synced(self, name: str, target: int) -> bool:
        synced, size = self._synced
        return synced == name and size >= target

    def seal(self, heads: Mapping[str, Mapping[str, Any]]) -> bool:
        """Append the sealing event, after which nothing more is taken.

        Args:
            heads: Ends of the files of other processes; those of this one are added.

        Returns:
            Whether the journal is sealed. Not while records are held in memory: try again later.
        """
        with self._lock:
            if not self._busy:
                self._drain(force=True)
                if not self._sealed and not self._waiting:
                    self._write_seal({**heads, **self.heads()})
                if self._sealed:
                    self.stats.lost += len(self._waiting)  # what a finalizer recorded in the middle of this
                    self._waiting.clear()
        if self._errands and not self._busy:
            self._run_errands()
        return self._sealed

    def _write_seal(self, heads: Mapping[str, Any]) -> None:
        # By position: in a second interpreter of the process orjson does not know its own keywords.
        text = orjson.dumps(heads, None, orjson.OPT_SORT_KEYS).decode()
        self._sealing = item = self._own_event(names.EVENT_SEALED, {"spanfold.heads": JsonText(text)})
        try:
            self._busy = True
            self._write(item)
        except _REFUSALS as error:
            self._refused(error)
        else:
            self._sealed, self._in_flight = True, None
        finally:
            self._busy = False

    def release(self) -> bool:
        """Close the descriptor until the next record; False when the journal is in the middle of one."""
        with self._lock:
            if self._busy or self._in_flight is not None:
                return False
            self._file.close()
            return True

    def close(self) -> None:
        """Sync and close the file. A later record opens it again."""
        self.sync()
        if self.release():
            _descriptors.closed(self)

    def after_fork_in_child(self) -> None:
        """Become the journal of the child: the file, and everything that waits, is the parent's."""
        inherited = self._file
        self._begin()
        inherited.close()


def describe(error: BaseException) -> str:
    """Name an error by class and errno, without its text: a path or value in it may be secret."""
    number = getattr(error, "errno", None)
    name = os.strerror(number) if isinstance(number, int) else ""
    return f"{type(error).__name__}: {name}" if name else type(error).__name__


_ADVICE: Final = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Free space."),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "Make the folder writable."),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Raise the limit of open files."),
    errno.EFBIG: "Raise the limit of file sizes.",
}


def _advice(error: BaseException) -> str:
    """Say what to do about a refusal. Where something else stands in the way, only another place helps."""
    return _ADVICE.get(getattr(error, "errno", None) or 0, "Name another folder for the run.")


if not TYPE_CHECKING and native is not None:

    class Journal(native.Writer, PythonJournal):
        __doc__ = PythonJournal.__doc__

    native.setup_writer(PythonJournal.span, PythonJournal.event)
else:

    class Journal(PythonJournal):
        __doc__ = PythonJournal.__doc__


_live: "weakref.WeakSet[PythonJournal]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    _descriptors.forget()
    for journal in list(_live):
        journal.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
