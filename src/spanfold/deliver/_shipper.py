"""Send what waits: one daemon thread per destination, nothing on the caller's thread.

A destination that is down costs nothing but the wait: its records stay in the
journal, and the thread tries again with growing pauses. `flush` returns when
everything has arrived or its time is over, whatever the peer does.
"""

import logging
import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spanfold.deliver._destination import Destination
from spanfold.deliver._encode import request
from spanfold.deliver._outbox import Item, Outbox
from spanfold.deliver._send import Answer, send
from spanfold.fs import FileLock, SafeRoot

log = logging.getLogger("spanfold")

IDLE_S: Final = 0.5
"""How often a destination looks for new records by itself."""
FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of the spans of a run, or of all runs, at one destination."""

    destination: str
    sent: int
    refused: int
    waiting: int
    reason: str = ""
    """The last thing that went wrong, empty when nothing did."""


def deliver_batch(outbox: Outbox, deadline: float) -> Answer:
    """Send the outbox's batch, isolating what is refused by halving; the answer says whether to try again.

    Items that have arrived or were refused leave the batch at once, so that a
    later try sends only the rest.
    """
    batch = outbox.batch
    assert batch is not None
    todo: list[list[Item]] = [list(batch.items)]
    while todo:
        items = todo.pop()
        answer = send(outbox.destination, request((i.span, i.message) for i in items), deadline)
        if answer.result == "retry":
            batch.items = [item for group in (*reversed(todo), items) for item in group]
            return answer
        if answer.result == "accepted":
            if answer.rejected:
                outbox.set_aside(None, answer.reason, count=min(answer.rejected, len(items)))
            batch.sent += len(items) - min(answer.rejected, len(items))
        elif len(items) > 1:
            half = len(items) // 2
            todo += [items[half:], items[:half]]
        elif answer.result == "too_large" and outbox.shorten(items[0]):
            todo.append(items)
        else:
            outbox.set_aside(items[0].span, answer.reason, size_bytes=items[0].size)
    batch.items = []
    outbox.acknowledge()
    return Answer("accepted")


class Shipper:
    """Sends the records of every open run to one destination."""

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self._outboxes: list[Outbox] = []
        self._done = (0, 0)
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._urgent_until = 0.0
        self._not_before = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._idle = True
        self._generation = 0
        self._failed = -1
        self.reason = ""

    @property
    def is_needed(self) -> bool:
        """Whether there is a run that is open, or has records that wait."""
        return bool(self._outboxes)

    def add(self, run_dir: Path) -> Outbox:
        """Send the records of this run too, from now on."""
        outbox = Outbox(run_dir, self.destination)
        with self._wake:
            self._outboxes.append(outbox)
            self._work()
        return outbox

    def _work(self) -> None:
        """Have the thread running; called with the lock held."""
        self._stopping = False
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._loop, name=f"spanfold-{self.destination.name}", daemon=True)
            self._thread.start()

    def close(self, outbox: Outbox) -> None:
        """The run has ended: forget it once everything has arrived."""
        with self._wake:
            outbox.is_closed = True
            self._wake.notify_all()

    def flush(self, timeout_s: float, *, patient: bool = True) -> Delivery:
        """Wait until everything recorded so far has arrived, at most `timeout_s` seconds.

        Args:
            timeout_s: The longest wait.
            patient: Wait for a destination that does not take records now; otherwise one more try is enough.
        """
        deadline = time.monotonic() + timeout_s
        with self._wake:
            if self._outboxes:
                self._idle = False
                self._generation += 1
                self._urgent_until = deadline
                self._not_before = 0.0
                self._work()
                self._wake.notify_all()
                # Also over when the destination has asked for a longer wait, or another try is useless.
                while (
                    not self._idle
                    and self._not_before < deadline
                    and (patient or self._failed != self._generation)
                    and (left := deadline - time.monotonic()) > 0
                ):
                    self._wake.wait(left)
            return self._result()

    def stop(self, timeout_s: float) -> Delivery:
        """Flush, then end the thread; what has not arrived stays in the journal.

        Runs that have ended are forgotten, so that stopping twice waits once
        for a destination that is down.
        """
        result = self.flush(timeout_s, patient=False)
        with self._wake:
            self._stopping = True
            self._forget([outbox for outbox in self._outboxes if outbox.is_closed])
            self._wake.notify_all()
        return result

    def _result(self) -> Delivery:
        sent, refused = self._done
        waiting = 0
        for outbox in self._outboxes:
            sent, refused, waiting = sent + outbox.sent, refused + outbox.refused, waiting + outbox.waiting()
        return Delivery(self.destination.name, sent, refused, waiting, self.reason if waiting or refused else "")

    def _loop(self) -> None:
        while True:
            with self._wake:
                if self._stopping:
                    self._end()
                    return
                generation = self._generation
                outboxes = list(self._outboxes)
                held_back = time.monotonic() < self._not_before
            drained = True
            if not held_back:
                for outbox in outboxes:
                    drained = self._drain(outbox) and drained
            with self._wake:
                self._forget([o for o in self._outboxes if o.is_closed and o.batch is None and not o.waiting()])
                if drained and not held_back and generation == self._generation:
                    self._idle = True
                    self._wake.notify_all()
                if not self._outboxes:
                    self._end()
                    return
                if generation == self._generation and not self._stopping:
                    self._wake.wait(IDLE_S)

    def _end(self) -> None:
        """Note that the thread ends, and let nobody wait for it; called with the lock held."""
        self._thread = None
        self._idle = True
        self._wake.notify_all()

    def _drain(self, outbox: Outbox) -> bool:
        """Send what waits of one run; False when the destination does not take it now."""
        try:
            while outbox.fill() is not None:
                with self._wake:
                    urgent = self._urgent_until
                now = time.monotonic()
                deadline = urgent if urgent > now else now + self.destination.timeout_s
                answer = deliver_batch(outbox, deadline)
                if answer.result == "retry":
                    self._hold_back(answer)
                    return False
                self._pause_s = FIRST_PAUSE_S
        except Exception as error:
            self._hold_back(Answer("retry", f"{type(error).__name__} while reading the journal"))
            return False
        return True

    def _hold_back(self, answer: Answer) -> None:
        first = not self.reason
        self.reason = answer.reason
        pause = answer.retry_after_s if answer.retry_after_s is not None else self._pause_s * random.uniform(0.8, 1.2)
        self._pause_s = min(MAX_PAUSE_S, self._pause_s * 2)
        with self._wake:
            urgent = self._urgent_until > time.monotonic()
            self._not_before = time.monotonic() + (
                min(pause, 0.25) if urgent and answer.retry_after_s is None else pause
            )
            self._failed = self._generation
            self._wake.notify_all()
        if first:
            log.warning(
                "%s does not take records (%s). They stay in the journal and are sent when it does.",
                self.destination.label,
                answer.reason,
            )

    def _forget(self, outboxes: list[Outbox]) -> None:
        for outbox in outboxes:
            self._outboxes.remove(outbox)
            self._done = (self._done[0] + outbox.sent, self._done[1] + outbox.refused)


def deliver_run(run_dir: Path, destination: Destination, *, timeout_s: float = 60.0) -> Delivery:
    """Send what a destination has not acknowledged of a run of the past.

    Safe to run twice, and from two shells at the same time: the second is refused.

    Args:
        run_dir: The run directory.
        destination: Where to.
        timeout_s: Seconds after which what has not arrived waits for the next try.

    Raises:
        LockedError: Another process delivers this run to this destination.
    """
    journal = run_dir / "journal"
    root = SafeRoot(journal)
    root.ensure_dir(".deliver")
    with FileLock(root, f".deliver/{destination.key}.lock"):
        outbox = Outbox(run_dir, destination)
        deadline, pause, reason = time.monotonic() + timeout_s, FIRST_PAUSE_S, ""
        while outbox.fill() is not None and time.monotonic() < deadline:
            answer = deliver_batch(outbox, deadline)
            if answer.result != "retry":
                continue
            reason = answer.reason
            wait = answer.retry_after_s if answer.retry_after_s is not None else pause
            if time.monotonic() + wait >= deadline:
                break
            time.sleep(wait)
            pause = min(MAX_PAUSE_S, pause * 2)
        waiting = outbox.waiting()
        return Delivery(destination.name, outbox.sent, outbox.refused, waiting, reason if waiting else "")
