"""The life of a span in C, where that was built and is wanted.

Python is the reference (`_span.py`, `_facts.py`, `_own_time.py`) and takes over whatever is unusual about a span.
"""

from types import ModuleType

from spanfold.journal import IS_NATIVE


def load(**parts: object) -> ModuleType | None:
    """Return the module `_native`, or None: then everything is done in Python.

    Args:
        parts: What belongs to Python, for its `setup`.
    """
    if not IS_NATIVE:
        return None
    try:
        from spanfold.instrument import _native

        _native.setup(**parts)
    except (ImportError, AttributeError, TypeError):  # installed without a C compiler, or left by another version
        return None
    return _native
