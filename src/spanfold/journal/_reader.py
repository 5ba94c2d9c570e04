"""Read a journal back: every whole record, and exactly what could not be read.

A journal is a folder of files of lines, one file per writing process, each only
ever appended to (docs/formats/journal-v1.md). What a reader may rely on:

- a line that ends in a newline was written whole; what stands behind the last
  newline is torn, or still being written;
- anything else that is no record (NUL bytes of a power cut, a broken line,
  somebody else's bytes) costs only itself, and is reported as `Damage`.

Nothing here holds a descriptor between two blocks, so that journals of
thousands of files can be merged, and no link is followed. Chain and seal are
not looked at: `verify_journal` does that.
"""

import heapq
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

from spanfold.errors import JournalMissing
from spanfold.fs import SafeRoot
from spanfold.journal._decode import NotOtlp, Start, brief_start, decode_line
from spanfold.journal._elsewhere import journal_elsewhere
from spanfold.journal._writer import SUFFIX
from spanfold.model import Record, Span

__all__ = ["Damage", "JournalRead", "Tail", "journal_files", "journal_folder", "merged", "read_journal"]

FOLDER: Final = "journal"
"""Where the journal stands in a run directory."""
BLOCK_BYTES: Final = 1 << 18
"""Bytes read at once from one file."""
MAX_LINE_BYTES: Final = 1 << 28
"""A longer line is reported as damage, so that a file without newlines does not fill the memory."""
_MIN_BLOCK: Final = 1 << 14
_MERGE_BYTES: Final = 1 << 26
"""Bytes that all files of a merge may hold in memory together."""

_R = TypeVar("_R")
DamageKind = Literal["torn", "malformed", "foreign"]
_PRETTY: Final = "pretty-printed JSON (one value over many lines)"
_BOM: Final = b"\xef\xbb\xbf"
# Inside a JSON string a quote is escaped, so the start of a request found in the middle of a line is one.
_CUTS: Final = re.compile(rb'\0+|(?=\{"resource(?:Spans|Logs)":)')


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a journal file that hold no record."""

    path: Path
    offset: int
    """First byte."""
    length: int
    """Number of bytes."""
    kind: DamageKind
    """`torn`: an unfinished last line, or a file that was cut. `malformed`: bytes that are no JSON.
    `foreign`: JSON, or a part of it, that is no OTLP request."""
    found: str
    """What stands there, in plain words; never a value of it."""


class Line(NamedTuple):
    """One line of a file, newline included."""

    offset: int
    length: int
    data: bytes
    """Empty when the line is over `MAX_LINE_BYTES`."""


def journal_files(run_dir: Path) -> list[Path]:
    """Return the journal files of a run, sorted by name; empty when there are none.

    While the journal of an open run stands elsewhere (`_elsewhere`), that is where they are.

    Args:
        run_dir: The run directory, or its journal folder itself.

    Raises:
        UnsafeEntryError: The journal folder is a link or no directory.
    """
    folder = run_dir / FOLDER
    try:
        root = SafeRoot(folder)
    except FileNotFoundError:
        # The folder was named by the caller, who may reach it through a link.
        folder = run_dir.resolve()
        if not folder.is_dir():
            return []
        root = SafeRoot(folder)
    found = _names(root)
    if not found and (elsewhere := journal_elsewhere(run_dir)) is not None:
        folder = elsewhere.journal
        found = _names(SafeRoot(folder))
    return [folder / name for name in found]


def journal_folder(run_dir: Path) -> Path:
    """Return the folder that holds the journal of a run now: `journal` in it, or one elsewhere while the run is open."""
    files = journal_files(run_dir)
    return files[0].parent if files else run_dir / FOLDER


def _names(root: SafeRoot) -> list[str]:
    names: list[str] = []
    for entry in root.walk():
        entry.skip = True
        if entry.name.endswith(SUFFIX) and not entry.is_dir:
            names.append(entry.name)
    return names


class Tail:
    """Reads one journal file as it grows.

    Attributes:
        path: The file.
        offset: First byte that was not read yet: always the start of a line.
        damage: What could not be read so far, in file order, adjoining ranges of one kind joined.
    """

    def __init__(self, path: Path, offset: int = 0, *, block_bytes: int = BLOCK_BYTES) -> None:
        """Start at `offset`, which must be the start of a line; nothing is opened yet."""
        self.path = path
        self.offset = offset
        self.damage: list[Damage] = []
        self._block_bytes = block_bytes
        self._root: SafeRoot | None = None
        self._unfinished = (offset, offset)
        """Begin and end of what stood behind the last newline when the end of the file was last read."""

    def read(self, max_bytes: int | None = None, *, starts: bool = True) -> Iterator[Record]:
        """Yield the records of the whole lines from `offset` on.

        `offset` moves past a line when its last record is handed out, so a
        caller that stops early goes on behind what it has seen.

        Args:
            max_bytes: Stop at the first end of a line after so many bytes; by
                default at the last one of the file.
            starts: False leaves out the events that announce a span below the
                run, for who waits for the spans themselves.

        Raises:
            UnsafeEntryError: The file is a link or no regular file.
            FileNotFoundError: It is missing.
        """
        self._look_for_cut()
        stop = None if max_bytes is None else self.offset + max_bytes
        for line in self.lines():
            records = [] if not starts and brief_start(line.data) is not None else self._records(line)
            yield from self._handed_out(line, records)
            if stop is not None and self.offset >= stop:
                return

    def read_briefly(self, max_bytes: int) -> Iterator[Record | Start]:
        """Yield the records like `read`, but of a start only the essentials when its span ends within these bytes.

        Nothing a fold keeps depends on the rest of such a start, and decoding it would cost half of what its span does.
        """
        self._look_for_cut()
        stop = self.offset + max_bytes
        found: list[tuple[Line, list[Record] | Start]] = []
        ends: dict[str, int] = {}
        for line in self.lines():
            start = brief_start(line.data)
            if start is None:
                records = self._records(line)
                ends.update((record.span_id, line.offset) for record in records if type(record) is Span)
                found.append((line, records))
            else:
                found.append((line, start))
            if line.offset + line.length >= stop:
                break
        for line, content in found:
            ready: Sequence[Record | Start] = content if isinstance(content, list) else (content,)
            if isinstance(content, Start) and ends.get(content.span_id, -1) < line.offset:
                ready = self._records(line)
            yield from self._handed_out(line, ready)

    def _handed_out(self, line: Line, records: Sequence[_R]) -> Iterator[_R]:
        yield from records[:-1]
        self.offset = line.offset + line.length
        if records:
            yield records[-1]

    def lines(self) -> Iterator[Line]:
        """Yield the whole lines from `offset` on as bytes, without moving it."""
        begin = at = self.offset
        held: list[bytes] = []
        held_bytes = 0
        while block := self._block(at):
            at += len(block)
            start = 0
            while (end := block.find(b"\n", start) + 1) > 0:
                piece = block[start:end]
                length = held_bytes + len(piece)
                if length > MAX_LINE_BYTES:
                    piece = b""
                elif held:
                    held.append(piece)
                    piece = b"".join(held)
                yield Line(begin, length, piece)
                begin, start, held_bytes = begin + length, end, 0
                held.clear()
            if len(block) < self._block_bytes:
                break
            held_bytes += len(block) - start
            if held_bytes > MAX_LINE_BYTES:
                held.clear()
            elif start < len(block):
                held.append(block[start:])
        self._unfinished = begin, at

    def torn(self) -> Damage | None:
        """Return what stood behind the last newline of what was read, or None: torn if the writer is dead, else being written.

        Bytes that came after the reading are not read yet, and nothing is known of them.
        """
        begin, end = self._unfinished
        if begin != self.offset or end == begin:
            return None
        return Damage(self.path, begin, end - begin, "torn", f"{n_bytes(end - begin)} without an end of line")

    @property
    def end(self) -> int:
        """Where the file ended when its end was last read, in bytes: later ones may have come since."""
        return self._unfinished[1]

    def size(self) -> int:
        """Return the length of the file now, in bytes."""
        return self._folder().stat(self.path.name).st_size

    # -- pieces

    def _folder(self) -> SafeRoot:
        if self._root is None:
            self._root = SafeRoot(self.path.parent)
        return self._root

    def _block(self, offset: int) -> bytes:
        with self._folder().open_read(self.path.name) as file:
            file.seek(offset)
            return file.read(self._block_bytes)

    def _look_for_cut(self) -> None:
        size = self.size()
        if size < self.offset:
            gone = self.offset - size
            self._report(size, gone, "torn", f"the end of the file, {n_bytes(gone)} before what had been read of it")
            self.offset = size

    def _records(self, line: Line) -> list[Record]:
        try:
            return list(decode_line(line.data, self.path, line.offset))
        except NotOtlp:
            return self._salvage(line)

    def _salvage(self, line: Line) -> list[Record]:
        """Return the whole records of a line that is not one request, and report the rest."""
        if not line.data:
            self._report(line.offset, line.length, "malformed", f"a line of more than {MAX_LINE_BYTES} bytes")
        records: list[Record] = []
        for begin, end in _pieces(line):
            piece, offset = line.data[begin:end], line.offset + begin
            if piece == _BOM:
                self._report(offset, len(piece), "foreign", "a byte order mark")
            elif not piece.strip(b"\0"):
                self._report(offset, len(piece), "malformed", "NUL bytes")
            elif piece.strip():
                try:
                    records += decode_line(piece, self.path, offset)
                except NotOtlp as error:
                    whole = len(piece) == line.length
                    self._report(offset, len(piece), *_classify(piece, str(error), is_line=whole))
        return records

    def _report(self, offset: int, length: int, kind: DamageKind, found: str) -> None:
        last = self.damage[-1] if self.damage else None
        # Joined, so that a foreign file of a million lines is one finding.
        if last and last.offset + last.length == offset and (last.found in (found, _PRETTY)) and kind != "torn":
            self.damage[-1] = replace(last, length=last.length + length)
        else:
            self.damage.append(Damage(self.path, offset, length, kind, found))


def n_bytes(number: int) -> str:
    """Return `1 byte`, `2 bytes`."""
    return f"{number} byte{'s' * (number != 1)}"


def _pieces(line: Line) -> Iterator[tuple[int, int]]:
    """Cut a damaged line where NUL bytes begin or end and where a request begins."""
    begin = 0
    if line.offset == 0 and line.data.startswith(_BOM):
        begin = len(_BOM)
        yield 0, begin
    for cut in _CUTS.finditer(line.data, begin):
        if begin < cut.start():
            yield begin, cut.start()
        begin = cut.start()
        if cut.end() > begin:
            yield begin, cut.end()
            begin = cut.end()
    if begin < len(line.data):
        yield begin, len(line.data)


def _classify(piece: bytes, found: str, *, is_line: bool) -> tuple[DamageKind, str]:
    if is_line and piece.strip() in (b"{", b"["):
        return "foreign", _PRETTY
    return ("malformed" if "not JSON" in found else "foreign"), found


@dataclass(slots=True)
class JournalRead:
    """A journal being read. `damage` and `duplicates` are complete when `records` is exhausted."""

    files: list[Path]
    """What is read, sorted by name."""
    records: Iterator[Record] = field(default_factory=lambda: iter(()))
    """Every whole record in canonical order, once."""
    damage: list[Damage] = field(default_factory=list[Damage])
    """What could not be read, by file and offset; a torn tail is part of it."""
    duplicates: int = 0
    """Spans left out because one of the same trace and span id came before."""


def read_journal(run_dir: Path) -> JournalRead:
    """Read the journal of a run, as it is now.

    Canonical order is by (largest record time so far in its file, file name,
    line): the order of each file is kept, whatever the clock did.

    Args:
        run_dir: The run directory, or its journal folder itself.

    Raises:
        JournalMissing: There is no journal file.
        UnsafeEntryError: The journal folder or a file of it is a link.
    """
    files = journal_files(run_dir)
    if not files:
        raise JournalMissing(run_dir)
    read = JournalRead(files)
    read.records = _merge(read)
    return read


def merged(run_dir: Path) -> Iterator[Record]:
    """Yield every whole record of a run in canonical order, each span once; raises as `read_journal`."""
    return read_journal(run_dir).records


def _merge(read: JournalRead) -> Iterator[Record]:
    block = max(_MIN_BLOCK, min(BLOCK_BYTES, _MERGE_BYTES // len(read.files)))
    tails = [Tail(path, block_bytes=block) for path in read.files]
    seen: dict[str, _SpanIds] = {}
    streams = [_timed(tail, number, read) for number, tail in enumerate(tails)]
    for _, _, _, record in heapq.merge(*streams):
        if type(record) is Span:
            ids = seen.get(record.trace_id)
            if ids is None:
                ids = seen[record.trace_id] = _SpanIds()
            if not ids.add(record.span_id):
                read.duplicates += 1
                continue
        yield record


def _timed(tail: Tail, number: int, read: JournalRead) -> Iterator[tuple[int, int, int, Record]]:
    """Yield the records of one file with their place in the canonical order; `number` is that of the file by name."""
    latest = 0
    for line, record in enumerate(tail.read()):
        latest = max(latest, record.time_ns)
        yield latest, number, line, record
    torn = tail.torn()
    read.damage += [*tail.damage, torn] if torn else tail.damage
    read.damage.sort(key=lambda d: (d.path, d.offset))


_MASK: Final = (1 << 64) - 1


class _SpanIds:
    """The span ids of one trace: 16 to 32 bytes of memory for each, where a set takes 130."""

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 * 8))
        self._used = 0

    def add(self, span_id: str) -> bool:
        """Add an id; False when it was there."""
        try:
            number = int(span_id, 16)
        except ValueError:
            number = 0
        if not 0 < number < 1 << 64:  # no valid id, so it stands for no span that could come twice
            return True
        if self._used * 2 >= len(self._table):
            self._grow()
        if not self._insert(number):
            return False
        self._used += 1
        return True

    def _insert(self, number: int) -> bool:
        table = self._table
        mask = len(table) - 1
        # The upper bits of the product depend on every bit of the id: ids may differ in a few only.
        slot = (number * 0x9E37_79B9_7F4A_7C15 & _MASK) >> 64 - mask.bit_length()
        while found := table[slot]:
            if found == number:
                return False
            slot = (slot + 1) & mask
        table[slot] = number
        return True

    def _grow(self) -> None:
        old, self._table = self._table, array("Q", bytes(16 * len(self._table)))
        for number in old:
            if number:
                self._insert(number)
