"""Few descriptors for many journals: a process may have thousands of runs open, and hardly 256 descriptors.

Process-wide, because the limit is. Whoever opened longest ago closes its file
and opens it again with its next record. Without a lock: a finalizer or signal
handler may open a journal in the middle of this, and each step is a single
operation on a dict.
"""

import weakref
from typing import Final, Protocol

MAX_OPEN_FILES: Final = 32
"""Journal files held open at once."""


class Holder(Protocol):
    """Something that holds a descriptor and can do without."""

    def release(self) -> bool:
        """Close it; False when it is in use just now."""
        ...


_open: "dict[int, weakref.ref[Holder]]" = {}


def opened(holder: Holder) -> None:
    """Note that `holder` opened a file, and take a descriptor from others when there are too many."""
    _open.pop(id(holder), None)
    _open[id(holder)] = weakref.ref(holder)
    for key in list(_open)[: max(0, len(_open) - MAX_OPEN_FILES)]:
        reference = _open.get(key)
        other = reference() if reference is not None else None
        if other is None or (other is not holder and other.release()):
            _open.pop(key, None)


def closed(holder: Holder) -> None:
    """Note that `holder` closed its file."""
    _open.pop(id(holder), None)


def forget() -> None:
    """Forget all, in a forked child."""
    _open.clear()
