"""The life of a span in C, where that was built and is wanted.

Python is the reference (`_span.py`, `_own_time.py`) and takes over whatever is unusual about a span.
"""

from types import ModuleType
from typing import Final

from spanfold.journal import IS_NATIVE


def _load() -> ModuleType | None:
    if not IS_NATIVE:
        return None
    try:
        from spanfold.instrument import _native
    except ImportError:  # installed without a C compiler
        return None
    return _native


native: Final = _load()
"""The module `_native`, or None."""
