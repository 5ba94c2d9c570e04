"""Write a file from bytes and from parts of other files.

A document of many gigabytes is put together from spooled parts here without
passing through memory: the kernel copies the spans.
"""

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from spanfold.errors import SpanfoldError
from spanfold.fs._folders import open_regular

_JOIN_BYTES: Final = 256 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
# The kernel or the pair of file systems cannot copy by itself; reading and writing can.
_NO_KERNEL_COPY: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.ETXTBSY}
)


@dataclass(frozen=True, slots=True)
class FileSpan:
    """A part of another file, to be copied as it is."""

    source: int | str | os.PathLike[str]
    """Descriptor open for reading (its position is left alone), or path of a regular file."""
    offset: int
    """First byte."""
    length: int
    """Number of bytes; the file must have them all."""


Piece: TypeAlias = bytes | memoryview | FileSpan
Pieces: TypeAlias = bytes | Iterable[Piece]


class SpanTooShort(SpanfoldError):
    """A file ended before a span that was to be copied from it did."""


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Write every byte, however many calls it takes."""
    left = memoryview(data).cast("B")
    while left:
        left = left[os.write(fd, left) :]


def write_pieces(fd: int, data: Pieces) -> int:
    """Write pieces one after the other at the position of `fd`.

    Small pieces are joined before they are written; spans are copied inside
    the kernel where it can.

    Returns:
        Number of bytes written.

    Raises:
        SpanTooShort: The source of a span has fewer bytes than it promised.
    """
    pieces: Iterable[Piece] = (data,) if isinstance(data, bytes) else data
    total, joined = 0, bytearray()
    for piece in pieces:
        size = piece.length if isinstance(piece, FileSpan) else memoryview(piece).nbytes
        if isinstance(piece, FileSpan) or len(joined) + size > _JOIN_BYTES:
            write_all(fd, joined)
            joined.clear()
        if isinstance(piece, FileSpan):
            _copy_span(fd, piece)
        elif size > _JOIN_BYTES:
            write_all(fd, piece)
        else:
            joined += piece
        total += size
    write_all(fd, joined)
    return total


def _copy_span(fd: int, span: FileSpan) -> None:
    if isinstance(span.source, int):
        return _copy(span.source, fd, span)
    source = open_regular(span.source)
    try:
        return _copy(source, fd, span)
    finally:
        os.close(source)


def _copy(source: int, fd: int, span: FileSpan) -> None:
    offset, left = span.offset, span.length
    if hasattr(os, "copy_file_range"):
        try:
            while left and (count := os.copy_file_range(source, fd, left, offset_src=offset)):
                offset, left = offset + count, left - count
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
    # Also where the kernel copied nothing: some file systems answer 0 for files that have bytes.
    while left:
        chunk = read_at(source, min(left, _CHUNK_BYTES), offset)
        if not chunk:
            raise SpanTooShort(
                f"copying {span.length} bytes from byte {span.offset}: expected {left} more, found the end of the file. "
                "The source was cut while it was read; build the document again."
            )
        write_all(fd, chunk)
        offset, left = offset + len(chunk), left - len(chunk)


def read_at(fd: int, length: int, offset: int) -> bytes:
    """Read at most `length` bytes from `offset`, leaving the position of the descriptor alone."""
    if hasattr(os, "pread"):
        return os.pread(fd, length, offset)
    before = os.lseek(fd, 0, os.SEEK_CUR)
    os.lseek(fd, offset, os.SEEK_SET)
    chunk = os.read(fd, length)
    os.lseek(fd, before, os.SEEK_SET)
    return chunk
