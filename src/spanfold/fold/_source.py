"""Read what is new in the journal files of a run, in the order documents are made from.

Of what is there, records come in canonical order (`spanfold.journal.read_journal`).
Files that grow at the same time can still bring a record that belonged before
one already handed out; `disordered` then says so, and the fold is repeated in
canonical order when the run is closed.
"""

import heapq
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from spanfold.errors import SpanfoldError
from spanfold.fold._seen import Seen
from spanfold.journal import Damage, Start, Tail, journal_files
from spanfold.model import Record, Span

_MAX_BLOCK: Final = 1 << 18
_MIN_BLOCK: Final = 1 << 14
_BLOCKS_BYTES: Final = 1 << 24
"""Bytes read ahead from all files together."""
_SETTLED_NS: Final = 2_000_000_000
"""A folder that changed so recently may have changed again within the resolution of its time."""


class JournalCut(Exception):
    """A journal file is shorter than what was read of it: what was folded is not what is there."""


class _File:
    """One journal file and what was read ahead of it."""

    __slots__ = ("ahead", "latest", "path", "tail", "until")

    def __init__(self, path: Path, offset: int = 0, latest: int = 0) -> None:
        self.path = path
        self.tail = Tail(path, offset)
        self.latest = latest
        """Largest time of a record handed out."""
        self.until = offset
        """Size of the file when the current round began: what is written meanwhile is for the next."""
        self.ahead: deque[Record | Start] = deque()

    def read_ahead(self, block: int) -> bool:
        """Have a record ahead, if the current round has one left."""
        while not self.ahead and self.tail.offset < self.until:
            before = self.tail.offset
            self.ahead.extend(self.tail.read_briefly(min(block, self.until - before)))
            if self.tail.offset == before:  # an unfinished last line
                break
        return bool(self.ahead)

    def next_key(self) -> tuple[int, str]:
        return max(self.latest, self.ahead[0].time_ns), self.path.name


class Source:
    """The journal of a run as one stream that can be continued.

    Args:
        journal_dir: The journal folder.
        refused: Told of a file that cannot be read. If it does not raise, the others are read on without it.
    """

    def __init__(self, journal_dir: Path, refused: Callable[[Exception], None]) -> None:
        self.seen = Seen()
        self.disordered = False
        """A record was handed out after one that it belongs before."""
        self.duplicates = 0
        """Spans left out because one of the same trace and span id came before."""
        self._folder = journal_dir
        self._refused = refused
        self._files: dict[str, _File] = {}
        self._last: tuple[int, str] = (0, "")
        self._listed = -1

    def records(self) -> Iterator[Record | Start]:
        """Yield what is new, starts of spans that have ended in brief. Stopping between two records loses none.

        Raises:
            JournalCut: A file is shorter than what was read of it.
        """
        self._list()
        block = max(_MIN_BLOCK, min(_MAX_BLOCK, _BLOCKS_BYTES // max(1, len(self._files))))
        grown = [file for file in self._files.values() if self._has_grown(file)]
        heap = [(*file.next_key(), file) for file in grown if self._read_ahead(file, block)]
        heapq.heapify(heap)
        while heap:
            latest, name, file = heap[0]
            record = file.ahead.popleft()
            file.latest = latest
            if (latest, name) < self._last:
                self.disordered = True
            else:
                self._last = latest, name
            if isinstance(record, Start) and self.seen.has(record.trace_id, record.span_id):
                record = record.event()  # its end will be left out as a duplicate, so it does count
            if type(record) is Span and not self.seen.add(record.trace_id, record.span_id):
                self.duplicates += 1
            else:
                yield record
            if self._read_ahead(file, block):
                heapq.heapreplace(heap, (*file.next_key(), file))
            else:
                heapq.heappop(heap)

    def has_news(self) -> bool:
        """Whether any file grew or appeared; cheap, for a caller that asks often."""
        self._list()
        return any(self._has_grown(file) for file in self._files.values())

    @property
    def files(self) -> list[Path]:
        """The files known, sorted by name."""
        return [file.path for _, file in sorted(self._files.items())]

    def damage(self) -> list[Damage]:
        """Return what could not be read so far, by file and offset; an unfinished last line is part of it."""
        found: list[Damage] = []
        for _, file in sorted(self._files.items()):
            found += file.tail.damage
            try:
                torn = file.tail.torn()
            except OSError:
                torn = None
            if torn:
                found.append(torn)
        return found

    @property
    def offset(self) -> int:
        """Bytes read of all files together."""
        return sum(file.tail.offset for file in self._files.values())

    @property
    def is_drained(self) -> bool:
        """Whether everything that was read has been handed out."""
        return not any(file.ahead for file in self._files.values())

    def _read_ahead(self, file: _File, block: int) -> bool:
        try:
            return file.read_ahead(block)
        except FileNotFoundError:  # it may come back: a writer restores its file
            return False
        except (OSError, SpanfoldError) as error:
            self._refused(error)
            return False

    def _list(self) -> None:
        """Look for new files, if the folder may have any."""
        try:
            changed = os.stat(self._folder).st_mtime_ns
            if changed == self._listed:
                return
            for path in journal_files(self._folder):
                if path.name not in self._files:
                    self._files[path.name] = _File(path)
        except FileNotFoundError:
            return
        except (OSError, SpanfoldError) as error:
            self._refused(error)
            return
        self._listed = changed if time.time_ns() - changed > _SETTLED_NS else -1

    def _has_grown(self, file: _File) -> bool:
        try:
            size = os.stat(file.path).st_size
        except OSError:
            return bool(file.ahead)
        if size < file.tail.offset:
            raise JournalCut(file.path.name)
        file.until = size
        return size > file.tail.offset or bool(file.ahead)

    # -- checkpoint

    def state(self) -> dict[str, Any]:
        """Return how far every file was read, as JSON data; only when `is_drained`."""
        return {
            "files": {name: [file.tail.offset, file.latest] for name, file in self._files.items()},
            "last": list(self._last),
            "disordered": self.disordered,
            "duplicates": self.duplicates,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            JournalCut: A file is missing or shorter than it was.
        """
        for name, (offset, latest) in state["files"].items():
            file = self._files[name] = _File(self._folder / name, offset, latest)
            if not self._is_there(file):
                raise JournalCut(name)
        self._last = (state["last"][0], state["last"][1])
        self.disordered, self.duplicates = state["disordered"], state["duplicates"]

    def _is_there(self, file: _File) -> bool:
        try:
            return os.stat(file.path).st_size >= file.tail.offset
        except OSError:
            return False
