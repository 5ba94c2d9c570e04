"""Send what waits: one daemon thread per destination, nothing on the caller's thread.

A destination that is down costs nothing but the wait: its records stay in the
journal, and the thread tries again with growing pauses. `flush` returns when
everything has arrived or its time is over, whatever the peer does.
"""

import logging
import math
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

from spanfold.deliver._answer import Answer
from spanfold.deliver._destination import Destination
from spanfold.deliver._outbox import Outbox
from spanfold.deliver._past import FIRST_PAUSE_S, MAX_PAUSE_S, Delivery, outbox_of, sender_of
from spanfold.deliver._send import deliver_batch
from spanfold.errors import LockedError

log = logging.getLogger("spanfold")

IDLE_S: Final = 0.5
"""How often a destination looks for new records by itself."""
COUNT_S: Final = 0.5
"""Seconds that counting what waits may take beyond the deadline of a flush."""


class Shipper:
    """Sends the records of every open run to one destination."""

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self._sender = sender_of(destination)
        self._outboxes: list[Outbox] = []
        self._at_work: Outbox | None = None
        """What the thread reads and sends now."""
        self._left: list[Outbox] = []
        """Outboxes that are forgotten, and that the thread may still be at work with."""
        self._done = (0, 0)
        self._done_reasons: Counter[str] = Counter()
        # Re-entrant: a signal handler may flush in the middle of it. Nothing is read or sent while it is held.
        self._wake = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._urgent_until = 0.0
        self._not_before = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._idle = True
        self._is_caught_up = False
        self._generation = 0
        self._failed = -1
        self.reason = ""

    @property
    def is_needed(self) -> bool:
        """Whether there is a run that is open, or has records that wait."""
        return bool(self._outboxes)

    @property
    def is_caught_up(self) -> bool:
        """Whether the last look at all runs found nothing that waits, and the destination takes what it is sent."""
        return self._is_caught_up

    def add(self, run_dir: Path, journal_dir: Path | None = None) -> Outbox:
        """Send the records of this run too, from now on.

        Args:
            run_dir: The run directory.
            journal_dir: Its journal, when that stands elsewhere.
        """
        outbox = outbox_of(run_dir, self.destination, journal_dir)
        with self._wake:
            self._outboxes.append(outbox)
            self._is_caught_up = False
            self._work()
        return outbox

    def _work(self) -> None:
        """Have the thread running; called with the lock held."""
        self._stopping = False
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._loop, name=f"spanfold-{self.destination.name}", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the interpreter ends: what is left goes by `run deliver`
                self._thread = None

    def close(self, outbox: Outbox) -> None:
        """The run has ended: forget it once everything has arrived."""
        with self._wake:
            outbox.is_closed = True
            self._wake.notify_all()

    def leave(self, outbox: Outbox, timeout_s: float) -> None:
        """Forget a run at once, whatever has arrived of it: its journal is about to move.

        Args:
            outbox: From `add`.
            timeout_s: How long to wait for the answer to the request that is on its way. One that comes later is not
                noted where the journal goes to, and those records are sent once more.
        """
        deadline = time.monotonic() + timeout_s
        with self._wake:
            outbox.is_left = True
            if outbox in self._outboxes:
                self._forget([outbox])
            while self._at_work is outbox and (left := deadline - time.monotonic()) > 0:
                self._wake.wait(left)
            if self._at_work is not outbox and outbox in self._left:
                self._left.remove(outbox)
                outbox.release()

    # -- flushing

    def flush(self, timeout_s: float, *, patient: bool = True) -> Delivery:
        """Wait until everything recorded so far has arrived, at most `timeout_s` seconds.

        Args:
            timeout_s: The longest wait.
            patient: Wait for a destination that does not take records now; otherwise one more try is enough.
        """
        deadline = time.monotonic() + timeout_s
        self.urge(deadline)
        return self.wait(deadline, patient=patient)

    def urge(self, deadline: float) -> None:
        """Have everything recorded so far sent at once; returns without waiting."""
        with self._wake:
            if self._outboxes:
                self._idle = self._is_caught_up = False
                self._generation += 1
                self._urgent_until = deadline
                self._not_before = 0.0
                self._work()
                self._wake.notify_all()

    def wait(self, deadline: float, *, patient: bool = True) -> Delivery:
        """Wait for what `urge` asked for, and say what became of it."""
        with self._wake:
            # Also over when the destination has asked for a longer wait, or another try is useless.
            while (
                self._outboxes
                and self._thread is not None
                and not self._idle
                and self._not_before < deadline
                and (patient or self._failed != self._generation)
                and (left := deadline - time.monotonic()) > 0
            ):
                self._wake.wait(left)
        return self.result(max(deadline, time.monotonic() + COUNT_S))

    def stop(self, deadline: float, *, patient: bool = False) -> Delivery:
        """Wait for what `urge` asked for, then end the thread; what has not arrived stays in the journal.

        Runs that have ended are forgotten, so that stopping twice waits once
        for a destination that is down.
        """
        result = self.wait(deadline, patient=patient)
        with self._wake:
            self._stopping = True
            self._forget([outbox for outbox in self._outboxes if outbox.is_closed])
            if self._thread is None:
                self._end()
            self._wake.notify_all()
        return result

    def result(self, deadline: float | None = None) -> Delivery:
        """Say what became of the records so far; `waiting` is a lower bound when the deadline cuts the count short."""
        with self._wake:
            (sent, refused), reasons = self._done, self._done_reasons.copy()
            outboxes = list(self._outboxes)
        waiting = 0
        problem = ""
        for outbox in outboxes:
            waiting += outbox.waiting(deadline)
            sent, refused = sent + outbox.sent, refused + outbox.refused
            reasons += Counter(dict(outbox.reasons))
            problem = problem or outbox.problem
        reason = (self.reason or problem) if waiting else next(reversed(reasons), "")
        return Delivery(self.destination.name, sent, refused, waiting, reason, dict(reasons))

    # -- the thread

    def _loop(self) -> None:
        while True:
            with self._wake:
                self._release_left()
                if self._stopping:
                    self._end()
                    return
                generation = self._generation
                outboxes = list(self._outboxes)
                held_back = time.monotonic() < self._not_before
                self._is_caught_up = False
            drained = held_back or self._drain_all(outboxes)
            with self._wake:
                self._forget([outbox for outbox in self._outboxes if outbox.is_finished])
                if drained and not held_back and generation == self._generation:
                    self._idle = self._is_caught_up = True
                    self._wake.notify_all()
                if not self._outboxes:
                    self._release_left()
                    self._end()
                    return
                if generation == self._generation and not self._stopping:
                    self._wake.wait(IDLE_S)

    def _drain_all(self, outboxes: list[Outbox]) -> bool:
        for outbox in outboxes:
            if not self._look_at(outbox):
                # The others would fare the same, and each may take as long as a request may. Next time one of them is
                # first, so that a run which breaks the server keeps none of them waiting.
                with self._wake:
                    if outbox in self._outboxes:
                        self._outboxes.remove(outbox)
                        self._outboxes.append(outbox)
                return False
        return True

    def _end(self) -> None:
        """Note that the thread ends, and let nobody wait for it; called with the lock held."""
        self._thread = None
        self._idle = True
        for outbox in self._outboxes:
            outbox.release()
        self._release_left()
        self._sender.close()
        self._wake.notify_all()

    def _look_at(self, outbox: Outbox) -> bool:
        with self._wake:
            if outbox.is_left:
                return True
            self._at_work = outbox
        try:
            return self._drain(outbox)
        finally:
            with self._wake:
                self._at_work = None
                self._wake.notify_all()

    def _drain(self, outbox: Outbox) -> bool:
        """Send what waits of one run; False when the destination does not take it now."""
        is_closed = outbox.is_closed  # looked at first: what is recorded later is not looked for any more
        try:
            if outbox.journal_dir.is_dir():
                outbox.claim()
                while not outbox.is_left and outbox.fill():
                    before = outbox.sent + outbox.refused
                    # Each request has its own time. That of a flush is not theirs: one that is given up early may have
                    # arrived, and would be sent twice.
                    answer = deliver_batch(outbox, self._sender, math.inf)
                    if outbox.sent + outbox.refused > before:
                        self._pause_s = FIRST_PAUSE_S
                    if answer.result == "retry":
                        self._hold_back(answer)
                        return False
                    self._took()
            outbox.problem = ""
            outbox.is_finished = is_closed
        except LockedError as error:
            outbox.problem = str(error)
        except Exception as error:
            # The run's fault and not the destination's: others go on.
            outbox.problem = f"{type(error).__name__} while reading the journal"
        return True

    def _took(self) -> None:
        if self.reason:
            log.log(self._level, "%s takes records again.", self._named)
        self.reason = ""
        self._pause_s = FIRST_PAUSE_S

    @property
    def _level(self) -> int:
        """Of what the log says of it; one warning is enough for a server that gets spans, scores and media."""
        return logging.WARNING if self.destination.name == self.destination.setting else logging.INFO

    @property
    def _named(self) -> str:
        """The destination as the log names it; what is about Langfuse begins as its users look for it (DL 10.1)."""
        label = self.destination.label
        return f"[langfuse] {label}" if self.destination.setting == "langfuse" else label

    def _hold_back(self, answer: Answer) -> None:
        first = not self.reason
        pause = answer.retry_after_s if answer.retry_after_s is not None else self._pause_s * random.uniform(0.8, 1.2)
        self._pause_s = min(MAX_PAUSE_S, self._pause_s * 2)
        with self._wake:
            self.reason = answer.reason
            urgent = self._urgent_until > time.monotonic()
            self._not_before = time.monotonic() + (
                min(pause, 0.25) if urgent and answer.retry_after_s is None else pause
            )
            self._failed = self._generation
            self._wake.notify_all()
        if first:
            log.log(
                self._level,
                "%s does not take records (%s). They stay in the journal and are sent when it does.",
                self._named,
                answer.reason,
            )

    def _forget(self, outboxes: list[Outbox]) -> None:
        """Count what became of runs that are over; called with the lock held."""
        for outbox in outboxes:
            self._outboxes.remove(outbox)
            self._left.append(outbox)
            self._done = (self._done[0] + outbox.sent, self._done[1] + outbox.refused)
            self._done_reasons += outbox.reasons

    def _release_left(self) -> None:
        while self._left:
            self._left.pop().release()
