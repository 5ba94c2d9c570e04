"""Do something that has no time limit of its own, within one.

Looking up a name takes as long as the name servers like, connecting takes as
long for each address it finds, and a handshake as long as the peer drips. So
these are done by a thread that is left behind when the time is over.
"""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Generic, TypeVar

from opentelemetry import context

T = TypeVar("T")


@contextmanager
def unobserved() -> Generator[None]:
    """Keep instrumentors of HTTP and gRPC clients from recording what is sent here, as exporters do."""
    found = context.get_current()
    # The key that instrumentors look for, and its older form.
    for key in (
        getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation"),
        "suppress_instrumentation",
    ):
        found = context.set_value(key, True, found)
    token = context.attach(found)
    try:
        yield
    finally:
        context.detach(token)


class _Handover(Generic[T]):
    def __init__(self, act: Callable[[], T], undo: Callable[[T], object]) -> None:
        self._act = act
        self._undo = undo
        self._lock = threading.Lock()
        self._is_abandoned = False
        self.done = threading.Event()
        self.made: list[T] = []
        self.error: BaseException | None = None

    def work(self) -> None:
        try:
            with unobserved():  # a new thread has no context of its own
                made = self._act()
        except BaseException as error:  # whatever it is, the waiting thread is told
            self.error = error
            self.done.set()
            return
        with self._lock:
            if not self._is_abandoned:
                self.made.append(made)
                self.done.set()
                return
        self._undo(made)

    def abandon(self) -> bool:
        """Have whatever is made from now on undone; False when it is made already."""
        with self._lock:
            self._is_abandoned = not (self.made or self.error)
            return self._is_abandoned


def within(deadline: float, act: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Return what `act` returns, or raise what it raises.

    Args:
        deadline: Monotonic seconds; after it the thread that does it is left behind.
        act: What to do.
        undo: What to do with a result that came too late.

    Raises:
        TimeoutError: The time is over.
    """
    handover = _Handover(act, undo)
    try:
        threading.Thread(target=handover.work, name="spanfold-connect", daemon=True).start()
    except RuntimeError:
        handover.work()  # the interpreter ends, or has no more threads to give
    if not handover.done.wait(max(0.0, deadline - time.monotonic())) and handover.abandon():
        raise TimeoutError
    if handover.error is not None:
        raise handover.error
    return handover.made[0]
