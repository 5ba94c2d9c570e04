"""The tracer of a diagnose loop (DL section 10): its modes, and spans, generations, scores and events of a caller's own.

Everything it is told is in a journal at once, and so survives a kill, reaches
every destination, and stands in `langfuse_trace.json`. The tracer of a logger
records into the run of the logger; one made by itself has a run of its own.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from opentelemetry.trace import StatusCode

from spanfold import names
from spanfold.diagnose._documents import epoch_ns, number
from spanfold.diagnose._envelope import artifact_refs, make_envelope, service_trace_id
from spanfold.diagnose._logger_run import LoopRun
from spanfold.diagnose._logger_session import open_session
from spanfold.diagnose._logger_tracer import LoopTracer, Mode, mode_of
from spanfold.diagnose._logger_values import described, text, tree
from spanfold.diagnose._rooms import rooms
from spanfold.errors import SettingsError
from spanfold.fs import SafeRoot
from spanfold.instrument import RecordedSpan, losing_only, state
from spanfold.journal import to_tree
from spanfold.routing import STAGES

FOLDER: Final = ".spanfold/tracer"
"""Where a tracer of its own keeps its run, below the run directory it is given."""
FLUSH_S: Final = 5.0
AUTO_SYNC_S: Final = 0.5
"""Seconds an event waits for the server: the journal keeps it whatever the answer."""
_FACTS: Final = ("schema_version", "event_id", "event_seq", "cycle", "parent_id", "artifact_refs")


class DiagnosticTracer(LoopTracer):
    """Spans, generations, scores and events of a diagnose loop.

    Attributes:
        mode: `auto`, `live` or `offline`.
        trace_id: Of the documents.
        trace_metadata: What `start_trace` was told.
        events: Envelopes of the events recorded with `record_event`.
    """

    def __init__(
        self,
        run_dir: str | Path | None = None,
        auto_sync: bool = False,
        mode: str | None = None,
        outbox_path: str | Path | None = None,
    ) -> None:
        """Make a tracer with a run of its own, which begins with the first record.

        Args:
            run_dir: Files that events refer to are looked for here; the run is kept below it.
            auto_sync: Send an event when it is recorded, and wait for that a short while.
            mode: `auto`, `live` or `offline`; default `EVALRX_LANGFUSE_MODE`, else `auto`.
            outbox_path: Directory of the run instead.

        Raises:
            ValueError: There is no such mode.
            RuntimeError: `live`, and there is nothing to send to.
        """
        found = live_or(mode_of(mode))
        folder = Path(os.path.abspath(run_dir)) if run_dir is not None else None
        trace_id = f"evalrx_{os.urandom(6).hex()}"
        self._begin(folder)
        self.auto_sync = auto_sync
        if outbox_path is not None:
            self._folder = Path(os.path.abspath(outbox_path))
        else:
            self._folder = (folder or Path.cwd()) / FOLDER / trace_id
        super().__init__(self._own_session, self._own_lock, mode=found, trace_id=trace_id)

    def _begin(self, run_dir: Path | None) -> None:
        self.run_dir = run_dir
        self.auto_sync = False
        self.trace_metadata: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []
        self._seen: set[str] = set()
        self._own_lock = threading.RLock()
        self._run: LoopRun | None = None
        self._current: Callable[[], LoopRun | None] = lambda: self._run

    @classmethod
    def of_logger(
        cls,
        session: Callable[[], LoopRun],
        lock: "threading.RLock",
        *,
        mode: Mode,
        trace_id: str,
        run_dir: Path,
        current: Callable[[], LoopRun],
    ) -> Self:
        """Return the tracer of a logger, which records into its run.

        Args:
            session: Returns the run to record into, opened again when it has ended.
            lock: Held while something is recorded.
            mode: `auto`, `live` or `offline`.
            trace_id: Of the documents.
            run_dir: The run directory.
            current: Returns the run as it is.
        """
        tracer = cls.__new__(cls)
        tracer._begin(run_dir)
        tracer._current = current
        LoopTracer.__init__(tracer, session, lock, mode=mode, trace_id=trace_id)
        return tracer

    @property
    def service_trace_id(self) -> str:
        """The trace at Langfuse and in every other destination: 32 hex digits."""
        return service_trace_id(self.trace_id)

    @property
    def live_enabled(self) -> bool:
        """Whether records are sent to Langfuse while the loop runs."""
        state.ready()
        return self.mode != "offline" and rooms().has_langfuse

    def _own_session(self) -> LoopRun:
        """Return the run of a tracer that has one of its own, opened with the first record."""
        with self._own_lock:
            if self._run is None or self._run.closed:
                SafeRoot(self._folder, create=True)
                is_late = self._run is not None
                self._run, _ = open_session(
                    self._folder, self.trace_id, is_offline=self.mode == "offline", is_late=is_late
                )
                self._run.end_of_event(is_urgent=False)
            return self._run

    # -- records

    def start_span(
        self,
        name: str,
        stage: str,
        input_data: Any = None,
        metadata: Mapping[str, Any] | None = None,
        parent_id: str | None = None,
    ) -> str:
        """Start a span and return its id; an empty one when it cannot be recorded."""
        with losing_only("spans of a tracer"):
            return super().start_span(name, stage, input_data, metadata, parent_id)
        return ""

    def end_span(self, span_id: str, output_data: Any = None, status: str = "completed") -> None:
        """End a span; an id that is not known is passed over."""
        with losing_only("spans of a tracer"):
            super().end_span(span_id, output_data, status)

    def log_generation(
        self,
        name: str,
        model: str,
        prompt: Any,
        completion: Any,
        span_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> str:
        """Record what a model was asked and said, and return its id; an empty one when it cannot be recorded."""
        with losing_only("generations of a tracer"):
            return super().log_generation(name, model, prompt, completion, span_id, metadata, usage)
        return ""

    def log_score(self, name: str, value: float, comment: str = "", span_id: str | None = None) -> None:
        """Record a score of a span, or of the run.

        Raises:
            ValueError, TypeError: The value is no number.
        """
        number_given = float(value)
        with losing_only("scores of a tracer"):
            super().log_score(name, number_given, comment, span_id)

    def start_trace(
        self, model: str, benchmark: str, n_cases: int = 0, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Say what the trace is about.

        Args:
            model: The model that is diagnosed.
            benchmark: On what.
            n_cases: How many cases.
            metadata: More, and instead of those.
        """
        told = {"model": model, "benchmark": benchmark, "n_cases": n_cases, "created_at": time.time()}
        self.trace_metadata = {**told, **{text(key): _copied(value) for key, value in (metadata or {}).items()}}
        with losing_only("the start of a trace"):
            run = self._session()
            if run is self._run:
                run.tell("run_start", self.trace_metadata)
            else:  # the logger has told that itself
                run.span.set(**{f"diagnose.{key}": value for key, value in self.trace_metadata.items()})

    def record_event(self, event: Mapping[str, Any], *, event_seq: int) -> None:
        """Record an event of a loop that somebody else has logged; once, however often it is given.

        Args:
            event: The record, as documents hold it.
            event_seq: Its number.
        """
        refs = artifact_refs(event, self.run_dir) if self.run_dir is not None and self.run_dir.is_dir() else []
        envelope = make_envelope(_copied(dict(event)), trace_id=self.trace_id, event_seq=event_seq, artifact_refs=refs)
        with self._own_lock:
            if envelope["event_id"] in self._seen:
                return
            self._seen.add(envelope["event_id"])
            self.events.append(envelope)
        with losing_only("events of a trace"):
            self._journal_event(envelope)
            if self.auto_sync and self.live_enabled:
                self._send(AUTO_SYNC_S)

    def _journal_event(self, envelope: Mapping[str, Any]) -> None:
        run = self._session()
        stage = envelope["stage"] if envelope["stage"] in STAGES else None
        end_ns = epoch_ns(envelope["timestamp"]) or run.moment()
        took = number(envelope["payload"].get("duration_sec"))
        start_ns = end_ns - round(took * 1e9) if took is not None and 0 <= took < 1e9 else end_ns
        name = f"EvalRX {envelope['stage']}: {envelope['event_type']}"
        span = RecordedSpan(run, name, "span", run.span, stage=stage, start_ns=start_ns)
        refs = envelope["artifact_refs"]
        span.input({"event": envelope["payload"], **({"artifacts": refs} if refs else {})})
        span.set(**{f"diagnose.{key}": envelope[key] for key in _FACTS if envelope[key] is not None})
        if envelope["status"] == "failed":
            span.set_status(StatusCode.ERROR, "failed")
            span.set_attribute(names.ERROR_TYPE, "failed")
        span.end(end_ns)

    def end_trace(self, output_data: Any = None) -> None:
        """End the run of a tracer that has one of its own; that of a logger ends with the logger."""
        run = self._run
        if run is not None and not run.closed:
            if output_data is not None:
                run.span.output(tree(output_data)[0])
            run.close()

    # -- what becomes of them

    def flush(self) -> None:
        """Bring the documents up to date, and send what waits within a few seconds."""
        run = self._current()
        if run is not None and not run.closed and run.hooks is not None:
            run.hooks.flush(0.0)
        if self.live_enabled:
            self._send(FLUSH_S)

    def _send(self, timeout_s: float) -> None:
        if state.connector is not None:
            with losing_only("a delivery flush"):
                state.connector.flush(timeout_s)

    def export_bundle(self, out_path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return the trace so far, made from the journal (DL 10.4).

        Args:
            out_path: Write it here too.

        Returns:
            `trace`, `spans`, `generations`, `scores` and `events`; a span that has not ended is not among them.

        Raises:
            OSError: The file cannot be written.
        """
        bundle = rooms().trace_bundle((self._current() or self._session()).dir)
        trace = bundle["trace"]
        if self.trace_metadata:
            trace["metadata"] = {**trace["metadata"], **self.trace_metadata}
            trace["name"] = f"EvalRX: {self.trace_metadata['model'] or 'Model'}"
        bundle["events"] = list(self.events)
        if out_path is not None:
            path = Path(out_path).absolute()
            data = json.dumps(bundle, indent=2, ensure_ascii=False).encode("utf-8", "replace")
            SafeRoot(path.parent, create=True).replace_atomic(path.name, data, durable=False)
        return bundle


def live_or(mode: Mode) -> Mode:
    """Return the mode, after making sure that `live` has somewhere to send to.

    Raises:
        RuntimeError: It has not; the message names what is missing.
    """
    settings = state.ready()
    if mode != "live" or rooms().has_langfuse:
        return mode
    if settings.langfuse is False:
        raise RuntimeError(
            "live: expected that Langfuse may be sent to, found that configure(langfuse=False) or SPANFOLD_LANGFUSE forbids it. "
            "Allow it, or choose offline."
        )
    try:
        # The variables may have been set after this process began to record.
        state.apply(replace(settings, langfuse=True))
    except SettingsError as error:
        raise RuntimeError(
            f"live: {error} No default address is assumed: set LANGFUSE_BASE_URL (or LANGFUSE_HOST), for example to "
            "https://cloud.langfuse.com, or choose offline (EVALRX_LANGFUSE_MODE=offline)."
        ) from None
    return mode


def _copied(value: Any) -> Any:
    """Return a value as JSON data of its own: changing the one changes nothing of the other."""
    return to_tree(value, opaque=described)[0]
