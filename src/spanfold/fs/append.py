"""Append to a file so that a failed append leaves no part of itself behind."""

import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from spanfold.fs._folders import Folder, sync_descriptor
from spanfold.fs.entries import SizeLimitExceeded, name_file, require_regular, same_entry, unsafe_entry
from spanfold.fs.pieces import read_at

if sys.platform != "win32":
    import fcntl

_CREATE_ATTEMPTS: Final = 3


class AppendHandle:
    """An open file that only grows, made by `SafeRoot.open_append`.

    When `append` returns, the operating system has all the bytes: a killed
    process loses none of them. When it raises, the file ends where it did
    before, or, if another process has written behind us meanwhile, the next
    append begins on a line of its own (with `mend_tail`).

    One thread at a time: the owner has its own lock; a forked child opens its
    own, because it shares the position of this one. Several processes may
    append to one file; each append of whole lines stays in one piece as long
    as the kernel takes it in one call, so they hold a `FileLock` when a line
    must never be cut.
    """

    def __init__(
        self, fd: int, label: str, lookup: Callable[[], os.stat_result], *, limit: int | None, mend_tail: bool
    ) -> None:
        """Wrap a descriptor that `open_to_append` opened.

        Args:
            fd: Open for reading and appending; closed with the handle.
            label: Path for messages.
            lookup: Returns the status of the entry that has the file's name now.
            limit: Bytes after which nothing more is appended, or none.
            mend_tail: The file consists of lines: end a torn one before the next append.
        """
        self._fd = fd
        self._label = label
        self._lookup = lookup
        self._limit = limit
        self._mend_tail = mend_tail
        self._tail_unknown = mend_tail

    def append(self, data: bytes) -> int:
        """Write `data` at the end of the file.

        Returns:
            Offset in bytes at which `data` begins.

        Raises:
            OSError: The system did not take all of it (disk full, quota,
                I/O error); what it had taken is cut off again.
            SizeLimitExceeded: The file is over its limit; nothing was written.
            ValueError: The handle is closed.
        """
        self.add(data)
        # With O_APPEND the position is behind our own bytes, whoever else writes.
        return os.lseek(self._fd, 0, os.SEEK_CUR) - len(data)

    def add(self, data: bytes) -> None:
        """Write `data` at the end of the file, like `append`, for an owner that knows where that is."""
        # The hot path of every recorded span: one system call and nothing else.
        if self._limit is not None:
            self._require_within_limit(self.size)
        if self._tail_unknown and self._is_torn():
            data = b"\n" + data
        try:
            written = os.write(self._fd, data)
            if written != len(data):
                self._write_rest(memoryview(data), written)
        except BaseException as error:
            self._descriptor()
            self._tail_unknown = self._mend_tail
            name_file(error, self._label)
            raise
        self._tail_unknown = False

    def _write_rest(self, data: memoryview, written: int) -> None:
        """Write what a short write left over, or take back what it wrote."""
        fd = self._fd
        begin = os.lseek(fd, 0, os.SEEK_CUR) - written
        try:
            while written < len(data):
                written += os.write(fd, data[written:])
        except BaseException:
            # If the file ends elsewhere, somebody else has appended, and their bytes are not ours to cut.
            if os.fstat(fd).st_size == begin + written:
                os.ftruncate(fd, begin)
            raise

    def _is_torn(self) -> bool:
        size = self.size
        return size > 0 and read_at(self._descriptor(), 1, size - 1) != b"\n"

    def check(self) -> None:
        """Make sure that the name still stands for this file and that it is still ours alone.

        Raises:
            UnsafeEntryError: The file was removed, replaced or given a second name.
            SizeLimitExceeded: It is over its limit.
        """
        st = os.fstat(self._descriptor())
        _require_single(st, self._label)
        self._require_within_limit(st.st_size)
        try:
            named = self._lookup()
        except FileNotFoundError:
            raise unsafe_entry(self._label, "the file that was opened", "no file of this name") from None
        if not same_entry(named, st):
            raise unsafe_entry(self._label, "the file that was opened", "another one in its place")

    def _require_within_limit(self, size: int) -> None:
        if self._limit is not None and size > self._limit:
            raise SizeLimitExceeded(self._label, size, self._limit)

    @property
    def size(self) -> int:
        """Length of the file now, in bytes."""
        return os.fstat(self._descriptor()).st_size

    def fileno(self) -> int:
        """Return the descriptor, for reading back with `FileSpan` or `os.pread`."""
        return self._descriptor()

    def duplicate(self, lowest: int = 0) -> "AppendHandle":
        """Return a second handle on the same open file, to be closed on its own.

        Args:
            lowest: The least descriptor number it may have, where the platform lets one ask.

        Raises:
            OSError: There is no such number left.
        """
        fd = self._descriptor()
        copy = os.dup(fd) if sys.platform == "win32" else fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
        return AppendHandle(copy, self._label, self._lookup, limit=self._limit, mend_tail=self._mend_tail)

    def sync(self) -> None:
        """Flush to the device: what was appended survives a power cut."""
        sync_descriptor(self._descriptor())

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _descriptor(self) -> int:
        if self._fd < 0:
            raise ValueError(f"{self._label}: this handle is closed.")
        return self._fd


def open_to_append(folder: Folder, name: str, limit: int | None) -> tuple[int, bool]:
    """Open a file of `folder` for reading and appending, and create it when it is missing.

    Returns:
        The descriptor, and whether the file is new.

    Raises:
        UnsafeEntryError: The name is taken by a link, directory, FIFO, socket
            or device, or the file has a second name.
        SizeLimitExceeded: It is over the limit.
    """
    where = f"{folder.label}/{name}"
    flags = os.O_RDWR | os.O_APPEND
    for _ in range(_CREATE_ATTEMPTS):
        created = False
        try:
            fd = folder.open_file(name, flags)
        except FileNotFoundError:
            try:
                fd, created = folder.open_file(name, flags | os.O_CREAT | os.O_EXCL), True
            except FileExistsError:
                continue
        try:
            st = require_regular(fd, where)
            _require_single(st, where)
            if limit is not None and st.st_size > limit:
                raise SizeLimitExceeded(where, st.st_size, limit)
        except BaseException:
            os.close(fd)
            raise
        return fd, created
    # A dangling link answers "missing" to one open and "exists" to the other.
    raise unsafe_entry(where, "a regular file", "an entry that is there and cannot be opened")


def _require_single(st: os.stat_result, where: str) -> None:
    if st.st_nlink != 1:
        raise unsafe_entry(where, "a file with one name", f"one with {st.st_nlink} names")
