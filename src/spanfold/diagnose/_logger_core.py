"""The core of the diagnose-loop logger: its run, its lock, and what each kind of event has in common.

Nothing the loop hands over, and nothing that is wrong with the disk, the
console or the network, reaches the loop: what could not be kept is counted in
`problems`.
"""

import contextlib
import os
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

from spanfold.diagnose import _logger_payloads as payloads
from spanfold.diagnose._logger_console import Console
from spanfold.diagnose._logger_run import LoopRun
from spanfold.diagnose._logger_schema import complaints
from spanfold.diagnose._logger_session import default_run_dir, open_session
from spanfold.diagnose._logger_tracer import mode_of
from spanfold.diagnose._logger_values import pure, rounded, text, whole
from spanfold.diagnose._rooms import document_problems, hold_back
from spanfold.diagnose._tracer import DiagnosticTracer, live_or
from spanfold.instrument import RecordedSpan
from spanfold.routing import RUN_DOCUMENT, STAGES, route

MAX_LATE_SESSIONS: Final = 16
"""Events after `close` that are sealed at once; more of them are sealed together, by the next `close` or at exit."""
_BUCKETS: Final = {"case_record": "cases", "diagnose_report": "diagnose_reports"}
_UNROUTED: Final = "unrouted"

_loggers: "weakref.WeakSet[LoggerCore]" = weakref.WeakSet()


class _Nowhere:
    """Stands in for a run where there is none: whatever is told to it is lost, and counted already."""

    def __getattr__(self, name: str) -> Self:
        return self

    def __call__(self, *args: Any, **given: Any) -> Self:
        """Do nothing."""
        return self


class Recording:
    """The lock of a logger while it records one event; what goes wrong inside is counted, and ends here."""

    __slots__ = ("is_open", "is_urgent", "logger", "what")

    def __init__(self, logger: "LoggerCore", what: str, *, is_urgent: bool = True) -> None:
        self.logger, self.what, self.is_urgent, self.is_open = logger, what, is_urgent, False

    def __enter__(self) -> LoopRun:
        logger = self.logger
        logger._lock.acquire()  # pyright: ignore[reportPrivateUsage]  # the module's own
        try:
            run = logger._session()  # pyright: ignore[reportPrivateUsage]  # the module's own
            run.begin()
            self.is_open = True
        except Exception as error:  # the directory belongs to another logger by now, or the run cannot be opened again
            logger._problem(f"{self.what}, which came after the end of the run", error)  # pyright: ignore[reportPrivateUsage]  # the module's own
            return cast("LoopRun", _Nowhere())
        except BaseException:
            logger._lock.release()  # pyright: ignore[reportPrivateUsage]  # the module's own
            raise
        return run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        logger = self.logger
        try:
            if self.is_open:
                logger._recorded(is_urgent=self.is_urgent)  # pyright: ignore[reportPrivateUsage]  # the module's own
        finally:
            logger._lock.release()  # pyright: ignore[reportPrivateUsage]  # the module's own
        if error is None or not isinstance(error, Exception):
            return False
        if not self.is_open:
            return True
        logger._problem(f"{self.what}, of which a part could not be recorded", error)  # pyright: ignore[reportPrivateUsage]  # the module's own
        return True


class Preparing:
    """What is done for an event before the lock is taken, since it may run code of the loop or copy files.

    What goes wrong inside is counted, and ends here.
    """

    __slots__ = ("logger", "what")

    def __init__(self, logger: "LoggerCore", what: str) -> None:
        self.logger, self.what = logger, what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        self.logger._problem(f"{self.what}, of which a part could not be prepared", error)  # pyright: ignore[reportPrivateUsage]  # the module's own
        return True


class LoggerCore:
    """A run of a diagnose loop, and what its events have in common; see `RunLogger`."""

    inline_text_artifacts: Final = True
    """Callers keep text and code in events instead of side files."""
    preserve_full_model_io: Final = True
    """Callers do not cut what models are asked and say."""

    def __init__(
        self,
        run_dir: str | Path | None = None,
        *,
        verbose: bool = False,
        narrate: bool = False,
        trace_id: str | None = None,
        observability_mode: str | None = None,
        context: Any = None,
    ) -> None:
        mode = live_or(mode_of(observability_mode))
        self.verbose = verbose
        self._context = context
        self.current_cycle: Any = -1
        """Cycle of exchanges and generated tools that name none."""
        self.problems: Counter[str] = Counter()
        """What could not be kept or done -> how often; empty when nothing went wrong."""
        self._lock = threading.RLock()
        self._seen_cases: set[str] = set()
        self._late_sessions = 0
        self._console = Console(verbose=verbose, narrate=narrate)
        self._mode = mode
        self._validates = bool(os.environ.get("EVALRX_VALIDATE_LOG"))
        self.run_dir = Path(run_dir) if run_dir is not None else default_run_dir()
        """The directory, exactly as it was given."""
        self._folder = Path(os.path.abspath(self.run_dir))
        self._run, self.trace_id = open_session(self._folder, trace_id, is_offline=mode == "offline")
        self.tracer = DiagnosticTracer.of_logger(
            self._session,
            self._lock,
            mode=mode,
            trace_id=self.trace_id,
            run_dir=self._folder,
            current=lambda: self._run,
        )
        """Spans, generations and scores of the loop's own."""
        self._run.end_of_event(is_urgent=True)
        _loggers.add(self)

    # -- what it is

    @property
    def run_json_path(self) -> Path:
        """`run.json` of the run directory."""
        return self.run_dir / RUN_DOCUMENT

    @property
    def managed_json_paths(self) -> tuple[Path, ...]:
        """`run.json` and the documents of M1 to M5, whether or not they are there."""
        return (self.run_json_path, *(self.run_dir / stage / "log.json" for stage in STAGES))

    @property
    def losses(self) -> dict[str, int]:
        """What was lost -> how often: `problems`, and what the recorder lost."""
        found = Counter(self.problems)
        if self._console.failures:
            found["console lines"] += self._console.failures
        if behind := document_problems(self._run):
            found["tries to bring documents up to date"] += behind
        found.update(self._run.losses)
        return dict(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return itself: a run has one logger."""
        return self

    # -- the session

    def _session(self) -> LoopRun:
        """Return the open run; after `close` a late session, which belongs to the same run."""
        if self._run.closed:
            self._late_sessions += 1
            self._run, _ = open_session(self._folder, self.trace_id, is_offline=self._mode == "offline", is_late=True)
        return self._run

    def _recorded(self, *, is_urgent: bool) -> None:
        run = self._run
        try:
            run.end_of_event(is_urgent=is_urgent)
            if run.is_late and is_urgent and self._late_sessions <= MAX_LATE_SESSIONS:
                run.close()
        except Exception as error:
            self._problem("documents, which could not be brought up to date", error)

    def _problem(self, what: str, error: BaseException | None = None) -> None:
        """Count what went wrong, and warn of the first of its kind; never with a value."""
        self.problems[what] += 1
        if self.problems[what] == 1:
            cause = f" ({type(error).__name__})" if error is not None else ""
            self._warn(f"{self._folder}: {what}{cause}. The loop goes on; `problems` counts it.")

    def _warn(self, message: str) -> None:
        with contextlib.suppress(Exception):  # a filter may turn warnings into errors, which are not the loop's
            warnings.warn(message, UserWarning, stacklevel=4)

    def _missing(self, event: str) -> Callable[[str], None]:
        return lambda name: self._problem(f"the attribute {name} of the object of a {event}, which is missing")

    def _validated(self, event: str, record: Mapping[str, Any]) -> None:
        """Warn of a record that the published schema refuses, when that was asked for (DL 4.5)."""
        if self._validates:
            for complaint in complaints(event, record):
                self._problem(f"the {event} event does not match the schema: {complaint}")

    # -- events

    def _run_event(self, event: str, make: Callable[[], Mapping[str, Any]]) -> None:
        payload: Mapping[str, Any] = {}
        with Preparing(self, event):
            payload = make()
        with Recording(self, event) as run:
            self._validated(event, payload)
            run.tell(event, payload)
        self._console.run_event(_BUCKETS.get(event, event), payload)

    def _unrouted(
        self, run: LoopRun, key: str, tag: str | None, payload: Mapping[str, Any], **span: Any
    ) -> RecordedSpan:
        """Record an event whose tag names no stage, in run.json (DL section 5)."""
        self._warn(
            f"{self._folder}: {key} event with the tag {tag!r}, which names no stage, is in run.json under `unrouted`."
        )
        fields = {"key": key, "tag": tag, **payload}
        self._console.run_event(_UNROUTED, payload)
        return run.spanned(_UNROUTED, fields, stage=None, kind="step", **span)

    def _exchange(
        self, run: LoopRun, stage: str | None, tag: str | None, within: RecordedSpan | None, cycle: Any, **call: Any
    ) -> None:
        """Record a `model_calls` event with role and operation (DL 7.7)."""
        fields: dict[str, Any] = {"role": call["role"], "operation": call["operation"]}
        error, duration_sec = call.get("error"), call.get("duration_sec")
        if error is not None:
            fields["error"] = error
        if metadata := call.get("metadata"):
            fields["metadata"] = pure(metadata)
        if duration_sec is not None:
            fields["duration_sec"] = rounded(duration_sec, 4)
        inputs, output = pure(call["inputs"]), pure(call["output"])
        cycle = whole(cycle)
        if stage is None:
            payload = {
                "cycle": cycle,
                "role": fields["role"],
                "operation": fields["operation"],
                "inputs": inputs,
                "output": output,
                "error": error,
                "metadata": fields.get("metadata", {}),
                **({"duration_sec": fields["duration_sec"]} if "duration_sec" in fields else {}),
            }
            self._unrouted(run, "model_calls", tag, payload, duration_sec=duration_sec)
            return
        run.model_call(
            fields,
            stage=stage,
            cycle=cycle,
            inputs=inputs,
            output=output,
            method=text(call["operation"]),
            role=text(call["role"]),
            duration_sec=duration_sec,
            error=error,
            within=within,
        )
        if not self._console.is_silent:
            self._console.stage_event(stage, "model_calls", {"cycle": cycle})

    def _calls(
        self, run: LoopRun, stage: str, within: RecordedSpan, cycle: Any, calls: Iterable[Mapping[str, Any]]
    ) -> None:
        for call in calls:
            self._exchange(run, stage, stage, within, cycle, **call)

    def _judged(
        self,
        run: LoopRun,
        stage: str,
        within: RecordedSpan,
        cycle: Any,
        role: str,
        prompt: Any,
        raw: Any,
        duration: Any,
    ) -> None:
        if prompt or raw:
            self._exchange(run, stage, stage, within, cycle, **payloads.judge_call(role, prompt, raw, duration))

    def _stage_event(
        self, run: LoopRun, event: str, stage: str, cycle: Any, payload: Mapping[str, Any], **span: Any
    ) -> RecordedSpan:
        cycle = whole(cycle)
        self._validated(event, {"cycle": cycle, **payload})
        made = run.spanned(event, payload, stage=stage, cycle=cycle, **span)
        self._console.stage_event(stage, event, {"cycle": cycle, **payload})
        return made

    # -- the end

    @contextlib.contextmanager
    def quarantine(self) -> Generator[None]:
        """Write no document with the answers of cases while somebody works in the run directory who may not see them.

        Events are recorded as always, and documents of stages are written. `run.json`,
        which holds every case, comes back when the block ends (DL 17, A-22).
        """
        with self._lock:
            hold_back(self._session(), frozenset({RUN_DOCUMENT}))
        try:
            yield
        finally:
            with self._lock, contextlib.suppress(Exception):
                run = self._session()
                hold_back(run, frozenset())
                run.begin()
                run.end_of_event(is_urgent=True)

    def close(self) -> None:
        """Seal the journal, finish every document, and write `langfuse_trace.json`. Harmless when repeated."""
        with self._lock:
            run = self._run
            if run.closed:
                return
            try:
                run.close()
            except Exception as error:
                self._problem("the end of the run, which could not be recorded whole", error)
            if not run.journal.is_sealed:
                self._problem("the end of the run, which waits in memory for the disk")


def routed_stage(tag: str | None) -> str | None:
    """Return the stage a tag names, None when it names none.

    Raises:
        TypeError: It is no text.
    """
    if tag is not None and not isinstance(tag, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers are untyped
        raise TypeError(f"expected a tag that names a stage, found {type(tag).__name__}")
    return route(tag)


def _forked() -> None:
    for logger in list(_loggers):
        logger._lock = threading.RLock()  # pyright: ignore[reportPrivateUsage]  # the module's own
        logger._run.forked()  # pyright: ignore[reportPrivateUsage]  # the module's own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
