"""Compare the documents of a run with what its journal says they are, without writing anything.

The journal is folded twice. The first pass only counts, which tells where in
its document every list begins; the second compares the bytes as they come. So
the check needs neither disk nor memory for the documents, and works on a run
that may not be written to.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal

from spanfold.errors import UnsafeEntryError
from spanfold.fold._drafts import LOG_PART, Draft, Drafts, Part
from spanfold.fold.family import Bucket
from spanfold.fold.reduction import Reduction
from spanfold.fs import SafeRoot
from spanfold.journal import read_journal

DifferenceKind = Literal["edited", "behind", "missing", "foreign"]

_PENDING_BYTES: Final = 1 << 20
_FOLDER: Final = re.compile(r"(traced/)?(M[1-5]|stages(/[^/]+)?)|traced")
_DOCUMENT: Final = re.compile(
    r"run\.json|spanfold\.json|timings\.jsonl|langfuse_trace\.json|(traced/)?(M[1-5]|stages/[^/]+)/log\.json|traced/log\.json"
)


@dataclass(frozen=True, slots=True)
class DocumentDifference:
    """A document that is not what the journal says."""

    path: str
    """In the run directory, joined by `/`."""
    kind: DifferenceKind
    """`edited`: other bytes. `behind`: the same of a run without a seal, whose documents lag, or stopped where its process
    was killed. `missing`: no such file. `foreign`: a file where a document belongs that the journal does not make, or an
    entry there that is no file."""
    offset: int
    """First byte of the file that differs; 0 when the file is missing or foreign."""
    length: int
    """Bytes of the file from there to the last one that differs; 0 when only something was taken out."""
    expected_bytes: int
    """Size the document should have; 0 for a foreign one."""
    found_bytes: int
    """Size of the file; 0 for a missing one."""

    def __str__(self) -> str:
        """Say it in a sentence."""
        if self.kind == "missing":
            return f"{self.path}: missing; `spanfold run fold` makes it again"
        if self.kind == "foreign":
            return f"{self.path}: not made from this journal"
        if self.kind == "behind":
            return f"{self.path}: not up to date from byte {self.offset} on; `spanfold run fold` makes it again"
        return f"{self.path}: bytes {self.offset} to {self.offset + self.length} are not what the journal says"


def check_documents(run_dir: Path) -> list[DocumentDifference]:
    """Fold the journal of a finished run and compare every document with it.

    Of a run that is still recorded, documents that lag behind are reported too.
    `langfuse_trace.json` is missed only once the root span has ended.

    Returns:
        The differences, by path; empty when there are none.

    Raises:
        JournalMissing: There is no journal.
        FoldError: A record cannot be folded.
    """
    run_dir = run_dir.resolve()
    root = SafeRoot(run_dir)
    drafts = Drafts(_no_time)
    reduction = _reduce(run_dir, drafts, _count)
    for draft in list(drafts.due.values()):
        drafts.done(draft, size=0, write_s=0)
    reduction.finish()
    last: set[str] = set() if reduction.run.seconds is not None else set(drafts.due)
    plans = {draft.path: _Plan(draft, reduction) for draft in drafts.documents.values()}
    files = {path: _File(root, path, plan.size) for path, plan in plans.items()}
    for path, plan in plans.items():
        for offset, data in plan.fixed:
            files[path].compare(offset, data)
    _compare_lists(run_dir, plans, files)
    found = [d for file in files.values() if (d := file.difference()) and not (d.kind == "missing" and d.path in last)]
    found += [DocumentDifference(path, "foreign", 0, 0, 0, size) for path, size in _on_disk(root) if path not in plans]
    return sorted(found, key=lambda difference: difference.path)


def _reduce(run_dir: Path, drafts: Drafts, take: Callable[[Part], None]) -> Reduction:
    reduction = Reduction(drafts)
    reduction.begin()
    for record in read_journal(run_dir).records:
        reduction.fold(record)
        if drafts.pending_bytes >= _PENDING_BYTES:
            drafts.spool(take)
    drafts.spool(take)
    return reduction


def _no_time() -> float:
    return 0.0


def _count(part: Part) -> None:
    """Take the bytes of a part and keep nothing but their number."""


class _Plan:
    """Where everything stands in one document."""

    def __init__(self, draft: Draft, reduction: Reduction) -> None:
        self.fixed: list[tuple[int, bytes]] = []
        self.lists: dict[int, tuple[int, int]] = {}
        """Part number -> offset in the document, and how many first bytes of the part are left out."""
        pieces: Iterable[bytes | Bucket]
        pieces = [Bucket(LOG_PART)] if draft.is_log else reduction.compose(draft.path, list(draft.parts))
        at = 0
        for piece in pieces:
            if isinstance(piece, bytes):
                self.fixed.append((at, piece))
                at += len(piece)
            else:
                part = draft.parts[piece.name]
                self.lists[part.number] = at, piece.skip
                at += part.length - piece.skip
        self.size = at


def _compare_lists(run_dir: Path, plans: dict[str, _Plan], files: "dict[str, _File]") -> None:
    # The same journal gives the same parts in the same order, so a number stands for the same part in both passes.
    places = {number: (files[path], *place) for path, plan in plans.items() for number, place in plan.lists.items()}

    def compare(part: Part) -> None:
        if part.number in places:
            file, start, skip = places[part.number]
            data = bytes(part.pending[max(0, skip - part.stored) :])
            file.compare(start - skip + part.length - len(data), data)

    _reduce(run_dir, Drafts(_no_time), compare)


class _File:
    """A file that is compared with its document piece by piece, in any order."""

    def __init__(self, root: SafeRoot, path: str, expected_bytes: int) -> None:
        self._root = root
        self._path = path
        self._expected = expected_bytes
        self._kind: DifferenceKind | None = None
        self._found = 0
        try:
            self._found = root.stat(path).st_size
            root.open_read(path).close()
        except FileNotFoundError:
            self._kind = "missing"
        except (UnsafeEntryError, NotADirectoryError):
            self._kind = "foreign"
        self._shift = self._found - expected_bytes
        self._first: int | None = None
        """First byte that differs, counted from the start."""
        self._end = 0
        """Behind the last byte of the document that differs when both are aligned at their ends."""

    def compare(self, offset: int, data: bytes) -> None:
        """Compare a piece of the document with the file, aligned at the start and at the end."""
        if self._kind is not None or not data:
            return
        with self._root.open_read(self._path) as file:
            begin = _first_difference(data, _read_at(file, offset, len(data)))
            if begin is not None and (self._first is None or offset + begin < self._first):
                self._first = offset + begin
            end = _last_difference(data, _read_at(file, offset + self._shift, len(data)))
            self._end = max(self._end, offset + end if end else 0)

    def difference(self) -> DocumentDifference | None:
        """Return what was found; None when file and document are equal."""
        first = self._first
        if first is None and self._shift and self._kind is None:
            first = min(self._expected, self._found)
        if first is not None:
            length = max(0, self._end + self._shift - first)
            return DocumentDifference(self._path, "edited", first, length, self._expected, self._found)
        if self._kind is not None:
            return DocumentDifference(self._path, self._kind, 0, 0, self._expected, self._found)
        return None


def _read_at(file: BinaryIO, offset: int, length: int) -> bytes:
    """Return the bytes of a file in a range that may begin before it, where there are none."""
    begin = max(0, offset)
    file.seek(begin)
    return file.read(max(0, offset + length - begin))


def _first_difference(one: bytes, other: bytes) -> int | None:
    """Return the first index at which `other` does not agree with `one`; it may be shorter."""
    if one == other:
        return None
    same, different = 0, min(len(one), len(other)) + 1
    while different - same > 1:
        middle = (same + different) // 2
        if one[:middle] == other[:middle]:
            same = middle
        else:
            different = middle
    return same


def _last_difference(one: bytes, other: bytes) -> int | None:
    """Return the index behind the last one at which `other`, aligned at the end, does not agree with `one`."""
    found = _first_difference(one[::-1], other[::-1])
    return None if found is None else len(one) - found


def is_document(path: str) -> bool:
    """Whether a path in a run directory, joined by `/`, is that of a document, whether or not its journal makes it."""
    return _DOCUMENT.fullmatch(path) is not None


def _on_disk(root: SafeRoot) -> Iterator[tuple[str, int]]:
    """Yield path and size of every file that stands where a document belongs."""
    for entry in root.walk():
        if entry.is_dir:
            entry.skip = _FOLDER.fullmatch(entry.path) is None
        elif is_document(entry.path):
            yield entry.path, entry.st.st_size
