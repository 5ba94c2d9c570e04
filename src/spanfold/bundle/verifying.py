"""Check a bundle with nothing but the bundle: its bytes, and that the run in it is as it was recorded.

Three questions, each on top of the one before: is every byte of the file as it
was exported; does the journal hold by its own chain and seal; do documents,
artifacts and manifest say what the journal says? Journal and documents are
unpacked into a private folder for that, and nothing of them is executed.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spanfold.bundle._members import FOLDER, MANIFEST
from spanfold.bundle.findings import BundleFinding, Code
from spanfold.bundle.manifest import Entry, Manifest, Status
from spanfold.bundle.reading import Member, Reader, Report, opened
from spanfold.errors import BundleError, FoldError, JournalMissing
from spanfold.fold import RunOverview, check_documents, show_run
from spanfold.fold.engine import VERSION as FOLD_VERSION
from spanfold.fs import SafeRoot
from spanfold.fs.scratch import scratch_folder
from spanfold.journal import FindingCode, JournalVerdict, verify_journal

MIN_UNPACKED_BYTES: Final = 1 << 34
"""Bundles that unpack to less than this are always read."""
MAX_RATIO: Final = 1_000
"""How many times its own size a larger one may unpack to."""

_CODES: Final[Mapping[FindingCode, Code]] = {
    "seal_broken": "seal_broken",
    "edited": "edited",
    "truncated": "truncated",
    "foreign_bytes": "foreign",
    "missing_file": "missing",
    "adopted": "adopted",
}


@dataclass(frozen=True, slots=True)
class BundleVerdict:
    """What `verify` found."""

    findings: tuple[BundleFinding, ...]
    """In the order in which they were met; empty when everything is as it was recorded and exported."""
    entries: tuple[Entry, ...]
    """What the bundle should hold; empty when its manifest cannot be read."""
    head: str
    """`spanfold.seal.head` as the run's own span must carry it: compare it with the copy in a collector."""
    status: Status | None
    """Of the run when it was exported; None when the manifest cannot be read."""
    manifest: Manifest | None
    """None when it cannot be read."""

    @property
    def ok(self) -> bool:
        """Whether nothing contradicts what was recorded and exported."""
        return all(finding.severity == "info" for finding in self.findings)


def verify(path: str | os.PathLike[str], *, max_unpacked_bytes: int | None = None) -> BundleVerdict:
    """Check every byte of a bundle, and the run in it against its own journal. Needs nothing but the file.

    Needs room for journal and documents in the system's folder for temporary files; memory grows with the number of
    files in the bundle only.

    Args:
        path: The bundle.
        max_unpacked_bytes: Refuse a bundle that says it holds more; by default 16 GiB or 1,000 times the size of the
            bundle, whichever is more.

    Raises:
        BundleError: The bundle is of another version, or holds more than it may.
        OSError: It cannot be read, or there is no room to unpack it.
    """
    findings: list[BundleFinding] = []
    with opened(path) as (file, where), scratch_folder() as scratch:
        reader = Reader(file, where, findings.append)
        manifest = reader.manifest
        if manifest is None:
            return BundleVerdict(tuple(findings), (), "", None, None)
        allowed = max_unpacked_bytes or max(MIN_UNPACKED_BYTES, MAX_RATIO * reader.size_bytes)
        _refuse_bomb(manifest, where, allowed)
        run = SafeRoot(scratch / "run", create=True)
        damaged = _unpack(reader, run)
        _RunCheck(run.path, manifest, damaged, findings.append).check()
    return BundleVerdict(tuple(findings), manifest.entries, manifest.head, manifest.status, manifest)


def _refuse_bomb(manifest: Manifest, where: Path, allowed: int) -> None:
    size = sum(entry.size_bytes for entry in manifest.entries)
    if size > allowed:
        raise BundleError(
            f"{where}: expected at most {allowed} bytes in the bundle, found that it unpacks to {size}. "
            "If you trust where it came from, allow more (max_unpacked_bytes)."
        )


def _unpack(reader: Reader, run: SafeRoot) -> dict[str, Entry]:
    """Check every member, and put journal and documents into `run`.

    Returns:
        Path -> entry of those that are not there as they were exported.
    """
    absent = {entry.path: entry for entry in reader.manifest.entries} if reader.manifest else {}
    with run:
        for member in reader.members():
            if member.entry.kind in ("journal", "document"):
                _put(run, member)
            member.skip()
            if not member.is_damaged:
                del absent[member.entry.path]
    return absent


def _put(run: SafeRoot, member: Member) -> None:
    folder = member.entry.path.rpartition("/")[0]
    if folder:
        run.ensure_dir(folder)
    run.replace_atomic(member.entry.path, member.chunks(), durable=False)


class _RunCheck:
    """Holds documents, artifacts and manifest against the journal that was unpacked."""

    def __init__(self, run: Path, manifest: Manifest, damaged: Mapping[str, Entry], report: Report) -> None:
        self._run = run
        self._manifest = manifest
        self._damaged = damaged
        self._report = report
        self._entries = {entry.path: entry for entry in manifest.entries}

    def check(self) -> None:
        if any(entry.kind == "journal" for entry in self._damaged.values()):
            detail = "documents and artifacts were not compared, because the journal is not whole"
            self._say("unchecked", "", 0, 0, detail)
            return
        try:
            verdict = verify_journal(self._run)
            overview = show_run(self._run)
        except JournalMissing:
            self._say("missing", FOLDER + "journal", 0, 0, "expected the journal of the run, found no file of it")
            return
        for found in verdict.findings:
            self._say(
                _CODES[found.code], f"{FOLDER}journal/{found.path.name}", found.offset, found.length, found.detail
            )
        if self._manifest.damage and verdict.damage is None:
            detail = (
                f"expected a whole journal, found one that was damaged when it was exported: {self._manifest.damage}"
            )
            self._say("truncated", MANIFEST, 0, 0, detail)
        self._check_documents()
        self._check_artifacts(overview)
        self._check_manifest(verdict, overview)

    def _check_documents(self) -> None:
        if self._manifest.fold != FOLD_VERSION:
            detail = (
                f"documents were not made anew: they are of {self._manifest.fold}, this version makes {FOLD_VERSION}"
            )
            self._say("unchecked", "", 0, 0, detail)
            return
        try:
            differences = check_documents(self._run)
        except FoldError as error:
            self._say("contradiction", "", 0, 0, str(error))
            return
        for found in differences:
            if found.path not in self._damaged:
                detail = f"expected the {found.expected_bytes} bytes that the journal gives, found {found.found_bytes}"
                # Documents of a bundle are made when it is exported: none is behind.
                code = "edited" if found.kind == "behind" else found.kind
                self._say(code, FOLDER + found.path, found.offset, found.length, detail)

    def _check_artifacts(self, overview: RunOverview) -> None:
        # A name may be used again for the same bytes; the last record counts, as on disk.
        recorded = {a.path: a.sha256 for a in overview.artifacts if a.path is not None and a.sha256 is not None}
        for path, sha256 in sorted(recorded.items()):
            entry = self._entries.get(path)
            if entry is not None and entry.sha256 != sha256 and path not in self._damaged:
                detail = "expected the file whose hash the journal has, found another"
                self._say("edited", entry.member, 0, entry.size_bytes, detail)
            elif entry is None and not self._is_left_out(path):
                self._say(
                    "missing", FOLDER + path, 0, 0, "expected the file that the journal names, found no member for it"
                )

    def _is_left_out(self, path: str) -> bool:
        parts = path.split("/")
        return any("/".join(parts[: depth + 1]) in self._manifest.left_out for depth in range(len(parts)))

    def _check_manifest(self, verdict: JournalVerdict, overview: RunOverview) -> None:
        said, found = self._manifest, overview
        facts = {
            "run.name": (said.run_name, found.name),
            "run.trace_id": (said.trace_id, found.trace_id),
            "run.start": (said.start, found.start),
            "run.end": (said.end, found.end),
            "recorded_by": (said.recorded_by, found.facts.get("spanfold_version")),
            "journal.sealed": (said.sealed, verdict.sealed),
            "journal.head": (said.head, verdict.anchor),
            "journal.files": (dict(said.heads), dict(verdict.files)),
        }
        # That a process was alive, or not, when the run was exported is the one thing the journal cannot know.
        if found.end is not None or found.recovered or said.status not in ("running", "interrupted"):
            facts["run.status"] = (said.status, found.status)
        for name, (one, other) in facts.items():
            if one != other:
                self._say(
                    "contradiction", MANIFEST, 0, 0, f"expected {name} as the journal has it, found another value"
                )

    def _say(self, code: Code, member: str, offset: int, length: int, detail: str) -> None:
        self._report(BundleFinding(code, member, "entry", offset, length, detail))
