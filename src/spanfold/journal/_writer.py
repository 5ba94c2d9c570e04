"""Write a run's journal: one file per process, one line per record, each chained to the line before.

Promises (docs/formats/journal-v1.md):

- When `append` returns, the line is in the operating system, or it is held in
  memory because the disk refused it, and counted. It never raises for I/O.
- A file has one writer. A forked child starts a file of its own.
- A line is complete or absent: a failed write is taken back, never glued to.
- What the disk refused is written, in order, as soon as it takes it again, up
  to `MAX_HELD_BYTES`; what is over that is counted, and the count is journaled.

Safe to call from several threads, from a signal handler and from a finalizer
that interrupts an append in the same thread: the inner record waits until the
outer one is written.
"""

import hashlib
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from spanfold import names
from spanfold.errors import SpanfoldError
from spanfold.fs import AppendHandle, SafeRoot
from spanfold.journal._encode import Encoder
from spanfold.journal._scrub import Gate, scrub_attributes, scrub_body
from spanfold.journal._values import JsonText

log = logging.getLogger("spanfold")

SUFFIX: Final = ".otlp.jsonl"
MAX_HELD_BYTES: Final = 8 * 1024 * 1024
"""Records kept in memory while the disk refuses them."""
MAX_OPEN_FILES: Final = 64
"""Journal files held open at once; others are closed and opened again when written to."""
CHECK_INTERVAL_S: Final = 0.5
"""How often a writer looks whether its file is still where it was."""
RETRY_INTERVAL_S: Final = 0.2
"""How often a refused write is tried again."""


_monotonic = time.monotonic
_sha256 = hashlib.sha256


class Frame(NamedTuple):
    """The constant bytes of a line: before its sequence number, between chain and record, after the record."""

    head: bytes
    opening: bytes
    tail: bytes


_MIDDLE: Final = b'"}},{"key":"%b","value":{"stringValue":"' % names.LINE_PREV.encode()
_END: Final = {"span": b'"}}]},"spans":[', "event": b'"}}]},"logRecords":['}


class Position(NamedTuple):
    """How far a journal file has come."""

    file: str
    seq: int
    head: str
    size: int


def genesis(writer: str) -> str:
    """Return what the first line of a writer's file has in place of a previous hash."""
    return hashlib.sha256(f"{names.JOURNAL_FORMAT} {writer}".encode("ascii")).hexdigest()


def writer_name() -> str:
    """Return a new writer name: UTC time, process id, 8 random hex digits."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}-{os.urandom(4).hex()}"


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
        """Times the file was removed or replaced under us and written again."""
        self.problem = ""
        """The last reason a write failed: class and errno name."""


class Journal:
    """The journal of one run, as far as this process writes it.

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
        self.stats = Stats()
        self.encoder = Encoder(gate.is_sensitive_name)
        self._gate = gate
        self._resource = resource
        self._durable = durable
        self._scope_version = scope_version
        self._lock = threading.RLock()
        self._sync_lock = threading.Lock()
        self._begin()
        _live.add(self)

    def _begin(self) -> None:
        """Forget everything that belongs to one file and one process."""
        self._name = ""
        self._handle: AppendHandle | None = None
        self._seq = 0
        self._head = b""
        self._size = 0
        self._synced = 0
        self._busy = False
        self._closed = False
        self._in_flight = 0
        self._deferred: deque[tuple[bytes, Frame]] = deque()
        self._held: deque[tuple[bytes, Frame]] = deque()
        self._held_bytes = 0
        self._next_check = 0.0
        self._next_try = 0.0
        self._unreported = 0
        self._frames: dict[Any, Frame] = {}
        self._frame_resources: list[Any] = []
        self._span_frame = self.frame("span")
        self._event_frame = self.frame("event", schema_url="")

    # -- writing

    def passes(self, part: bytes) -> bool:
        """Whether an encoded part of a record needs no redaction.

        Each string lies in one part, so a record made of parts that pass needs
        none either, and a part that recurs is asked about once.
        """
        return self._gate.is_clean(part)

    def span(self, body: bytes, is_clean: bool, frame: Frame | None = None) -> None:
        """Append one encoded span.

        Args:
            body: What the encoder made.
            is_clean: Whether all of it passed the gate and no key names a secret; otherwise it is redacted.
            frame: The line around it; that of our own spans by default.
        """
        self._append(body if is_clean else self._scrubbed(body), frame or self._span_frame)

    def event(self, body: bytes, is_clean: bool, frame: Frame | None = None) -> None:
        """Append one encoded log record; arguments as of `span`."""
        self._append(body if is_clean else self._scrubbed(body), frame or self._event_frame)

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
        version = self._scope_version if scope_version is None else scope_version
        key = (signal, scope_name, version, None if resource is None else id(resource))
        if (known := self._frames.get(key)) is not None:
            return known
        gate = self._gate
        found = self._resource() if resource is None else resource
        pairs = scrub_attributes(orjson.loads(b"[%b]" % self.encoder.attributes(found)), gate)
        group, scoped, items = (
            ("resourceSpans", "scopeSpans", "span") if signal == "span" else ("resourceLogs", "scopeLogs", "event")
        )
        head = (
            f'{{"{group}":[{{"resource":{{"attributes":{orjson.dumps(pairs).decode()}}},"{scoped}":[{{"scope":{{'
            f'"name":{orjson.dumps(gate.scrub_text(scope_name)).decode()},"version":{orjson.dumps(gate.scrub_text(version)).decode()},'
            f'"attributes":[{{"key":"{names.LINE_SEQ}","value":{{"intValue":"'
        ).encode()
        schema = b',"schemaUrl":%b' % orjson.dumps(gate.scrub_text(schema_url)) if schema_url else b""
        tail = b"]%b}]}]}\n" % schema
        frame = Frame(head, _END[items], tail)
        if len(self._frames) < 256:
            self._frames[key] = frame
            self._frame_resources.append(resource)  # an id is only a key while its object lives
        return frame

    def _append(self, body: bytes, frame: Frame) -> None:
        with self._lock:
            if self._busy:  # a signal handler or finalizer interrupted an append of this very thread
                self._deferred.append((body, frame))
                return
            self._busy = True
            try:
                self._put(body, frame)
                while self._deferred:
                    self._put(*self._deferred.popleft())
            finally:
                self._busy = False

    def _scrubbed(self, body: bytes) -> bytes:
        self.stats.redacted += 1
        return scrub_body(body, self._gate)

    def _put(self, body: bytes, frame: Frame) -> None:
        now = _monotonic()
        if self._held:
            if now < self._next_try or not self._write_held(now):
                self._hold(body, frame)
                return
        try:
            self._write(body, frame, now)
        except (OSError, SpanfoldError) as error:
            self._refused(error, now)
            self._hold(body, frame)

    def _write(self, body: bytes, frame: Frame, now: float) -> None:
        handle = self._handle
        if handle is None:
            handle = self._open()
        elif now >= self._next_check:
            self._next_check = now + CHECK_INTERVAL_S
            handle = self._still_there(handle)
        if self._in_flight:
            self._settle(handle)
        seq = self._seq + 1
        line = b"".join((frame.head, b"%d" % seq, _MIDDLE, self._head, frame.opening, body, frame.tail))
        # An exception that a signal handler raises can hit between the write and the lines
        # after it; the next append then sees from the file's size what became of this one.
        self._in_flight = len(line)
        self._in_flight_head = line
        handle.add(line)
        self._head = _sha256(line).hexdigest().encode()
        self._seq = seq
        self._size += len(line)
        self._in_flight = 0

    def _settle(self, handle: AppendHandle) -> None:
        """Find out whether an interrupted append was written, and take it in if so."""
        length, self._in_flight = self._in_flight, 0
        if handle.size == self._size + length:
            self._head = hashlib.sha256(self._in_flight_head).hexdigest().encode()
            self._seq += 1
            self._size += length

    # -- when the disk refuses

    def _refused(self, error: Exception, now: float) -> None:
        self._in_flight = 0
        self._next_try = now + RETRY_INTERVAL_S
        problem = describe(error)
        if problem != self.stats.problem:
            self.stats.problem = problem
            log.warning(
                "%s: the journal cannot be written (%s). The program goes on; up to %d MiB of records are kept in memory "
                "and written when that is possible again. Free space or make the folder writable.",
                self.folder,
                problem,
                MAX_HELD_BYTES >> 20,
            )

    def _hold(self, body: bytes, frame: Frame) -> None:
        if self._held_bytes + len(body) > MAX_HELD_BYTES:
            self.stats.lost += 1
            self._unreported += 1
            return
        self._held.append((body, frame))
        self._held_bytes += len(body)
        self.stats.held = len(self._held)

    def _write_held(self, now: float) -> bool:
        """Write what was held, oldest first; False when the disk still refuses."""
        self._next_try = now + RETRY_INTERVAL_S
        try:
            while self._held:
                body, frame = self._held[0]
                self._write(body, frame, now)
                self._held.popleft()
                self._held_bytes -= len(body)
        except (OSError, SpanfoldError) as error:
            self._refused(error, now)
            return False
        finally:
            self.stats.held = len(self._held)
        self.stats.problem = ""
        if self._unreported:
            count, self._unreported = self._unreported, 0
            self._put(self._own_event(names.EVENT_LOST, {"spanfold.count": count}), self._event_frame)
        return True

    def _own_event(self, name: str, attributes: dict[str, Any]) -> bytes:
        body, _ = self.encoder.event(
            trace_id=b"", span_id=b"", name=name, time_ns=time.time_ns(), attributes=attributes, severity=13
        )
        return body

    # -- the file

    def _open(self) -> AppendHandle:
        root = SafeRoot(self.folder, create=True, durable=self._durable)
        if not self._name:
            self._name = writer_name()
            self._head = genesis(self._name).encode()
        handle = root.open_append(self._name + SUFFIX)
        if handle.size != self._size:
            # Opened again after it was closed for lack of descriptors, and it is not what we left.
            handle.close()
            self.stats.restored += 1
            return self._start_over(root)
        self._handle = handle
        self._next_check = time.monotonic() + CHECK_INTERVAL_S
        _opened(self)
        return handle

    def _start_over(self, root: SafeRoot) -> AppendHandle:
        """Go on in a new file: the old one is not ours any more, and verify will say what happened to it."""
        self._name = writer_name()
        self._head = genesis(self._name).encode()
        self._seq = self._size = self._synced = 0
        self._handle = root.open_append(self._name + SUFFIX)
        self._next_check = time.monotonic() + CHECK_INTERVAL_S
        _opened(self)
        return self._handle

    def _still_there(self, handle: AppendHandle) -> AppendHandle:
        """Return a handle on our file at its name; when it was removed or replaced, write it again there."""
        try:
            handle.check()
            if handle.size == self._size or self._in_flight:
                return handle
        except (SpanfoldError, OSError):
            pass
        self.stats.restored += 1
        root = SafeRoot(self.folder, create=True, durable=self._durable)
        kept = handle.size
        if kept < self._size:  # cut short from outside: what is gone cannot be written again
            handle.close()
            self._handle = None
            return self._start_over(root)
        self._name = writer_name() if _occupied(root, self._name + SUFFIX) else self._name
        restored = root.open_append(self._name + SUFFIX)
        offset = 0
        while block := os.pread(handle.fileno(), min(1 << 20, self._size - offset), offset):
            restored.append(block)
            offset += len(block)
        handle.close()
        self._handle = restored
        return restored

    def release(self) -> bool:
        """Close the descriptor until the next record; False when the journal is in use just now."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._busy:
                return False
            handle, self._handle = self._handle, None
            if handle is not None:
                if self._in_flight:
                    self._settle(handle)
                handle.close()
            return True
        finally:
            self._lock.release()

    # -- the end

    @property
    def written(self) -> int:
        """Lines in this process's file."""
        return self._seq

    @property
    def position(self) -> Position:
        """How far this process's file has come; file name empty before its first record."""
        with self._lock:
            return Position(
                self._name + SUFFIX if self._seq else "", self._seq, self._head.decode() if self._seq else "", self._size
            )

    def sync(self) -> None:
        """Write what is held if the disk takes it, and with `durable` make it survive a power cut.

        Threads that wait for the same fsync share it.
        """
        with self._lock:
            if self._held and not self._busy:
                self._busy = True
                try:
                    self._write_held(time.monotonic())
                finally:
                    self._busy = False
            target = self._size
        if not self._durable or target <= self._synced:
            return
        with self._sync_lock:
            if target <= self._synced:
                return
            with self._lock:
                handle, size = self._handle, self._size
            if handle is None:
                with self._lock:
                    try:
                        handle = self._open()
                    except (OSError, SpanfoldError):
                        return
            try:
                handle.sync()
                self._synced = size
            except (OSError, ValueError) as error:
                self._refused(error, time.monotonic())

    def seal(self, heads: Mapping[str, Mapping[str, Any]]) -> None:
        """Append the sealing event with the head of every file, this one up to its last line included."""
        with self._lock:
            mine = self.position
            all_heads = dict(heads)
            if mine.file:
                all_heads[mine.file] = {"seq": mine.seq, "head": mine.head, "size": mine.size}
            body = self._own_event(
                names.EVENT_SEALED, {"spanfold.heads": JsonText(orjson.dumps(all_heads, option=orjson.OPT_SORT_KEYS).decode())}
            )
            self._append(body, self._event_frame)

    def close(self) -> None:
        """Sync and close the file. A later record opens it again."""
        self.sync()
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                handle.close()
        _open_journals.pop(id(self), None)

    def _after_fork_in_child(self) -> None:
        inherited = self._handle
        self._lock = threading.RLock()
        self._sync_lock = threading.Lock()
        self.stats = Stats()
        self._begin()
        if inherited is not None:
            inherited.close()


def describe(error: BaseException) -> str:
    """Name an error by class and errno, without its text: a path or value in it may be secret."""
    number = getattr(error, "errno", None)
    name = os.strerror(number) if isinstance(number, int) else ""
    return f"{type(error).__name__}: {name}" if name else type(error).__name__


def _occupied(root: SafeRoot, name: str) -> bool:
    try:
        root.stat(name)
    except FileNotFoundError:
        return False
    return True


# -- descriptors and forks: process-wide, because both limits are

_live: "weakref.WeakSet[Journal]" = weakref.WeakSet()
_open_journals: "OrderedDict[int, weakref.ref[Journal]]" = OrderedDict()
_open_lock = threading.Lock()


def _opened(journal: Journal) -> None:
    """Note that a journal holds a descriptor, and take one from the journal that opened longest ago."""
    with _open_lock:
        _open_journals[id(journal)] = weakref.ref(journal)
        surplus = len(_open_journals) - MAX_OPEN_FILES
        candidates = [k for k in list(_open_journals)[: max(surplus, 0)] if k != id(journal)]
    for key in candidates:
        other = (_open_journals.get(key) or (lambda: None))()
        if other is None or other.release():
            _open_journals.pop(key, None)


def _after_fork_in_child() -> None:
    global _open_lock
    _open_lock = threading.Lock()
    _open_journals.clear()
    for journal in list(_live):
        journal._after_fork_in_child()  # pyright: ignore[reportPrivateUsage]  # the module's own hook


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
