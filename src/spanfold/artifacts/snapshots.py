"""Keep a workspace as it was: its texts in a record, everything else as copies in the run (DL 9.4).

Two modes. The default keeps what readers look at: texts up to a cap, and media.
`keep_everything` keeps every regular file so that `restore_workspace` gives it
back byte for byte, or says of which file it cannot.

Nothing is reached by following a link, on the way to a file or at its end:
links are noted as links. Nothing here raises because of what a workspace
holds; what was not kept is named with the reason.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, Final, cast

from spanfold.artifacts.media import MEDIA_TYPES, NotCopied, read_chunks, verified
from spanfold.artifacts.objects import MAX_SCRUBBED_BYTES, Scrub, scrubbed, unchanged
from spanfold.artifacts.placing import STEM_LIMIT, holds
from spanfold.artifacts.results import why
from spanfold.errors import SpanfoldError, UnsafeEntryError, UnsafePathError
from spanfold.fs import SafeRoot, WalkBudgetExceeded, WalkEntry, entry_kind, safe_name, split_relative

TEXT_SUFFIXES: Final = frozenset({".py", ".json", ".jsonl", ".md", ".txt", ".yaml", ".yml", ".csv", ".log", ".toml"})
"""Suffixes of files whose text goes into the record, in lower case."""
INLINE_BYTES: Final = 2_000_000
"""int, bytes. Largest text that the default mode puts into the record."""
KEPT_INLINE_BYTES: Final = 16 * 1024 * 1024
"""int, bytes. Larger texts are kept as copies by `keep_everything`."""
COPY_BYTES: Final = 1 << 30
"""int, bytes. Larger files are not copied by default."""
ENTRIES: Final = 100_000
"""int. Entries of a workspace looked at by default."""
_OURS: Final = ("journal", ".spanfold")
_NOTES: Final = ("<skipped: ", "<could not ")


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """How much is kept. What is over a limit is named in the snapshot."""

    inline_bytes: int = INLINE_BYTES
    """Largest text the default mode puts into the record."""
    kept_inline_bytes: int = KEPT_INLINE_BYTES
    """Largest text `keep_everything` puts into the record; it copies larger ones."""
    copy_bytes: int = COPY_BYTES
    """Largest file copied."""
    entries: int = ENTRIES
    """Most entries of the workspace, files and folders."""


@dataclass(slots=True)
class WorkspaceSnapshot:
    """What was kept of a workspace. Paths of its files are relative to it, those of copies to the run directory."""

    files: dict[str, str] = field(default_factory=dict[str, str])
    """Path -> text of the file, or a note in angle brackets that says why it is not here."""
    media: list[str] = field(default_factory=list[str])
    """Copies, in the order of the files."""
    media_files: dict[str, str] = field(default_factory=dict[str, str])
    """Path -> copy."""
    skipped: int = 0
    """Files that were not kept."""
    sha256: dict[str, str] = field(default_factory=dict[str, str])
    """Path -> SHA-256 of the file as it was, for each file that was kept."""
    redacted: list[str] = field(default_factory=list[str])
    """Files from which secrets were taken out: what is kept is not what was there."""
    links: dict[str, str] = field(default_factory=dict[str, str])
    """Symbolic links and what they say; `.` is the workspace itself."""
    others: dict[str, str] = field(default_factory=dict[str, str])
    """Path -> kind of what is no file, folder or link: FIFO, socket, device."""
    empty_folders: list[str] = field(default_factory=list[str])
    """Folders in which there is nothing."""
    problem: str | None = None
    """Why the workspace was not looked at to its end."""

    def to_dict(self) -> dict[str, Any]:
        """Return the record: the keys of DL 9.4, and `exact`, which says what a restoration needs to know."""
        exact = {
            "sha256": self.sha256,
            "redacted": self.redacted,
            "links": self.links,
            "others": self.others,
            "empty_folders": self.empty_folders,
            "problem": self.problem,
        }
        return {
            "files": self.files,
            "media": self.media,
            "media_files": self.media_files,
            "skipped": self.skipped,
            "exact": {key: value for key, value in exact.items() if value},
        }


def snapshot_workspace(
    root: SafeRoot,
    folder: str,
    workspace: str | os.PathLike[str] | None,
    *,
    keep_everything: bool = False,
    limits: SnapshotLimits | None = None,
    scrub: Scrub = unchanged,
) -> WorkspaceSnapshot | None:
    """Keep what a workspace holds now.

    A second snapshot of an unchanged workspace makes no second copies.

    Args:
        root: The run directory.
        folder: Folder in it for copies, made when there is one to put there.
        workspace: The directory to look at; links on the way to it are fine, it may not be one.
        keep_everything: Keep every regular file whole.
        limits: How much is kept; default generous.
        scrub: Takes the secrets out of texts, and of copies that are no media.

    Returns:
        The snapshot; None when `workspace` is no directory.

    Raises:
        UnsafePathError: `folder` is no safe relative path.
    """
    split_relative(folder)
    if not isinstance(workspace, str | os.PathLike):
        return None
    taking = _Taking(root, folder, keep_everything, limits or SnapshotLimits(), scrub)
    try:
        if os.path.islink(workspace):
            taking.out.links["."] = os.readlink(workspace)
            taking.out.skipped += 1
            return taking.out
        if not os.path.isdir(workspace):
            return None
        with SafeRoot(workspace) as source:
            taking.everything(source)
    except (OSError, SpanfoldError, ValueError) as error:  # ValueError: no path at all, such as one with NUL in it
        taking.out.problem = why(error)
    return taking.out


class _CopyFailed(SpanfoldError):
    """The run does not take a copy; the message is the reason."""


class _Taking:
    """One snapshot in the making."""

    def __init__(self, root: SafeRoot, folder: str, keep: bool, limits: SnapshotLimits, scrub: Scrub) -> None:
        self.out = WorkspaceSnapshot()
        self._root, self._folder, self._keep, self._limits, self._scrub = root, folder, keep, limits, scrub
        run = os.path.realpath(root.path)
        # Our own copies and records, when the workspace is around the run: each snapshot would hold those before it.
        self._ours = {os.path.join(run, *ours.split("/")) for ours in (folder, *_OURS)}

    def everything(self, source: SafeRoot) -> None:
        where = os.path.realpath(source.path)
        empty: dict[str, None] = {}
        try:
            for entry in source.walk(self._limits.entries):
                empty.pop(os.path.dirname(entry.path), None)
                if not entry.is_dir:
                    self._entry(source, where, entry)
                elif self._is_for_us(source, where, entry):
                    empty[entry.path] = None
                else:
                    entry.skip = True
            self.out.empty_folders = [_text(path) for path in empty]
        except WalkBudgetExceeded:
            self.out.problem = f"it holds more than {self._limits.entries} entries; the rest was not looked at"

    def _is_for_us(self, source: SafeRoot, where: str, entry: WalkEntry) -> bool:
        if os.path.join(where, *entry.path.split("/")) in self._ours:
            return False
        try:
            source.subroot(entry.path)
        except (OSError, SpanfoldError) as error:
            self._note(_text(entry.path), f"<could not read: {why(error)}>")
            return False
        return True

    def _entry(self, source: SafeRoot, where: str, entry: WalkEntry) -> None:
        path, kind = self._free(_text(entry.path)), entry_kind(entry.st.st_mode)
        if kind == "symbolic link":
            self.out.links[path] = _link_text(source, entry.path)
        elif kind:
            self.out.others[path] = kind
        else:
            try:
                self._file(source, where, entry, path)
            except NotCopied as error:
                self._note(path, f"<skipped: {error}>")
            except _CopyFailed as error:
                self._note(path, f"<could not copy: {error}>")
            except UnsafeEntryError:
                self._note(path, "<could not read: it was replaced while it was looked at>")
            except (OSError, SpanfoldError) as error:
                self._note(path, f"<could not read: {why(error)}>")

    def _free(self, path: str) -> str:
        """Return a name no other entry has: names that are no UTF-8 may read alike."""
        taken = (self.out.files, self.out.media_files, self.out.links, self.out.others)
        while any(path in names for names in taken):
            path += "_"
        return path

    def _note(self, path: str, note: str) -> None:
        self.out.files[path] = note
        self.out.skipped += 1

    def _file(self, source: SafeRoot, where: str, entry: WalkEntry, path: str) -> None:
        suffix, size = os.path.splitext(entry.name)[1].lower(), entry.st.st_size
        is_text = suffix in TEXT_SUFFIXES
        if not (self._keep or is_text or suffix in MEDIA_TYPES):
            return self._note(path, f"<skipped: {suffix or 'no extension'}, not a recognised text type>")
        cap = self._limits.kept_inline_bytes if self._keep else self._limits.inline_bytes
        with source.open_read(entry.path) as file:
            data = None if suffix in MEDIA_TYPES or size > cap else file.read(cap + 1)
            if data is not None and len(data) <= cap:
                text = _decoded(data, may_hold_nul=is_text)
                if text is not None:
                    return self._inline(path, data, text)
                if is_text:
                    # Readers get to see the text; the bytes themselves are kept by a copy.
                    self.out.files[path] = self._scrub(data.decode("utf-8", "replace"))
            elif not (self._keep or suffix in MEDIA_TYPES):
                return self._note(path, f"<skipped: {max(size, len(data or b''))} bytes, over the inline cap>")
            if self._keep or suffix in MEDIA_TYPES:
                self._copy(file, os.path.join(where, entry.path), entry.name, path, is_media=suffix in MEDIA_TYPES)
        return None

    def _inline(self, path: str, data: bytes, text: str) -> None:
        clean = self._scrub(text)
        if clean != text:
            self.out.redacted.append(path)
        self.out.files[path] = clean
        self.out.sha256[path] = hashlib.sha256(data).hexdigest()

    def _copy(self, file: BinaryIO, real: str, name: str, path: str, *, is_media: bool) -> None:
        chunks = partial(read_chunks, file, self._limits.copy_bytes)
        digest, named = hashlib.sha256(), hashlib.sha256(os.fsencode(real))
        size = 0
        for chunk in chunks():
            digest.update(chunk)
            named.update(chunk)
            size += len(chunk)
        original = digest.hexdigest()
        stem, suffix = os.path.splitext(name)
        stem = safe_name(self._scrub(_text(stem)), limit=STEM_LIMIT)
        copy = f"{self._folder}/{stem}_{named.hexdigest()[:12]}{_plain(suffix.lower())}"
        if is_media or self._scrub is unchanged:
            self._place(copy, original, size, chunks)
        else:
            if size > MAX_SCRUBBED_BYTES:
                raise NotCopied(f"{size} bytes, too large to be searched for secrets")
            data = b"".join(chunks())
            clean = scrubbed(data, self._scrub)
            if clean != data:
                self.out.redacted.append(path)
            self._place(copy, hashlib.sha256(clean).hexdigest(), len(clean), lambda: (clean,))
        self.out.media.append(copy)
        self.out.media_files[path] = copy
        self.out.sha256[path] = original

    def _place(self, copy: str, digest: str, size: int, chunks: Callable[[], Iterable[bytes]]) -> None:
        try:
            if not holds(self._root, copy, digest, size):
                self._root.ensure_dir(self._folder)
                self._root.replace_atomic(copy, verified(chunks, digest), durable=self._root.durable)
        except (OSError, UnsafeEntryError) as error:
            raise _CopyFailed(why(error)) from error


def _decoded(data: bytes, *, may_hold_nul: bool) -> str | None:
    """Return the text that gives the same bytes again; None when there is none."""
    if not may_hold_nul and b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _text(path: str) -> str:
    r"""Return a name as text that JSON can hold: bytes that are no UTF-8 as `\xff`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _plain(suffix: str) -> str:
    return suffix if suffix[1:].isascii() and suffix[1:].isalnum() and len(suffix) <= 16 else ""


def _link_text(source: SafeRoot, path: str) -> str:
    try:
        return _text(source.read_link(path))
    except (OSError, SpanfoldError) as error:
        return f"<could not read: {why(error)}>"


# -- back to files


@dataclass(frozen=True, slots=True)
class Restored:
    """What became of a restoration."""

    files: int
    """Files that were written and are, as far as the snapshot says, what they were."""
    problems: dict[str, str]
    """Path -> why it is missing, or is not what it was."""

    @property
    def is_exact(self) -> bool:
        """Whether every file of the workspace is there again, byte for byte."""
        return not self.problems


def restore_workspace(root: SafeRoot, snapshot: Mapping[str, Any], into: str | os.PathLike[str]) -> Restored:
    """Write the files of a snapshot into a folder.

    The snapshot may come from anybody: nothing is written outside of `into`,
    read outside of the run directory, or overwritten.

    Args:
        root: The run directory, for the copies.
        snapshot: The record, as `WorkspaceSnapshot.to_dict` gave it or a document holds it; also one of another logger.
        into: The folder, made when missing.

    Returns:
        How many files are as they were, and what is not.

    Raises:
        OSError: `into` cannot be made.
        UnsafeEntryError: `into` is a link or no directory.
    """
    target = SafeRoot(into, create=True)
    exact = _table(snapshot.get("exact"))
    digests, texts, copies = (
        _table(exact.get("sha256")),
        _table(snapshot.get("files")),
        _table(snapshot.get("media_files")),
    )
    redacted = set(_strings(exact.get("redacted")))
    is_ours = "exact" in snapshot
    problems: dict[str, str] = dict.fromkeys(_table(exact.get("links")), "a link, which is not restored")
    problems |= {path: f"a {kind}, which is not restored" for path, kind in _table(exact.get("others")).items()}
    if exact.get("problem"):
        problems["."] = str(exact["problem"])
    done = 0
    for path in dict.fromkeys((*texts, *copies)):
        try:
            problem = _restore(root, target, path, texts.get(path), copies.get(path), digests.get(path))
            if path in redacted:
                problem = "secrets were taken out of it"
            elif is_ours and not problem and path not in digests:
                problem = "it is no UTF-8, and only its text was kept"
        except (OSError, SpanfoldError) as error:
            problem = str(error) if isinstance(error, UnsafePathError) else why(error)
        if problem:
            problems[path] = problem
        else:
            done += 1
    for path in _strings(exact.get("empty_folders")):
        try:
            target.ensure_dir(path)
        except (OSError, SpanfoldError) as error:
            problems[path] = why(error)
    return Restored(done, problems)


def _restore(root: SafeRoot, target: SafeRoot, path: str, text: object, copy: object, digest: object) -> str:
    above = "/".join(split_relative(path)[:-1])
    if copy is None and digest is None and str(text).startswith(_NOTES):
        return str(text).strip("<>")
    if above:
        target.ensure_dir(above)
    seen = hashlib.sha256()
    with io.BytesIO(str(text).encode("utf-8", "replace")) if copy is None else root.open_read(str(copy)) as file:

        def pieces() -> Iterator[bytes]:
            while chunk := file.read(1 << 20):
                seen.update(chunk)
                yield chunk

        target.create_exclusive(path, pieces())
    return "its bytes are not those it had" if digest is not None and digest != seen.hexdigest() else ""


def _table(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _strings(value: object) -> list[str]:
    return [item for item in cast("list[object]", value) if isinstance(item, str)] if isinstance(value, list) else []
