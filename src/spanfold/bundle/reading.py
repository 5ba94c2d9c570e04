"""Read a bundle member by member, and say of every byte that is not as it was exported.

The manifest says which members come, in which order and how long; their headers
and frames follow from it. What is found is held against that and never
interpreted. Damage costs the members it lies in: the rest is still read.
"""

import hashlib
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from spanfold.bundle._frames import Frame, Index, Scan, frame_sizes
from spanfold.bundle._members import BLOCK, END, FOLDER, MANIFEST, described, header, is_plain, padding, size_in
from spanfold.bundle.findings import BundleFinding, Code
from spanfold.bundle.manifest import MAX_MANIFEST_BYTES, Entry, Manifest, decode_manifest
from spanfold.errors import BundleCorrupt
from spanfold.fs import SafeRoot
from spanfold.journal import dialect

Report = Callable[[BundleFinding], None]

_PACKED: Final = "compressed"


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Return what a bundle says of itself. Reads its first frames only, and checks nothing else.

    Args:
        path: The bundle.

    Raises:
        BundleCorrupt: It is no bundle, or its manifest was changed.
        BundleError: It is a bundle of another version.
        OSError: It cannot be read.
    """
    findings: list[BundleFinding] = []
    with opened(path) as (file, where):
        manifest = Reader(file, where, findings.append).manifest
    if manifest is None:
        raise BundleCorrupt(f"{where}: {findings[0].detail}. Take another copy of the bundle, or export the run again.")
    return manifest


@contextmanager
def opened(path: str | os.PathLike[str]) -> Generator[tuple[BinaryIO, Path]]:
    """Open a bundle, following links to it, and give the file and where it is."""
    where = Path(os.path.realpath(path))
    with SafeRoot(where.parent).open_read(where.name) as file:
        yield file, where


class Member:
    """A file of the run in the archive. Its bytes can be taken once."""

    def __init__(self, reader: "Reader", entry: Entry, mtime_s: int) -> None:
        self.entry = entry
        self.is_damaged = False
        """Whether it is not as it was exported; known when its bytes were taken."""
        self._reader = reader
        self._header = header(entry.member, entry.size_bytes, mtime_s)
        self._is_taken = False

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes, without those that could not be read."""
        self._is_taken = True
        digest = hashlib.sha256()
        behind = len(self._header) + self.entry.size_bytes
        at = 0
        for size in frame_sizes(behind + len(padding(self.entry.size_bytes))):
            content = self._reader.take(self.entry.member, size)
            if content is None:
                self.is_damaged = True
            else:
                data = content[max(0, len(self._header) - at) : max(0, behind - at)]
                digest.update(data)
                yield data
                self._look_around(content[: len(self._header)] if at == 0 else None, content[max(0, behind - at) :])
            at += size
        if not self.is_damaged and digest.hexdigest() != self.entry.sha256:
            self._report("edited", "expected the bytes whose hash the manifest has, found others")

    def _look_around(self, before: bytes | None, behind: bytes) -> None:
        """Hold header and padding against what they must be."""
        if before is not None and before != self._header:
            self._report("edited", "expected the header of the file before it, found other bytes")
        if behind.strip(b"\0"):
            self._report("edited", "expected zeros behind it, found other bytes")

    def _report(self, code: Code, detail: str) -> None:
        self.is_damaged = True
        self._reader.report_entry(code, self.entry, detail)

    def skip(self) -> None:
        """Take what was not taken, so that it is checked."""
        if not self._is_taken:
            for _ in self.chunks():
                pass


class Reader:
    """One pass over an open bundle.

    Args:
        file: The bundle, open for reading.
        where: Its path, for messages.
        report: Told of everything that is not as it was exported.

    Raises:
        BundleError: The bundle is of another version.
    """

    def __init__(self, file: BinaryIO, where: Path, report: Report) -> None:
        self._report = report
        self._where = where
        self._file = file
        self.size_bytes = file.seek(0, os.SEEK_END)
        self._index = Index.of(file, self.size_bytes)
        self._scan = Scan()
        self._frames = self._index.frames(file) if self._index else self._scan.frames(file)
        self._next: Frame | None = next(self._frames, None)
        self._covered = 0
        """Behind the last byte of the bundle that is accounted for."""
        self._lost: list[str] = []
        """Members with a frame that is not where it was written; what lies behind `_covered` stands in its place."""
        self._stopped_in: str | None = None
        """Member in which the frames came to an end."""
        self._numbers: _Numbers | None = None
        self.manifest = self._read_manifest()
        """None when it could not be read; that was reported."""

    # -- frames

    def take(self, member: str, size: int) -> bytes | None:
        """Return the content of the next frame, which should be `size` bytes of `member`; None when it is damaged."""
        frame, self._next = self._next, next(self._frames, None)
        if frame is None:
            self._stop(member)
            return None
        if frame.offset < 0:
            if member not in self._lost:
                self._lost.append(member)
            return None
        self._account_until(frame.offset)
        self._covered = frame.offset + frame.length
        if frame.content is None:
            detail = "expected the frame that was written, found other bytes"
            self._report_range("edited", member, frame.offset, frame.length, detail)
        elif len(frame.content) != size:
            detail = f"expected a frame of {size} bytes, found one of {len(frame.content)}"
            self._report_range("edited", member, frame.offset, frame.length, detail)
        else:
            return frame.content
        return None

    def _account_until(self, offset: int) -> None:
        """Name the bytes between the last frame that was found and the next one."""
        gap = offset - self._covered
        for member in self._lost:
            detail = f"expected the frames that were written, found {gap} other bytes"
            self._report_range("edited", member, self._covered, gap, detail)
        if gap > 0 and not self._lost:
            self._report_range(
                "foreign", "", self._covered, gap, f"expected the next frame, found {gap} bytes before it"
            )
        self._lost.clear()
        self._covered = offset

    def _stop(self, member: str) -> None:
        """Name the member in which the frames came to an end."""
        if self._stopped_in is not None:
            return
        self._stopped_in = member
        if self._index is not None:
            detail = "expected more frames, found that the index names none"
            self._report_range("truncated", member, self._covered, 0, detail)
            return
        end = self._scan.end
        code: Code = "truncated" if self._scan.is_cut else "edited"
        detail = "expected the frames that were written, found the end of the bundle or other bytes"
        self._report_range(code, member, end, self.size_bytes - end, detail)

    # -- manifest

    def _read_manifest(self) -> Manifest | None:
        first = self._next
        if first is None:
            self._no_bundle()
            return None
        size = size_in(first.content, MANIFEST) if first.content else None
        if first.content is not None and (size is None or size > MAX_MANIFEST_BYTES):
            detail = "expected the manifest of a bundle, found another member"
            self._report_range("missing", MANIFEST, first.offset, first.length, detail)
        if size is None or size > MAX_MANIFEST_BYTES:
            self._drain(MANIFEST)
            return None
        parts = [self.take(MANIFEST, part) for part in frame_sizes(BLOCK + size + len(padding(size)))]
        if None in parts:
            self._drain("")
            return None
        return self._decoded(b"".join(part for part in parts if part is not None), size)

    def _decoded(self, whole: bytes, size: int) -> Manifest | None:
        data = whole[BLOCK : BLOCK + size]
        try:
            manifest = decode_manifest(data, self._where)
        except BundleCorrupt as error:
            self._report(BundleFinding("edited", MANIFEST, "entry", 0, size, str(error)))
            return None
        if whole != header(MANIFEST, size, manifest.mtime_s) + data + padding(size):
            detail = "expected its header before it and zeros behind it, found others"
            self._report(BundleFinding("edited", MANIFEST, "entry", 0, size, detail))
        return manifest

    def _no_bundle(self) -> None:
        if self._scan.is_cut:
            self._report_range("truncated", MANIFEST, 0, self.size_bytes, "expected a bundle, found only its beginning")
            return
        found = dialect(self._where)
        what = "a damaged archive" if found.name == _PACKED else f"{found.name}. {found.detail}".rstrip(".")
        self._report_range("edited", MANIFEST, 0, self.size_bytes, f"expected a bundle of spanfold, found {what}")

    def _drain(self, member: str) -> None:
        """Look at every byte though the manifest is lost."""
        while self._next is not None:
            self.take(member, len(self._next.content or b""))
            member = ""
        self._finish_index()

    # -- members

    def members(self) -> Iterator[Member]:
        """Yield the files of the run in order; when exhausted, every byte of the bundle was looked at."""
        assert self.manifest is not None
        entries, mtime_s = self.manifest.entries, self.manifest.mtime_s
        expected = 0
        while expected < len(entries):
            at = self._align(self.manifest, expected)
            for entry in entries[expected:at]:
                if entry.member != self._stopped_in:
                    self.report_entry("missing", entry, "expected this file, found no member for it")
            if at < len(entries):
                member = Member(self, entries[at], mtime_s)
                yield member
                member.skip()
            expected = at + 1
        self._finish(self.manifest)

    def _align(self, manifest: Manifest, expected: int) -> int:
        """Pass over members that do not belong here, and return the number of the entry that comes next."""
        first = manifest.entries[expected]
        while (frame := self._next) is not None:
            # A damaged frame is taken for the one that belongs here.
            if frame.content is None or frame.content.startswith(
                header(first.member, first.size_bytes, manifest.mtime_s)
            ):
                return expected
            if frame.content == END:
                break
            number = self._number_of(manifest, frame.content)
            found = described(frame.content)
            if number is not None and number >= expected and found is not None and is_plain(found[1]):
                return number
            self._pass_over(frame, is_known=number is not None)
        else:
            if self._index is None:
                self._stop(first.member)
        return len(manifest.entries)

    def _number_of(self, manifest: Manifest, content: bytes) -> int | None:
        if self._numbers is None:
            self._numbers = _Numbers(manifest)
        return self._numbers.of(content)

    def _pass_over(self, frame: Frame, *, is_known: bool) -> None:
        content = frame.content or b""
        found = described(content)
        code: Code
        if found is None:
            name, code, detail = "", "foreign", "expected no more frames of the member before, found one"
        else:
            name, kind = found
            if not is_plain(kind) or not name.startswith(FOLDER) or ".." in name.split("/"):
                code, detail = "unsafe", f"expected no such member, found {kind}"
            elif is_known:
                code, detail = "duplicate", "expected this file once, found it again"
            else:
                code, detail = "foreign", "expected no such member, found a file"
        self._report_range(code, name, frame.offset, frame.length, detail)
        self.take(name, len(content))

    def _finish(self, manifest: Manifest) -> None:
        """Look at what stands behind the last file."""
        is_ended = False
        while (frame := self._next) is not None:
            if frame.content is None or (frame.content == END and not is_ended):
                self.take("", len(END))
                is_ended = True
            else:
                self._pass_over(frame, is_known=self._number_of(manifest, frame.content) is not None)
        if not is_ended:
            self._stop("")
        self._finish_index()

    # -- index

    def _finish_index(self) -> None:
        if self._index is not None:
            self._account_until(self._index.offset)
        elif self._stopped_in is None:
            self._compare_index()

    def _compare_index(self) -> None:
        """Name the bytes that make the index another one than that of the frames."""
        expected, begin = self._scan.index(), self._scan.end
        found_bytes = self.size_bytes - begin
        self._file.seek(begin)
        front = self._file.read(len(expected))
        self._file.seek(max(begin, self.size_bytes - len(expected)))
        back = self._file.read(len(expected))
        same = _common(expected, front)
        same_at_end = min(_common(expected[::-1], back[::-1]), min(len(expected), found_bytes) - same)
        detail = f"expected an index of {len(expected)} bytes that fits the frames, found {found_bytes} bytes"
        code: Code = "truncated" if same == found_bytes else "edited"
        self._report_range(code, "", begin + same, max(0, found_bytes - same_at_end - same), detail)

    # -- reports

    def report_entry(self, code: Code, entry: Entry, detail: str) -> None:
        """Report something of a whole file of the run."""
        self._report(BundleFinding(code, entry.member, "entry", 0, entry.size_bytes, detail))

    def _report_range(self, code: Code, member: str, offset: int, length: int, detail: str) -> None:
        self._report(BundleFinding(code, member, "bundle", offset, length, detail))


class _Numbers:
    """Which entry a member is, for bundles whose members are not in order. Made when the first one is met."""

    def __init__(self, manifest: Manifest) -> None:
        self._by_name = {entry.member: number for number, entry in enumerate(manifest.entries)}
        self._by_header: dict[bytes, int] = {}
        self._lengths: set[int] = set()
        for number, entry in enumerate(manifest.entries):
            whole = header(entry.member, entry.size_bytes, manifest.mtime_s)
            self._by_header[hashlib.sha256(whole).digest()] = number
            self._lengths.add(len(whole))

    def of(self, content: bytes) -> int | None:
        """Return the number of the entry whose member begins with `content`, by its header or else by its name."""
        for length in self._lengths:
            number = self._by_header.get(hashlib.sha256(content[:length]).digest())
            if number is not None:
                return number
        found = described(content)
        return self._by_name.get(found[0]) if found else None


def _common(one: bytes, other: bytes) -> int:
    """Return how many first bytes are the same."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
