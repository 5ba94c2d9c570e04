"""Send a batch of an outbox: isolate what is refused, note at once what has arrived."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast

from spanfold.deliver._answer import Answer
from spanfold.deliver._destination import Destination
from spanfold.deliver._encode import request
from spanfold.deliver._outbox import Item, Outbox
from spanfold.model import Span

if TYPE_CHECKING:
    from spanfold.deliver._grpc import GrpcSender
    from spanfold.deliver._http import HttpSender

BROKEN_PAUSE_S: Final = 60.0
"""Seconds until records are sent again to a server that failed on every one of them."""
MAX_SUSPECTS: Final = 8
"""Records in a row that may break a server before it is taken to be the server that is broken."""


class Sender(Protocol):
    """Sends items to one destination. Used by one thread."""

    def send(self, items: Sequence[Item], deadline: float, patience: int = 1) -> Answer:
        """Send items in one request; every failure is an answer, none is an exception.

        Args:
            items: What, at least one.
            deadline: Monotonic seconds after which this must have returned.
            patience: How many times the destination's time-out it may take.
        """
        ...

    def close(self) -> None:
        """Let connections go; the next `send` makes them anew."""
        ...


class OtlpSender:
    """Sends spans over OTLP."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._carrier: GrpcSender | HttpSender | None = None

    def send(self, items: Sequence[Item], deadline: float, patience: int = 1) -> Answer:
        """Send items in one request."""
        now = time.monotonic()
        if deadline <= now:
            return Answer("retry", "no time left")
        if self._carrier is None:
            self._carrier = _carrier(self._destination)
        spans = [(cast("Span", item.record), item.content) for item in items]
        return self._carrier.send(request(spans), min(deadline, now + self._destination.timeout_s * patience))

    def close(self) -> None:
        """Let the connection go."""
        if self._carrier is not None:
            self._carrier.close()


def _carrier(destination: Destination) -> "GrpcSender | HttpSender":
    # Here and not above: TLS or gRPC are loaded by the thread that sends, and not by the program that opens a run.
    if destination.protocol == "grpc":
        from spanfold.deliver._grpc import GrpcSender

        return GrpcSender(destination)
    from spanfold.deliver._http import HttpSender

    return HttpSender(destination)


def deliver_batch(outbox: Outbox, sender: Sender, deadline: float) -> Answer:
    """Send what the outbox has pending, isolating what is refused by halving; the answer says whether to try again.

    What has arrived or was refused leaves the outbox with the answer that says
    so, so that a later try, also of another process, sends only the rest.

    A server that fails for a reason it does not name may fail because of one
    record. It is that record when another one is taken; when none is, it is
    the server, and everything waits.
    """
    todo = outbox.groups()[::-1]
    suspects: list[tuple[Item, str]] = []
    is_taking = False
    while todo:
        items = todo.pop()
        begun = time.monotonic()
        answer = sender.send(items, deadline, outbox.patience if len(items) == 1 else 1)
        if answer.result == "retry":
            if answer.may_be_too_much:
                outbox.not_answered(items)
            return answer
        outbox.answered(time.monotonic() - begun)
        if answer.result == "accepted":
            is_taking = True
            for item, reason in suspects:
                outbox.refuse(item, reason)
            suspects.clear()
            outbox.accept(items, rejected=answer.rejected, reason=answer.reason)
        elif len(items) > 1:
            half = len(items) // 2
            todo += [items[half:], items[:half]]
        elif answer.result == "too_large" and outbox.shorten(items[0]):
            todo.append(items)
        elif suspects or (answer.result == "broken" and not is_taking):
            # Also what is refused for good: nothing is settled before what comes before it.
            suspects.append((items[0], answer.reason))
            if len(suspects) >= MAX_SUSPECTS:
                break
        else:
            outbox.refuse(items[0], answer.reason)
    if suspects:
        return Answer("retry", suspects[-1][1], BROKEN_PAUSE_S)
    return Answer("accepted")
