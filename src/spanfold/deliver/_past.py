"""Deliver a run of the past, and what both that and a shipper need: the outbox and the sender of a destination."""

import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from spanfold.deliver._destination import Destination
from spanfold.deliver._extras import MediaOutbox, ScoreOutbox
from spanfold.deliver._outbox import Outbox
from spanfold.deliver._sdk import MediaSender, ScoreSender
from spanfold.deliver._send import OtlpSender, Sender, deliver_batch
from spanfold.deliver._spans import SpanOutbox

FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of the records of a run, or of all runs, at one destination."""

    destination: str
    sent: int
    refused: int
    waiting: int
    reason: str = ""
    """Why records wait, else why the last of them were refused; empty when all have arrived."""
    refusals: Mapping[str, int] = field(default_factory=dict[str, int])
    """Why records were refused -> how many."""


_OUTBOXES: Final[Mapping[str, type[Outbox]]] = {"langfuse-scores": ScoreOutbox, "langfuse-media": MediaOutbox}
_SENDERS: Final[Mapping[str, Callable[[Destination], Sender]]] = {
    "langfuse-scores": ScoreSender,
    "langfuse-media": MediaSender,
}


def outbox_of(run_dir: Path, destination: Destination, journal_dir: Path | None = None) -> Outbox:
    """Return what a destination has not acknowledged of a run; its journal may stand outside of the run directory."""
    return _OUTBOXES.get(destination.name, SpanOutbox)(run_dir, destination, journal_dir)


def sender_of(destination: Destination) -> Sender:
    """Return what sends to a destination; nothing is connected yet."""
    return _SENDERS.get(destination.name, OtlpSender)(destination)


class GivesWay(Protocol):
    """Sends runs of the past without having been asked to."""

    def give_way(self, run_dir: Path, key: str, deadline: float) -> None:
        """Leave a run to somebody of this process who was asked to send it; waits until it is left."""
        ...


unasked: "Final[weakref.WeakSet[GivesWay]]" = weakref.WeakSet()
"""Who sends runs of the past in this process by itself."""


def deliver_run(
    run_dir: Path,
    destination: Destination,
    *,
    timeout_s: float = 60.0,
    progress: Callable[[Delivery], None] | None = None,
) -> Delivery:
    """Send what a destination has not acknowledged of a run of the past.

    Safe to run as often as you like. Whoever comes while another process sends,
    also the one that records the run, is refused.

    Args:
        run_dir: The run directory.
        destination: Where to.
        timeout_s: Seconds after which what has not arrived waits for the next try.
        progress: Told after each batch what has become of the run so far.

    Raises:
        LockedError: Somebody else delivers this run to this destination.
        OSError: The journal's folder cannot be written to.
    """
    deadline, pause, reason = time.monotonic() + timeout_s, FIRST_PAUSE_S, ""
    outbox, sender = outbox_of(run_dir, destination), sender_of(destination)
    try:
        for other in tuple(unasked):
            other.give_way(run_dir, destination.key, deadline)
        outbox.claim()
        while time.monotonic() < deadline and outbox.fill():
            before = outbox.sent + outbox.refused
            answer = deliver_batch(outbox, sender, deadline)
            if outbox.sent + outbox.refused > before:
                pause = FIRST_PAUSE_S
            reason = answer.reason if answer.result == "retry" else ""
            if progress is not None:
                progress(_result(outbox, reason))
            if not reason:
                continue
            wait = answer.retry_after_s if answer.retry_after_s is not None else pause
            if time.monotonic() + wait >= deadline:
                break
            time.sleep(wait)
            pause = min(MAX_PAUSE_S, pause * 2)
        return _result(outbox, reason)
    finally:
        sender.close()
        outbox.release()


def _result(outbox: Outbox, reason: str) -> Delivery:
    waiting = outbox.waiting()
    told = (reason or "no time left") if waiting else next(reversed(outbox.reasons), "")
    return Delivery(outbox.destination.name, outbox.sent, outbox.refused, waiting, told, dict(outbox.reasons))
