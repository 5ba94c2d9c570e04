"""Close open work when the process is told to end, without changing how it ends.

Only SIGTERM, and only where nobody else handles it: the default action would
end the process with every open span still open on disk (readable, but only
`recover` could close them). Our handler ends the spans as `terminated` and
lets the default action happen, so the exit status stays that of the signal. A
handler of the host is never replaced or wrapped; what it raises ends the spans
on its way. `SPANFOLD_SIGNALS=false` installs nothing. At a normal exit what is
still open is ended as `abandoned`.

Python runs a handler between two instructions of the main thread. When those
are ours (a record half written, documents half folded), the handler comes back
a moment later, so that what it has interrupted is finished first. In a program
that does nothing but record it then goes on in the middle of a record; of that
one only the start is sure to be on disk.

A forked child gets the default action back: `multiprocessing` ends its workers
by SIGTERM while they wait for a lock, and a handler of Python's that is due
just before such a wait runs only after it, which is never. What was open in
the child stays visible as started.
"""

import _thread
import atexit
import os
import signal
import threading
import time
from types import FrameType
from typing import Final

from spanfold.instrument._guard import losing_only
from spanfold.instrument._state import state
from spanfold.instrument._unfinished import tell_unfinished, unfinished

_RETRY_S: Final = 0.002
_MAX_PUT_OFF_S: Final = 0.3
"""How long the end is put off while the main thread is inside of our own code; then it comes in the middle of it."""
_OURS: Final = tuple(
    f"spanfold.{room}"
    for room in (
        *("_connect", "artifacts", "deliver", "fold", "fs", "journal", "redact"),
        *(f"instrument.{module}" for module in ("_current", "_events", "_foreign", "_lifecycle", "_recording", "_run")),
        *(f"instrument.{module}" for module in ("_span", "_starting", "_state", "_unfinished")),
    )
)
"""Modules under which no code of the host runs for long; `_traced` is none of them."""


class _Exit:
    installed = False
    registered = False
    put_off_until = 0.0


def install() -> None:
    """Install the handler once, if this is the main thread and SIGTERM has its default action."""
    with losing_only("the exit handlers"):
        if not _Exit.registered:
            _Exit.registered = True
            atexit.register(at_exit)
        if threading.current_thread() is not threading.main_thread():
            return
        if not state.ready().signals:
            return
        if os.getpid() == 1:
            return  # the first process of a container: its default action is to ignore SIGTERM
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            try:
                signal.signal(signal.SIGTERM, _terminated)
            except ValueError:  # not the main interpreter of the process
                return
            _Exit.installed = True


def uninstall() -> None:
    """Give SIGTERM its default action back, if it is still ours."""
    with losing_only("the exit handlers"):
        if _Exit.installed and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) is _terminated:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _Exit.installed = False


def _terminated(number: int, frame: FrameType | None) -> None:
    if _put_off(number, frame):
        return
    for run in (*state.runs.values(), state.joined):
        if run is not None:
            run.journal.take_over()  # what was interrupted is never resumed
    end_all("terminated")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _put_off(number: int, frame: FrameType | None) -> bool:
    """Have the signal sent again a moment later, if what it interrupted is ours and may finish."""
    # A handler of the host that called ours must not be called twice.
    if signal.getsignal(number) is not _terminated or not _is_inside_ours(frame):
        return False
    now = time.monotonic()
    _Exit.put_off_until = _Exit.put_off_until or now + _MAX_PUT_OFF_S
    if now >= _Exit.put_off_until:
        return False
    try:
        # Not `threading`: its own lock may be what this thread was interrupted in.
        _thread.start_new_thread(_send_again, (os.getpid(), number))
    except Exception:  # the process is at its limit of threads, or at its end
        return False
    return True


def _send_again(pid: int, number: int) -> None:
    time.sleep(_RETRY_S)
    os.kill(pid, number)


def _is_inside_ours(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_OURS):
            return True
        frame = frame.f_back
    return False


def at_exit() -> None:
    """End what is still open when the interpreter exits, and give destinations their last moment."""
    end_all("abandoned")
    from spanfold.instrument._lifecycle import shutdown

    with losing_only("the last delivery"):
        shutdown()
    with losing_only("the last words"):
        tell_unfinished(unfinished())


def end_all(outcome: str) -> None:
    """End every open span of every open run with an outcome, then the runs."""
    for run in (*state.runs.values(), state.joined):
        if run is None:
            continue
        with losing_only("open spans at the end"):
            root = getattr(run, "span", None)
            run.end_open_spans(outcome, keep=root)
            if root is not None:
                run.end_root(outcome)
            else:
                run.journal.close()


class _Mask(threading.local):
    """Signals the forking thread had blocked before."""

    before: set[signal.Signals] | None = None


_mask = _Mask()


def _before_fork() -> None:
    # A SIGTERM between the fork and the child's first instructions would be noted for our handler and then, that one
    # being gone, be dropped: it waits until the child has the default action.
    if _Exit.installed:
        _mask.before = set(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}))  # type: ignore[arg-type]  # numbers of other platforms


def _after_fork() -> None:
    before, _mask.before = _mask.before, None
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _after_fork_in_child() -> None:
    uninstall()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
