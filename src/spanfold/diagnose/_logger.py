"""`RunLogger`: a drop-in for the run logger of an existing diagnose loop (docs/diagnose.md).

What a loop tells becomes spans and events in the journal of spanfold, and the
documents the loop's readers know are folded from it. When a method returns,
the event is in the operating system and in its document; model calls and
cases are in their document at most a second later, and before any other event
is.

Nothing the loop hands over, and nothing that is wrong with the disk, the
console or the network, reaches the loop: what could not be kept is counted in
`problems`. Only arguments of the wrong name or number, and a tag that is no
text, raise.
"""

import contextlib
import functools
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
from spanfold.diagnose._logger_cases import case_media
from spanfold.diagnose._logger_console import Console
from spanfold.diagnose._logger_facts import run_facts
from spanfold.diagnose._logger_files import manifest_files, portable, snapshot, store_artifact_json
from spanfold.diagnose._logger_probe import ProbeParts, prepare_probe
from spanfold.diagnose._logger_run import LoopRun
from spanfold.diagnose._logger_schema import complaints
from spanfold.diagnose._logger_session import default_run_dir, open_session
from spanfold.diagnose._logger_tracer import mode_of
from spanfold.diagnose._logger_values import attr, case_data, case_id, iter_cases, listed, pure, rounded, text, whole
from spanfold.diagnose._rooms import hold_back
from spanfold.diagnose._tracer import DiagnosticTracer, live_or
from spanfold.instrument import RecordedSpan
from spanfold.moments import utc
from spanfold.routing import RUN_DOCUMENT, STAGES, route

LOGGER_VERSION: Final = 1
MAX_LATE_SESSIONS: Final = 16
"""Events after `close` that are sealed at once; more of them are sealed together, by the next `close` or at exit."""
_BUCKETS: Final = {"case_record": "cases", "diagnose_report": "diagnose_reports"}
_UNROUTED: Final = "unrouted"

_loggers: "weakref.WeakSet[RunLogger]" = weakref.WeakSet()


class _Nowhere:
    """Stands in for a run where there is none: whatever is told to it is lost, and counted already."""

    def __getattr__(self, name: str) -> Self:
        return self

    def __call__(self, *args: Any, **given: Any) -> Self:
        """Do nothing."""
        return self


class _Recording:
    """The lock of a logger while it records one event; what goes wrong inside is counted, and ends here."""

    __slots__ = ("is_open", "is_urgent", "logger", "what")

    def __init__(self, logger: "RunLogger", what: str, *, is_urgent: bool = True) -> None:
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


class RunLogger:
    """Records a diagnose loop. A context manager that closes.

    Args:
        run_dir: The directory to write; by default a new one, `runs_v2/<YYYYMMDD_HHMMSS>`. One that holds a run
            already is gone on with: its documents stay, and the sequence numbers continue.
        verbose: One plain line for each event on the standard output.
        narrate: The narration of the stages instead.
        trace_id: Trace id of the documents; by default a new random UUID, or that of the run that is gone on with.
        observability_mode: `auto`, `live` or `offline`; by default `EVALRX_LANGFUSE_MODE`, else `auto`.
        context: The owning run context; only kept.

    Raises:
        ValueError: There is no such mode.
        RuntimeError: `live` without the keys or the address of Langfuse.
        LockedError: Another living logger writes to this directory.
    """

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
        with contextlib.suppress(Exception):
            run.end_of_event(is_urgent=is_urgent)
            if run.is_late and is_urgent and self._late_sessions <= MAX_LATE_SESSIONS:
                run.close()

    def _problem(self, what: str, error: BaseException | None = None) -> None:
        """Count what went wrong, and warn of the first of its kind; never with a value."""
        self.problems[what] += 1
        if self.problems[what] == 1:
            cause = f" ({type(error).__name__})" if error is not None else ""
            self._warn(f"{self._folder}: {what}{cause}. The loop goes on; `problems` counts it.")

    def _warn(self, message: str) -> None:
        with contextlib.suppress(Exception):  # a filter may turn warnings into errors, which are not the loop's
            warnings.warn(message, RuntimeWarning, stacklevel=4)

    def _missing(self, event: str) -> Callable[[str], None]:
        return lambda name: self._problem(f"the attribute {name} of the object of a {event}, which is missing")

    def _validated(self, event: str, record: Mapping[str, Any]) -> None:
        """Warn of a record that the published schema refuses, when that was asked for (DL 4.5)."""
        if self._validates:
            for complaint in complaints(event, record):
                self._problem(f"the {event} event does not match the schema: {complaint}")

    # -- events

    def _run_event(self, event: str, payload: Mapping[str, Any], *, is_urgent: bool = True) -> None:
        with _Recording(self, event, is_urgent=is_urgent) as run:
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

    # -- the run

    def log_run_start(self, config: dict[str, Any] | None = None) -> None:
        """Record how the run was set up (DL 7.1)."""
        with _Recording(self, "run_start") as run:
            payload = {**(config or {})}
            payload.pop("trace_id", None)
            payload.update(run_facts(payload))
            self._validated("run_start", payload)
            run.tell("run_start", payload)
        self._console.run_event("run_start", config or {})

    def log_cases(self, cases: Iterable[Any], *, split: str | None = None) -> None:
        """Record cases, each once (DL 7.2)."""
        for case in iter_cases(cases):
            name = case_id(case)
            with _Recording(self, "case_record", is_urgent=False) as run:
                if not name or name in self._seen_cases:
                    continue
                self._seen_cases.add(name)
                payload: dict[str, Any] = {"case_id": name, "case": pure(case_data(case))}
                payload["media_paths"], refused = case_media(self._folder, case)
                if split:
                    payload["split"] = split
                if refused:
                    payload["media_refused"] = refused
                self._validated("case_record", payload)
                run.tell("case_record", payload)
                self._console.run_event("cases", payload)

    def log_report_published(self, envelope: dict[str, Any]) -> None:
        """Record that a report was published (DL 7.3)."""
        self._run_event("report_published", payloads.report_published(envelope))

    def log_diagnose_report(self, report: Any, cases: list[Any], *, discovery: list[Any] | None = None) -> None:
        """Record the report of the whole diagnosis (DL 7.4)."""
        missing = self._missing("diagnose report")
        self._run_event("diagnose_report", payloads.diagnose_report(report, cases, discovery, missing))

    def log_loop_end(
        self, report: Any, *, tokens_used: int | None = None, timings: dict[str, float] | None = None
    ) -> None:
        """Record the end of a loop (DL 7.19)."""
        missing = self._missing("loop report")
        self._run_event("loop_end", payloads.loop_end(report, tokens_used, timings, missing))

    def log_manifest(self, *, run_id: str, config: dict[str, Any]) -> None:
        """Record which files the run directory holds (DL 7.5)."""
        with _Recording(self, "manifest") as run:
            files, facts = manifest_files(self._folder)
            value = {"ts": _now(run), "run_id": run_id, "config": dict(config), "files": files, "file_facts": facts}
            run.tell("manifest", {"diagnose.value": value})

    def log_runtime_snapshot(self, root: Path) -> None:
        """Record the workspace of the run (DL 7.6)."""
        with _Recording(self, "runtime_snapshot") as run:
            kept = snapshot(self._folder, "M5", root, keep_everything=True)
            run.tell("runtime_snapshot", {"diagnose.value": kept})

    def log_agent_decision(
        self,
        step: int,
        *,
        action: str,
        params: dict[str, Any] | None = None,
        rationale: str = "",
        valid: bool = True,
        repair_attempts: int = 0,
        fallback_used: bool = False,
        judge_prompt: str | None = None,
        judge_raw: str | None = None,
        duration_sec: float | None = None,
        judge_calls: list[Any] | None = None,
    ) -> None:
        """Record what an agent decided (DL 7.16)."""
        given = {
            "step": whole(step),
            "action": action,
            "params": params or {},
            "rationale": rationale,
            "valid": valid,
            "repair_attempts": repair_attempts,
            "fallback_used": fallback_used,
        }
        payload = payloads.agent_decision(given, judge_prompt, judge_raw, judge_calls, duration_sec)
        with _Recording(self, "agent_decision") as run:
            self._validated("agent_decision", payload)
            run.spanned(
                "agent_decision", payload, stage=None, duration_sec=duration_sec, kind="step", name="agent decision"
            )
        self._console.run_event("agent_decisions", payload)

    def log_agent_tool(
        self,
        step: int,
        *,
        tool: str,
        ok: bool,
        summary: str = "",
        error: str | None = None,
        duration_sec: float | None = None,
    ) -> None:
        """Record a tool an agent used (DL 7.17)."""
        payload: dict[str, Any] = {"step": whole(step), "tool": tool, "ok": ok, "summary": summary}
        if error is not None:
            payload["error"] = error
        if duration_sec is not None:
            payload["duration_sec"] = rounded(duration_sec, 3)
        with _Recording(self, "agent_tool") as run:
            self._validated("agent_tool", payload)
            failure = None if ok else error or "failed"
            run.spanned(
                "agent_tool",
                payload,
                stage=None,
                duration_sec=duration_sec,
                kind="tool",
                name=f"execute_tool {text(tool)}",
                error=failure,
            )
        self._console.run_event("agent_tool_calls", payload)

    # -- model calls

    def log_model_call(
        self,
        *,
        cycle: int,
        analyzer: str,
        call_index: int,
        method: str,
        inputs: Any,
        kwargs: dict[str, Any],
        output: Any,
        duration_sec: float,
        error: str | None,
        case_id: str | None = None,
        batch_case_ids: list[str] | None = None,
        n_batch_cases: int | None = None,
    ) -> None:
        """Record a call of the target model by an analyzer of M1 (DL 7.8)."""
        fields: dict[str, Any] = {"analyzer": analyzer, "call_index": whole(call_index), "method": method}
        if case_id is not None:
            fields["case_id"] = case_id
        if batch_case_ids:
            fields["batch_case_ids"] = batch_case_ids
        if n_batch_cases is not None:
            fields["n_batch_cases"] = whole(n_batch_cases)
        if kwargs:
            fields["kwargs"] = kwargs
        fields["duration_sec"] = rounded(duration_sec, 4)
        if error is not None:
            fields["error"] = error
        cycle = whole(cycle)
        with _Recording(self, "model_call", is_urgent=False) as run:
            self._validated("model_call", {"cycle": cycle, **fields, "inputs": inputs, "output": output})
            run.model_call(
                fields,
                stage="M1",
                cycle=cycle,
                inputs=inputs,
                output=output,
                method=text(method),
                analyzer=text(analyzer),
                duration_sec=duration_sec,
                error=error,
            )
        if not self._console.is_silent:
            self._console.stage_event("M1", "model_call", {"cycle": cycle})

    def log_model_exchange(
        self,
        stage: str,
        *,
        role: str,
        operation: str,
        inputs: Any,
        output: Any = None,
        error: str | None = None,
        duration_sec: float | None = None,
        metadata: dict[str, Any] | None = None,
        cycle: int | None = None,
    ) -> None:
        """Record a question to a model and its answer (DL 7.7)."""
        routed = _routed(stage)
        with _Recording(self, "model_exchange", is_urgent=routed is None) as run:
            self._exchange(
                run,
                routed,
                stage,
                None,
                self.current_cycle if cycle is None else cycle,
                role=role,
                operation=operation,
                inputs=inputs,
                output=output,
                error=error,
                duration_sec=duration_sec,
                metadata=metadata,
            )

    # -- M1 to M5

    def log_probe(
        self,
        cycle: int,
        results: dict[str, Any],
        schema: Any = None,
        *,
        cases: Any = None,
        judge_prompt: str | None = None,
        judge_raw: str | None = None,
        duration_sec: float | None = None,
        failed_analyzers: dict[str, Any] | None = None,
    ) -> list[Path]:
        """Record what the analyzers of M1 found (DL 7.9).

        Returns:
            The pictures: those the results painted themselves, then those made of their arrays.
        """
        parts = ProbeParts()
        with _Recording(self, "probe") as run:
            cycle = whole(cycle)
            parts = prepare_probe(self.run_dir, self._folder, cycle, results, cases, self._problem)
            payload = parts.payload
            if failed_analyzers:
                payload["failed_analyzers"] = dict(failed_analyzers)
            if schema is not None:
                payload["selection_rationale"] = attr(schema, "rationale", "")
                selected = attr(schema, "selected_analyzers")
                if selected is not None:
                    payload["selected_analyzers"] = listed(selected)
            if judge_prompt:
                payload["judge_prompt"] = judge_prompt
            if judge_raw:
                payload["judge_response"] = judge_raw
            if duration_sec is not None:
                payload["duration_sec"] = rounded(duration_sec, 3)
            stage = run.take_stage("M1", cycle)
            span = self._stage_event(run, "probe", "M1", cycle, payload, duration_sec=duration_sec, parts=stage)
            failed = failed_analyzers or {}
            for name in [*parts.analyzers, *(set(stage.analyzers) - set(parts.analyzers) if stage else ())]:
                run.analyzer(name, span, stage, cycle, parts.analyzers.get(name, {}), failed.get(name))
            self._judged(run, "M1", span, cycle, "analyzer_selection_judge", judge_prompt, judge_raw, duration_sec)
        return parts.figures

    def log_analysis(self, cycle: int, report: Any, *, duration_sec: float | None = None) -> None:
        """Record the statistics of M2 (DL 7.10)."""
        with _Recording(self, "analysis") as run:
            to_portable = functools.partial(portable, self._folder)
            payload = payloads.analysis(report, to_portable, duration_sec, self._missing("analysis report"))
            span = self._of_stage(run, "analysis", "M2", cycle, payload, duration_sec)
            prompt, raw = attr(report, "llm_prompt"), attr(report, "llm_raw")
            self._judged(run, "M2", span, cycle, "statistics_judge", prompt, raw, duration_sec)

    def _of_stage(
        self, run: LoopRun, event: str, stage: str, cycle: Any, payload: Mapping[str, Any], duration_sec: Any
    ) -> RecordedSpan:
        """Record the result of a stage, with what it was made of so far."""
        parts = run.take_stage(stage, whole(cycle))
        return self._stage_event(run, event, stage, cycle, payload, duration_sec=duration_sec, parts=parts)

    def log_explore(
        self, cycle: int, report: Any, *, out_dir: Path | str | None = None, duration_sec: float | None = None
    ) -> None:
        """Record the free exploration of M2 (DL 7.11)."""
        with _Recording(self, "explore") as run:
            kept = snapshot(self._folder, "M2", out_dir) if out_dir is not None else None
            has_report = out_dir is not None and kept is None and os.path.exists(f"{out_dir}/exploratory_report.json")
            payload = payloads.explore(report, kept, out_dir, has_report, duration_sec)
            payload["diagnose.out_dir"] = None if out_dir is None else text(out_dir)
            span = self._of_stage(run, "explore", "M2", cycle, payload, duration_sec)
            calls = payloads.reported_calls(attr(report, "model_calls"), "explore_coder")
            self._calls(run, "M2", span, cycle, calls)

    def log_diagnosis(
        self,
        cycle: int,
        diag: Any,
        *,
        duration_sec: float | None = None,
        explore_figures: list[Any] | None = None,
    ) -> None:
        """Record the hypotheses of M3 (DL 7.12)."""
        with _Recording(self, "diagnosis") as run:
            payload = payloads.diagnosis(diag, explore_figures, duration_sec, self._missing("diagnosis"))
            span = self._of_stage(run, "diagnosis", "M3", cycle, payload, duration_sec)
            self._calls(run, "M3", span, cycle, payloads.diagnosis_calls(diag, duration_sec))

    def log_surgery(
        self,
        cycle: int,
        hypothesis: Any,
        iv: Any,
        *,
        validation_cases: Any = None,
        duration_sec: float | None = None,
        judge_prompt: str | None = None,
        judge_raw: str | None = None,
    ) -> None:
        """Record the verification of a hypothesis in M4, or an intervention in M5 (DL 7.13)."""
        with _Recording(self, "surgery") as run:
            payload = payloads.surgery(
                hypothesis, iv, validation_cases, duration_sec, judge_prompt, judge_raw, self._missing("surgery")
            )
            stage = payload["module"].upper()
            span = self._of_stage(run, "surgery", stage, cycle, payload, duration_sec)
            role = "protocol_consistency_judge"
            self._judged(run, stage, span, cycle, role, judge_prompt, judge_raw, duration_sec)

    def log_experiment(self, cycle: int, hypothesis: Any, iv: Any, *, module: str = "m5") -> None:
        """Record an experiment of M4 or M5 (DL 7.14)."""
        stage = _routed(module) or "M5"
        with _Recording(self, "experiment") as run:
            exp = payloads.experiment_of(iv)
            kept = snapshot(self._folder, stage, exp.get("workdir"))
            payload = payloads.experiment(hypothesis, iv, module, kept, self._missing("experiment"))
            payload["diagnose.stage"] = stage
            span = self._of_stage(run, "experiment", stage, cycle, payload, exp.get("duration_sec"))
            self._calls(run, stage, span, cycle, payloads.reported_calls(exp.get("model_calls"), "experiment_writer"))

    def log_fix(self, outcome: Any) -> None:
        """Record what the repair of M5 came to (DL 7.15)."""
        with _Recording(self, "fix") as run:
            kept = functools.partial(snapshot, self._folder, "M5", keep_everything=True)
            payload = payloads.fix(outcome, kept)
            parts = run.take_stage("M5", -1)
            self._stage_event(run, "fix", "M5", -1, payload, parts=parts)

    def log_stage_skipped(self, stage: str, reason_code: str, *, cycle: int = -1, detail: str = "") -> None:
        """Record that a stage was left out (DL 7.18)."""
        routed = _routed(stage)
        with _Recording(self, "stage_skipped") as run:
            cycle = whole(cycle)
            payload: dict[str, Any] = {"reason_code": reason_code, "detail": detail, "diagnose.stage": stage}
            if routed is None:
                told = {"stage": stage, "cycle": cycle, **payload}
                self._unrouted(run, "stage_skipped", stage, told, outcome="skipped")
            else:
                self._stage_event(run, "stage_skipped", routed, cycle, payload, kind="step", outcome="skipped")

    def log_tool_codegen(
        self,
        *,
        module: str,
        name: str,
        need: str,
        source: str,
        ok: bool,
        code: str = "",
        prompt: str = "",
        raw_output: str = "",
        raw_stream: str = "",
        error: str = "",
        stdout: str = "",
        cycle: int | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Record that a tool was written (DL 7.20)."""
        routed = _routed(module)
        with _Recording(self, "tool_codegen") as run:
            cycle = whole(self.current_cycle if cycle is None else cycle)
            given = {
                "module": module,
                "tool_name": name,
                "need": need,
                "source": source,
                "ok": ok,
                "error": error,
                "code": code,
                "prompt": prompt,
                "raw_output": raw_output,
                "raw_stream": raw_stream,
                "stdout": stdout,
            }
            payload = payloads.tool_codegen(given, extra)
            if routed is None:
                span = self._unrouted(run, "tool_codegen", module, {"cycle": cycle, **payload})
            else:
                span = self._stage_event(run, "tool_codegen", routed, cycle, payload, kind="step")
            if prompt or raw_stream or raw_output:
                call = payloads.judge_call("tool_codegen", prompt, raw_stream or raw_output or code, None)
                call |= {"operation": source, "error": error or None, "metadata": {"tool_name": name, "ok": ok}}
                self._exchange(run, routed or "M5", module, span, cycle, **call)

    def log_tool_registry(self, cycle: int, module: str, generated: list[Any]) -> None:
        """Record which tools were written for a module (DL 7.21)."""
        tools = listed(generated)
        routed = _routed(module)
        if not tools:
            return
        with _Recording(self, "tool_registry") as run:
            cycle = whole(cycle)
            payload = payloads.tool_registry(module, tools)
            if routed is None:
                self._unrouted(run, "tool_registry", module, {"cycle": cycle, **payload})
                return
            self._validated("tool_registry", {"cycle": cycle, **payload})
            run.tell("tool_registry", payload, stage=routed, cycle=cycle)
            self._console.stage_event(routed, "tool_registry", {"cycle": cycle, **payload})

    # -- files, the end

    def save_artifact_json(self, stem: str, obj: Any) -> str | None:
        """Keep data as `artifacts/<stem>` (DL 7.22).

        Args:
            stem: The whole file name.
            obj: The data.

        Returns:
            The file, relative to the run directory; None when it could not be kept.
        """
        try:
            return store_artifact_json(self._folder, stem, obj)
        except Exception as error:
            self._problem("an artifact, which could not be kept", error)
            return None

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
            with contextlib.suppress(Exception):
                run.close()
            if not run.journal.is_sealed:
                self._problem("the end of the run, which waits in memory for the disk")


def _routed(tag: str | None) -> str | None:
    """Return the stage a tag names, None when it names none.

    Raises:
        TypeError: It is no text.
    """
    if tag is not None and not isinstance(tag, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers are untyped
        raise TypeError(f"expected a tag that names a stage, found {type(tag).__name__}")
    return route(tag)


def _now(run: LoopRun) -> str | None:
    moment = utc(run.moment())
    return moment and moment + "+00:00"


def _forked() -> None:
    for logger in list(_loggers):
        logger._lock = threading.RLock()  # pyright: ignore[reportPrivateUsage]  # the module's own
        logger._run.forked()  # pyright: ignore[reportPrivateUsage]  # the module's own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
