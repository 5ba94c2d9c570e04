"""Trace and span ids from the operating system's entropy.

Never from `random`: evaluation code seeds it, and the ids of two runs would
repeat. Entropy is fetched in blocks, since a call to the system for each id
costs more than everything else a span start does. A forked child throws its
copy of the block away.
"""

import os
from typing import Final

_BLOCK: Final = 8 * 512


class _Pool:
    def __init__(self) -> None:
        self.refill()

    def refill(self) -> None:
        # One list per block, popped by single C calls: two threads cannot get the same id.
        text = os.urandom(_BLOCK).hex().encode("ascii")
        self.ids = [text[i : i + 16] for i in range(0, len(text), 16)]


_pool = _Pool()
_ZERO: Final = b"0" * 16


def span_id() -> bytes:
    """Return a new span id: 16 lower-case hex digits, never all zero."""
    while True:
        try:
            found = _pool.ids.pop()
        except IndexError:
            _pool.refill()
            continue
        if found != _ZERO:
            return found


def trace_id() -> bytes:
    """Return a new trace id: 32 lower-case hex digits, never all zero."""
    return span_id() + span_id()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.refill)
