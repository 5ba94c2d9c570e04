"""Finish a run whose process died: nothing it wrote is changed, what it could not write is added.

Order of work, so that it can be killed at any instant and run again:

1. A torn tail is copied beside its file (`<file>.torn-<offset>`), flushed, and
   only then cut off. It is never glued to: it holds no whole record.
2. Spans that were started and never ended are ended in a journal file of this
   process, children before parents, as interrupted at the time of the last
   record of their trace. Each is a line of its own; a second attempt ends only
   those that are still open.
3. An event says that the run was recovered, and the seal closes the journal. A
   run is finished when its seal covers every byte, so a second recovery of it
   does nothing.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import orjson

from spanfold import names
from spanfold.errors import JournalError, JournalMissing, LockedError
from spanfold.fs import FileLock, FileSpan, SafeRoot
from spanfold.journal._alive import host_name, is_owner_alive, live_writer
from spanfold.journal._elsewhere import bring_home
from spanfold.journal._heads import file_heads
from spanfold.journal._interrupted import INTERRUPTED, OpenSpan, OpenSpans, encodable, encode_interrupted
from spanfold.journal._reader import journal_files, read_journal
from spanfold.journal._values import JsonText
from spanfold.journal._verify import Marks, combined_head, verify_journal
from spanfold.journal._writer import SUFFIX, Frame, Journal
from spanfold.model import Event, Record, Span

__all__ = ["EndedSpan", "Recovery", "SetAside", "recover_run"]

_LOCK: Final = ".recover.lock"
_OWNER: Final = ".fold/owner.json"
"""Who keeps the documents, in the journal folder; written by the fold."""
_BLOCK: Final = 1 << 20
_NO_COPY: Final = (
    "A new seal would hide what is gone; `spanfold run fold --into` shows what is left, in another folder."
)


@dataclass(frozen=True, slots=True)
class SetAside:
    """A torn tail."""

    path: Path
    """The journal file it was the end of."""
    offset: int
    """Where it began, and where the file ends now."""
    length: int
    """Bytes."""
    moved_to: Path
    """The file that holds the bytes now."""


@dataclass(frozen=True, slots=True)
class EndedSpan:
    """A span that was open and is ended now."""

    trace_id: str
    span_id: str
    kind: str
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """What `recover_run` did, or with `dry_run` would do."""

    run_dir: Path
    torn: tuple[SetAside, ...] = ()
    ended: tuple[EndedSpan, ...] = ()
    """Children before parents."""
    sealed: bool = False
    """Whether a seal was written."""
    file: Path | None = None
    """The journal file that holds ends and seal; None when nothing was written."""
    came_home: bool = False
    """Whether the journal stood outside of the run directory and was moved into it."""

    @property
    def changed(self) -> bool:
        """Whether there was anything to do."""
        return bool(self.torn or self.ended or self.sealed or self.came_home)


def recover_run(
    run_dir: Path,
    *,
    dry_run: bool = False,
    assume_dead: bool = False,
    now_ns: Callable[[], int] = time.time_ns,
) -> Recovery:
    """Finish a run whose process died. Harmless when there is nothing to do.

    Args:
        run_dir: The run directory.
        dry_run: Only say what would be done.
        assume_dead: Go on although the run was recorded on another machine, whose processes cannot be seen from here.
        now_ns: Wall clock, for the time of the recovery.

    Raises:
        JournalMissing: There is no journal file.
        LockedError: A process that writes to the run still lives, or another recovery is at work.
        JournalCorrupt: Recorded bytes are changed or gone, which a new seal would hide. Nothing was written.
        JournalError: The disk refused what had to be written. What was written stays; run it again.
    """
    came_home = not dry_run and bring_home(run_dir, assume_dead=assume_dead)
    survey = _Survey(run_dir)
    if not survey.is_finished:
        _require_dead(survey, assume_dead=assume_dead)
    verify_journal(run_dir).require_undamaged(_NO_COPY)
    if survey.is_finished:
        return Recovery(run_dir, came_home=came_home)
    if dry_run:
        return survey.plan()
    root = SafeRoot(survey.folder, durable=True)
    with FileLock(root, _LOCK):
        survey = _Survey(run_dir)
        done = Recovery(run_dir) if survey.is_finished else _recover(survey, root, now_ns)
        root.unlink(_LOCK)
    return replace(done, came_home=came_home)


def _recover(survey: "_Survey", root: SafeRoot, now_ns: Callable[[], int]) -> Recovery:
    torn = tuple(_set_aside(root, tail) for tail in survey.torn)
    with closing(_Ending(survey, now_ns)) as ending:
        for span in survey.ordered:
            ending.end(span)
        if survey.is_interrupted:
            ending.tell(torn)
        file = ending.seal()
    return replace(survey.plan(), torn=torn, file=file)


# -- what is there


class _Survey:
    """What a journal lacks."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        files = journal_files(run_dir)
        if not files:
            raise JournalMissing(run_dir)
        self.folder = files[0].parent
        self.root: Event | Span | None = None
        """The first record of the run's own span; of several sessions, of the last one's."""
        self._told = self._root_interrupted = self._is_sealed = False
        self._open = OpenSpans()
        read = read_journal(run_dir)
        for record in read.records:
            self._open.see(record)
            self._look(record)
        self._open.settle()
        if self._open.spans:
            for record in read_journal(run_dir).records:
                self._open.look_again(record)
        self.ordered = self._open.children_first()
        self.torn = [
            SetAside(d.path, d.offset, d.length, _beside(d.path, d.offset)) for d in read.damage if d.kind == "torn"
        ]
        self.uncovered = _uncovered(files)

    def _look(self, record: Record) -> None:
        if record.attributes.get(names.KIND) == "run" and (self.root is None or self._is_later(record)):
            self.root = record
            self._told = self._root_interrupted = self._is_sealed = False
        if isinstance(record, Event):
            self._told = self._told or record.name == names.EVENT_RECOVERED
            self._is_sealed = self._is_sealed or record.name == names.EVENT_SEALED
        elif self._is_root(record):
            self._root_interrupted = record.attributes.get(names.ERROR_TYPE) == INTERRUPTED

    def _is_later(self, record: Record) -> bool:
        """Whether a run starts behind a seal: a session that goes on with it. What is told after its end is none."""
        is_start = self._is_sealed and record.name == names.EVENT_STARTED
        return is_start and record.attributes.get(names.DL_LATE) is not True

    def _is_root(self, record: Record) -> bool:
        return self.root is not None and record.span_id == self.root.span_id

    @property
    def is_finished(self) -> bool:
        """Whether a seal covers every byte and no span is open."""
        return not (self.torn or self.ordered or self.uncovered)

    @property
    def is_interrupted(self) -> bool:
        """Whether the run itself did not end, and nothing says so yet."""
        root_open = self.root is None or any(self._is_root(span.started) for span in self.ordered)
        return not self._told and (root_open or self._root_interrupted)

    def is_root(self, span: OpenSpan) -> bool:
        """Whether a span is the run's own."""
        return self._is_root(span.started)

    def plan(self) -> Recovery:
        ended = tuple(EndedSpan(*s.key, s.kind, s.name, s.start_ns, s.end_ns) for s in self.ordered)
        return Recovery(self.run_dir, tuple(self.torn), ended, sealed=True)

    def writers(self) -> set[str]:
        """Return the names of those who may still write: theirs is what is not sealed or not ended."""
        paths = {s.started.position.path.name for s in self.ordered if s.started.position}
        return {name.removesuffix(SUFFIX) for name in paths | self.uncovered}


def _uncovered(files: list[Path]) -> set[str]:
    """Return the names of the files that have lines no seal covers. Files of other OTLP writers have no chain to seal."""
    marks = Marks()
    for path in files:
        marks.read(path)
    seal = marks.newest_seal
    ends = {name: head.size for name, head in seal.heads.items()} if seal else {}
    if seal:
        ends[seal.path.name] = seal.line.end
    return {name for name, head in file_heads(files[0].parent).items() if ends.get(name, 0) < head["size"]}


def _beside(path: Path, offset: int) -> Path:
    return path.with_name(f"{path.name}.torn-{offset}")


# -- who may still be at work


def _require_dead(survey: _Survey, *, assume_dead: bool) -> None:
    owner = _read_owner(survey.folder)
    host = owner.get("host") or _recorded_host(survey)
    if host and host != host_name():
        if assume_dead:
            return
        raise LockedError(
            f"{survey.run_dir}: expected a run of this machine, found one recorded on host {host}, whose processes cannot be "
            "seen from here. Recover it there, or say that its process is known to be gone (assume_dead)."
        )
    if is_owner_alive(owner):
        _refuse(survey, owner["pid"])
    for writer in sorted(survey.writers()):
        pid = live_writer(writer)
        # The owner's record has the exact start time of its process, the writer's name only the second.
        if pid is not None and not (owner.get("pid") == pid and owner.get("started")):
            _refuse(survey, pid)


def _refuse(survey: _Survey, pid: int) -> None:
    raise LockedError(
        f"{survey.run_dir}: expected a run whose process has ended, found process {pid} still alive. "
        "Wait until it ends, or stop it; what it recorded is safe meanwhile."
    )


def _read_owner(folder: Path) -> Mapping[str, Any]:
    try:
        found: Any = orjson.loads(SafeRoot(folder).read_bytes(_OWNER))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def _recorded_host(survey: _Survey) -> str:
    host = survey.root.attributes.get(f"{names.PREFIX}host") if survey.root else ""
    return host if isinstance(host, str) else ""


# -- what is written


def _set_aside(root: SafeRoot, tail: SetAside) -> SetAside:
    """Copy a torn tail beside its file, flush the copy, then cut it off."""
    number = 1
    while True:
        try:
            root.create_exclusive(tail.moved_to.name, [FileSpan(tail.path, tail.offset, tail.length)])
            break
        except FileExistsError:
            # Killed between copy and cut: the copy is there already. Other bytes get another name.
            if _same_bytes(tail):
                break
            number += 1
            tail = replace(
                tail,
                moved_to=_beside(tail.path, tail.offset).with_name(f"{_beside(tail.path, tail.offset).name}-{number}"),
            )
    with root.open_append(tail.path.name) as handle:
        os.ftruncate(handle.fileno(), tail.offset)
        handle.sync()
    return tail


def _same_bytes(tail: SetAside) -> bool:
    with (
        SafeRoot(tail.path.parent).open_read(tail.path.name) as file,
        SafeRoot(tail.path.parent).open_read(tail.moved_to.name) as copy,
    ):
        file.seek(tail.offset)
        left = tail.length
        while left:
            block = file.read(min(_BLOCK, left))
            if not block or block != copy.read(len(block)):
                return False
            left -= len(block)
        return not copy.read(1)


class _PassedGate:
    """The gate for records that passed it when they were first written: they go through as they are."""

    def is_clean(self, line: bytes) -> bool:
        """Whether no rule can match: it was decided already."""
        return True

    def scrub_text(self, text: str) -> str:
        """Return the text."""
        return text

    def scrub_value(self, value: Any) -> Any:
        """Return the value."""
        return value

    def is_sensitive_name(self, name: str) -> bool:
        """Whether a value under this name is secret: its value was replaced already."""
        return False


class _Ending:
    """Writes the end of a run into a journal file of this process."""

    def __init__(self, survey: _Survey, now_ns: Callable[[], int]) -> None:
        self._survey = survey
        self._now_ns = now_ns
        root = survey.root
        resource = _resource(root) if root else {"service.name": names.SCOPE, "process.pid": os.getpid()}
        self._journal = Journal(
            survey.folder,
            gate=_PassedGate(),
            resource=lambda: resource,
            durable=True,
            scope_version=root.scope.version if root else "",
        )
        self._frames: dict[Path | None, Frame] = {}

    def end(self, span: OpenSpan) -> None:
        """Write the end of an open span, with scope and resource of the process that started it."""
        more: dict[str, Any] = {}
        if self._survey.is_root(span):
            head, seq = self._head()
            more = {names.SEAL_HEAD: head, names.SEAL_SEQ: seq}
        body = encode_interrupted(self._journal.encoder, span, more)
        self._journal.span(body, False, self._frame(span.started))

    def tell(self, torn: tuple[SetAside, ...]) -> None:
        """Write the event that says what was done."""
        root = self._survey.root
        aside = [{"file": t.moved_to.name, "size_bytes": t.length} for t in torn]
        body, _ = self._journal.encoder.event(
            trace_id=root.trace_id.encode() if root else b"",
            span_id=root.span_id.encode() if root else b"",
            name=names.EVENT_RECOVERED,
            time_ns=self._now_ns(),
            attributes={
                f"{names.PREFIX}ended_spans": len(self._survey.ordered),
                f"{names.PREFIX}set_aside": JsonText(orjson.dumps(aside).decode()),
            },
            severity=13,
        )
        self._journal.event(body, False)

    def seal(self) -> Path:
        """Write the seal over all files, flushed to the device, and return the file it is in."""
        sealed = self._journal.seal(self._others())
        self.close()
        stats = self._journal.stats
        if not sealed or stats.lost:
            raise JournalError(
                f"{self._survey.folder}: expected to write the end of the run, found that the disk refuses it "
                f"({stats.problem}). Nothing that was there is changed; make room or make the folder writable, and run it again."
            )
        return self._survey.folder / self._journal.position.file

    def close(self) -> None:
        """Flush what was written to the device and close the file."""
        self._journal.close()

    def _others(self) -> dict[str, dict[str, Any]]:
        heads = file_heads(self._survey.folder)
        heads.pop(self._journal.position.file, None)
        return heads

    def _head(self) -> tuple[str, int]:
        heads = {name: (int(h["seq"]), str(h["head"])) for name, h in self._others().items()}
        mine = self._journal.position
        if mine.file:
            heads[mine.file] = (mine.seq, mine.head)
        return combined_head(heads), sum(seq for seq, _ in heads.values())

    def _frame(self, started: Event) -> Frame:
        path = started.position.path if started.position else None
        if path not in self._frames:
            self._frames[path] = self._journal.frame(
                "span", scope_version=started.scope.version, resource=_resource(started)
            )
        return self._frames[path]


def _resource(record: Record) -> dict[str, Any]:
    return {key: encodable(value) for key, value in record.resource.items()}
