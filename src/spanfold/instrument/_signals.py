"""Close open work when the process is told to end, without changing how it ends.

Only SIGTERM, and only where nobody else handles it: the default action would
end the process with every open span still open on disk (readable, but only
`recover` could close them). Our handler ends the spans as `terminated` and
lets the default action happen, so the exit status stays that of the signal. A
handler of the host is never replaced or wrapped; what it raises ends the spans
on its way. `SPANFOLD_SIGNALS=false` installs nothing. At a normal exit what is
still open is ended as `abandoned`.
"""

import atexit
import os
import signal
import threading
from types import FrameType

from spanfold.instrument._guard import losing_only
from spanfold.instrument._state import state


class _Exit:
    installed = False
    registered = False


def install() -> None:
    """Install the handler once, if this is the main thread and SIGTERM has its default action."""
    with losing_only("the exit handlers"):
        if not _Exit.registered:
            _Exit.registered = True
            atexit.register(at_exit)
        if threading.current_thread() is not threading.main_thread():
            return
        if os.environ.get("SPANFOLD_SIGNALS", "").strip().lower() in ("0", "false", "no", "off"):
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _terminated)
            _Exit.installed = True


def uninstall() -> None:
    """Give SIGTERM its default action back, if it is still ours."""
    with losing_only("the exit handlers"):
        if _Exit.installed and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) is _terminated:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _Exit.installed = False


def _terminated(number: int, frame: FrameType | None) -> None:
    end_all("terminated")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def at_exit() -> None:
    """End what is still open when the interpreter exits, and give destinations their last moment."""
    end_all("abandoned")
    from spanfold.instrument._api import shutdown

    with losing_only("the last delivery"):
        shutdown()


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
