"""What a directory entry is, in the words of a refusal."""

import os
import stat
from dataclasses import dataclass
from typing import Final

from spanfold.errors import SpanfoldError, UnsafeEntryError
from spanfold.fs.paths import printable

_KINDS: Final = (
    (stat.S_ISLNK, "symbolic link"),
    (stat.S_ISDIR, "directory"),
    (stat.S_ISFIFO, "FIFO"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "character device"),
    (stat.S_ISBLK, "block device"),
)


class SizeLimitExceeded(SpanfoldError):
    """A file is larger than its budget: move it aside.

    Attributes:
        size_bytes: What was found.
        limit_bytes: What is allowed.
    """

    def __init__(self, where: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{where}: expected at most {limit_bytes} bytes, found {size_bytes}. Move the file aside; a new one is begun."
        )
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes


class WalkBudgetExceeded(SpanfoldError):
    """A folder holds more entries than may be looked at: move away what does not belong there.

    Attributes:
        limit: Number of entries that were allowed.
    """

    def __init__(self, where: str, limit: int) -> None:
        super().__init__(
            f"{where}: expected at most {limit} entries, found more. Move entries that do not belong there out of it."
        )
        self.limit = limit


@dataclass(slots=True)
class WalkEntry:
    """One entry met by `SafeRoot.walk`."""

    path: str
    """Relative to the root, components joined by `/`."""
    st: os.stat_result
    """Of the entry itself; a link is not followed."""
    skip: bool = False
    """Set it to keep the walk from descending into this directory."""

    @property
    def name(self) -> str:
        """Last component of the path."""
        return self.path.rpartition("/")[2]

    @property
    def is_dir(self) -> bool:
        """Whether it is a real directory, not a link to one."""
        return stat.S_ISDIR(self.st.st_mode)


def entry_kind(mode: int) -> str:
    """Name the file type of a mode in plain words; empty for a regular file."""
    return next((kind for is_kind, kind in _KINDS if is_kind(mode)), "")


def same_entry(one: os.stat_result, other: os.stat_result) -> bool:
    """Tell whether two results describe one file: same device, same inode."""
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def require_regular(fd: int, where: str) -> os.stat_result:
    """Return the status of an open descriptor, or refuse what is no regular file.

    Raises:
        UnsafeEntryError: It is a FIFO, socket, device or directory.
    """
    st = os.fstat(fd)
    kind = entry_kind(st.st_mode)
    if kind:
        raise unsafe_entry(where, "a regular file", f"a {kind}")
    return st


def unsafe_entry(where: str, expected: str, found: str) -> UnsafeEntryError:
    """Build the refusal of an entry that is not what it must be."""
    return UnsafeEntryError(f"{printable(where)}: expected {expected}, found {found}. Move it aside and try again.")


def name_file(error: BaseException, where: str) -> None:
    """Put a path into an error of the system that came from a descriptor and so names none."""
    if isinstance(error, OSError) and error.filename is None:
        error.filename = where
