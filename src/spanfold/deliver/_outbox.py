"""The journal as an outbox: what one destination has not acknowledged of one run.

Records are taken from all journal files in the order of time, so that what was
recorded inside of a span stands before its end also when another process
recorded it. Memory holds what goes into one request; everything else is read
when its turn comes, however long the journal is. How far the destination has
come is noted after every answer (`Acknowledgements`).

Between an answer and its line in the acknowledgement file a crash can hit; that
request is then sent again with the same ids (at-least-once, docs/delivery.md).
"""

import heapq
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spanfold.deliver._acks import Acknowledgements, wanted
from spanfold.deliver._destination import Destination
from spanfold.errors import JournalMissing, SpanfoldError
from spanfold.journal import Tail, journal_files, journal_folder
from spanfold.model import Position, Record, Span

MAX_RECORDS: Final = 512
"""Records of one request."""
ENVELOPE_BYTES: Final = 16 * 1024
"""Room in a request for resource and scope."""
SMALLEST_WINDOW: Final = 64 * 1024
"""Bytes below which a request is not made smaller: a line that does not take so much takes nothing."""
MAX_PATIENCE: Final = 8
"""Times the destination's time-out that a large record gets at most when it is alone in a request."""
_BLOCKS_BYTES: Final = 1 << 26
"""Bytes that all files of a run may hold in memory together while they are merged."""


@dataclass(slots=True)
class Item:
    """One record to be sent."""

    record: Record
    content: Any
    """What the destination is sent of it; what it is depends on the outbox."""
    size: int
    """Bytes of it in a request."""
    file: str
    """Journal file; empty when its acknowledgement moves nothing."""
    end: int
    """Offset behind its line."""
    source: Any = None
    """What it is made of, for an outbox that can make it smaller."""


class Outbox(ABC):
    """What one destination has not acknowledged of one run; used by one thread, counted by any."""

    max_records = MAX_RECORDS

    def __init__(self, run_dir: Path, destination: Destination, journal_dir: Path | None = None) -> None:
        self.run_dir = run_dir
        self.destination = destination
        self.is_closed = False
        """Whether the run has ended: nothing new will come."""
        self.is_left = False
        """Whether somebody else goes on with it: nothing more is sent from here."""
        self.is_finished = False
        """Whether everything of a run that has ended is settled."""
        self.sent = 0
        self.refused = 0
        self.reasons: Counter[str] = Counter()
        """Why records were refused -> how many."""
        self.problem = ""
        """Why nothing of this run can be sent now, whatever the destination does; empty when it can."""
        self.pending: list[Item] = []
        """What goes into the next request; an item leaves it when it has arrived or was refused for good."""
        self.window = destination.window_bytes
        """Bytes of the next request: less after one that could not be answered in time, more again after one that was."""
        self.patience = 1
        """How many times as long as usual a large record may take that is alone in its request, and was not answered."""
        self.journal_dir = journal_dir or journal_folder(run_dir)
        self.acks = Acknowledgements(self.journal_dir, destination)
        self._counter = _Counter(self.journal_dir, self.acks.offsets, destination.name)
        self._begin()

    def _begin(self) -> None:
        """Start reading at the beginning: what is acknowledged is passed over, but may be needed for what is not."""
        self.pending = []
        self._tails: dict[str, Tail] = {}
        self._reading: Iterator[Record] | None = None
        self._carried: Item | None = None
        self._passed: dict[str, int] = {}
        """Ends of lines read since that need no sending."""

    @abstractmethod
    def take(self, record: Record, position: Position) -> Item | None:
        """Return the item a record makes, None when it makes none."""

    @abstractmethod
    def shorten(self, item: Item) -> bool:
        """Make an item smaller, keeping the whole of it local; False when that is not possible."""

    @abstractmethod
    def describe(self, item: Item) -> Mapping[str, Any]:
        """Return what is written down of an item that is refused for good; never a value of it."""

    # -- reading

    def claim(self) -> None:
        """Become the one that sends; harmless when repeated, raises `LockedError` as `Acknowledgements.claim`."""
        if self.acks.claim():
            self._counter = _Counter(
                self.journal_dir, self.acks.offsets, self.destination.name, self.sent + self.refused
            )
            self._begin()

    def release(self) -> None:
        """Let others send; harmless when repeated."""
        self.acks.release()

    def fill(self) -> list[Item]:
        """Return what goes into the next request, topped up with what waits; empty when nothing does."""
        try:
            self._top_up()
        except BaseException:
            # What was read ahead is gone with the error: acknowledging beyond it would lose it.
            self._begin()
            raise
        if not self.pending:
            passed, self._passed = self._passed, {}
            if passed:
                self.acks.settle(passed, sent=0, refused=0)
        return self.pending

    def _top_up(self) -> None:
        size = ENVELOPE_BYTES + sum(item.size for item in self.pending)
        is_new = self._reading is None
        while len(self.pending) < self.max_records:
            item = self._next()
            if item is None and is_new:
                return
            if item is None:
                is_new = True  # what was read to its end was begun a while ago: there may be more by now
                continue
            if self.pending and size + item.size > self.window:
                self._carried = item
                return
            self.pending.append(item)
            size += item.size

    def _next(self) -> Item | None:
        if self._carried is not None:
            carried, self._carried = self._carried, None
            return carried
        # Where reading stopped is kept: starting anew for every record would list the folder each time.
        if self._reading is None:
            self._reading = self._records()
        for record in self._reading:
            position = record.position
            if position is not None and (item := self.take(record, position)) is not None:
                return item
        self._reading = None
        return None

    def is_acked(self, position: Position) -> bool:
        """Whether a record needs no sending any more."""
        return position.offset < self.acks.offsets.get(position.path.name, 0)

    def passed(self, position: Position) -> None:
        """Note that a record needs no sending."""
        self._passed[position.path.name] = position.offset + position.length

    def _records(self) -> Iterator[Record]:
        """Yield what is new in all files, in order of time; the order of each file is kept, whatever the clock did."""
        # Twice: what another process has recorded inside of a span that is in its file at the first look is in a file of its
        # own at the second, and arrives with the span.
        ended = self._sizes()
        sizes = self._sizes()
        streams = [
            _timed(number, self._tails[name], size, ended.get(name, 0))
            for number, (name, size) in enumerate(sizes.items())
            if size != self._tails[name].offset
        ]
        for _, _, _, record in heapq.merge(*streams):
            yield record

    def _sizes(self) -> dict[str, int]:
        """Return how long each journal file is now."""
        try:
            files = journal_files(self.journal_dir)
        except (JournalMissing, OSError):
            return {}
        block = max(1 << 14, min(1 << 18, _BLOCKS_BYTES // max(1, len(files))))
        return {path.name: self._tails.setdefault(path.name, Tail(path, block_bytes=block)).size() for path in files}

    def groups(self) -> list[list[Item]]:
        """Return what is pending as requests of the size that is sent now, in order."""
        groups: list[list[Item]] = []
        size = 0
        for item in self.pending:
            if not groups or size + item.size > self.window:
                groups.append([])
                size = ENVELOPE_BYTES
            groups[-1].append(item)
            size += item.size
        return groups

    def answered(self, seconds: float) -> None:
        """Take note that a request was answered in so many seconds: after a quick one the next may be larger."""
        self.patience = 1
        if seconds < self.destination.timeout_s / 4:
            self.window = min(self.destination.window_bytes, self.window * 2)

    def not_answered(self, items: Collection[Item]) -> None:
        """Take note that a request was not answered in time: over a slow line a smaller one may be, or one that has more time."""
        size = sum(item.size for item in items)
        self.window = max(SMALLEST_WINDOW, min(self.window, size) // 2)
        if len(items) == 1 and size > SMALLEST_WINDOW:
            self.patience = min(MAX_PATIENCE, self.patience * 2)

    # -- settling

    def accept(self, items: Collection[Item], *, rejected: int = 0, reason: str = "") -> None:
        """Note that items have arrived, but for so many that a partial success rejected."""
        rejected = min(rejected, len(items))
        if rejected:
            self._refusal({"spans": rejected, "reason": reason, **self._among(items, rejected)}, rejected)
        self._settle(items, sent=sum(bool(item.file) for item in items) - rejected, refused=rejected)

    def refuse(self, item: Item, reason: str) -> None:
        """Note that an item was refused for good."""
        self._refusal({**self.describe(item), "spans": 1, "reason": reason}, 1)
        self._settle([item], sent=0, refused=1)

    def refuse_unsent(self, position: Position, line: Mapping[str, Any], reason: str) -> None:
        """Note that a record cannot be sent at all."""
        self.passed(position)
        self.refused += 1
        self._refusal({**line, "spans": 1, "reason": reason}, 1)

    def _among(self, items: Collection[Item], rejected: int) -> dict[str, Any]:
        if rejected == len(items) == 1:
            return dict(self.describe(next(iter(items))))
        # Which of them, the destination did not say.
        return {"among": [self.describe(item) for item in items]}

    def _refusal(self, line: Mapping[str, Any], count: int) -> None:
        self.reasons[str(line["reason"])] += count
        self.acks.refuse(line)

    def _settle(self, items: Collection[Item], *, sent: int, refused: int) -> None:
        offsets = {item.file: item.end for item in items if item.file}
        gone = {id(item) for item in items}
        self.pending = [item for item in self.pending if id(item) not in gone]
        self.sent += sent
        self.refused += refused
        self.acks.settle(offsets, sent=sent, refused=refused)

    # -- counting

    def waiting(self, deadline: float | None = None) -> int:
        """Count the records that are in the journal and neither acknowledged nor refused.

        May be called by any thread. It reads what was written since the last
        count; when the deadline comes first, the count is a lower bound.
        """
        counter = self._counter
        return max(0, counter.count(deadline) - (self.sent + self.refused - counter.settled_before))


class _Counter:
    """Counts the lines of a journal that a destination wants, each byte once."""

    def __init__(self, journal_dir: Path, offsets: Mapping[str, int], name: str, settled_before: int = 0) -> None:
        self.settled_before = settled_before
        """Records the outbox had settled when counting began."""
        self._journal_dir = journal_dir
        self._offsets = dict(offsets)
        self._is_wanted = wanted(name)
        # Re-entrant: a signal handler of the program may flush in the middle of a flush.
        self._lock = threading.RLock()
        self._found = 0

    def count(self, deadline: float | None) -> int:
        with self._lock:
            try:
                for path in journal_files(self._journal_dir):
                    self._read(path, deadline)
            except (OSError, SpanfoldError):
                pass  # `run verify` says what is wrong with the journal
            return self._found

    def _read(self, path: Path, deadline: float | None) -> None:
        tail = Tail(path, self._offsets.get(path.name, 0))
        if tail.size() == tail.offset:
            return
        for line in tail.lines():
            self._found += self._is_wanted(line.data)
            self._offsets[path.name] = line.offset + line.length
            if deadline is not None and time.monotonic() > deadline:
                return


def _timed(number: int, tail: Tail, size: int, ended: int) -> Iterator[tuple[int, int, int, Record]]:
    """Yield the records of one file with their place among all: up to `size`, and spans that begin before `ended` only."""
    latest = 0
    for line, record in enumerate(tail.read(size - tail.offset, starts=False)):
        if record.position is not None and record.position.offset >= ended and type(record) is Span:
            tail.offset = record.position.offset  # for the next look
            return
        latest = max(latest, record.time_ns)
        yield latest, number, line, record
