"""The members of the archive as tar bytes, each a function of name, size and one time.

Whoever reads a bundle makes the headers again from the manifest and compares,
so a link, a device or an absolute name is never interpreted: it is only other
bytes than the ones that belong there.
"""

import re
import tarfile
from typing import Final

MANIFEST: Final = "manifest.json"
"""First member of the archive."""
FOLDER: Final = "run/"
"""In front of every other member: the run directory."""
BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)
"""Ends the archive."""
MODE: Final = 0o600
"""As in a run directory: what a run holds is its owner's."""

_JOURNAL_FILE: Final = re.compile(r"journal/[^/]+\.otlp\.jsonl(\.torn-[^/]+)?")
_KINDS: Final = {
    tarfile.REGTYPE: "a file",
    tarfile.AREGTYPE: "a file",
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.DIRTYPE: "a directory",
    tarfile.FIFOTYPE: "a FIFO",
    tarfile.XHDTYPE: "an extended header",
    tarfile.XGLTYPE: "a global header",
}


def header(member: str, size: int, mtime_s: int) -> bytes:
    """Return what stands before the bytes of a member: ustar where that can say it, else pax (POSIX.1-2001).

    Args:
        member: Name in the archive, joined by `/`.
        size: Bytes of the file.
        mtime_s: Seconds since the epoch.
    """
    info = tarfile.TarInfo(member)
    info.size, info.mtime, info.mode = size, mtime_s, MODE
    return info.tobuf(format=tarfile.PAX_FORMAT, encoding="utf-8", errors="strict")


def padding(size: int) -> bytes:
    """Return the zeros behind the bytes of a member."""
    return bytes(-size % BLOCK)


def is_journal(path: str) -> bool:
    """Whether a path of a run directory is a journal file, or the torn end of one that `recover` set aside."""
    return _JOURNAL_FILE.fullmatch(path) is not None


def size_in(block: bytes, member: str) -> int | None:
    """Return the size that a header gives for a file of this name; None when it is no such header."""
    try:
        info = tarfile.TarInfo.frombuf(block[:BLOCK], "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError):
        return None
    return info.size if info.name == member and info.isreg() and info.size >= 0 else None


def described(block: bytes) -> tuple[str, str] | None:
    """Return name and kind of the member that a block is the header of, for a message; None when it is no header."""
    try:
        info = tarfile.TarInfo.frombuf(block[:BLOCK], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return None
    name = info.name if len(info.name) <= 200 else f"{info.name[:200]}..."
    return name.encode("unicode_escape").decode("ascii"), _KINDS.get(info.type, "something of an unknown kind")


def is_plain(kind: str) -> bool:
    """Whether a kind that `described` gave is that of an ordinary file, or announces one."""
    return kind in ("a file", "an extended header")
