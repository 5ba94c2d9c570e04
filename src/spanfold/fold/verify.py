"""Say what of a run is not as it was recorded: its journal, the documents made from it, the files it kept.

The journal is checked against its chain and seal, every document by folding
again, every artifact against the hash in its record. Pictures drawn from arrays
are not checked: no record has their hash.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from spanfold import names
from spanfold.errors import FoldError, UnsafeEntryError, UnsafePathError
from spanfold.fold.check import DocumentDifference, check_documents
from spanfold.fold.entry import Entry
from spanfold.fold.presence import Writers
from spanfold.fold.witness import verify_with_documents
from spanfold.fs import SafeRoot
from spanfold.journal import JournalVerdict, merged
from spanfold.model import Event


@dataclass(frozen=True, slots=True)
class ArtifactDifference:
    """A file of the run that is not what its record says."""

    path: str
    """In the run directory, as recorded."""
    kind: Literal["edited", "missing", "foreign"]
    """`edited`: another hash. `missing`: no such file. `foreign`: what stands there is no file of this run directory."""
    expected_bytes: int | None
    found_bytes: int
    """0 unless edited."""

    def __str__(self) -> str:
        """Say it in a sentence."""
        if self.kind == "missing":
            return f"{self.path}: missing, and only its hash is recorded"
        if self.kind == "foreign":
            return f"{self.path}: expected a regular file inside the run directory, found something else"
        return f"{self.path}: {self.found_bytes} bytes whose hash is not the one recorded"


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """What `verify_run` found."""

    run_dir: Path
    journal: JournalVerdict
    documents: tuple[DocumentDifference, ...]
    """Documents that are not what the journal says."""
    documents_problem: str
    """Why the documents could not be compared; empty when they were."""
    artifacts: tuple[ArtifactDifference, ...]
    n_artifacts: int
    """Files of the run whose hash was looked at."""
    is_recorded: bool
    """Whether some process was still at work on the run: then documents lag behind, and the last line may be torn."""

    @property
    def state(self) -> Literal["intact", "open", "broken"]:
        """`open` when nothing is wrong that a run without a seal would not show by itself.

        Before the seal documents lag behind the journal, so one that differs is
        no proof of a change; an artifact that differs is, and so is a document
        that holds more than the journal: then the journal was cut.
        """
        if self.journal.state == "broken" or self.artifacts or self.documents_problem:
            return "broken"
        if self.journal.state == "open":
            return "open"
        return "broken" if self.documents else "intact"

    @property
    def ok(self) -> bool:
        """Whether nothing contradicts what was recorded."""
        return self.state != "broken"


def verify_run(run_dir: Path) -> RunVerdict:
    """Check a run directory offline. Reads, and changes nothing.

    Args:
        run_dir: The run directory.

    Raises:
        JournalMissing: There is no journal.
        UnsafeEntryError: The journal folder or a file of it is a link.
    """
    writers = Writers(run_dir)
    journal = verify_with_documents(run_dir)
    documents: tuple[DocumentDifference, ...] = ()
    problem = ""
    try:
        documents = tuple(
            replace(found, kind="behind") if found.kind == "edited" and journal.state == "open" else found
            for found in check_documents(run_dir)
        )
    except FoldError as error:
        problem = str(error)
    recorded = _recorded_files(run_dir)
    root = SafeRoot(run_dir.resolve())
    return RunVerdict(
        run_dir=run_dir,
        journal=journal,
        documents=documents,
        documents_problem=problem,
        artifacts=tuple(_differences(root, recorded)),
        n_artifacts=len(recorded),
        # The process of an earlier session may live and have nothing to do with the run any more.
        is_recorded=not journal.sealed and bool(writers.living.keys() & (journal.going_on or writers.living.keys())),
    )


def _recorded_files(run_dir: Path) -> dict[str, tuple[str, int | None]]:
    """Return path -> hash and size of every artifact that has a file."""
    found: dict[str, tuple[str, int | None]] = {}
    for record in merged(run_dir):
        if isinstance(record, Event) and record.name == names.EVENT_ARTIFACT:
            fields = Entry(record).fields
            size = fields.get("size_bytes")
            for file, digest in (("path", "sha256"), ("figure", "figure_sha256")):
                path, sha256 = fields.get(file), fields.get(digest)
                if type(path) is str and type(sha256) is str:
                    found[path] = sha256, size if file == "path" and type(size) is int else None
    return found


def _differences(root: SafeRoot, recorded: dict[str, tuple[str, int | None]]) -> Iterable[ArtifactDifference]:
    for path, (sha256, size) in sorted(recorded.items()):
        try:
            with root.open_read(path) as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
                found_bytes = file.tell()
        except FileNotFoundError:
            yield ArtifactDifference(path, "missing", size, 0)
        except (UnsafeEntryError, UnsafePathError, NotADirectoryError):
            yield ArtifactDifference(path, "foreign", size, 0)
        else:
            if found != sha256:
                yield ArtifactDifference(path, "edited", size, found_bytes)
