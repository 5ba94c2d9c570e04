"""Advisory whole-file locks that the operating system drops when their owner dies."""

import os
import sys
import time
import weakref
from types import TracebackType
from typing import Final, Self

from spanfold.errors import LockedError, UnsafeEntryError
from spanfold.fs.append import AppendHandle
from spanfold.fs.root import SafeRoot

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_POLL_S: Final = 0.01


class FileLock:
    """One holder at a time, among processes and among locks of one process.

    The lock is a file that stays where it is; whether it is locked is known to
    the operating system alone, so nothing is left to clean up when the holder
    is killed. A forked child does not hold its parent's lock.
    """

    def __init__(self, root: SafeRoot, rel: str, *, timeout_s: float = 0.0) -> None:
        """Describe a lock; nothing is touched yet.

        Args:
            root: Holds the lock file.
            rel: The lock file, made when missing; its folder must be there.
            timeout_s: How long `acquire` waits for the holder. 0 does not wait.
        """
        self._root = root
        self._rel = rel
        self._timeout_s = timeout_s
        self._handle: AppendHandle | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._handle is not None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            LockedError: Somebody else holds it, this object included, and did
                not let go in time.
            UnsafeEntryError: The lock file is a link or no regular file.
            OSError: The lock file cannot be opened.
        """
        deadline = time.monotonic() + self._timeout_s
        while self.is_held or not self._try():
            left = deadline - time.monotonic()
            if left <= 0:
                raise LockedError(
                    f"{self._root.path / self._rel}: expected a free lock, found it held by {self._owner()} "
                    f"after waiting {self._timeout_s:g} s. Wait for that process or stop it."
                )
            time.sleep(min(_POLL_S, left))

    def release(self) -> None:
        """Let the lock go; harmless when it is not held."""
        _held.discard(self)
        self.forget()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()

    def _try(self) -> bool:
        handle = self._root.open_append(self._rel)
        try:
            if _lock(handle.fileno()) and _has_its_name(handle):
                os.ftruncate(handle.fileno(), 0)
                handle.append(b"%d\n" % os.getpid())
                self._handle = handle
                _held.add(self)
                return True
        finally:
            if self._handle is not handle:
                handle.close()
        return False

    def _owner(self) -> str:
        try:
            owner = self._root.read_bytes(self._rel).strip()
        except OSError:
            owner = b""
        return f"process {int(owner)}" if owner[:20].isdigit() else "another process"

    def forget(self) -> None:
        """Close the lock file without saying that it was released."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()


def _has_its_name(handle: AppendHandle) -> bool:
    # Somebody removed the file between our opening and locking it: this lock would exclude nobody.
    try:
        handle.check()
    except UnsafeEntryError:
        return False
    return True


_held: "weakref.WeakSet[FileLock]" = weakref.WeakSet()


def _forget_after_fork() -> None:
    # The child shares the parent's open file, and with it the lock: were its copy left open, the lock would
    # outlive the parent. Closing a copy does not unlock.
    for lock in list(_held):
        lock.forget()
    _held.clear()


if sys.platform == "win32":
    # A byte that is never written: Windows also keeps others from reading what is locked.
    _LOCKED_BYTE: Final = 1 << 30

    def _lock(fd: int) -> bool:
        os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:

    def _lock(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    os.register_at_fork(after_in_child=_forget_after_fork)
