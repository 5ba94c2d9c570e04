"""Find where each file of a journal ends: its last whole line and the hash of it."""

import hashlib
from pathlib import Path
from typing import Any, Final

from spanfold.errors import SpanfoldError
from spanfold.fs import SafeRoot
from spanfold.journal._decode import line_seal
from spanfold.journal._writer import SUFFIX

_BLOCK: Final = 16 * 1024
"""Bytes read first from the end of a file; doubled until they hold the last line, however long that is."""


def file_heads(folder: Path) -> dict[str, dict[str, Any]]:
    """Return for each journal file its line count `seq`, the hash `head` of its last whole line, and `size` up to it.

    Reads the end of each file only. A file that is empty, unreadable or not
    ours is left out.
    """
    heads: dict[str, dict[str, Any]] = {}
    try:
        root = SafeRoot(folder.parent).subroot(folder.name)
        entries: list[str] = []
        for entry in root.walk():
            entry.skip = True
            if not entry.is_dir and entry.name.endswith(SUFFIX):
                entries.append(entry.name)
    except (OSError, SpanfoldError, ValueError):
        return heads
    for name in sorted(entries):
        try:
            line, size = _last_line(root, name)
        except (OSError, SpanfoldError, ValueError):
            continue
        seq, _ = line_seal(line)
        if seq:
            heads[name] = {"seq": seq, "head": hashlib.sha256(line).hexdigest(), "size": size}
    return heads


def _last_line(root: SafeRoot, name: str) -> tuple[bytes, int]:
    """Return the last line that ends in a newline, and the offset behind it."""
    with root.open_read(name) as file:
        size = file.seek(0, 2)
        length = 0
        while length < size:
            length = min(size, max(_BLOCK, 2 * length))
            file.seek(size - length)
            tail = file.read(length)
            end = tail.rfind(b"\n") + 1
            begin = tail.rfind(b"\n", 0, max(0, end - 1)) + 1
            if end and (begin or length == size):
                return tail[begin:end], size - length + end
    return b"", 0
