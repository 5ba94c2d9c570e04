"""Connect the rooms: hand the fold and delivery to the recorder, which knows neither.

The only module that knows every room. Nothing of a room is imported before it
is needed: importing spanfold loads neither the fold nor an exporter.
"""

import os
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, Final

from spanfold.instrument import CONTROL, Run, RunHooks, state
from spanfold.redact import Gate
from spanfold.settings import Settings

TICK_S: Final = 0.25
"""How often documents are looked at that may wait: four times in the second they may lag."""
SHARE: Final = 9
"""Documents are refreshed on the caller's thread at most for one tenth of the time; beyond that they wait for a tick."""


class Documents:
    """Keeps the documents of one run up to date while it is recorded."""

    def __init__(self, run: Run) -> None:
        from spanfold.fold import Engine

        self._engine = Engine(run.dir, guarded=True, durable=run.is_durable)
        self._not_before = 0.0

    def recorded(self, kind: str) -> None:
        """Show a control record in its document now; what comes at a high rate waits for a tick.

        A loop with hundreds of stages a second would spend all its time on
        documents. So they get a tenth of it: after a refresh that took 1 ms the
        next one on this thread is due 9 ms later, and a tick catches up.
        """
        if kind not in CONTROL:
            return
        begun = time.monotonic()
        if begun >= self._not_before:
            self._engine.catch_up(force=False)
            now = time.monotonic()
            self._not_before = now + SHARE * (now - begun)

    def tick(self) -> None:
        """Do what has waited long enough; called by the background thread."""
        self._engine.tick()

    def flush(self, timeout_s: float) -> None:
        """Bring every document up to date."""
        self._engine.catch_up(force=True)

    def close(self) -> None:
        """Finish the documents of a run that has ended."""
        _ticker.discard(self)
        self._engine.close()


class _Ticker:
    """One daemon thread for the documents of all open runs; gone when none is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[Documents] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def add(self, documents: Documents) -> None:
        """Tick these documents until they are garbage."""
        with self._lock:
            self._open.add(documents)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="spanfold-documents", daemon=True)
                self._thread.start()

    def discard(self, documents: Documents) -> None:
        """Stop ticking these documents."""
        with self._lock:
            self._open.discard(documents)

    def _run(self) -> None:
        while True:
            time.sleep(TICK_S)
            with self._lock:
                due = list(self._open)
                if not due:
                    self._thread = None
                    return
            for documents in due:
                documents.tick()
            del due

    def forked(self) -> None:
        """In a forked child: the runs there are the parent's, and so are their documents."""
        self.__init__()


_ticker = _Ticker()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ticker.forked)




class _Connector:
    """The rooms to the right of the recorder, as it sees them."""

    def configure(self, settings: Settings, gate: Gate) -> None:
        """Check what the settings demand of destinations."""

    def open(self, run: Run) -> RunHooks:
        """Start the work of the other rooms for a run."""
        documents = Documents(run)
        _ticker.add(documents)
        return documents

    def flush(self, timeout_s: float) -> Mapping[str, Any]:
        """Deliver what waits."""
        return {}

    def shutdown(self, timeout_s: float) -> Mapping[str, Any]:
        """Deliver what waits and stop."""
        return {}


def connect() -> None:
    """Give the recorder its connector."""
    state.connector = _Connector()
