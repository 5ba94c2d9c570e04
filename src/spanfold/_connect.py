"""Connect the rooms: hand the fold and delivery to the recorder, which knows neither.

The only module that knows every room. Nothing of a room is imported before it
is needed: importing spanfold loads neither the fold nor an exporter.
"""

import contextlib
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from spanfold.errors import SettingsError
from spanfold.instrument import CONTROL, Run, RunHooks, state
from spanfold.redact import Gate
from spanfold.settings import Settings

log = logging.getLogger("spanfold")

TICK_S: Final = 0.25
"""How often documents are looked at that may wait: four times in the second they may lag."""
DEFER_S: Final = 0.5
"""How long records that may wait are left in the journal: folding them in the middle of a burst would slow it down."""
SHARE: Final = 0.1
"""Share of the time that may go into refreshing documents on the caller's thread; beyond that they wait for a tick."""
LEAVE_S: Final = 5.0
"""Longest wait for the answer to a request that is on its way when the journal of its run moves."""
ANSWER_S: Final = 1.0
"""Longest wait at the end of a process for the answer to a request with records of earlier runs, beside that for its own."""
LONGEST_S: Final = 1.0
"""Longest single refresh on the caller's thread, after a burst of records; made up for by none in ten times as long."""
LEAST_S: Final = 0.1
"""Wait for the thread of the documents to end, also when the time of the call is over."""
BURST_S: Final = 0.2
"""Seconds of refreshing saved up while little happened: stages of an ordinary loop are always in their document."""


class Documents:
    """Keeps the documents of one run up to date while it is recorded."""

    def __init__(self, run: Run) -> None:
        from spanfold.fold import Engine

        self._engine = Engine(
            run.dir, journal_dir=run.journal.folder, guarded=True, durable=run.is_durable, defer_s=DEFER_S
        )
        self._credit_s = BURST_S
        self._looked_at = time.monotonic()

    def recorded(self, kind: str) -> None:
        """Show a control record in its document now; what comes at a high rate waits for a tick.

        A loop with hundreds of stages a second would spend all its time on
        documents. So they get a tenth of it, which may be saved up for a
        while, and beyond that a tick catches up.
        """
        if kind not in CONTROL:
            return
        begun = time.monotonic()
        credit = min(BURST_S, self._credit_s + (begun - self._looked_at) * SHARE)
        if credit > 0:
            # What a tick is in the middle of may take longer than the caller has time for.
            self._engine.catch_up(force=False, within_s=LONGEST_S, wait_s=credit)
            ended = time.monotonic()
            credit -= ended - begun
            begun = ended
        self._credit_s, self._looked_at = credit, begun

    def tick(self) -> None:
        """Do what has waited long enough; called by the background thread."""
        self._engine.tick()

    def flush(self, timeout_s: float) -> None:
        """Bring every document up to date."""
        self._engine.catch_up(force=True)

    @property
    def problems(self) -> int:
        """How often documents could not be brought up to date."""
        return self._engine.problems

    def hold(self, documents: frozenset[str]) -> None:
        """Write these documents no more until the set is another one, or the run ends."""
        self._engine.held = documents

    def close(self) -> None:
        """Finish the documents of a run that has ended."""
        _ticker.discard(self)
        self._engine.close()


class _Ticker:
    """One daemon thread for the documents of all open runs; gone when none is open."""

    _open: "weakref.WeakSet[Documents]"
    _thread: threading.Thread | None

    def __init__(self) -> None:
        self.forked()

    def add(self, documents: Documents) -> None:
        """Tick these documents until they are garbage."""
        with self._lock:
            self._open.add(documents)
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="spanfold-documents", daemon=True)
                # No more threads, or none in this interpreter: documents are brought up to date by stages that end, and
                # at the end of the run.
                with contextlib.suppress(RuntimeError):
                    thread.start()
                    self._thread = thread

    def discard(self, documents: Documents) -> None:
        """Stop ticking these documents."""
        with self._lock:
            self._open.discard(documents)

    def stop(self, timeout_s: float) -> None:
        """End the thread now if no run is open; by itself it would at its next tick."""
        with self._lock:
            thread = None if self._open else self._thread
            if thread is None:
                return
            with contextlib.suppress(RuntimeError):  # it was woken before
                self._pause.release()
        thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            self._pause.acquire(timeout=TICK_S)
            with self._lock:
                due = list(self._open)
                if not due:
                    self._thread = None
                    return
            for documents in due:
                documents.tick()
            del due

    def forked(self) -> None:
        """Begin with nothing; in a forked child the runs are the parent's, and so are their documents."""
        # Re-entrant: a signal handler may end a run in the middle of this.
        self._lock = threading.RLock()
        self._open = weakref.WeakSet()
        self._thread = None
        # Held but for the moment in which somebody wakes the thread. No Event: a signal handler may set one within itself.
        self._pause = threading.Lock()
        self._pause.acquire()


_ticker = _Ticker()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ticker.forked)


class _Delivery:
    """The destinations of this process, their threads started with the first run that has any."""

    def __init__(self) -> None:
        self._shippers: list[Any] = []
        """One for each destination that was ever wanted: what waits for an earlier one is not forgotten."""
        self._wanted: list[Any] = []
        self._announced: set[str] = set()
        self._earlier: Any = None
        """What sends the earlier runs that wait for the destinations wanted now; made with the first run."""

    @property
    def is_wanted(self) -> bool:
        """Whether there is any destination."""
        return bool(self._wanted)

    @property
    def has_langfuse(self) -> bool:
        """Whether Langfuse is among them."""
        return any(destination.setting == "langfuse" for destination in self._wanted)

    def configure(self, settings: Settings, *, strict: bool) -> None:
        """Find the destinations the settings ask for.

        Raises:
            SettingsError: One is required and cannot be used.
        """
        self._stop_earlier()  # they are sent where the settings in force send
        is_off = settings.otlp is False and settings.langfuse is False
        is_required = settings.otlp is True or settings.langfuse is True
        if not is_required and (is_off or not _may_send(os.environ)):
            self._wanted = []  # nothing names a destination: the room is not even imported
            return
        from spanfold.deliver import destinations

        try:
            self._wanted = destinations(settings, os.environ)
        except SettingsError as error:
            if strict:
                raise
            # Nobody called configure(): the program is recording already, and a wrong address must not cost its run.
            self._wanted = []
            log.warning("Nothing is sent: %s Runs are recorded as always.", error)

    def _announce(self, destination: Any, *, is_demanded: bool) -> None:
        """Say once where records go: scores and media go where the spans do."""
        if destination.name != destination.setting or destination.label in self._announced:
            return
        self._announced.add(destination.label)
        # A warning, so that it is seen by default: records leave the machine because of the environment.
        log.log(
            logging.INFO if is_demanded else logging.WARNING,
            "spanfold sends to %s; SPANFOLD_%s=false keeps records here.",
            destination.label,
            destination.setting.upper(),
        )
        if destination.name == "langfuse" and len(self._wanted) == len({d.setting for d in self._wanted}):
            log.warning("Scores and media are not sent to Langfuse: that needs pip install 'spanfold[langfuse]'.")

    def open(self, run: Run) -> list[tuple[Any, Any]]:
        """Send the records of a run to every destination from now on."""
        from spanfold.deliver import EarlierRuns, Shipper

        pairs: list[tuple[Any, Any]] = []
        for destination in self._wanted:
            self._announce(destination, is_demanded=getattr(state.ready(), destination.setting) is True)
            shipper = next((s for s in self._shippers if s.destination == destination), None)
            if shipper is None:
                shipper = Shipper(destination)
                self._shippers.append(shipper)
            pairs.append((shipper, shipper.add(run.dir, run.journal.folder)))
        settings = state.ready()
        if settings.deliver_earlier:
            self._earlier = self._earlier or EarlierRuns()
            folders = {run.dir.parent, settings.run_dir or run.dir.parent}
            self._earlier.look(folders, [shipper for shipper, _ in pairs])
        return pairs

    def _stop_earlier(self) -> Any:
        earlier, self._earlier = self._earlier, None
        if earlier is not None:
            earlier.stop()
        return earlier

    def finish(self, timeout_s: float, *, last: bool) -> Mapping[str, Any]:
        """Wait for the destinations, at most `timeout_s` seconds for all together."""
        begun = time.monotonic()
        deadline = begun + timeout_s
        # What earlier runs have left gets no more time, but for the answer that is on its way: without it they are sent twice.
        earlier = self._stop_earlier() if last else None
        counts: dict[str, int] = {"sent": 0, "refused": 0, "waiting": 0}
        reasons: dict[str, int] = {}
        shippers = tuple(self._shippers)
        for shipper in shippers:
            # All at once: one that is down takes no time from the others.
            shipper.urge(deadline)
        for shipper in shippers:
            result = shipper.stop(deadline) if last else shipper.wait(deadline)
            label = shipper.destination.label
            for name in counts:
                counts[name] += getattr(result, name)
            reasons |= {f"{label}: refused, {why}": count for why, count in result.refusals.items()}
            if not result.waiting:
                continue
            reasons[f"{label}: waiting, {result.reason or 'no answer in time'}"] = result.waiting
            if last:
                is_one = result.waiting == 1
                log.warning(
                    "%s not arrived at %s (%s); %s in the journal, %s sends %s.",
                    "1 record has" if is_one else f"{result.waiting} records have",
                    label,
                    result.reason or "no answer in time",
                    "it is" if is_one else "they are",
                    "the next run beside it or `spanfold run deliver`"
                    if state.ready().deliver_earlier
                    else "`spanfold run deliver`",
                    "it" if is_one else "them",
                )
        if last:
            self._shippers = [shipper for shipper in self._shippers if shipper.is_needed]
        if earlier is not None:
            earlier.wait(min(deadline, begun + ANSWER_S))
        return {**counts, "reasons": reasons}

    def forked(self) -> None:
        """In a forked child: threads and connections are the parent's, and it sends our journal files too."""
        self._shippers = []
        self._earlier = None


def _may_send(environ: Mapping[str, str]) -> bool:
    return any(name.startswith(("OTEL_EXPORTER_OTLP_", "LANGFUSE_")) for name in environ)


_delivery = _Delivery()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_delivery.forked)


class _Rooms:
    """What the other rooms do for one run."""

    def __init__(self, run: Run) -> None:
        self._documents = Documents(run)
        _ticker.add(self._documents)
        self._dir = run.dir
        self._moves = run.journal.folder != run.dir / "journal"
        self._sending = _delivery.open(run) if _delivery.is_wanted and not run.is_offline else []
        self.recorded = self._documents.recorded
        self.flush = self._documents.flush
        self.hold = self._documents.hold

    @property
    def problems(self) -> int:
        """How often documents could not be brought up to date."""
        return self._documents.problems

    def close(self) -> None:
        """The run has ended and is sealed."""
        self._documents.close()
        deadline = time.monotonic() + LEAVE_S
        for shipper, outbox in self._sending:
            if self._moves:
                shipper.leave(outbox, deadline - time.monotonic())
            else:
                shipper.close(outbox)

    def journal_came_home(self) -> None:
        """The journal of a run that has ended was moved into the run directory: go on sending from there."""
        if self._moves:
            self._moves = False
            self._sending = [(shipper, shipper.add(self._dir)) for shipper, _ in self._sending]
            for shipper, outbox in self._sending:
                shipper.close(outbox)


class _Connector:
    """The rooms to the right of the recorder, as it sees them."""

    def configure(self, settings: Settings, gate: Gate, *, strict: bool) -> None:
        """Check what the settings demand of destinations.

        Raises:
            SettingsError: One is required and cannot be used.
        """
        _delivery.configure(settings, strict=strict)

    def open(self, run: Run) -> RunHooks:
        """Start the work of the other rooms for a run."""
        return _Rooms(run)

    def flush(self, timeout_s: float) -> Mapping[str, Any]:
        """Deliver what waits, within the time."""
        return _delivery.finish(timeout_s, last=False)

    def shutdown(self, timeout_s: float) -> Mapping[str, Any]:
        """Deliver what waits, within the time, and stop."""
        deadline = time.monotonic() + timeout_s
        delivered = _delivery.finish(timeout_s, last=True)
        _ticker.stop(max(LEAST_S, deadline - time.monotonic()))
        return delivered

    @property
    def has_langfuse(self) -> bool:
        """Whether runs are sent to Langfuse while they are recorded."""
        return _delivery.has_langfuse

    def deliver_to_langfuse(self, run_dir: Path, environ: Mapping[str, str], *, timeout_s: float) -> list[Any]:
        """Send what Langfuse has not acknowledged of a run that has ended; empty when the variables name no server.

        Raises:
            SettingsError: A variable cannot be used.
            LockedError: Somebody else sends this run.
        """
        from spanfold.deliver import deliver_run, destinations

        wanted = destinations(replace(state.ready(), otlp=False, langfuse="auto"), environ)
        deadline = time.monotonic() + timeout_s
        return [deliver_run(run_dir, one, timeout_s=max(0.0, deadline - time.monotonic())) for one in wanted]

    def trace_bundle(self, run_dir: Path) -> dict[str, Any]:
        """Return `langfuse_trace.json` of a run, made anew from its journal as far as that goes.

        Raises:
            JournalMissing: There is no journal.
            FoldError: A record cannot be folded.
        """
        from spanfold.fold import Engine
        from spanfold.fs.scratch import scratch_folder
        from spanfold.journal import journal_folder

        with scratch_folder() as folder:
            Engine(run_dir, journal_dir=journal_folder(run_dir), into=folder).fold_again()
            return cast("dict[str, Any]", json.loads((folder / "langfuse_trace.json").read_bytes()))


def connect() -> None:
    """Give the recorder its connector."""
    state.connector = _Connector()
