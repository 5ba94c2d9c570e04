"""Find what of a run goes into a bundle, without changing anything of the run."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spanfold import names
from spanfold.bundle._members import is_journal
from spanfold.bundle.manifest import Entry, EntryKind
from spanfold.errors import BundleError, LockedError, UnsafeEntryError
from spanfold.fold import RunOverview, fold_run, is_document, show_run, verify_with_documents
from spanfold.fs import FileSpan, SafeRoot, entry_kind, is_temporary
from spanfold.journal import Finding, JournalVerdict, journal_files, journal_folder, verify_journal

_CHUNK_BYTES: Final = 1 << 18
_JOURNAL: Final = "journal"
_NO_COPY: Final = "`spanfold bundle export --force` exports what is left, and says so in the bundle."
_OTHER_DOCUMENT: Final = (
    "other bytes than the journal gives: edited, or left behind by a process that died; the bundle holds the document that "
    "the journal gives"
)
_ORDER: Final[dict[EntryKind, int]] = {"journal": 0, "document": 1, "artifact": 2, "other": 3}


@dataclass(frozen=True, slots=True)
class Source:
    """Where the bytes of an entry come from."""

    kind: EntryKind
    root: SafeRoot
    path: str
    """In the run directory, and in `root`."""
    size_bytes: int
    """Bytes to take: what is appended later is not part of the bundle."""

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes.

        Raises:
            BundleError: There are fewer than there were.
        """
        left = self.size_bytes
        with self.root.open_read(self.path) as file:
            while left:
                chunk = file.read(min(left, _CHUNK_BYTES))
                if not chunk:
                    raise changed(self.root.path / self.path)
                left -= len(chunk)
                yield chunk

    def entry(self) -> Entry:
        """Return the entry with the hash of the bytes as they are now; raises as `chunks`."""
        digest = hashlib.sha256()
        for chunk in self.chunks():
            digest.update(chunk)
        return Entry(self.path, self.size_bytes, digest.hexdigest(), self.kind)


def changed(path: Path) -> BundleError:
    """Return the refusal of a file that changes while it is exported."""
    return BundleError(
        f"{path}: expected a file that stays as it is, found that it changed meanwhile. Export the run again."
    )


@dataclass(slots=True)
class Gathered:
    """The files of a run that are exported, and what is known of the run."""

    overview: RunOverview
    verdict: JournalVerdict
    is_alive: bool
    """Whether the run is open and a process that writes it lives."""
    damage: Finding | None
    """What the journal in the run directory has lost."""
    sources: list[Source] = field(default_factory=list[Source])
    """In the order of the archive."""
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    """Path in the run directory -> why."""
    refolded: list[str] = field(default_factory=list[str])
    """Documents that the run directory has not or has otherwise, sorted."""


def gather(
    run_dir: Path,
    scratch: Path,
    *,
    allow_open: bool,
    include_other: bool,
    max_file_bytes: int | None,
    force: bool = False,
) -> Gathered:
    """Look at a run directory and make its documents anew. Everything is of one journal that does not change meanwhile.

    Args:
        run_dir: The run directory, links resolved.
        scratch: An empty folder, links resolved: for documents, and for the copy of a journal that still grows.
        allow_open: Go on though a process may still write.
        include_other: Take files that the journal does not name.
        max_file_bytes: Leave out larger files that are neither journal nor document.
        force: Go on though the journal is damaged.

    Raises:
        JournalMissing: There is no journal.
        JournalCorrupt: Recorded bytes of the journal are changed or gone.
        LockedError: A process may still write the run.
        BundleError: The journal changed meanwhile.
        FoldError: A record cannot be folded.
        UnsafeEntryError: The journal folder or a file of it is a link.
    """
    whole = verify_with_documents(run_dir)
    if not force:
        whole.require_undamaged(_NO_COPY)
    overview = show_run(run_dir)
    source = run_dir
    writers: set[str] = {file.writer for file in overview.files}
    is_open = not overview.is_sealed and writers != {"dead"}
    if is_open and not allow_open:
        raise _open_run(overview)
    # The journal of an open diagnose loop stands elsewhere, and goes home when somebody recovers or opens the run.
    is_home = journal_folder(run_dir) == run_dir / _JOURNAL
    if not is_home or (allow_open and writers != {"dead"}):
        source = _frozen(run_dir, scratch / "journal")
        overview = show_run(source)
    found = Gathered(overview, verify_journal(source), is_alive=is_open and "alive" in writers, damage=whole.damage)
    documents = scratch / "documents"
    result = fold_run(source, into=documents)
    folded = SafeRoot(documents)
    for path in result.documents:
        name = path.relative_to(documents).as_posix()
        found.sources.append(Source("document", folded, name, folded.stat(name).st_size))
    _compare(run_dir, found)
    _survey(run_dir, source, found, include_other=include_other, max_file_bytes=max_file_bytes)
    _require_unchanged(source, overview)
    found.sources.sort(key=lambda source: (_ORDER[source.kind], source.path))
    return found


def _open_run(overview: RunOverview) -> LockedError:
    pids = sorted({file.pid for file in overview.files if file.pid is not None})
    if pids:
        found, advice = f"that process {', '.join(map(str, pids))} still writes it", "Wait until the run has ended"
    else:
        host = overview.facts.get("host")
        found, advice = f"one recorded on host {host}, whose processes cannot be seen from here", "Recover it there"
    return LockedError(
        f"{overview.run_dir}: expected a run that has ended, found {found}. {advice}, or export it as it stands (allow_open)."
    )


def _require_unchanged(run_dir: Path, overview: RunOverview) -> None:
    """Refuse a journal that grew while it was looked at: a process may still write though its run was sealed."""
    before = {file.name: file.size_bytes for file in overview.files}
    for path in journal_files(run_dir):
        if before.get(path.name) != path.lstat().st_size:
            raise changed(path)


def _frozen(run_dir: Path, folder: Path) -> Path:
    """Copy what the journal holds now, so that everything in the bundle is of one moment."""
    root = SafeRoot(folder, create=True)
    root.ensure_dir(_JOURNAL)
    for path in journal_files(run_dir):
        try:
            size = SafeRoot(path.parent).stat(path.name).st_size
            root.replace_atomic(f"{_JOURNAL}/{path.name}", [FileSpan(path, 0, size)], durable=False)
        except FileNotFoundError:  # it went home
            raise changed(path) from None
    return folder


def _compare(run_dir: Path, found: Gathered) -> None:
    """Note which documents of the run directory are not those of the bundle."""
    root = SafeRoot(run_dir)
    for source in found.sources:
        try:
            if _is_on_disk(root, source):
                continue
            found.left_out[source.path] = _OTHER_DOCUMENT
        except (FileNotFoundError, NotADirectoryError, UnsafeEntryError):
            pass  # what stands there in its place is named with everything else that is left out
        found.refolded.append(source.path)
    found.refolded.sort()


def _is_on_disk(root: SafeRoot, source: Source) -> bool:
    """Whether a document of the run directory has the bytes of the bundle's; one that is replaced just now has not."""
    try:
        return Source("document", root, source.path, root.stat(source.path).st_size).entry() == source.entry()
    except BundleError:
        return False


def _survey(
    run_dir: Path, journal_dir: Path, found: Gathered, *, include_other: bool, max_file_bytes: int | None
) -> None:
    """Add the journal and every other file of the run directory that is not a document."""
    root, journal = SafeRoot(run_dir), SafeRoot(journal_dir)
    documents = {source.path for source in found.sources}
    folders = {above for path in (*documents, f"{_JOURNAL}/x") for above in _above(path)}
    recorded = {path for artifact in found.overview.artifacts for path in (artifact.path, artifact.figure)}
    frozen = {path.name for path in journal_files(journal_dir)}
    for entry in root.walk():
        path = entry.path
        if _is_bookkeeping(path, entry.name):
            entry.skip = True
            continue
        reason = _why_not(path, entry.name, entry.st)
        if not reason and path in (documents if entry.is_dir else folders):
            reason = "stands where a document or a folder of documents belongs"
        if reason:
            # Two names could look alike when they are no UTF-8; the text is for people.
            found.left_out[os.fsencode(path).decode(errors="backslashreplace")] = reason
            entry.skip = True
        elif entry.is_dir or path in documents:
            continue
        elif is_journal(path):
            kind_root = journal if entry.name in frozen else root
            found.sources.append(Source("journal", kind_root, path, kind_root.stat(path).st_size))
        elif journal_dir != run_dir and is_document(path):
            found.left_out[path] = "a document that is newer than the journal of this bundle"
        elif path not in recorded and not include_other:
            found.left_out[path] = "the journal does not name it"
        elif max_file_bytes is not None and entry.st.st_size > max_file_bytes:
            found.left_out[path] = f"{entry.st.st_size} bytes, more than the {max_file_bytes} asked for"
        else:
            found.sources.append(Source("artifact" if path in recorded else "other", root, path, entry.st.st_size))
    taken = {source.path for source in found.sources}
    for name in sorted(frozen):
        if (path := f"{_JOURNAL}/{name}") not in taken:  # it stands outside of the run directory
            found.sources.append(Source("journal", journal, path, journal.stat(path).st_size))


def _is_bookkeeping(path: str, name: str) -> bool:
    """Whether an entry is no part of the run, and may not make another bundle of it: it changes when the run is sent."""
    return (name in names.BOOKKEEPING and path == f"{_JOURNAL}/{name}") or is_temporary(name)


def _above(path: str) -> Iterator[str]:
    """Yield every folder that a path lies in."""
    parts = path.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))


def _why_not(path: str, name: str, st: os.stat_result) -> str:
    kind = entry_kind(st.st_mode)
    if kind and kind != "directory":
        return f"a {kind}"
    if name.startswith("."):
        return "hidden"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "a name that is not UTF-8"
    return ""
