"""Follow the hash chain of one journal file and say where it does not hold.

Line n carries its number and the SHA-256 of line n - 1, so a line is vouched
for by the one after it, and the last one only by the seal. A line that does
not fit is therefore kept in doubt until lines that fit each other follow: what
lies between the last good line and those is what changed. Memory does not grow
with the file.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from spanfold import names
from spanfold.journal._decode import line_seal
from spanfold.journal._reader import Line, Tail
from spanfold.journal._writer import SUFFIX, genesis

FindingCode = Literal["seal_broken", "edited", "truncated", "foreign_bytes", "missing_file", "adopted"]
"""Names of EP 3.7."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about a journal that is not as it was written."""

    code: FindingCode
    """`seal_broken`: chain or sequence wrong. `edited`: bytes differ from what was recorded. `truncated`: bytes are
    gone from the end. `foreign_bytes`: bytes no record explains. `missing_file`: a sealed file is gone.
    `adopted`: complete bytes of an interrupted run, taken up and sealed by `recover`."""
    path: Path
    """The file."""
    offset: int
    """First byte of the range."""
    length: int
    """Bytes of the range; 0 when bytes are missing at `offset`."""
    detail: str
    """What was expected and found, in plain words."""
    is_unfinished: bool = False
    """Whether it is what a death leaves, or another OTLP writer: a seal that is missing, whole lines behind the seal, a
    file without a chain. No recorded byte is changed or gone, so `recover_run` and `fold_run` go on."""

    @property
    def severity(self) -> Literal["error", "info"]:
        """`info` for what recovery did, else `error`."""
        return "info" if self.code == "adopted" else "error"


class Head(NamedTuple):
    """How far a file had come when it was sealed."""

    seq: int
    head: str
    size: int


class Link(NamedTuple):
    """One line as the chain sees it."""

    offset: int
    length: int
    seq: int
    prev: str
    sha256: str

    @property
    def end(self) -> int:
        """First byte after the line."""
        return self.offset + self.length


_NOTHING: Final = Link(0, 0, 0, "", "")


@dataclass(slots=True)
class ChainRead:
    """What one file holds."""

    path: Path
    findings: list[Finding] = field(default_factory=list[Finding])
    last: Link = _NOTHING
    """Last whole line, with sequence number 0 when there is none."""
    size: int = 0
    """Bytes of the file when it was read, a torn tail included."""
    n_lines: int = 0
    """Whole lines."""

    @property
    def head(self) -> Head:
        """Where the file ends now, as a seal would say it."""
        return Head(self.last.seq, self.last.sha256, self.last.end)


def read_chain(path: Path, *, is_vouched_for: Callable[[Link], bool], visit: Callable[[Line, Link], None]) -> ChainRead:
    """Follow the chain of one file.

    Args:
        path: A journal file.
        is_vouched_for: Whether a seal says that exactly this line is unchanged.
        visit: Called with every whole line.
    """
    tail = Tail(path)
    chain = ChainRead(path)
    judge = _Judge(chain, _first_prev(path), is_vouched_for)
    for line in tail.lines():
        link = link_of(line)
        visit(line, link)
        judge.take(link)
        chain.last = link
        chain.n_lines += 1
    judge.finish()
    chain.size = tail.end
    return chain


def link_of(line: Line) -> Link:
    """Return a line as the chain sees it."""
    return Link(line.offset, line.length, *line_seal(line.data), hashlib.sha256(line.data).hexdigest())


class _Judge:
    """Holds the last good line and, behind it, the lines in doubt."""

    def __init__(self, chain: ChainRead, first_prev: str, is_vouched_for: Callable[[Link], bool]) -> None:
        self._chain = chain
        self._is_vouched_for = is_vouched_for
        self._good = Link(0, 0, 0, "", first_prev)
        self._doubted = 0
        """Lines in doubt; `_newest` is the last of them."""
        self._newest = self._good
        self._is_chained = False
        """Whether any line has a place in a chain."""

    def take(self, link: Link) -> None:
        """Judge the next line."""
        good, newest = self._good, self._newest
        self._is_chained = self._is_chained or link.seq > 0
        if _follows(link, good):
            if self._doubted:
                self._report("foreign_bytes", good.end, link.offset, "lines that the chain leaves out")
            self._good, self._doubted = link, 0
        elif self._doubted and newest.seq and _follows(link, newest):
            self._bridge(newest)
            self._good, self._doubted = link, 0
        else:
            self._doubted += 1
            self._newest = link

    def finish(self) -> None:
        """Judge what is in doubt at the end of the file."""
        if not self._doubted:
            return
        good, newest = self._good, self._newest
        if not self._is_chained:
            self._report("foreign_bytes", 0, newest.end, "lines without a chain", is_unfinished=True)
        elif self._is_vouched_for(newest):
            self._bridge(newest)
        elif self._is_vouched_for(good):
            code: FindingCode = "edited" if self._doubted == 1 and newest.seq == good.seq + 1 else "foreign_bytes"
            self._report(code, good.end, newest.end, "bytes behind the last sealed line")
        else:
            self._report("edited", good.offset, newest.end, "lines that do not follow from each other")

    def _bridge(self, next_good: Link) -> None:
        """Say what happened between the last good line and one that is known to be as it was written."""
        good, end = self._good, next_good.offset
        expected, found = next_good.seq - good.seq - 1, self._doubted - 1
        # The good line's own hash stands in the line after it: if that one is gone or changed, nothing vouches for it.
        begin = good.end if self._is_vouched_for(good) else good.offset
        if not good.seq and not expected and not found:
            self._report("seal_broken", 0, next_good.end, "a first line that was written under another file name")
        elif found < expected:
            gone = f"line {good.seq + 1}" if expected == 1 else f"lines {good.seq + 1} to {next_good.seq - 1}"
            self._report("seal_broken", begin, end, f"{found} lines in place of {gone}")
        else:
            self._report("edited", begin, end, "bytes that differ from those the next line was chained to")

    def _report(self, code: FindingCode, begin: int, end: int, found: str, *, is_unfinished: bool = False) -> None:
        path = self._chain.path
        detail = f"expected line {self._good.seq + 1} chained to line {self._good.seq}, found {found}"
        self._chain.findings.append(Finding(code, path, begin, end - begin, detail, is_unfinished))


def _first_prev(path: Path) -> str:
    writer = path.name.removesuffix(SUFFIX)
    return genesis(writer) if writer.isascii() else ""


def _follows(link: Link, before: Link) -> bool:
    return link.seq == before.seq + 1 and link.prev == before.sha256


SEALED_MARK: Final = b'"eventName":"%b"' % names.EVENT_SEALED.encode()
"""Stands in every sealing line and, since quotes inside text are escaped, in no other line of ours."""
