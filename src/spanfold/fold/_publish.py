"""Write documents into the run directory, and decide when each is due.

A document is put together from encoded pieces and spans of spool files, which
the kernel copies, and replaces the old file at one instant. A log is appended
to while its file is the one we left, and replaced whole when it is not.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from spanfold.errors import SpanfoldError, UnsafeEntryError
from spanfold.fold._drafts import LOG_PART, Draft, Part
from spanfold.fold._spool import Spool, SpoolLost
from spanfold.fold.family import Bucket, Urgency
from spanfold.fs import FileSpan, Piece, SafeRoot, SpanTooShort, fsync_folder

SMALL_BYTES: Final = 1 << 20
"""Up to this size a document is rewritten for every record of `Urgency.SOON`; larger ones wait as for `LATER`."""
_LINES_BYTES: Final = 1 << 18
"""Of a log that are read at once."""
REST_FACTOR: Final = 10
"""A document that may wait is left alone for this many times as long as its last rewrite took."""
MANY: Final = 64
"""Documents up to which each is flushed by itself; more are flushed with everything else the system holds."""

MAX_APPEND_BYTES: Final = 8 << 20
"""Up to so many new bytes are appended to a log at once; more, after a long pause, make it be written whole."""

Compose = Callable[[str, list[str]], Iterable[bytes | Bucket]]


class Publisher:
    """Writes the documents of one run.

    Args:
        folder: The run directory; made when missing.
        compose: Returns the pieces of a document, given its path and the names of its lists.
        clock: Monotonic seconds.
        durable: Flush every document to the device when it is written.
    """

    def __init__(self, folder: Path, *, compose: Compose, clock: Callable[[], float], durable: bool) -> None:
        self.bytes_written = 0
        """Bytes of all files written so far, copied ones included."""
        self._folder = folder
        self._compose = compose
        self._clock = clock
        self._durable = durable
        self._root: SafeRoot | None = None

    def is_due(self, draft: Draft, max_lag_s: float, *, is_tick: bool) -> bool:
        """Whether what changed in a document must be in its file now.

        A tick comes every quarter of `max_lag_s`, and half of it is left for that. It does not rewrite a large document
        each time, not even one that the program's own thread had to put off.
        """
        if draft.urgency is None:
            return False
        if draft.is_log or draft.size <= SMALL_BYTES:
            if draft.urgency >= Urgency.SOON:
                return True
        elif draft.urgency is Urgency.NOW and not is_tick:
            return True
        return self._clock() - draft.changed_at >= max(max_lag_s / 2, REST_FACTOR * draft.write_s)

    def write(self, draft: Draft, spool: Spool) -> tuple[int, float]:
        """Bring the file of a document up to date.

        Returns:
            Size of the file in bytes, and how many seconds the writing took.

        Raises:
            SpoolLost: A spool file is not what it must be.
            SpanfoldError: Something stands where the document belongs that may not be replaced.
            OSError: As the system says; the old file is intact.
        """
        begin = self._clock()
        try:
            size = self._write(draft, spool)
        except (FileNotFoundError, UnsafeEntryError):
            # The run directory was removed, or removed and made again: it is another one than we knew.
            if self._is_known_folder():
                raise
            self._root, draft.written = None, None
            size = self._write(draft, spool)
        return size, self._clock() - begin

    def _is_known_folder(self) -> bool:
        if self._root is None:
            return False
        try:
            self._root.stat()
        except (OSError, SpanfoldError):
            return False
        return True

    def _write(self, draft: Draft, spool: Spool) -> int:
        if self._root is None:
            self._root = SafeRoot(self._folder, create=True)
        if draft.is_log and draft.written is not None:
            size = self._appended(self._root, draft, draft.written, spool)
            if size is not None:
                return size
        try:
            size = self._replace(self._root, draft, spool)
        except FileNotFoundError:
            above = draft.path.rpartition("/")[0]
            if not above:
                raise
            self._root.ensure_dir(above)
            size = self._replace(self._root, draft, spool)
        self.bytes_written += size
        return size

    def _replace(self, root: SafeRoot, draft: Draft, spool: Spool) -> int:
        pieces: Iterable[bytes | Bucket]
        if draft.is_log:
            pieces = [Bucket(LOG_PART)]
        else:
            pieces = self._compose(draft.path, list(draft.parts))
        try:
            return root.replace_atomic(draft.path, _filled(pieces, draft, spool), durable=self._durable)
        except SpanTooShort as error:
            raise SpoolLost(draft.path) from error

    def _appended(self, root: SafeRoot, draft: Draft, written: int, spool: Spool) -> int | None:
        """Append what is new of a log; None when the file must be written whole."""
        part = draft.parts[LOG_PART]
        if not 0 <= part.length - written <= MAX_APPEND_BYTES:
            return None
        try:
            with root.open_append(draft.path) as handle:
                if handle.size != written:
                    return None
                for lines in _tail(part, written, spool):
                    handle.append(lines)
                if self._durable:
                    handle.sync()
        except UnsafeEntryError:  # a link, or a file with a second name: it is replaced, not written to
            return None
        self.bytes_written += part.length - written
        return part.length

    def sync(self, drafts: Iterable[Draft], spool: Spool) -> None:
        """Flush every document to the device; one that vanished or was changed is written again first."""
        drafts = list(drafts)
        for draft in drafts:
            if not self._is_as_written(draft):
                draft.written = None
                draft.written, draft.write_s = self.write(draft, spool)
        if self._durable:
            return
        if len(drafts) > MANY and hasattr(os, "sync"):
            os.sync()
            return
        root = self._root
        if root is None:
            return
        for draft in drafts:
            with root.open_read(draft.path) as file:
                os.fsync(file.fileno())
        for folder in {draft.path.rpartition("/")[0] for draft in drafts}:
            fsync_folder(self._folder / folder)

    def _is_as_written(self, draft: Draft) -> bool:
        try:
            return self._root is not None and self._root.stat(draft.path).st_size == draft.written
        except (OSError, SpanfoldError):
            return False


def _tail(part: Part, begin: int, spool: Spool) -> Iterator[bytes]:
    """Yield the bytes of a log from `begin` on, whole lines at a time, so that a long one is never in memory as a whole."""
    if begin >= part.stored:
        yield bytes(part.pending[begin - part.stored :])
        return
    with spool.open(part) as file:
        file.seek(begin)
        left, held = part.stored - begin, b""
        while left and (block := file.read(min(left, _LINES_BYTES))):
            left -= len(block)
            lines, end, rest = block.rpartition(b"\n")
            if end:
                yield b"".join((held, lines, end))
                held = rest
            else:
                held += block
        yield held + part.pending


def _filled(pieces: Iterable[bytes | Bucket], draft: Draft, spool: Spool) -> Iterator[Piece]:
    """Put the bytes of its lists into the pieces of a document."""
    for piece in pieces:
        if isinstance(piece, bytes):
            yield piece
            continue
        part = draft.parts[piece.name]
        if part.stored > piece.skip:
            with spool.open(part) as file:
                yield FileSpan(file.fileno(), piece.skip, part.stored - piece.skip)
        yield bytes(part.pending[max(0, piece.skip - part.stored) :])
