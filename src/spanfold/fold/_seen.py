"""Remember which spans were folded, in 12 to 24 bytes each, and keep that in a file."""

from array import array
from hashlib import blake2b
from typing import Final

_FIRST_SIZE: Final = 64
_SPREAD: Final = 0x9E37_79B9_7F4A_7C15
_MASK: Final = (1 << 64) - 1
_MAX_TRACES: Final = 256


class Seen:
    """A set of spans, each known by trace id and span id.

    `fresh` are the bytes that `restore` needs to know what was added since
    they were last taken away.
    """

    def __init__(self) -> None:
        self.fresh = bytearray()
        self._table = array("Q", bytes(8 * _FIRST_SIZE))
        self._used = 0
        self._traces: dict[str, int] = {}

    def add(self, trace_id: str, span_id: str) -> bool:
        """Add a span; False when it was there. An invalid id stands for no span that could come twice."""
        key = self._key(trace_id, span_id)
        if key is None:
            return True
        if not self._insert(key):
            return False
        self.fresh += key.to_bytes(8, "little")
        return True

    def has(self, trace_id: str, span_id: str) -> bool:
        """Whether a span was added."""
        key = self._key(trace_id, span_id)
        if key is None:
            return False
        return self._table[self._slot(key)] == key

    def _key(self, trace_id: str, span_id: str) -> int | None:
        try:
            number = int(span_id, 16)
        except ValueError:
            return None
        if not 0 < number <= _MASK:
            return None
        salt = self._traces.get(trace_id)
        return number ^ (self._salt(trace_id) if salt is None else salt) or 1

    def restore(self, kept: bytes) -> None:
        """Add again what `fresh` held, all parts of it joined."""
        for at in range(0, len(kept) - 7, 8):
            self._insert(int.from_bytes(kept[at : at + 8], "little") or 1)

    def _salt(self, trace_id: str) -> int:
        # Mixed, so that equal span ids of two traces, or of a trace and its negative, do not meet.
        if len(self._traces) >= _MAX_TRACES:
            self._traces.clear()
        digest = blake2b(trace_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        salt = self._traces[trace_id] = int.from_bytes(digest, "little")
        return salt

    def _insert(self, key: int) -> bool:
        if self._used * 3 >= len(self._table) * 2:
            self._grow()
        slot = self._slot(key)
        if self._table[slot]:
            return False
        self._table[slot] = key
        self._used += 1
        return True

    def _slot(self, key: int) -> int:
        """Return where a key stands, or the free place where it would."""
        table = self._table
        mask = len(table) - 1
        # The upper bits of the product depend on every bit of the key: ids may differ in a few only.
        slot = (key * _SPREAD & _MASK) >> 64 - mask.bit_length()
        while (found := table[slot]) and found != key:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        old, self._table, self._used = self._table, array("Q", bytes(16 * len(self._table))), 0
        for key in old:
            if key:
                self._insert(key)
