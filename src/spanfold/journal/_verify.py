"""Verify a run's journal offline: nothing but its files is needed.

What the chain shows, what only the seal shows, and what neither can show is
settled in docs/formats/journal-v1.md (threat model). In short: a changed,
removed, inserted or moved line of a sealed run is found and its place named;
somebody who can rewrite everything can also seal it again, which only a copy
of `JournalVerdict.anchor` outside this disk reveals (it is on the root span).
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

import orjson

from spanfold import names
from spanfold.errors import JournalMissing
from spanfold.journal._chain import SEALED_MARK, ChainRead, Finding, FindingCode, Head, Link, read_chain
from spanfold.journal._decode import NotOtlp, decode_line, value_of
from spanfold.journal._reader import Damage, Line, Tail, journal_files
from spanfold.model import Span

__all__ = ["Finding", "FindingCode", "Head", "JournalVerdict", "combined_head", "verify_journal"]


@dataclass(frozen=True, slots=True)
class JournalVerdict:
    """What `verify_journal` found."""

    files: Mapping[str, Head]
    """File name -> last whole line, its hash and the bytes up to its end, as they are on disk."""
    sealed: bool
    """Whether a seal is there. Without one the last line of each file is vouched for by nothing."""
    findings: tuple[Finding, ...]
    """By file and offset; empty when everything is as it was written."""
    torn: tuple[Damage, ...]
    """Unfinished last lines of a run without a seal: its process still writes, or died. `recover` sets them aside."""
    anchor: str
    """`spanfold.seal.head` of the root span as it must be for these files, 64 hex; empty before the root has ended.
    Compare it with the copy in a collector."""

    @property
    def state(self) -> Literal["intact", "open", "broken"]:
        """`broken` with any finding of severity error, else `intact` when sealed and `open` when not."""
        if any(f.severity == "error" for f in self.findings):
            return "broken"
        return "intact" if self.sealed else "open"

    @property
    def ok(self) -> bool:
        """Whether nothing contradicts the journal; true for an open run too."""
        return self.state != "broken"


def combined_head(heads: Mapping[str, tuple[int, str]]) -> str:
    """Return the value of `spanfold.seal.head`: one hash over sequence number and head of every file.

    Args:
        heads: File name -> sequence number and hash of its last line; `Head` will do.
    """
    text = "".join(f"{name} {heads[name][0]} {heads[name][1]}\n" for name in sorted(heads))
    return hashlib.sha256(text.encode()).hexdigest()


def verify_journal(run_dir: Path) -> JournalVerdict:
    """Check every byte of a run's journal against its chain and its seal.

    Args:
        run_dir: The run directory, or its journal folder itself.

    Raises:
        JournalMissing: There is no journal file.
        UnsafeEntryError: The journal folder or a file of it is a link.
    """
    files = journal_files(run_dir)
    if not files:
        raise JournalMissing(run_dir)
    marks = _Marks()
    for path in files:
        marks.read(path)
    return _Judgement(run_dir, files, marks).verdict()


class _Seal(NamedTuple):
    """A sealing line."""

    path: Path
    line: Link
    time_ns: int
    heads: Mapping[str, Head]
    """Empty when they cannot be read."""
    problem: str
    """How the line differs from the one form a sealing line has; empty when it does not."""

    @property
    def is_sound(self) -> bool:
        """Whether the line says of its own file what its place in the chain says."""
        own = self.heads.get(self.path.name)
        return not self.problem and (self.line.seq - 1, self.line.prev) == (own[:2] if own else (0, self.line.prev))


class _Root(NamedTuple):
    """The line of a root span that ended."""

    path: Path
    line: Link
    head: str
    seq: int


class _Marks:
    """The lines of a journal that say something about the others: seals and ended root spans."""

    def __init__(self) -> None:
        self.seals: list[_Seal] = []
        self.roots: list[_Root] = []

    def read(self, path: Path) -> None:
        frames: set[tuple[bytes, bytes]] = set()
        for line in Tail(path).lines():
            if SEALED_MARK in line.data:
                self.seals.append(_read_seal(path, line, frames))
            elif _ROOT_MARK in line.data:
                self.roots += _read_root(path, line)
            elif line.data.startswith(b'{"resourceLogs"') and len(frames) < _MAX_FRAMES:
                frames.add(_frame(line.data))

    @property
    def newest_seal(self) -> _Seal | None:
        return max((s for s in self.seals if s.heads), key=lambda s: (s.time_ns, s.path), default=None)


_ROOT_MARK: Final = b'{"key":"%b","value":{"stringValue":"' % names.SEAL_HEAD.encode()
_MAX_FRAMES: Final = 4
_TEXT: Final = rb'"(?:[^"\\]|\\.)*"'
_SEALED_RECORD: Final = re.compile(
    rb'"}}\]},"logRecords":\[\{"timeUnixNano":"(\d+)","observedTimeUnixNano":"\1","severityNumber":13,"eventName":"%b",'
    rb'"attributes":\[\{"key":"spanfold\.heads","value":\{"stringValue":(%b)\}\},\{"key":"%b","value":\{"arrayValue":'
    rb'\{"values":\[\{"stringValue":"spanfold\.heads"\}\]\}\}\}\],"flags":1,"traceId":"","spanId":""\}'
    % (re.escape(names.EVENT_SEALED.encode()), _TEXT, re.escape(names.JSON_FIELDS.encode()))
)


def _frame(data: bytes) -> tuple[bytes, bytes]:
    """Return what stands before the sequence number and behind the record: the same on all event lines of a file."""
    return data[: data.find(b'{"key":"%b"' % names.LINE_SEQ.encode())], data[data.rfind(b'],"schemaUrl":') :]


def _read_seal(path: Path, line: Line, frames: set[tuple[bytes, bytes]]) -> _Seal:
    """Read a sealing line and hold it against the only form it may have.

    No line follows it, so no hash vouches for its bytes. Everything it holds is
    therefore something that is known otherwise, or written twice.
    """
    link = Link(line.offset, line.length, *line_seal(line.data), hashlib.sha256(line.data).hexdigest())
    match = _SEALED_RECORD.search(line.data)
    if match is None:
        return _Seal(path, link, 0, {}, "a record of another form")
    try:
        text = orjson.loads(match[2])
        heads = {n: Head(int(h["seq"]), str(h["head"]), int(h["size"])) for n, h in orjson.loads(text).items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return _Seal(path, link, 0, {}, "heads that cannot be read")
    tree = {name: head._asdict() for name, head in heads.items()}
    canonical = orjson.dumps(orjson.dumps(tree, option=orjson.OPT_SORT_KEYS).decode())
    rebuilt = b'%b{"key":"%b","value":{"intValue":"%d"}},{"key":"%b","value":{"stringValue":"%b%b%b' % ()
    problem = ""
    return _Seal(path, link, int(match[1]), heads, problem)
