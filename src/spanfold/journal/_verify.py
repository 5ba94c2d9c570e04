"""Verify a run's journal offline: nothing but its files is needed.

What the chain shows, what only the seal shows, and what neither can show is
settled in docs/formats/journal-v1.md (threat model). In short: a changed,
removed, inserted or moved line of a sealed run is found and its place named;
somebody who can rewrite everything can also seal it again, which only a copy
of `JournalVerdict.anchor` outside this disk reveals (it is on the root span).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

import orjson

from spanfold import names
from spanfold.errors import JournalCorrupt, JournalMissing
from spanfold.journal._chain import SEALED_MARK, ChainRead, Finding, FindingCode, Head, Link, link_of, read_chain
from spanfold.journal._decode import NotOtlp, decode_line, value_of
from spanfold.journal._reader import Damage, Line, Tail, journal_files, n_bytes
from spanfold.journal._sessions import later_session
from spanfold.journal._witness import documented_heads
from spanfold.model import Span

__all__ = ["Finding", "FindingCode", "Head", "JournalVerdict", "combined_head", "verify_journal"]


@dataclass(frozen=True, slots=True)
class JournalVerdict:
    """What `verify_journal` found."""

    files: Mapping[str, Head]
    """File name -> last whole line, its hash and the bytes up to its end, as they are on disk."""
    sealed: bool
    """Whether the journal ends with a seal. Without one, or when a later session of the run goes on behind it, the last
    line of each file that no seal names is vouched for by nothing."""
    findings: tuple[Finding, ...]
    """By file and offset; empty when everything is as it was written."""
    torn: tuple[Damage, ...]
    """Unfinished last lines that no seal covers: their process still writes, or died. `recover` sets them aside."""
    anchor: str
    """`spanfold.seal.head` of the root span as it must be for these files, 64 hex; empty before the root has ended.
    Compare it with the copy in a collector."""
    n_lines: int
    """Whole lines that are on disk, in all files."""
    going_on: frozenset[str] = frozenset()
    """Files of a later session of the run, behind the newest seal."""
    only_added: bool = False
    """Whether all that contradicts the journal are bytes that stand between or behind its lines, and every line that the
    seal covers is there as it was sealed."""

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

    @property
    def damage(self) -> Finding | None:
        """The first finding that says that recorded bytes are changed or gone; None when nothing is but unfinished."""
        return next((f for f in self.findings if f.severity == "error" and not f.is_unfinished), None)

    def require_undamaged(self, advice: str) -> None:
        """Refuse to build anything on a journal that has lost something.

        Args:
            advice: What to do when there is no copy of the journal, in a sentence.

        Raises:
            JournalCorrupt: Recorded bytes are changed or gone.
        """
        if (found := self.damage) is not None:
            raise JournalCorrupt(found.path, found.offset, found.length, f"{found.code}: {found.detail}", advice)


def combined_head(heads: Mapping[str, tuple[int, str]]) -> str:
    """Return the value of `spanfold.seal.head`: one hash over sequence number and head of every file.

    Args:
        heads: File name -> sequence number and hash of its last line; `Head` will do.
    """
    text = "".join(f"{name} {heads[name][0]} {heads[name][1]}\n" for name in sorted(heads))
    return hashlib.sha256(text.encode()).hexdigest()


def verify_journal(run_dir: Path) -> JournalVerdict:
    """Check every byte of a run's journal against its chain and its seal.

    A seal that was cut off leaves no trace in the journal, but one in `run.json`, which is looked at for that.

    Args:
        run_dir: The run directory, or its journal folder itself.

    Raises:
        JournalMissing: There is no journal file.
        UnsafeEntryError: The journal folder or a file of it is a link.
    """
    files = journal_files(run_dir)
    if not files:
        raise JournalMissing(run_dir)
    documented = documented_heads(files[0].parent)
    marks = Marks()
    for path in files:
        marks.read(path)
    judgement = _Judgement(run_dir, files, marks)
    judgement.check_documented(*documented)
    return judgement.verdict()


class Seal(NamedTuple):
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
    end_ns: int


class Marks:
    """The lines of a journal that say something about the others: seals and ended root spans."""

    def __init__(self) -> None:
        self.seals: list[Seal] = []
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
    def newest_seal(self) -> Seal | None:
        return max((s for s in self.seals if s.heads), key=lambda s: (s.time_ns, s.path), default=None)


_HEADS: Final = "spanfold.heads"
_ROOT_MARK: Final = b'{"key":"%b","value":{"stringValue":"' % names.SEAL_HEAD.encode()
_MAX_FRAMES: Final = 4
_SEALED_LINE: Final = (
    b'%%b{"key":"%b","value":{"intValue":"%%d"}},{"key":"%b","value":{"stringValue":"%%b"}}]},"logRecords":[{"timeUnixNano":"%%d",'
    b'"observedTimeUnixNano":"%%d","severityNumber":13,"eventName":"%b","attributes":[{"key":"%b","value":{"stringValue":%%b}},'
    b'{"key":"%b","value":{"arrayValue":{"values":[{"stringValue":"%b"}]}}}],"flags":1,"traceId":"","spanId":""}%%b'
    % tuple(
        n.encode() for n in (names.LINE_SEQ, names.LINE_PREV, names.EVENT_SEALED, _HEADS, names.JSON_FIELDS, _HEADS)
    )
)


def _frame(data: bytes) -> tuple[bytes, bytes]:
    """Return what stands before the sequence number and behind the record: the same on all event lines of a file."""
    end = data.find(b'"}', data.rfind(b'"spanId":"')) + 2
    return data[: data.find(b'{"key":"%b"' % names.LINE_SEQ.encode())], data[end:]


def _read_seal(path: Path, line: Line, frames: set[tuple[bytes, bytes]]) -> Seal:
    """Read a sealing line and hold it against the only form it may have.

    No line follows it, so no hash vouches for its bytes. Everything it holds is
    therefore something that is known otherwise, or is written twice.
    """
    link = link_of(line)
    try:
        (record,) = decode_line(line.data)
        found = value_of(record, _HEADS)
        heads = {name: Head(int(h["seq"]), str(h["head"]), int(h["size"])) for name, h in found.items()}
    except (NotOtlp, ValueError, TypeError, KeyError, AttributeError):
        return Seal(path, link, 0, {}, "heads that cannot be read")
    text = orjson.dumps({name: head._asdict() for name, head in heads.items()}, option=orjson.OPT_SORT_KEYS).decode()
    for before, behind in frames or {_frame(line.data)}:
        time = record.time_ns
        form = _SEALED_LINE % (before, link.seq, link.prev.encode(), time, time, orjson.dumps(text), behind)
        if line.data == form:
            return Seal(path, link, time, heads, "")
    return Seal(path, link, record.time_ns, heads, "a sealing record of another form")


def _read_root(path: Path, line: Line) -> list[_Root]:
    try:
        records = list(decode_line(line.data))
        return [
            _Root(path, link_of(line), str(r.attributes[names.SEAL_HEAD]), int(r.attributes[names.SEAL_SEQ]), r.end_ns)
            for r in records
            if type(r) is Span and names.SEAL_HEAD in r.attributes
        ]
    except (NotOtlp, ValueError, TypeError, KeyError):
        return []  # not what the recorder writes; the chain names the line


class _Judgement:
    """Holds the files of a journal against its chain, its newest seal and its root span."""

    def __init__(self, run_dir: Path, files: list[Path], marks: Marks) -> None:
        self.folder = files[0].parent
        self.marks = marks
        self.seal = marks.newest_seal
        self.sealed_heads: Mapping[str, Head] = self.seal.heads if self.seal else {}
        self.findings: list[Finding] = []
        self.torn: list[Damage] = []
        self.chains: dict[str, ChainRead] = {}
        self.at_seal: dict[str, Link] = {}
        """File name -> the line that its sealed head names, as it is on disk."""
        for path in files:
            self.read(path)
        sealed = {name for seal in marks.seals for name in (*seal.heads, seal.path.name)}
        whole = {name for name, chain in self.chains.items() if chain.last.seq and not chain.findings}
        told = [path for path in files if path.name in sealed | whole]
        self.going_on = later_session(told, sealed, self.seal.time_ns if self.seal else 0)
        """Names of the files of a session that went on behind the newest seal."""

    def read(self, path: Path) -> None:
        head = self.sealed_heads.get(path.name)
        sound = {seal.line for seal in self.marks.seals if seal.path == path and seal.is_sound}

        def visit(_: Line, link: Link) -> None:
            if head and link.seq == head.seq:
                self.at_seal[path.name] = link

        chain = read_chain(
            path, visit=visit, is_vouched_for=lambda link: link in sound or (link.seq, link.sha256, link.end) == head
        )
        self.chains[path.name] = chain
        self.findings += chain.findings

    def verdict(self) -> JournalVerdict:
        for seal in self.marks.seals:
            if not seal.is_sound:
                found = seal.problem or "heads that contradict its own place in the chain"
                self.report(
                    "edited", seal.path, seal.line.offset, seal.line.end, f"expected a sealing line, found {found}"
                )
        anchor = self.check_anchor()
        for name, head in self.sealed_heads.items():
            # A seal that contradicts its own place says nothing reliable about its own file.
            if self.seal is None or self.seal.is_sound or name != self.seal.path.name:
                self.check_head(name, head)
        for name, chain in self.chains.items():
            self.check_end(name, chain)
        self.check_adopted()
        return JournalVerdict(
            files={name: chain.head for name, chain in self.chains.items()},
            sealed=bool(self.marks.seals) and not self.going_on,
            findings=tuple(sorted(self.findings, key=lambda f: (f.path, f.offset, f.length))),
            torn=tuple(self.torn),
            anchor=anchor,
            n_lines=sum(chain.n_lines for chain in self.chains.values()),
            going_on=self.going_on,
            only_added=self.is_only_added_to(),
        )

    def is_only_added_to(self) -> bool:
        """Whether there are findings, and none of them is of a byte that a seal vouches for."""
        errors = [f for f in self.findings if f.severity == "error"]
        if self.seal is None or not errors or any(f.code != "foreign_bytes" for f in errors):
            return False
        lines = {name: self.at_seal.get(name) for name in self.sealed_heads}
        are_there = all(
            line is not None and line.sha256 == self.sealed_heads[name].head for name, line in lines.items()
        )
        return are_there and all(seal.is_sound for seal in self.marks.seals)

    def report(
        self, code: FindingCode, path: Path, begin: int, end: int, detail: str, *, is_unfinished: bool = False
    ) -> None:
        """Add a finding, unless one that covers its range is there: one change is one finding."""
        if not any(f.path == path and f.offset <= begin and f.offset + f.length >= end for f in self.findings):
            self.findings.append(Finding(code, path, begin, end - begin, detail, is_unfinished))

    # -- run.json against files

    def check_documented(self, heads: Mapping[str, Head], sealing: str) -> None:
        """Look for the seal that run.json was made from, and for the lines it covered.

        Args:
            heads: What that seal says of each file.
            sealing: The file that it closed.
        """
        sealed = {seal.path.name for seal in self.marks.seals}
        for name, head in heads.items():
            chain, known = self.chains.get(name), self.sealed_heads.get(name)
            if known is not None and known.seq >= head.seq:
                continue  # a seal in the journal says as much
            if chain is None:
                path = self.folder / name if "/" not in name else self.folder
                detail = f"expected a file of {head.seq} lines, which run.json was made from, found none"
                self.report("missing_file", path, 0, head.size, detail)
            elif chain.last.seq < head.seq or (name == sealing and name not in sealed):
                behind = " and a seal behind them" if name == sealing else ""
                detail = (
                    f"expected {head.seq} lines{behind}, which run.json was made from, found {chain.last.seq} lines"
                )
                self.report("truncated", chain.path, chain.last.end, max(chain.size, head.size), detail)

    # -- seal against files

    def check_head(self, name: str, head: Head) -> None:
        """Compare what the seal says of a file with the file."""
        chain, line = self.chains.get(name), self.at_seal.get(name)
        if chain is None:
            # The name comes from the file's content, so it is only shown, never opened.
            path = self.folder / name if "/" not in name else self.folder
            self.report("missing_file", path, 0, head.size, f"expected a file of {head.seq} sealed lines, found none")
        elif line is None and chain.last.seq < head.seq:
            detail = f"expected {head.seq} sealed lines, found {chain.last.seq}"
            if chain.last.end >= head.size:  # the bytes are there, but no longer that many lines
                self.report("edited", chain.path, chain.last.offset, chain.last.end, detail)
            else:
                self.report("truncated", chain.path, chain.last.end, max(chain.size, head.size), detail)
        elif line is None or line.sha256 != head.head:
            begin, end = (line.offset, line.end) if line else (0, chain.last.end)
            detail = f"expected line {head.seq} as it was sealed, found other bytes"
            if not any(f.path == chain.path for f in chain.findings):
                self.report("edited", chain.path, begin, end, detail)
        elif line.end != head.size and not chain.findings:
            self.blame_seal(f"expected the size of {name}, found another number")

    def blame_seal(self, detail: str) -> None:
        if self.seal:
            self.report("edited", self.seal.path, self.seal.line.offset, self.seal.line.end, detail)

    def check_end(self, name: str, chain: ChainRead) -> None:
        """Look for bytes behind what is sealed, and for a torn tail."""
        head = self.sealed_heads.get(name)
        if not self.marks.seals or name in self.going_on:
            if chain.size > chain.last.end:
                found = f"{n_bytes(chain.size - chain.last.end)} without an end of line"
                self.torn.append(Damage(chain.path, chain.last.end, chain.size - chain.last.end, "torn", found))
            self.check_unsealed_end(chain)
            return
        if self.seal is None:
            return  # its line is a finding already, and there is nothing to compare with
        if head is not None and name not in self.at_seal:
            return
        end = self.at_seal[name].end if head else 0
        if self.seal.path == chain.path:
            end = self.seal.line.end
        if chain.size > end:
            detail = f"expected the end of the file where it was sealed, found {n_bytes(chain.size - end)} more"
            # A child that outlives the run goes on with its chain; the writer of a seal writes nothing behind it.
            late = self.seal.path != chain.path and not chain.findings
            self.report("foreign_bytes", chain.path, end, chain.size, detail, is_unfinished=late)

    def check_unsealed_end(self, chain: ChainRead) -> None:
        for root in self.marks.roots:
            if root.path == chain.path:
                detail = "expected the seal behind the run's own span, found none: removed, or the process died between the two"
                end = max(chain.size, root.line.end)
                self.report("truncated", chain.path, root.line.end, end, detail, is_unfinished=True)

    def check_adopted(self) -> None:
        """Name what an earlier seal did not cover and a later one does."""
        for seal in self.marks.seals:
            if self.seal is None or seal is self.seal or seal.problem:
                continue
            for name, head in self.sealed_heads.items():
                begin = seal.heads[name].size if name in seal.heads else 0
                if name == seal.path.name:
                    begin = seal.line.end
                if name != self.seal.path.name and head.size > begin:
                    detail = "bytes written after an earlier seal and sealed by a later one"
                    self.report("adopted", self.folder / name, begin, head.size, detail)

    # -- seal against root span

    def check_anchor(self) -> str:
        """Hold the head on the root span against the seal; it also tells whether seal or file was changed.

        Returns:
            The head as it must be for the files as they are.
        """
        root = max(self.marks.roots, key=lambda r: (r.end_ns, r.path, r.line.offset), default=None)
        if root is None:
            return ""
        seal = next((s for s in self.marks.seals if s.path == root.path and s.line.seq > root.line.seq), None)
        last = seal or self.seal
        # Earlier sessions are what the root span was ended with; a seal that came after it is not.
        later = {s.path.name for s in self.marks.seals if last is None or s is last or s.path.name not in last.heads}
        later |= {root.path.name} | self.going_on
        on_disk = {n: (c.last.seq, c.last.sha256) for n, c in self.chains.items() if n not in later and c.last.seq}
        expected = self.root_head(root, on_disk)
        if seal is None or not seal.heads:
            return expected
        if self.root_head(root, {n: h[:2] for n, h in seal.heads.items() if n != root.path.name}) == root.head:
            return expected
        if expected == root.head:
            detail = "expected the heads that the run's own span was ended with, found others"
            self.report("edited", seal.path, seal.line.offset, seal.line.end, detail)
            if seal is self.seal:
                self.seal, self.sealed_heads = None, {}
        elif not self.findings:
            detail = "expected on the run's own span the head of the files that were sealed, found another"
            self.report("seal_broken", root.path, root.line.offset, root.line.end, detail)
        return expected

    def root_head(self, root: _Root, others: Mapping[str, tuple[int, str]]) -> str:
        """Return what the root span must carry when the other files ended as given."""
        own_seq = root.seq - sum(seq for seq, _ in others.values())
        if own_seq == 0:
            return combined_head(others)
        own = root.line.prev if own_seq == root.line.seq - 1 else _head_at(root.path, own_seq)
        return combined_head({**others, root.path.name: (own_seq, own)})


def _head_at(path: Path, seq: int) -> str:
    """Return the hash of line `seq`: other threads wrote lines between the root span's head and the span itself."""
    for line in Tail(path).lines():
        link = link_of(line)
        if link.seq >= seq:
            return link.sha256 if link.seq == seq else ""
    return ""
