"""Find where each file of a journal ends: its last whole line and the hash of it."""

import hashlib
from pathlib import Path
from typing import Any, Final

from spanfold.errors import SpanfoldError
from spanfold.fs import SafeRoot
from spanfold.journal._decode import line_seal
from spanfold.journal._writer import SUFFIX

_BLOCK: Final = 64 * 1024


def file_heads(folder: Path) -> dict[str, dict[str, Any]]:
    """Return for each journal file its line count `seq`, the hash `head` of its last whole line, and `size` up to it.

    Reads the end of each file only. A file that is empty, unreadable or not
    ours is left out.
    """
    heads: dict[str, dict[str, Any]] = {}
    try:
        root = SafeRoot(folder)
        entries = [entry.name for entry in root.walk() if not entry.is_dir and entry.name.endswith(SUFFIX)]
    except (OSError, SpanfoldError):
        return heads
    for name in sorted(entries):
        try:
            line, size = _last_line(root, name)
        except (OSError, SpanfoldError):
            continue
        seq, _ = line_seal(line)
        if seq:
            heads[name] = {"seq": seq, "head": hashlib.sha256(line).hexdigest(), "size": size}
    return heads


def _last_line(root: SafeRoot, name: str) -> tuple[bytes, int]:
    """Return the last line that ends in a newline, and the offset behind it."""
    with root.open_read(name) as file:
        position = file.seek(0, 2)
        tail = b""
        while position > 0:
            step = min(_BLOCK, position)
            position -= step
            file.seek(position)
            tail = file.read(step) + tail
            end = tail.rfind(b"\n")
            begin = tail.rfind(b"\n", 0, end) if end >= 0 else -1
            if end >= 0 and (begin >= 0 or position == 0):
                return tail[begin + 1 : end + 1], position + end + 1
    return b"", 0
