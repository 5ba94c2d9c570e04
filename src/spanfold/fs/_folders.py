"""Hold one directory and reach its entries without following a link.

`DescriptorFolder` holds a descriptor: the kernel resolves every name relative
to it, so that nobody can put another directory in its place between two calls.
`PathFolder` stands in where the platform has no such calls (Windows): it looks
before each step, which stops links that are there already but not one planted
between the look and the step.
"""

import errno
import os
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from time import sleep
from types import TracebackType
from typing import Final, Self

from spanfold.errors import UnsafeEntryError
from spanfold.fs.entries import entry_kind, require_regular, same_entry, unsafe_entry

if sys.platform == "darwin":
    import fcntl

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
SHARING_ATTEMPTS: Final = 10
"""int. How often a name is replaced or removed while another program holds it open (about 1 s in all)."""

_DIRECTORY: Final = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# O_NONBLOCK keeps a planted FIFO from hanging the open; it changes nothing for a regular file.
FILE_FLAGS: Final = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", getattr(os, "O_NOINHERIT", 0))
    | getattr(os, "O_BINARY", 0)
)
# What kernels answer to an open when the entry is of another kind than asked for.
_WRONG_KIND: Final = frozenset(
    {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EMLINK, errno.EOPNOTSUPP, errno.ENODEV}
)
# What a file system that cannot flush a directory answers.
_NO_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})
_MOUNT_POINT_TAG: Final = 0xA0000003


class Folder(ABC):
    """One directory. Every `name` is one component that `split_relative` accepted.

    Errors of the operating system pass through, with the whole path as their
    `filename`; an entry of the wrong kind raises `UnsafeEntryError`.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        """Path of the directory, for messages only."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @classmethod
    @abstractmethod
    def open(cls, path: str) -> Self:
        """Open a directory by its path, whose last component may not be a link."""

    @abstractmethod
    def enter(self, name: str) -> Self:
        """Open a directory in this one."""

    @abstractmethod
    def mkdir(self, name: str) -> None:
        """Make a directory of mode 0700 whatever the umask."""

    @abstractmethod
    def open_file(self, name: str, flags: int) -> int:
        """Open a file without following a link or waiting for anybody; mode 0600 if this creates it."""

    @abstractmethod
    def stat(self) -> os.stat_result:
        """Return the status of the directory."""

    @abstractmethod
    def lstat(self, name: str) -> os.stat_result:
        """Return the status of an entry; a link is not followed."""

    @abstractmethod
    def read_link(self, name: str) -> str:
        """Return what a link says; it is not followed."""

    @abstractmethod
    def replace(self, source: str, target: str) -> None:
        """Rename over whatever `target` is, unless it is a directory."""

    @abstractmethod
    def link(self, source: str, target: str) -> None:
        """Give a file a second name, which must be free."""

    @abstractmethod
    def unlink(self, name: str) -> None:
        """Remove a name that is no directory."""

    @abstractmethod
    def remove_dir(self, name: str) -> None:
        """Remove an empty directory."""

    @abstractmethod
    def names(self) -> Iterator[str]:
        """List the entries in no particular order."""

    @abstractmethod
    def sync(self) -> None:
        """Flush the entries to the device, where the platform can."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the directory; harmless when repeated."""

    def _judged(self, error: OSError, name: str, expected: str) -> OSError | UnsafeEntryError:
        """Choose what to raise for a failed call on `name`."""
        where = f"{self.label}/{name}"
        if error.errno in _WRONG_KIND:
            try:
                found = entry_kind(self.lstat(name).st_mode) or "a regular file"
            except OSError:
                found = "something else"
            return unsafe_entry(where, expected, found)
        return OSError(error.errno, error.strerror, where)


class DescriptorFolder(Folder):
    """A directory held by its descriptor."""

    _fd = -1  # an interrupt may come before the constructor has set it, and the finalizer still runs

    def __init__(self, fd: int, label: str) -> None:
        super().__init__(label)
        self._fd = fd

    @classmethod
    def open(cls, path: str) -> Self:
        try:
            return cls(os.open(path, os.O_RDONLY | _DIRECTORY), path)
        except OSError as error:
            if error.errno not in _WRONG_KIND:
                raise
            found = entry_kind(os.lstat(path).st_mode) or "regular file"
        raise unsafe_entry(path, "a directory", f"a {found}")

    def enter(self, name: str) -> Self:
        try:
            fd = os.open(name, os.O_RDONLY | _DIRECTORY, dir_fd=self._fd)
        except OSError as error:
            raise self._judged(error, name, "a directory") from None
        return type(self)(fd, f"{self.label}/{name}")

    def mkdir(self, name: str) -> None:
        try:
            os.mkdir(name, FOLDER_MODE, dir_fd=self._fd)
            if self.lstat(name).st_mode & 0o777 != FOLDER_MODE:
                self._restore_mode(name)
        except OSError as error:
            raise self._judged(error, name, "a free name") from None

    def _restore_mode(self, name: str) -> None:
        # The umask took our own access away, so the new directory cannot be opened; O_PATH needs none.
        if not hasattr(os, "O_PATH"):
            os.chmod(name, FOLDER_MODE, dir_fd=self._fd, follow_symlinks=False)
            return
        fd = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=self._fd)
        try:
            os.chmod(f"/proc/self/fd/{fd}", FOLDER_MODE)
        finally:
            os.close(fd)

    def open_file(self, name: str, flags: int) -> int:
        try:
            fd = os.open(name, flags | FILE_FLAGS, FILE_MODE, dir_fd=self._fd)
        except OSError as error:
            raise self._judged(error, name, "a regular file") from None
        if flags & os.O_CREAT:
            os.fchmod(fd, FILE_MODE)
        return fd

    def stat(self) -> os.stat_result:
        return os.fstat(self._fd)

    def lstat(self, name: str) -> os.stat_result:
        try:
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"{self.label}/{name}") from None

    def read_link(self, name: str) -> str:
        return os.readlink(name, dir_fd=self._fd)

    def replace(self, source: str, target: str) -> None:
        try:
            os.replace(source, target, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError as error:
            raise self._judged(error, target, "a file") from None

    def link(self, source: str, target: str) -> None:
        try:
            os.link(source, target, src_dir_fd=self._fd, dst_dir_fd=self._fd, follow_symlinks=False)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"{self.label}/{target}") from None

    def unlink(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._fd)
        except OSError as error:
            raise self._judged(error, name, "a file") from None

    def remove_dir(self, name: str) -> None:
        os.rmdir(name, dir_fd=self._fd)

    def names(self) -> Iterator[str]:
        # A descriptor of its own: two listings of one descriptor would share its position.
        fd = os.open(".", os.O_RDONLY | _DIRECTORY, dir_fd=self._fd)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    yield entry.name
        finally:
            os.close(fd)

    def sync(self) -> None:
        sync_descriptor(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class PathFolder(Folder):
    """A directory known by its path, for platforms without descriptor-relative calls."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        st = os.lstat(path)
        if _is_link(st) or not stat.S_ISDIR(st.st_mode):
            kind = "symbolic link" if _is_link(st) else entry_kind(st.st_mode) or "regular file"
            raise unsafe_entry(path, "a directory", f"a {kind}")
        self._identity = st

    @classmethod
    def open(cls, path: str) -> Self:
        return cls(path)

    def enter(self, name: str) -> Self:
        return type(self)(self._path(name))

    def mkdir(self, name: str) -> None:
        path = self._path(name)
        os.mkdir(path, FOLDER_MODE)
        os.chmod(path, FOLDER_MODE)

    def open_file(self, name: str, flags: int) -> int:
        path = self._path(name)
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            found = None
        if found is not None and not flags & os.O_EXCL and (_is_link(found) or entry_kind(found.st_mode)):
            kind = "symbolic link" if _is_link(found) else entry_kind(found.st_mode)
            raise unsafe_entry(path, "a regular file", f"a {kind}")
        fd = os.open(path, flags | FILE_FLAGS, FILE_MODE)
        if flags & os.O_CREAT:
            os.chmod(path, FILE_MODE)
        return fd

    def stat(self) -> os.stat_result:
        return os.lstat(self.label)

    def lstat(self, name: str) -> os.stat_result:
        return os.lstat(self._path(name))

    def read_link(self, name: str) -> str:
        return os.readlink(self._path(name))

    def replace(self, source: str, target: str) -> None:
        old, new = self._path(source), self._path(target)
        try:
            retry_sharing(lambda: os.replace(old, new))
        except OSError as error:
            raise self._judged(error, target, "a file") from None

    def link(self, source: str, target: str) -> None:
        old, new = self._path(source), self._path(target)
        try:
            os.link(old, new)
        except OSError as error:
            raise OSError(error.errno, error.strerror, new) from None

    def unlink(self, name: str) -> None:
        path = self._path(name)
        try:
            retry_sharing(lambda: os.unlink(path))
        except OSError as error:
            raise self._judged(error, name, "a file") from None

    def remove_dir(self, name: str) -> None:
        os.rmdir(self._path(name))

    def names(self) -> Iterator[str]:
        yield from os.listdir(self._path("."))

    def sync(self) -> None:
        """Do nothing: a directory cannot be opened for a flush here."""

    def close(self) -> None:
        """Do nothing: there is no descriptor to close."""

    def _path(self, name: str) -> str:
        if not same_entry(self.stat(), self._identity):
            raise unsafe_entry(self.label, "the directory that was opened", "another one in its place")
        return os.path.join(self.label, name)


def platform_folder() -> type[Folder]:
    """Choose the strongest folder this platform supports."""
    needed = {os.open, os.mkdir, os.stat, os.unlink, os.rename, os.link}
    return DescriptorFolder if needed <= os.supports_dir_fd else PathFolder


def open_regular(path: str | os.PathLike[str]) -> int:
    """Open a regular file for reading by its path, whose last component may not be a link.

    Raises:
        UnsafeEntryError: It is a link or of another kind.
    """
    where = os.fspath(path)
    try:
        fd = os.open(where, os.O_RDONLY | FILE_FLAGS)
    except OSError as error:
        if error.errno not in _WRONG_KIND:
            raise
        kind = entry_kind(os.lstat(where).st_mode)
        raise unsafe_entry(where, "a regular file", f"a {kind}") from None
    try:
        require_regular(fd, where)
    except BaseException:
        os.close(fd)
        raise
    return fd


def sync_descriptor(fd: int) -> None:
    """Flush a file or directory to the device, as far as the platform can."""
    if sys.platform == "darwin":
        # fsync leaves the bytes in the cache of the drive there.
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError:
            os.fsync(fd)
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def retry_sharing(action: Callable[[], None], *, transient: bool = os.name == "nt", pause_s: float = 0.02) -> None:
    """Run `action` again while another program holds the file open, then let the error out.

    Windows refuses with `PermissionError` to rename over or remove a file that
    a reader or a virus scanner has open; such readers are quick. Elsewhere the
    same error is final.
    """
    for attempt in range(1, SHARING_ATTEMPTS + 1):
        try:
            return action()
        except PermissionError:
            if not transient or attempt == SHARING_ATTEMPTS:
                raise
        sleep(pause_s * attempt)
    raise AssertionError("unreachable")


def _is_link(st: os.stat_result) -> bool:
    return stat.S_ISLNK(st.st_mode) or getattr(st, "st_reparse_tag", 0) == _MOUNT_POINT_TAG
