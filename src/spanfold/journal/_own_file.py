"""The journal file of one process: how far it has come, and where it is when somebody moved it.

Others can remove, replace, rename or cut a file that is written to. Here it is
looked for twice a second:

- its name is gone: it is written again under that name, from the descriptor;
- its name stands for another file: it is written again under a new name, with
  a chain that begins there;
- its content is not what was written: it stays as evidence, and recording goes
  on in a new file.

What this process wrote into a file it had to leave is remembered (`left`), so
that the seal states what was there and not what somebody made of it.
"""

import hashlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from spanfold import names
from spanfold.errors import SpanfoldError, UnsafeEntryError
from spanfold.fs import AppendHandle, FileSpan, SafeRoot
from spanfold.fs.pieces import read_at
from spanfold.journal._core import MIDDLE, Tip

SUFFIX: Final = ".otlp.jsonl"
"""How the name of every journal file ends."""
CHECK_INTERVAL_S: Final = 0.5
"""How often a writer looks whether its file is still where it was."""
_SEQ: Final = b'{"key":"%b","value":{"intValue":"' % names.LINE_SEQ.encode()
_HASH_LENGTH: Final = 64
_HIGH_DESCRIPTOR: Final = 200
_PATIENCE_S: Final = 10.0
"""How soon to try again to copy a file back to where it belongs."""
_BLOCK: Final = 1 << 20


class Position(NamedTuple):
    """How far a journal file has come."""

    file: str
    """File name, empty before the first line."""
    seq: int
    """Lines in it."""
    head: str
    """Hash of the last line, 64 hex digits."""
    size: int
    """Bytes up to the end of the last line."""


def genesis(writer: str) -> str:
    """Return what the first line of a writer's file has in place of a previous hash."""
    return hashlib.sha256(f"{names.JOURNAL_FORMAT} {writer}".encode("ascii")).hexdigest()


def writer_name() -> str:
    """Return a new writer name: UTC time, process id, 8 random hex digits."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}-{os.urandom(4).hex()}"


class OwnFile(Tip):
    """The file this process appends to. The owner holds a lock of its own around every call.

    An exception may be raised between any two steps by a signal handler, so
    each change of state is one assignment, the last step of what it is for.

    Args:
        folder: The journal folder; made when it is missing.
        durable: Flush new names to the device.
    """

    def __init__(self, folder: Path, *, durable: bool) -> None:
        super().__init__()
        self.folder = folder
        self.handle: AppendHandle | None = None
        """Open for appending; None before the first line and while others need the descriptor."""
        self.left: dict[str, Position] = {}
        """Files this process had to leave, by name, as it left them."""
        self.disturbed = 0
        """How often the file was written again or left."""
        self._writer = ""
        self._durable = durable
        self._identity = (0, 0)
        self._is_astray = False

    @property
    def name(self) -> str:
        """File name, empty before the first open."""
        return self._writer + SUFFIX if self._writer else ""

    @property
    def position(self) -> Position:
        """How far this file has come."""
        return Position(self.name, self.seq, self.head.decode(), self.size) if self.seq else Position("", 0, "", 0)

    def ready(self, now: float) -> "OwnFile":
        """Return the file to append to: this one, open, at its name and ending where it was left, or its successor.

        Args:
            now: Monotonic seconds.

        Raises:
            OSError: As the system says; nothing changed, the next call tries again.
            SpanfoldError: The folder is a link or no folder.
        """
        handle = self.handle
        if handle is not None and not self._is_ours(handle):
            # Closed behind our back (`os.closerange`). Its number may be another file's by now: never close that.
            self.descriptor = -1
            self.handle = handle = None
        file = self._opened() if handle is None else self._at_its_name(handle)
        file.device, file.inode = file._identity
        file.descriptor = -1 if file.handle is None else file.handle.fileno()
        file.next_check = now + (_PATIENCE_S if file._is_astray else CHECK_INTERVAL_S)
        return file

    def close(self) -> None:
        """Let the descriptor go; `ready` opens the file again."""
        self.descriptor = -1
        handle, self.handle = self.handle, None
        if handle is not None and self._is_ours(handle):
            handle.close()

    def has(self, line: bytes, offset: int) -> bool:
        """Whether `line` was written at `offset`; if only a part of it was, that part is cut off."""
        if self.handle is None or not self._is_ours(self.handle):
            return False
        fd = self.handle.fileno()
        found = read_at(fd, len(line) + 1, offset)
        if found == line:
            return True
        if found and line.startswith(found):
            os.ftruncate(fd, offset)
        return False

    def is_open(self) -> bool:
        """Whether the descriptor is still that of the file."""
        return self.handle is not None and self._is_ours(self.handle)

    def _is_ours(self, handle: AppendHandle) -> bool:
        try:
            return _identity(os.fstat(handle.fileno())) == self._identity
        except (OSError, ValueError):
            return False

    # -- opening

    def _opened(self) -> "OwnFile":
        root = self._root()
        if not self._writer:
            return self._successor(root)
        try:
            handle = root.open_append(self.name) if root.stat(self.name).st_size == self.size else None
        except (FileNotFoundError, UnsafeEntryError):
            handle = None
        if handle is None:
            return self._successor(root)
        self._take(handle)
        return self

    def _root(self) -> SafeRoot:
        # From the run directory, so that a link in place of that is not followed either.
        run_dir = SafeRoot(self.folder.parent, create=True, durable=self._durable)
        return run_dir.subroot(self.folder.name, create=True)

    def _successor(self, root: SafeRoot) -> "OwnFile":
        """Return a new file to go on in; this one stays as it is."""
        writer = writer_name()
        after = OwnFile(self.folder, durable=self._durable)
        after.head = genesis(writer).encode()
        self._hand_over(after, writer, root.open_append(writer + SUFFIX))
        return after

    def _hand_over(self, after: "OwnFile", writer: str, handle: AppendHandle) -> None:
        after._writer = writer
        after._take(handle)
        after.left, after.disturbed = self.left, self.disturbed
        if self.seq:
            after.left = {**self.left, self.name: self.position}
            after.disturbed += 1

    def _take(self, handle: AppendHandle) -> None:
        # A number that nobody gets by just opening a file: if the host closes all descriptors, the next file it opens
        # would otherwise have ours, and our lines would land in it.
        try:
            high = handle.duplicate(_HIGH_DESCRIPTOR)
        except OSError:
            high = handle  # the process may not have that many
        else:
            handle.close()
        before = self.handle if self.handle is not None and self._is_ours(self.handle) else None
        self._identity = _identity(os.fstat(high.fileno()))
        self.descriptor = -1
        self.handle = high
        if before is not None:
            before.close()

    # -- finding it again

    def _at_its_name(self, handle: AppendHandle) -> "OwnFile":
        st = os.fstat(handle.fileno())
        try:
            named = os.lstat(self.folder / self.name)
        except (FileNotFoundError, NotADirectoryError):
            named = None
        except OSError:
            return self  # the folder cannot be looked into any more; the descriptor is as good as before
        if named is None or _identity(named) != self._identity:
            return self._restored(handle, st, is_taken=named is not None)
        return self if st.st_size == self.size else self._successor(self._root())

    def _restored(self, handle: AppendHandle, st: os.stat_result, *, is_taken: bool) -> "OwnFile":
        """Write what the descriptor still holds into the folder again."""
        self._is_astray = False
        try:
            root = self._root()
            if st.st_size != self.size or not self.size:
                return self._successor(root)
            if is_taken and not self._has_a_copy(handle, root):
                return self._copied_under_new_name(handle, root)
            if not is_taken:
                root.create_exclusive(self.name, [FileSpan(handle.fileno(), 0, self.size)])
                self.disturbed += 1
            self._take(root.open_append(self.name))
        except (OSError, SpanfoldError):
            if not st.st_nlink:
                raise
            self._is_astray = True  # it only lies elsewhere: better there than in memory
        return self

    def _has_a_copy(self, handle: AppendHandle, root: SafeRoot) -> bool:
        """Whether the file that has our name holds just what ours does, as a copy of it would."""
        try:
            with root.open_read(self.name) as file:
                if os.fstat(file.fileno()).st_size != self.size:
                    return False
                return all(file.read(len(block)) == block for block in _blocks(handle.fileno(), self.size))
        except UnsafeEntryError:
            return False

    def _copied_under_new_name(self, handle: AppendHandle, root: SafeRoot) -> "OwnFile":
        writer = writer_name()
        after = OwnFile(self.folder, durable=self._durable)
        copy = _Rechained(handle.fileno(), self.size, writer)
        try:
            root.create_exclusive(writer + SUFFIX, copy.pieces())
            after.seq, after.size, after.head = self.seq, copy.size, copy.head
            self._hand_over(after, writer, root.open_append(writer + SUFFIX))
        except BaseException:
            try:
                root.unlink(writer + SUFFIX)
            except (OSError, SpanfoldError):
                pass  # it was not there yet
            raise
        return after


def _identity(st: os.stat_result) -> tuple[int, int]:
    return st.st_dev, st.st_ino


def _blocks(fd: int, size: int) -> Iterator[bytes]:
    offset = 0
    while offset < size and (block := read_at(fd, min(_BLOCK, size - offset), offset)):
        offset += len(block)
        yield block


class _Rechained:
    """The lines of a file with the chain of another writer."""

    def __init__(self, fd: int, size: int, writer: str) -> None:
        self._blocks = _blocks(fd, size)
        self.size = 0
        self.head = genesis(writer).encode()

    def pieces(self) -> Iterator[bytes]:
        """Yield the lines; `size` and `head` are right when they are exhausted."""
        tail = b""
        for block in self._blocks:
            *lines, tail = (tail + block).split(b"\n")
            for line in lines:
                yield self._line(line + b"\n")

    def _line(self, line: bytes) -> bytes:
        begin = line.index(MIDDLE, line.index(_SEQ)) + len(MIDDLE)
        line = b"%b%b%b" % (line[:begin], self.head, line[begin + _HASH_LENGTH :])
        self.head = hashlib.sha256(line).hexdigest().encode()
        self.size += len(line)
        return line
