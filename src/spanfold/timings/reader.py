"""Read `timings.jsonl`, whatever happened to it.

`read_timings` never raises on content. Every line that is not blank is either a
row or counted under the reason it was skipped for, with its position:

    lines == len(rows) + sum(skipped.values())

A file system that lost power, or a writer that did not append, leaves runs of
NUL bytes. They end a line just as a newline does: whole records before and
after a gap are used, and each damaged stretch counts as one malformed line.

Bounded by the longest line (`MAX_LINE_BYTES`) and by the rows themselves.
"""

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple, cast

import orjson

from spanfold import names
from spanfold.errors import SpanfoldError
from spanfold.fs import SafeRoot
from spanfold.timings.clock import LATEST_NS, NS_PER_SECOND, Moment, parse_moment
from spanfold.timings.rows import CONTAINER_STAGES, RowFlag, TimingRow

SkipReason = Literal["malformed", "schema", "no_stage", "bad_seconds", "duplicate"]
"""Why a line is no row: not a JSON object; of another major version; without a
stage; without a usable duration; replaced by a later line of the same span."""

MAX_LINE_BYTES: Final = 4 << 20
"""Of a longer line only the end is looked at. A row holds at most 64 attributes of 500 characters."""

_STAGE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_NULS: Final = re.compile(rb"\0+")
_BOM: Final = b"\xef\xbb\xbf"
_KNOWN: Final = frozenset(TimingRow(stage="x", seconds=0).to_dict())


@dataclass(frozen=True, slots=True)
class SkippedLine:
    """A stretch of the file that is no row."""

    reason: SkipReason
    line: int
    """From 1."""
    offset: int
    """First byte, from 0."""
    length: int
    """Bytes, the newline included."""

    def to_dict(self) -> dict[str, object]:
        """Return a JSON object."""
        return {"reason": self.reason, "line": self.line, "offset": self.offset, "length": self.length}


@dataclass(frozen=True, slots=True)
class TimingRead:
    """What a timings file holds."""

    path: Path
    rows: tuple[TimingRow, ...] = ()
    """In file order: rows are written when an activity ends, so children stand before parents."""
    skipped_lines: tuple[SkippedLine, ...] = ()
    """In file order."""
    lines: int = 0
    """Lines that are not blank."""
    missing: bool = False
    """There is no file. That means no timing was taken, not that no time passed."""
    diagnostics: tuple[str, ...] = ()
    """`unreadable` when the file is there and cannot be read."""

    @property
    def skipped(self) -> dict[str, int]:
        """Reason -> number of lines skipped for it; reasons that did not occur are left out."""
        return dict(Counter(line.reason for line in self.skipped_lines))

    @property
    def flags(self) -> dict[str, int]:
        """Flag -> number of rows that carry it."""
        return dict(Counter(flag for row in self.rows for flag in row.flags))

    def to_dict(self) -> dict[str, object]:
        """Return a JSON object: the rows, then what the reader had to skip or correct."""
        return {
            "path": str(self.path),
            "missing": self.missing,
            "lines": self.lines,
            "skipped": self.skipped,
            "skipped_lines": [line.to_dict() for line in self.skipped_lines],
            "flags": self.flags,
            "diagnostics": list(self.diagnostics),
            "rows": [row.to_dict() for row in self.rows],
        }


def read_timings(path: str | os.PathLike[str]) -> TimingRead:
    """Read the rows of one timings file (EP 8.1).

    Args:
        path: A `timings.jsonl`. Its last component may not be a link.

    Returns:
        Rows, and the position and reason of everything else. A file that is
        missing or cannot be read gives no rows and says so; nothing is raised.
    """
    where = Path(path)
    try:
        with SafeRoot(where.parent.resolve()).open_read(where.name) as file:
            return _read(where, file)
    except FileNotFoundError:
        return TimingRead(where, missing=True)
    except (OSError, SpanfoldError):  # no permission, a failing disk; a link, a FIFO, a directory
        return TimingRead(where, diagnostics=("unreadable",))


class _Piece(NamedTuple):
    """A stretch of the file between line ends: a JSON object, or damage."""

    record: dict[str, object] | None
    line: int
    offset: int
    length: int

    def skipped(self, reason: SkipReason) -> SkippedLine:
        return SkippedLine(reason, self.line, self.offset, self.length)


def _read(path: Path, file: BinaryIO) -> TimingRead:
    found: list[tuple[_Piece, TimingRow]] = []
    skipped: list[SkippedLine] = []
    for piece in _pieces(file):
        row = "malformed" if piece.record is None else _interpret(piece.record, piece)
        if isinstance(row, TimingRow):
            found.append((piece, row))
        else:
            skipped.append(piece.skipped(row))
    lines = len(found) + len(skipped)
    last = {row.span_id: piece.offset for piece, row in found}
    rows: list[TimingRow] = []
    for piece, row in found:
        if row.span_id is None or last[row.span_id] == piece.offset:
            rows.append(row)
        else:
            skipped.append(piece.skipped("duplicate"))
    skipped.sort(key=lambda line: line.offset)
    return TimingRead(path, tuple(rows), tuple(skipped), lines)


# --- bytes into JSON objects -------------------------------------------------------------------------------------


def _pieces(file: BinaryIO) -> Iterator[_Piece]:
    """Yield every JSON object and every damaged stretch, in file order; nothing for blank lines."""
    for number, (offset, kept, length) in enumerate(_lines(file), start=1):
        body = kept.removeprefix(_BOM) if offset == 0 else kept
        if len(kept) == length and b"\0" not in kept:
            if body.strip():
                yield _Piece(_decode(body), number, offset, length)
        else:
            yield from _around_gaps(number, offset, kept, length)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes, int]]:
    """Yield offset, last `MAX_LINE_BYTES` bytes and whole length of each line, in bounded memory."""
    offset = 0
    while chunk := file.readline(MAX_LINE_BYTES):
        kept, length = chunk, len(chunk)
        while not chunk.endswith(b"\n") and (chunk := file.readline(MAX_LINE_BYTES)):
            kept, length = (kept + chunk)[-MAX_LINE_BYTES:], length + len(chunk)
        yield offset, kept, length
        offset += length


def _around_gaps(number: int, offset: int, kept: bytes, length: int) -> Iterator[_Piece]:
    """Yield the whole records of a line with NULs in it, and what lies between them as damage."""
    cut = length - len(kept)
    edges = [0, *(edge for gap in _NULS.finditer(kept) for edge in gap.span()), len(kept)]
    damage_from, damage_to = 0, cut
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        text = kept[first:last]
        # The first stretch of a line that was cut is the end of something longer.
        record = None if first == 0 and cut else _decode(text)
        if record is None:
            damage_to = cut + last
            continue
        damage_to = cut + first
        if damage_from < damage_to:
            yield _Piece(None, number, offset + damage_from, damage_to - damage_from)
        yield _Piece(record, number, offset + cut + first, last - first)
        damage_from = damage_to = cut + last
    if damage_from < damage_to:
        yield _Piece(None, number, offset + damage_from, damage_to - damage_from)


def _decode(line: bytes) -> dict[str, object] | None:
    """Return the JSON object of a line; None when it is none."""
    try:
        value: object = orjson.loads(line)
    except orjson.JSONDecodeError:
        value = _decode_loosely(line)
    return cast(dict[str, object], value) if isinstance(value, dict) else None


def _decode_loosely(line: bytes) -> object:
    """Read what other writers call JSON: NaN, infinities and lone surrogates.

    Non-finite numbers become null everywhere but in `seconds`, where the reader must tell them from an absence.
    """
    try:
        value: object = json.loads(line.decode("utf-8"))
        if not isinstance(value, dict):
            return None
        record = cast(dict[str, object], value)
        return {_clean_text(key): item if key == "seconds" else _clean(item) for key, item in record.items()}
    except (ValueError, RecursionError):  # not JSON, not UTF-8, a number of thousands of digits, nested too deep
        return None


def _clean(value: object) -> object:
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_clean(item) for item in cast(list[object], value)]
    if isinstance(value, dict):
        return {_clean_text(key): _clean(item) for key, item in cast(dict[str, object], value).items()}
    return value


def _clean_text(text: str) -> str:
    return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)


# --- JSON objects into rows --------------------------------------------------------------------------------------


def _interpret(record: Mapping[str, object], at: _Piece) -> TimingRow | SkipReason:
    """Turn a JSON object into a row, or say why it is none (EP 8.1)."""
    if record.get("schema") not in (None, names.TIMING_SCHEMA):
        return "schema"
    stage = record.get("stage")
    if not isinstance(stage, str) or not _STAGE.fullmatch(stage):
        return "no_stage"
    fields = _Fields(record)
    start, end = fields.moment("start"), fields.moment("end")
    seconds = record.get("seconds")
    if seconds is None and start is not None and end is not None:
        fields.flag("derived_seconds")
        seconds = (end - start) / NS_PER_SECOND
    length = _duration(seconds, start)
    if length is None:
        return "bad_seconds"
    if start is not None and (end is None or end < start):
        if end is not None:
            fields.flag("bad_interval")
        end = start + round(length * NS_PER_SECOND)
    return TimingRow(
        stage=stage,
        seconds=length,
        start_ns=start,
        end_ns=end,
        run_id=fields.text("run_id"),
        cell_id=fields.text("cell_id"),
        phase=fields.text("phase"),
        pass_number=fields.count("pass"),
        parent=fields.text("parent"),
        depth=fields.count("depth"),
        ok=fields.truth("ok", absent=True, note=True),
        measured=fields.truth("measured", absent=True, note=True),
        container=fields.truth("container", absent=stage in CONTAINER_STAGES),
        source=fields.text("source") or "timer",
        error=fields.text("error"),
        attributes=fields.object("attributes"),
        trace_id=fields.text("trace_id"),
        span_id=fields.text("span_id") or None,
        parent_span_id=fields.text("parent_span_id") or None,
        self_seconds=_duration(record.get("self_seconds"), None),
        extra={key: value for key, value in record.items() if key not in _KNOWN},
        flags=fields.flags,
        line=at.line,
        offset=at.offset,
    )


def _duration(value: object, start_ns: int | None) -> float | None:
    """Return a finite number of seconds >= 0 whose end still has a date; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    longest = (LATEST_NS - (start_ns or 0)) / NS_PER_SECOND
    return float(value) if 0 <= value <= longest else None  # NaN compares false


class _Fields:
    """Read the fields of one record, each as its type or absent, and note what was wrong."""

    def __init__(self, record: Mapping[str, object]) -> None:
        self._record = record
        self._flags: dict[RowFlag, None] = {}

    @property
    def flags(self) -> tuple[RowFlag, ...]:
        return tuple(self._flags)

    def flag(self, flag: RowFlag) -> None:
        self._flags[flag] = None

    def moment(self, key: str) -> int | None:
        value = self._record.get(key)
        moment: Moment | None = parse_moment(value)
        if moment is None:
            if value is not None:
                self.flag("bad_time")
            return None
        if moment.naive:
            self.flag("naive_timestamp")
        return moment.ns

    def text(self, key: str) -> str | None:
        value = self._record.get(key)
        if value is None or isinstance(value, str):
            return value
        self.flag("bad_field")
        return None

    def count(self, key: str) -> int | None:
        value = self._record.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
            return value
        self.flag("bad_field")
        return None

    def truth(self, key: str, *, absent: bool, note: bool = False) -> bool:
        value = self._record.get(key)
        if isinstance(value, bool):
            return value
        if value is not None:
            self.flag("bad_field")
        if note:
            self.flag("defaulted")
        return absent

    def object(self, key: str) -> Mapping[str, object]:
        value = self._record.get(key)
        if isinstance(value, dict):
            return cast(dict[str, object], value)
        if value is not None:
            self.flag("bad_field")
        return {}
