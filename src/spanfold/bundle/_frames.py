"""Compress the archive in frames of their own, and find them again when some are damaged.

A bundle is a row of zstd frames (RFC 8878) of at most `FRAME_BYTES` each, and a
skippable frame behind them with the size and SHA-256 of every one. Each frame
holds bytes of one member only. So a changed byte anywhere is found, also one
that a decoder would ignore, and named to within one frame; and memory does not
depend on what a bundle claims to hold.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final, NamedTuple

import zstandard

FRAME_BYTES: Final = 1 << 20
"""Most bytes of the archive in one frame."""
LEVEL: Final = 3
MAX_INDEX_BYTES: Final = 1 << 28
"""Larger indexes, of more than 6 TB, are not read."""

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_SKIPPABLE: Final = struct.Struct("<II")
_SKIPPABLE_MAGIC: Final = 0x184D2A53
_RECORD: Final = struct.Struct("<II32s")
_NAME: Final = b"spanfold-index/1"
_TAIL: Final = struct.Struct(f"<32sI{len(_NAME)}s")
_BLOCK_HEADER_BYTES: Final = 3
_CHECKSUM_BYTES: Final = 4
_MAX_FRAME_BYTES: Final = FRAME_BYTES + (FRAME_BYTES >> 8) + 64
"""More than zstd ever makes of `FRAME_BYTES` (ZSTD_COMPRESSBOUND)."""
_FIRST_LOOK_BYTES: Final = 1 << 16


class Frame(NamedTuple):
    """One frame of a bundle."""

    offset: int
    """In the bundle; -1 when it is not where it should be."""
    length: int
    content: bytes | None
    """Bytes of the archive; None when the frame is not as it was written."""


class Packer:
    """Compresses members one after the other."""

    def __init__(self) -> None:
        # One thread: with several, the bytes could depend on their number.
        self._zstd = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, write_content_size=True, threads=0)
        self._records = bytearray()

    def member(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the frames of one member, given its bytes in any pieces."""
        waiting = bytearray()
        for piece in pieces:
            waiting += piece
            while len(waiting) >= FRAME_BYTES:
                yield self._frame(bytes(waiting[:FRAME_BYTES]))
                del waiting[:FRAME_BYTES]
        if waiting:
            yield self._frame(bytes(waiting))

    def _frame(self, content: bytes) -> bytes:
        frame = self._zstd.compress(content)
        self._records += record_of(frame, len(content))
        return frame

    def index(self) -> bytes:
        """Return what stands behind the last frame."""
        return encode_index(bytes(self._records))


def frame_sizes(member_bytes: int) -> Iterator[int]:
    """Yield how many bytes of a member each of its frames holds."""
    while member_bytes > 0:
        yield min(FRAME_BYTES, member_bytes)
        member_bytes -= FRAME_BYTES


def record_of(frame: bytes, content_size: int) -> bytes:
    """Return what the index says of a frame."""
    return _RECORD.pack(len(frame), content_size, hashlib.sha256(frame).digest())


def encode_index(records: bytes) -> bytes:
    """Return the index of the frames with these records."""
    tail = _TAIL.pack(hashlib.sha256(records).digest(), len(records) // _RECORD.size, _NAME)
    return _SKIPPABLE.pack(_SKIPPABLE_MAGIC, len(records) + len(tail)) + records + tail


class Index:
    """The index of a bundle, found at its end and as it was written."""

    def __init__(self, records: bytes, offset: int) -> None:
        self._records = records
        self.offset = offset
        """Where it begins: behind the last frame."""
        self.shift = offset - sum(length for length, _, _ in _RECORD.iter_unpack(records))
        """How many bytes of the frames are too many; negative when some are gone."""

    @classmethod
    def of(cls, file: BinaryIO, size: int) -> "Index | None":
        """Read the index of a bundle of `size` bytes; None when it is not whole."""
        end = _read_at(file, max(0, size - _TAIL.size), _TAIL.size)
        if len(end) < _TAIL.size or not end.endswith(_NAME):
            return None
        _, count, _ = _TAIL.unpack(end)
        length = count * _RECORD.size
        offset = size - _SKIPPABLE.size - length - _TAIL.size
        if length > MAX_INDEX_BYTES or offset < 0:
            return None
        found = _read_at(file, offset, size - offset)
        records = found[_SKIPPABLE.size : _SKIPPABLE.size + length]
        return cls(records, offset) if found == encode_index(records) else None

    def frames(self, file: BinaryIO) -> Iterator[Frame]:
        """Yield every frame in order, each looked for where it was written and, if bytes came or went, where it is now."""
        at = 0
        for length, content_size, digest in _RECORD.iter_unpack(self._records):
            yield self._frame(file, at, length, content_size, digest)
            at += length

    def _frame(self, file: BinaryIO, at: int, length: int, content_size: int, digest: bytes) -> Frame:
        if length > _MAX_FRAME_BYTES:
            return Frame(at if not self.shift else -1, length, None)
        for offset in dict.fromkeys((at, at + self.shift)):
            data = _read_at(file, offset, length) if offset >= 0 else b""
            if hashlib.sha256(data).digest() == digest:
                content = decompressed(data)
                is_right = content is not None and len(content) == content_size
                return Frame(offset, length, content if is_right else None)
        return Frame(-1 if self.shift else at, length, None)


class Scan:
    """The frames of a bundle without an index, up to the first that is not whole."""

    def __init__(self) -> None:
        self._records = bytearray()
        self.end = 0
        """Behind the last frame handed out."""
        self.is_cut = False
        """Whether the next one ends with the file, unfinished."""

    def frames(self, file: BinaryIO) -> Iterator[Frame]:
        """Yield every frame in order."""
        while True:
            # Most frames are small, so the first look is too.
            data = _read_at(file, self.end, _FIRST_LOOK_BYTES)
            length = _frame_length(data)
            if length is None and len(data) == _FIRST_LOOK_BYTES:
                data = _read_at(file, self.end, _MAX_FRAME_BYTES)
                length = _frame_length(data)
            self.is_cut = length is None and len(data) < _MAX_FRAME_BYTES and data.startswith(_MAGIC[: len(data)])
            content = decompressed(data[:length]) if length else None
            if length is None or content is None:
                return
            self._records += record_of(data[:length], len(content))
            offset, self.end = self.end, self.end + length
            yield Frame(offset, length, content)

    def index(self) -> bytes:
        """Return the index that belongs behind the frames handed out."""
        return encode_index(bytes(self._records))


def decompressed(frame: bytes) -> bytes | None:
    """Return the content of one frame of ours; None when it is none, or claims to hold more than ours do."""
    try:
        said = zstandard.get_frame_parameters(frame)
        if said.content_size > FRAME_BYTES or said.dict_id or not said.has_checksum:
            return None
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError:
        return None


def _frame_length(data: bytes) -> int | None:
    """Return how long the frame is that `data` begins with; None when it does not hold a whole one (RFC 8878, 3.1.1)."""
    try:
        at = zstandard.frame_header_size(data)
    except zstandard.ZstdError:
        return None
    if not data.startswith(_MAGIC):
        return None
    is_last = False
    while not is_last:
        block = int.from_bytes(data[at : at + _BLOCK_HEADER_BYTES], "little")
        if at + _BLOCK_HEADER_BYTES > len(data):
            return None
        is_last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        # A block of kind 1 is one byte that is repeated.
        at += _BLOCK_HEADER_BYTES + (1 if kind == 1 else size)
    at += _CHECKSUM_BYTES
    return at if at <= len(data) else None


def _read_at(file: BinaryIO, offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)
