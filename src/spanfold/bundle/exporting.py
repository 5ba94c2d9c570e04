"""Write a run into one file: the same run gives the same bytes, on any day, in any place.

What is in the bundle is settled before its first byte is written: journal,
documents folded from exactly that journal, and the other files of the run, each
hashed. Then they are read a second time and compressed; one that changed in
between is an error. The bundle gets its name when it is whole.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from spanfold.bundle._frames import Packer
from spanfold.bundle._gather import Gathered, Source, changed, gather
from spanfold.bundle._members import END, MANIFEST, header, padding
from spanfold.bundle.manifest import Entry, Manifest, Status, encode_manifest
from spanfold.errors import BundleError
from spanfold.fold.engine import VERSION as FOLD_VERSION
from spanfold.fs import SafeRoot
from spanfold.fs.scratch import scratch_folder

SUFFIX: Final = ".spanfold.tar.zst"


@dataclass(frozen=True, slots=True)
class Exported:
    """A bundle that was written."""

    path: Path
    size_bytes: int
    sha256: str
    """Of the whole file, 64 hex. Kept elsewhere, it shows that the bundle is this one."""
    entries: tuple[Entry, ...]
    """In the order of the archive."""
    left_out: Mapping[str, str]
    """Path in the run directory -> why it is not in the bundle. A document that was edited is named here."""
    refolded: tuple[str, ...]
    """Documents that were missing, behind or edited in the run directory and are in the bundle as the journal gives them."""
    head: str
    """`spanfold.seal.head` as the run's own span must carry it; empty before the run has ended."""
    status: Status
    """`running`, `completed`, `failed` or `interrupted`."""
    damage: str
    """What the journal has lost, in a sentence; empty when nothing. The manifest says the same."""


def export(
    run_dir: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    allow_open: bool = False,
    include_other: bool = True,
    max_file_bytes: int | None = None,
    force: bool = False,
) -> Exported:
    """Write a run into one file that can be checked anywhere. Changes nothing in the run directory.

    Needs room beside the bundle for the documents of the run; memory grows with the number of files only.

    Args:
        run_dir: The run directory.
        out: The file to write, replaced when it exists, or a folder to write it into; by default beside the run directory.
            The file is named `<run directory>.spanfold.tar.zst`.
        allow_open: Export a run whose process still writes it, or may do so on another machine, as it stands.
        include_other: Take files that your own program put into the run directory too. They did not pass the redaction gate.
        max_file_bytes: Leave out larger files; journal and documents are always taken.
        force: Export a run whose journal is damaged, with what is left of it. Its documents are made from that, so the
            ones in the run directory may hold more.

    Returns:
        What was written and what was left out.

    Raises:
        JournalMissing: There is no journal.
        JournalCorrupt: Recorded bytes of the journal are changed or gone.
        LockedError: The run is open.
        BundleError: A file changed meanwhile, or the bundle would lie in the run directory or in a folder that is not there.
        FoldError: A record cannot be folded.
        UnsafeEntryError: The journal folder or a file of it is a link.
        OSError: Something cannot be read or written; no part of a bundle stays, and an older one is intact.
    """
    run = Path(os.path.realpath(run_dir))
    target = _target(run, out)
    with scratch_folder(target.parent) as scratch:
        found = gather(
            run,
            scratch,
            allow_open=allow_open,
            include_other=include_other,
            max_file_bytes=max_file_bytes,
            force=force,
        )
        manifest = _manifest(found)
        written = _Written()
        pieces = written.counted(_archive(manifest, found.sources))
        SafeRoot(target.parent).replace_atomic(target.name, pieces, durable=True)
    return Exported(
        path=target,
        size_bytes=written.size_bytes,
        sha256=written.digest.hexdigest(),
        entries=manifest.entries,
        left_out=manifest.left_out,
        refolded=tuple(found.refolded),
        head=manifest.head,
        status=manifest.status,
        damage=manifest.damage,
    )


def _target(run: Path, out: str | os.PathLike[str] | None) -> Path:
    name = run.name + SUFFIX
    path = run.parent / name if out is None else Path(out)
    if path.is_dir():
        path /= name
    target = Path(os.path.realpath(path.parent)) / path.name
    if not target.parent.is_dir():
        found = "a file" if target.parent.exists() else "none"
        raise BundleError(
            f"{target.parent}: expected a folder to write the bundle {target.name} into, found {found}. Make the folder, or "
            "give another one."
        )
    if target.is_relative_to(run):
        raise BundleError(
            f"{target}: expected a place outside the run directory, found one in it, where the bundle would become part of "
            "the run. Give another file or folder."
        )
    return target


def _manifest(found: Gathered) -> Manifest:
    overview, verdict = found.overview, found.verdict
    recorded_by = overview.facts.get("spanfold_version")
    return Manifest(
        run_name=overview.name,
        trace_id=overview.trace_id,
        status=_status(found),
        start=overview.start,
        end=overview.end,
        recorded_by=recorded_by if isinstance(recorded_by, str) else None,
        exported_by=_version(),
        fold=FOLD_VERSION,
        sealed=verdict.sealed,
        head=verdict.anchor,
        heads=verdict.files,
        left_out=found.left_out,
        mtime_s=_seconds(overview.start),
        entries=tuple(source.entry() for source in found.sources),
        damage="" if found.damage is None else f"{found.damage.path.name}: {found.damage.code}, {found.damage.detail}",
    )


def _status(found: Gathered) -> Status:
    """Return the status of the run; one that never ended and that no process writes was interrupted."""
    if found.overview.end is not None or found.overview.recovered:
        return found.overview.status
    return "running" if found.is_alive else "interrupted"


def _archive(manifest: Manifest, sources: Iterable[Source]) -> Iterator[bytes]:
    """Yield the bytes of the bundle."""
    packer = Packer()
    data = encode_manifest(manifest)
    yield from packer.member([header(MANIFEST, len(data), manifest.mtime_s), data, padding(len(data))])
    for entry, source in zip(manifest.entries, sources, strict=True):
        yield from packer.member(_member(entry, source, manifest.mtime_s))
    yield from packer.member([END])
    yield packer.index()


def _member(entry: Entry, source: Source, mtime_s: int) -> Iterator[bytes]:
    yield header(entry.member, entry.size_bytes, mtime_s)
    digest = hashlib.sha256()
    for chunk in source.chunks():
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != entry.sha256:
        raise changed(source.root.path / source.path)
    yield padding(entry.size_bytes)


class _Written:
    """Counts and hashes what is written."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.size_bytes = 0

    def counted(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self.digest.update(piece)
            self.size_bytes += len(piece)
            yield piece


def _seconds(start: str | None) -> int:
    return max(0, int(datetime.fromisoformat(start).timestamp())) if start else 0


def _version() -> str:
    try:
        return metadata.version("spanfold")
    except metadata.PackageNotFoundError:
        return "0+unknown"
