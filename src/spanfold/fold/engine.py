"""Fold a run as its journal grows: restartable, and with every document fresh enough.

Promises (docs/fold.md):

- The documents are a function of the journal alone. Stopped, killed at any
  instant, started again or folded from nothing: the same bytes (P3). While
  several processes write, records are taken as they arrive; `close` then folds
  once more, in canonical order, if that makes a difference.
- When `catch_up` returns, every record that is no model call is in its
  document, unless it was called with too little time; a document over
  `SMALL_BYTES` and records at a high rate may lag by
  `max_lag_s`, or ten times as long as the last rewrite took if that is longer.
- Memory does not grow with the number of records, except by 12 to 24 bytes to
  recognise a span that comes twice.
- Nothing is held open between two calls.

Journal files are always read from disk, so the live fold, a fold that follows
from another process and a fold of an old run are one code path.
"""

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spanfold.errors import FoldError, SpanfoldError
from spanfold.fold._drafts import Drafts, Part
from spanfold.fold._owner import Owner
from spanfold.fold._publish import Publisher
from spanfold.fold._source import JournalCut, Source
from spanfold.fold._spool import SEEN_NUMBER, Spool, SpoolLost
from spanfold.fold.reduction import Reduction
from spanfold.fs import SafeRoot
from spanfold.journal import Damage, JournalRead, Start, boot_id, describe, journal_folder, read_journal
from spanfold.model import Record

log = logging.getLogger("spanfold")

FOLDER: Final = ".fold"
"""Where the fold keeps its own files, in the journal folder or in `into`."""
JOURNAL: Final = "journal"
VERSION: Final = "spanfold.fold/1"
"""Version of the checkpoint and of the bytes of documents; another one is not gone on from."""
PENDING_BYTES: Final = 256 * 1024
CHECKPOINT_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FoldResult:
    """What a fold made of a run."""

    documents: tuple[Path, ...]
    """The files written, sorted."""
    files: tuple[Path, ...]
    """The journal files read, sorted by name."""
    records: int
    """Records folded."""
    duplicates: int
    """Spans left out because one of the same trace and span id came before."""
    damage: tuple[Damage, ...]
    """What could not be read."""
    status: str
    """Of the run: `running`, `completed`, `failed` or `interrupted`."""


class Engine:
    """Folds one run. Usable from several threads, from a signal handler, and left alone in a forked child.

    Args:
        run_dir: The run directory.
        journal_dir: Where its journal is; by default `journal` in it, or elsewhere while a diagnose loop is recorded.
        into: Write the documents here instead of into the run directory.
        durable: Flush every document to the device when it is written; otherwise `close` does it once.
        max_lag_s: How far records at a high rate may lag.
        defer_s: How long `tick` leaves new records in the journal, so that a burst of them is over before they are folded.
        guarded: Inside a program that is being recorded: nothing is raised, but counted in `problems`, and tried again.
        pending_bytes: Encoded bytes kept in memory before they are spooled.
        checkpoint_bytes: Bytes of journal between two checkpoints: what is folded again after a kill.
        clock: Monotonic seconds.

    Raises:
        LockedError: Another engine folds this run into the same place.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        journal_dir: Path | None = None,
        into: Path | None = None,
        durable: bool = False,
        max_lag_s: float = 1.0,
        defer_s: float = 0.0,
        guarded: bool = False,
        pending_bytes: int = PENDING_BYTES,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run_dir = Path(os.path.realpath(run_dir))
        self.out_dir = self.run_dir if into is None else Path(os.path.realpath(into))
        self.journal_dir = _journal_of(self.run_dir) if journal_dir is None else Path(os.path.realpath(journal_dir))
        self.problems = 0
        """How often something went wrong, in guarded mode."""
        self.problem = ""
        """The last of it, by class and errno."""
        self.unfolded = 0
        """Records that could not be folded, in guarded mode."""
        self.held: frozenset[str] = frozenset()
        """Documents that are not written for now, because nobody may read them; the end of the run writes them all."""
        # From the folder the caller named, so that a link planted below it is not followed.
        self._own_base, self._own_folder = self.out_dir, FOLDER
        if into is None and journal_dir is None and self.journal_dir == self.run_dir / JOURNAL:
            self._own_folder = f"{JOURNAL}/{FOLDER}"
        elif into is None:
            self._own_base = self.journal_dir
        self._max_lag_s = max_lag_s
        self._defer_s = defer_s
        self._news_at = 0.0
        """When `tick` first saw the records that wait in the journal; 0 when none do."""
        self._guarded = guarded
        self._pending_bytes = pending_bytes
        self._checkpoint_every = checkpoint_bytes
        self._clock = clock
        self._pid = os.getpid()
        # Protects everything below. A signal handler that interrupts the holder must not wait for it.
        # Re-entrant: a signal handler may come between taking it and saying so in `_holder`.
        self._lock = threading.RLock()
        self._holder = 0
        self._owner = Owner()
        self._spool: Spool | None = None
        self._closed = False
        self._publisher = Publisher(
            self.out_dir, compose=lambda path, lists: self._reduction.compose(path, lists), clock=clock, durable=durable
        )
        self._forget()
        self._guard(self._open)

    def _forget(self) -> None:
        """Set the state of a fold to that before the first record."""
        self._sound = True
        self._source = Source(self.journal_dir, self._refused)
        self._drafts = Drafts(self._clock)
        self._reduction = Reduction(self._drafts)
        self._seen_part = Part(SEEN_NUMBER, 0, self._source.seen.fresh)
        self._checkpointed = 0
        self._checkpoint_bytes = 0
        self._read: JournalRead | None = None

    def _refused(self, error: Exception) -> None:
        if not self._guarded:
            raise error
        self._note(error)

    # -- what callers do

    def catch_up(self, *, force: bool, within_s: float | None = None, wait_s: float | None = None) -> None:
        """Fold everything new in the journal.

        Args:
            force: Bring every document up to date, those that might wait too.
            within_s: Seconds the caller has. What is not done then is left to the next call, and so is a document whose
                last rewrite took longer than what is left. By default everything is done.
            wait_s: How much of that for another thread that is folding; by default all. Nothing is done when it still is.

        Raises:
            FoldError: A record cannot be folded.
            LockedError: Another engine took over.
            OSError: As the system says. The next call tries again.
        """
        deadline = math.inf if within_s is None else self._clock() + within_s
        wait_s = within_s if wait_s is None else wait_s
        self._guard(lambda: self._catch_up(force=force, deadline=deadline), wait_s=-1 if wait_s is None else wait_s)

    def tick(self) -> None:
        """Fold what is new and write what has waited long enough; to be called every quarter of `max_lag_s`.

        Does nothing when another thread is folding, or after `close`. Raises as `catch_up`.
        """
        if not self._closed:
            self._guard(self._tick, wait_s=0)

    def view(self) -> tuple[Path, ...]:
        """Bring every document up to date and return their paths, sorted; raises as `catch_up`."""
        self.catch_up(force=True)
        return self._paths()

    def close(self) -> None:
        """Finish the documents, flush them to the device and remove what the fold kept for itself.

        Harmless when repeated. A later `catch_up` begins again from nothing. Raises as `catch_up`.
        """
        if not self._closed:
            self._guard(self._close)

    def fold_again(self) -> None:
        """Fold the whole journal from nothing, in canonical order, and close.

        Raises:
            JournalMissing: There is no journal.
            FoldError, LockedError, OSError: As `catch_up`.
        """
        self._guard(lambda: self._close(from_nothing=True))

    def release(self) -> None:
        """Stop here: another engine goes on from this point. Raises as `catch_up`."""
        if not self._closed:
            self._guard(self._release)

    def result(self) -> FoldResult:
        """Return what was folded so far."""
        read = self._read
        return FoldResult(
            documents=self._paths(),
            files=tuple(self._source.files if read is None else read.files),
            records=self._reduction.records,
            duplicates=self._source.duplicates if read is None else read.duplicates,
            damage=tuple(self._source.damage() if read is None else read.damage),
            status=self._reduction.run.status,
        )

    @property
    def is_sealed(self) -> bool:
        """Whether the journal was sealed: the run is over, as far as it was read."""
        return self._reduction.run.is_sealed

    @property
    def bytes_written(self) -> int:
        """Bytes of documents written so far, copied ones included."""
        return self._publisher.bytes_written

    def _paths(self) -> tuple[Path, ...]:
        return tuple(
            sorted(self.out_dir / draft.path for draft in self._drafts.documents.values() if draft.written is not None)
        )

    # -- whose turn it is

    def _guard(self, action: Callable[[], None], *, wait_s: float = -1) -> None:
        """Do something alone, and in guarded mode let no error out."""
        if os.getpid() != self._pid or self._holder == threading.get_ident():
            return  # a forked child leaves documents to its parent; a signal handler to what it interrupted
        if not self._lock.acquire(timeout=wait_s):
            return
        try:
            self._holder = threading.get_ident()
            action()
        except Exception as error:
            if not self._guarded:
                raise
            self._note(error)
        finally:
            self._holder = 0
            self._lock.release()

    def _note(self, error: Exception) -> None:
        self.problems += 1
        problem = describe(error)
        if problem != self.problem:
            self.problem = problem
            log.warning(
                "%s: documents cannot be brought up to date (%s). This is tried again, and `spanfold run fold` makes "
                "them at any time of what the journal holds.",
                self.out_dir,
                problem,
            )

    # -- folding

    def _tick(self) -> None:
        if self._defer_s and self._spool is not None and self._sound and self._source.has_news():
            now = self._clock()
            self._news_at = self._news_at or now
            if now - self._news_at < self._defer_s:
                if self._drafts.due:
                    self._retried(lambda: self._publish(force=False, is_tick=True))
                return
        if self._spool is None or self._drafts.due or not self._sound or self._source.has_news():
            self._catch_up(force=False, is_tick=True)

    def _catch_up(self, *, force: bool, deadline: float = math.inf, is_tick: bool = False) -> None:
        self._open()
        self._retried(lambda: self._advance(force=force, deadline=deadline, is_tick=is_tick))

    def _advance(self, *, force: bool, deadline: float, is_tick: bool) -> None:
        self._take_in(deadline)
        self._publish(force=force, deadline=deadline, is_tick=is_tick)
        if self._source.offset - self._checkpointed >= max(self._checkpoint_every, 4 * self._checkpoint_bytes):
            self._save()

    def _retried(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (SpoolLost, JournalCut):
            # What we built on was changed under us. The journal as it is now decides.
            self._start_over()
            work()

    def _open(self) -> None:
        """Become the owner and find the state to go on from, unless that was done."""
        if self._spool is not None and self._owner.is_held():
            return
        root = SafeRoot(self._own_base, create=True).subroot(self._own_folder, create=True)
        self._owner.claim(root)
        first = self._spool is None
        self._spool = Spool(root)
        self._closed = False
        if not (first and self._restore(self._spool)):
            self._start_over()

    def _start_over(self) -> None:
        self._forget()
        self._opened().clear()
        self._reduction.begin()

    def _opened(self) -> Spool:
        assert self._spool is not None
        return self._spool

    def _take_in(self, deadline: float = math.inf) -> None:
        if not self._sound:
            self._start_over()
        if self._drafts.pending_bytes >= self._pending_bytes:
            self._flush()
        self._drafts.since, self._news_at = self._news_at, 0.0
        # Whatever exception lands in here leaves a record half folded, or taken from the source and not folded:
        # then `_sound` stays false and the next call starts over.
        self._sound = False
        for record in self._source.records():
            self._fold(record)
            if self._drafts.pending_bytes >= self._pending_bytes:
                self._sound = True
                self._flush()
                self._sound = False
            if deadline <= self._clock():
                self._news_at = self._drafts.since or deadline  # the rest goes on waiting
                break
        self._sound = True

    def _fold(self, record: Record | Start) -> None:
        try:
            self._reduction.fold(record)
        except FoldError as error:
            if not self._guarded:
                raise
            self.unfolded += 1
            self._note(error)

    def _flush(self) -> None:
        spool = self._opened()
        self._drafts.spool(spool.append)
        if self._seen_part.pending:
            spool.append(self._seen_part)
            self._seen_part.stored += len(self._seen_part.pending)
            self._seen_part.pending.clear()

    def _publish(self, *, force: bool, deadline: float = math.inf, is_tick: bool = False) -> None:
        """Write the documents that are due; one that cannot be written does not keep the others from it."""
        failed: Exception | None = None
        for draft in list(self._drafts.due.values()):
            if draft.path in self.held or not (
                force or self._publisher.is_due(draft, self._max_lag_s, is_tick=is_tick)
            ):
                continue
            if draft.write_s > deadline - self._clock():
                continue
            try:
                size, took = self._publisher.write(draft, self._opened())
            except SpoolLost:
                raise
            except Exception as error:  # raised below, after the other documents
                failed = failed or error
            else:
                self._drafts.done(draft, size=size, write_s=took)
        if failed is not None:
            raise failed

    # -- the end

    def _close(self, *, from_nothing: bool = False) -> None:
        self.held = frozenset()
        self._open()
        self._retried(lambda: self._finish(from_nothing=from_nothing))
        spool, self._spool = self._opened(), None
        spool.clear()
        self._owner.release()
        with contextlib.suppress(OSError, SpanfoldError):  # somebody else's file is in it, or it is gone
            SafeRoot(self._own_base).remove_dir(self._own_folder)
        self._closed = True

    def _finish(self, *, from_nothing: bool) -> None:
        if not from_nothing:
            self._take_in()
        if from_nothing or (self._source.disordered and len(self._source.files) > 1):
            self._fold_in_order()
        self._reduction.finish()
        self._publish(force=True)
        self._publisher.sync(self._drafts.documents.values(), self._opened())

    def _fold_in_order(self) -> None:
        """Fold the whole journal from nothing, in canonical order."""
        self._start_over()
        # It stays so: the source does not know what was read, so whatever comes next starts over.
        self._sound = False
        self._read = read = read_journal(self.journal_dir)
        for record in read.records:
            self._fold(record)
            if self._drafts.pending_bytes >= self._pending_bytes:
                self._flush()

    def _release(self) -> None:
        self._catch_up(force=True)
        self._retried(self._save)
        self._spool = None
        self._owner.release()

    # -- checkpoint

    def _save(self) -> None:
        if not self._source.is_drained:
            return
        self._flush()
        state = {
            "version": VERSION,
            "boot": boot_id(),
            "source": self._source.state(),
            "documents": self._drafts.state(),
            "reduction": self._reduction.state(),
            "seen_bytes": self._seen_part.stored,
        }
        self._checkpoint_bytes = self._opened().save(state)
        self._checkpointed = self._source.offset

    def _restore(self, spool: Spool) -> bool:
        """Go on from the checkpoint; False when there is none to go on from."""
        state = spool.load()
        # Spool files are not flushed: after a power cut they may hold anything, so only this start of the machine counts.
        if state is None or state.get("version") != VERSION or not boot_id() or state.get("boot") != boot_id():
            return False
        try:
            self._forget()
            self._source.restore(state["source"])
            self._drafts.restore(state["documents"])
            self._reduction.restore(state["reduction"])
            self._seen_part.stored = state["seen_bytes"]
            for part in (self._seen_part, *self._drafts.parts().values()):
                spool.trim(part)
            with spool.open(self._seen_part) as file:
                self._source.seen.restore(file.read(self._seen_part.stored))
        except (SpoolLost, JournalCut, LookupError, TypeError, ValueError, AttributeError):
            return False
        self._checkpointed = self._source.offset
        return True


def _journal_of(run_dir: Path) -> Path:
    try:
        return journal_folder(run_dir)
    except (OSError, SpanfoldError):
        return run_dir / JOURNAL  # what is wrong there is told when it is read
