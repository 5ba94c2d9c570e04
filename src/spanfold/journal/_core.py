"""The hot path of a recorded span: in C where that was built, else in Python. Both write the same bytes.

Python is the reference and can do everything; `_native.c` does what nearly every record needs and calls Python for the
rest. `SPANFOLD_NATIVE=0` leaves it out.
"""

import hashlib
import os
import time
from types import ModuleType
from typing import TYPE_CHECKING, Final

import orjson

from spanfold import names
from spanfold.journal import _encode
from spanfold.journal._values import JsonText
from spanfold.settings import FALSE

MIDDLE: Final = b'"}},{"key":"%b","value":{"stringValue":"' % names.LINE_PREV.encode()
"""What stands between the sequence number of a line and the hash of the line before."""


class PythonTip:
    """How far a journal file has come, as the writer without C keeps it."""

    def __init__(self) -> None:
        self.seq = 0
        """Lines in it."""
        self.size = 0
        """Bytes up to the end of the last line."""
        self.head = b""
        """Hash of the last line, 64 hex digits."""
        self.torn: tuple[bytes, int, int] | None = None
        """A line of which `append` could not take a part back, its sequence number, and size with it."""
        self.next_check = 0.0
        """Monotonic time at which the writer looks for the file again."""
        self.device = self.inode = 0
        """Of the file that was opened."""
        self.descriptor = -1
        """What `append` may write to; -1 when nothing."""

    def append(self, frame: tuple[bytes, bytes, bytes], body: bytes, /) -> bool:
        """Append a line and take note of it, or neither and return False: then the writer does it step by step."""
        return False


def _load() -> ModuleType | None:
    if os.environ.get("SPANFOLD_NATIVE", "").strip().lower() in FALSE:
        return None
    try:
        from spanfold.journal import _native

        _ = _native.Writer
        _native.setup(
            fragment=_encode.Fragment,
            json_text=JsonText,
            no_notes=_encode.NO_NOTES,
            dumps=orjson.dumps,
            slow_fragment=_encode.PythonEncoder.fragment,
            slow_own_span=_encode.PythonEncoder.own_span,
            slow_started=_encode.PythonEncoder.started,
            fresh_hash=hashlib.sha256(),
            monotonic=time.monotonic,
            self_key=_encode.SELF_KEY,
            started_name=_encode.STARTED_NAME,
            parent_head=_encode.PARENT_HEAD,
            middle=MIDDLE,
            slow_join=_encode.PythonEncoder.join,
        )
    except (ImportError, TypeError, AttributeError):
        # Installed without a C compiler, not the main interpreter of this process, or compiled from an older source.
        return None
    return _native


native: Final = _load()
"""The module `_native`, or None."""
IS_NATIVE: Final = native is not None
"""Whether the hot path runs in C."""

if TYPE_CHECKING or native is not None:
    from spanfold.journal import _native

    class Encoder(_native.Encoder, _encode.PythonEncoder):
        __doc__ = _encode.PythonEncoder.__doc__

    Tip = _native.Tip
else:
    Encoder = _encode.PythonEncoder
    Tip = PythonTip
