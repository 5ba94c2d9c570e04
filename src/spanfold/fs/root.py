"""Reach and write everything of one directory without leaving it.

A `SafeRoot` stands for one directory. Paths given to it are relative, and each
component is opened in turn from the one before, never through a link; so no
entry planted in the tree makes us read or write outside of it. Files appear
whole or not at all, with mode 0600, directories with 0700, whatever the umask.

A root holds no descriptor between two calls, so thousands may be alive; it
remembers which directory it was given and refuses another one in its place.
Inside `with root:` it holds one, which is faster and goes on reaching the
directory after it was renamed.

Errors of the operating system (disk full, no permission, missing) come out as
they are. What is promised against whom: docs/safe-paths.md.
"""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from spanfold.errors import UnsafeEntryError
from spanfold.fs._folders import Folder, platform_folder, sync_descriptor
from spanfold.fs.append import AppendHandle, open_to_append
from spanfold.fs.entries import WalkBudgetExceeded, WalkEntry, name_file, require_regular, same_entry, unsafe_entry
from spanfold.fs.paths import create_temporary, replace_temporary, split_relative
from spanfold.fs.pieces import Pieces, write_pieces

_TEMPORARY_ATTEMPTS: Final = 8


class SafeRoot:
    """One directory, and what may be done inside it. Usable from several threads."""

    path: Path
    """Where the directory was when it was opened: absolute, for messages and for readers."""
    durable: bool
    """Whether new names are flushed to the device, so that they survive a power cut."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        durable: bool = False,
        folder_type: type[Folder] | None = None,
    ) -> None:
        """Stand for the directory at `path`, holding no descriptor.

        Args:
            path: The directory. Links are allowed on the way to it; its last
                component may not be one.
            create: Make the directory when it is missing, and those above it.
            durable: Flush every new file and name to the device;
                `replace_atomic` is told by its own argument.
            folder_type: How a directory is held; default the safest that the
                platform has.

        Raises:
            UnsafeEntryError: The path is a link or no directory.
            FileNotFoundError: It is missing and `create` is false.
        """
        self.path = Path(path).absolute()
        self.durable = durable
        self._folder_type = folder_type or platform_folder()
        self._above: tuple[SafeRoot, tuple[str, ...]] | None = None
        self._held: Folder | None = None
        if create:
            self._create()
        with self._folder_type.open(str(self.path)) as folder:
            self._identity = folder.stat()

    @classmethod
    def open(cls, path: str | os.PathLike[str], create: bool = False, *, durable: bool = False) -> Self:
        """Stand for the directory at `path` and hold it until `close`; arguments and errors as of the class."""
        return cls(path, create=create, durable=durable).__enter__()

    def subroot(self, rel: str, create: bool = False) -> "SafeRoot":
        """Stand for a directory in this one.

        Args:
            rel: Its relative path.
            create: Make missing directories on the way.

        Raises:
            UnsafePathError: `rel` is no safe relative path.
            UnsafeEntryError: A component is a link or no directory.
            FileNotFoundError: It is missing and `create` is false.
        """
        parts = split_relative(rel)
        with self._at(parts, create=create) as folder:
            root = SafeRoot.__new__(SafeRoot)
            root.path = self.path.joinpath(*parts)
            root.durable = self.durable
            root._folder_type = self._folder_type
            root._above = (self, parts)
            root._held = None
            root._identity = folder.stat()
        return root

    # ---- holding -------------------------------------------------------

    def __enter__(self) -> Self:
        if self._held is None:
            self._held = self._reopen()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop holding the directory; harmless when repeated. The root can still be used."""
        # Not closed here: another thread may be inside a call. The last one to let go closes it.
        self._held = None

    @contextmanager
    def _directory(self) -> Generator[Folder]:
        held = self._held
        if held is not None:
            yield held
            return
        with self._reopen() as folder:
            yield folder

    def _reopen(self) -> Folder:
        if self._above is None:
            folder = self._folder_type.open(str(self.path))
        else:
            above, parts = self._above
            with above._directory() as start:
                folder = above._descend(start, parts, create=False)
        if not same_entry(folder.stat(), self._identity):
            folder.close()
            raise unsafe_entry(str(self.path), "the directory that was opened", "another one in its place")
        return folder

    @contextmanager
    def _at(self, parts: tuple[str, ...], *, create: bool = False) -> Generator[Folder]:
        with self._directory() as start:
            if not parts:
                yield start
                return
            with self._descend(start, parts, create=create) as folder:
                yield folder

    def _descend(self, start: Folder, parts: tuple[str, ...], *, create: bool) -> Folder:
        folder = start
        for name in parts:
            try:
                below = self._make_and_enter(folder, name) if create else folder.enter(name)
            finally:
                if folder is not start:
                    folder.close()
            folder = below
        return folder

    def _make_and_enter(self, folder: Folder, name: str) -> Folder:
        try:
            return folder.enter(name)
        except FileNotFoundError:
            self._make(folder, name)
        return folder.enter(name)

    def _make(self, folder: Folder, name: str) -> None:
        try:
            folder.mkdir(name)
        except FileExistsError:
            return  # Another writer was quicker; entering it tells whether it is a real directory.
        if self.durable:
            folder.sync()

    def _create(self) -> None:
        if not self.path.name or os.path.lexists(self.path):
            return
        os.makedirs(self.path.parent, exist_ok=True)
        with self._folder_type.open(os.path.realpath(self.path.parent)) as folder:
            self._make(folder, self.path.name)

    # ---- directories ---------------------------------------------------

    def ensure_dir(self, rel: str) -> None:
        """Make a directory and those on the way to it, like `mkdir -p`.

        Raises:
            UnsafePathError: `rel` is no safe relative path.
            UnsafeEntryError: A component is there and no real directory.
        """
        with self._at(split_relative(rel), create=True):
            pass

    def make_dir_exclusive(self, rel: str) -> None:
        """Make a directory whose name must be free; the folder above it must be there.

        Raises:
            FileExistsError: The name is taken, by whatever kind of entry.
        """
        *above, name = split_relative(rel)
        with self._at(tuple(above)) as folder:
            folder.mkdir(name)
            if self.durable:
                folder.sync()

    def walk(self, max_entries: int | None = None) -> Iterator[WalkEntry]:
        """Yield every entry below, each directory before what is in it, names in order.

        Links are yielded and not followed. Entries that vanish meanwhile are
        left out.

        Args:
            max_entries: How many entries may be met.

        Raises:
            WalkBudgetExceeded: There are more; at most that many were listed.
            UnsafeEntryError: A directory was replaced by something else.
        """
        met = 0
        waiting: list[WalkEntry | None] = [None]
        while waiting:
            parent = waiting.pop()
            if parent is not None:
                yield parent
                if parent.skip or not parent.is_dir:
                    continue
            budget = None if max_entries is None else max_entries - met
            found = self._list(parent.path if parent else "", budget)
            if found is None:
                raise WalkBudgetExceeded(str(self.path), met + (budget or 0))
            met += len(found)
            waiting.extend(reversed(found))

    def _list(self, rel: str, budget: int | None) -> list[WalkEntry] | None:
        found: list[WalkEntry] = []
        try:
            with self._at(split_relative(rel) if rel else ()) as folder:
                for name in folder.names():
                    if len(found) == budget:
                        return None
                    try:
                        found.append(WalkEntry(f"{rel}/{name}" if rel else name, folder.lstat(name)))
                    except FileNotFoundError:
                        continue
        except FileNotFoundError:
            if not rel:
                raise
            return []
        return sorted(found, key=lambda entry: entry.path)

    # ---- reading -------------------------------------------------------

    def stat(self, rel: str | None = None) -> os.stat_result:
        """Return the status of an entry, not following a link; of this directory without `rel`."""
        if rel is None:
            with self._directory() as folder:
                return folder.stat()
        *above, name = split_relative(rel)
        with self._at(tuple(above)) as folder:
            return folder.lstat(name)

    def read_link(self, rel: str) -> str:
        """Return what a link says, without following it.

        Raises:
            OSError: It is no link, or missing.
        """
        *above, name = split_relative(rel)
        with self._at(tuple(above)) as folder:
            return folder.read_link(name)

    def open_read(self, rel: str) -> BufferedReader:
        """Open a regular file for reading.

        Raises:
            UnsafeEntryError: It, or a component of its path, is a link or of another kind.
            FileNotFoundError: It is missing.
        """
        return os.fdopen(self._open_file(rel, os.O_RDONLY), "rb")

    def read_bytes(self, rel: str) -> bytes:
        """Read a whole regular file; errors as of `open_read`."""
        with self.open_read(rel) as file:
            return file.read()

    def _open_file(self, rel: str, flags: int) -> int:
        *above, name = split_relative(rel)
        with self._at(tuple(above)) as folder:
            fd = folder.open_file(name, flags)
            try:
                require_regular(fd, f"{folder.label}/{name}")
            except BaseException:
                os.close(fd)
                raise
        return fd

    # ---- writing -------------------------------------------------------

    def create_exclusive(self, rel: str, data: Pieces) -> int:
        """Create a file whose name must be free; it appears whole or not at all.

        The bytes are written under a hidden name, which is then linked to the
        wanted one: the kernel decides whether that is free, for every kind of
        entry, and nothing is ever opened, followed or overwritten there.

        Args:
            rel: The file; its folder must be there.
            data: Its bytes, or pieces of them.

        Returns:
            Number of bytes written.

        Raises:
            FileExistsError: The name is taken, by whatever kind of entry.
            UnsafeEntryError: Somebody put another file in its place meanwhile.
            OSError: As the system says; without hard links EPERM or ENOTSUP.
        """
        *above, name = split_relative(rel)
        with self._at(tuple(above)) as folder, _Staged(folder, name, create_temporary) as staged:
            size = staged.write(data, durable=self.durable)
            folder.link(staged.name, name)
            staged.discard()
            if not same_entry(folder.lstat(name), staged.st):
                raise unsafe_entry(f"{folder.label}/{name}", "the file just written", "another one in its place")
            if self.durable:
                folder.sync()
        return size

    def replace_atomic(self, rel: str, data: Pieces, *, durable: bool) -> int:
        """Replace a file; at every instant a reader sees the whole old or the whole new one.

        A link of this name is replaced, not followed. When anything fails the
        old file stays, and no temporary file does.

        Args:
            rel: The file; its folder must be there.
            data: Its bytes, or pieces of them: an iterable of bytes and
                `FileSpan`, taken one by one.
            durable: Flush the file and its name to the device before returning.

        Returns:
            Number of bytes written.

        Raises:
            UnsafeEntryError: The name belongs to a directory, or somebody put
                another file in place of the temporary one.
            OSError: As the system says.
        """
        *above, name = split_relative(rel)
        with self._at(tuple(above)) as folder, _Staged(folder, name, replace_temporary) as staged:
            size = staged.write(data, durable=durable)
            if not same_entry(folder.lstat(staged.name), staged.st):
                raise unsafe_entry(f"{folder.label}/{staged.name}", "the file just written", "another one in its place")
            folder.replace(staged.name, name)
            staged.is_gone = True
            if durable:
                # The new name lives in the folder, not the file: a power cut could keep the bytes and lose the name.
                folder.sync()
        return size

    def open_append(self, rel: str, limit: int | None = None, *, mend_tail: bool = False) -> AppendHandle:
        """Open a file to append to, and create it when it is missing.

        Args:
            rel: The file; its folder must be there.
            limit: Bytes the file may have before an append, or no limit.
            mend_tail: The file consists of lines: if the last one was torn,
                end it before the next append, so that it damages only itself.

        Raises:
            UnsafeEntryError: The name is taken by anything but a regular file
                with a single name.
            SizeLimitExceeded: The file is over its limit already.
            OSError: As the system says.
        """
        *above, name = split_relative(rel)
        with self._at(tuple(above)) as folder:
            fd, is_new = open_to_append(folder, name, limit)
            if is_new and self.durable:
                folder.sync()
            label = f"{folder.label}/{name}"
        return AppendHandle(fd, label, lambda: self.stat(rel), limit=limit, mend_tail=mend_tail)

    def unlink(self, rel: str) -> None:
        """Remove a name, not following a link; never a directory.

        Raises:
            UnsafeEntryError: It is a directory.
            FileNotFoundError: There is no such name.
        """
        *above, name = split_relative(rel)
        with self._at(tuple(above)) as folder:
            folder.unlink(name)

    def remove_dir(self, rel: str) -> None:
        """Remove an empty directory, not following a link.

        Raises:
            OSError: It is not empty, missing, or no directory.
        """
        *above, name = split_relative(rel)
        with self._at(tuple(above)) as folder:
            folder.remove_dir(name)


class _Staged:
    """A file under a hidden name, removed again unless it was published."""

    def __init__(self, folder: Folder, target: str, temporary: Callable[[str], str]) -> None:
        self._folder = folder
        self._target = target
        self.is_gone = False
        for attempt in range(1, _TEMPORARY_ATTEMPTS + 1):
            self.name = temporary(target)
            try:
                self._fd = folder.open_file(self.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                if attempt == _TEMPORARY_ATTEMPTS:
                    raise
            else:
                break
        self.st = os.fstat(self._fd)

    def write(self, data: Pieces, *, durable: bool) -> int:
        try:
            size = write_pieces(self._fd, data)
            if durable:
                sync_descriptor(self._fd)
        except OSError as error:
            name_file(error, f"{self._folder.label}/{self._target}")
            raise
        # Windows renames and removes no file that is open.
        self._close()
        return size

    def discard(self) -> None:
        self._close()
        if self.is_gone:
            return
        self.is_gone = True
        try:
            self._folder.unlink(self.name)
        except (OSError, UnsafeEntryError):
            pass  # Gone, or no longer removable; readers ignore names like this.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.discard()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
