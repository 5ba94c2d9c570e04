"""What a diagnose loop tells of its stages M1 to M5, and of the models it asks (DL 7.7 to 7.15, 7.18, 7.20, 7.21)."""

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spanfold.diagnose import _logger_payloads as payloads
from spanfold.diagnose._logger_core import LoggerCore, Preparing, Recording, routed_stage
from spanfold.diagnose._logger_files import portable, snapshot
from spanfold.diagnose._logger_probe import ProbeParts, prepare_probe
from spanfold.diagnose._logger_run import LoopRun
from spanfold.diagnose._logger_values import attr, listed, rounded, text, whole
from spanfold.instrument import RecordedSpan


class StageEvents(LoggerCore):
    """The methods a loop calls for its stages; see `RunLogger`."""

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
        with Recording(self, "model_call", is_urgent=False) as run:
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
        routed = routed_stage(stage)
        with Recording(self, "model_exchange", is_urgent=routed is None) as run:
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
        with Preparing(self, "probe"):
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
        with Recording(self, "probe") as run:
            stage = run.take_stage("M1", cycle)
            span = self._stage_event(run, "probe", "M1", cycle, parts.payload, duration_sec=duration_sec, parts=stage)
            failed = failed_analyzers or {}
            for name in [*parts.analyzers, *(set(stage.analyzers) - set(parts.analyzers) if stage else ())]:
                run.analyzer(name, span, stage, cycle, parts.analyzers.get(name, {}), failed.get(name))
            self._judged(run, "M1", span, cycle, "analyzer_selection_judge", judge_prompt, judge_raw, duration_sec)
        return parts.figures

    def log_analysis(self, cycle: int, report: Any, *, duration_sec: float | None = None) -> None:
        """Record the statistics of M2 (DL 7.10)."""
        payload: payloads.Payload = {}
        with Preparing(self, "analysis"):
            to_portable = functools.partial(portable, self._folder)
            payload = payloads.analysis(report, to_portable, duration_sec, self._missing("analysis report"))
        with Recording(self, "analysis") as run:
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
        payload: payloads.Payload = {}
        with Preparing(self, "explore"):
            kept = snapshot(self._folder, "M2", out_dir) if out_dir is not None else None
            has_report = out_dir is not None and kept is None and os.path.exists(f"{out_dir}/exploratory_report.json")
            payload = payloads.explore(report, kept, out_dir, has_report, duration_sec)
            payload["diagnose.out_dir"] = None if out_dir is None else text(out_dir)
        with Recording(self, "explore") as run:
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
        payload: payloads.Payload = {}
        with Preparing(self, "diagnosis"):
            payload = payloads.diagnosis(diag, explore_figures, duration_sec, self._missing("diagnosis"))
        with Recording(self, "diagnosis") as run:
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
        stage = "M4" if payloads.is_verification(iv) else "M5"
        payload: payloads.Payload = {"module": stage.lower()}
        with Preparing(self, "surgery"):
            payload = payloads.surgery(
                hypothesis, iv, validation_cases, duration_sec, judge_prompt, judge_raw, self._missing("surgery")
            )
        with Recording(self, "surgery") as run:
            span = self._of_stage(run, "surgery", stage, cycle, payload, duration_sec)
            role = "protocol_consistency_judge"
            self._judged(run, stage, span, cycle, role, judge_prompt, judge_raw, duration_sec)

    def log_experiment(self, cycle: int, hypothesis: Any, iv: Any, *, module: str = "m5") -> None:
        """Record an experiment of M4 or M5 (DL 7.14)."""
        stage = routed_stage(module) or "M5"
        payload: payloads.Payload = {"module": module}
        exp: payloads.Payload = {}
        with Preparing(self, "experiment"):
            exp = payloads.experiment_of(iv)
            kept = snapshot(self._folder, stage, exp.get("workdir"))
            payload = payloads.experiment(hypothesis, iv, module, kept, self._missing("experiment"))
            payload["diagnose.stage"] = stage
        with Recording(self, "experiment") as run:
            span = self._of_stage(run, "experiment", stage, cycle, payload, exp.get("duration_sec"))
            self._calls(run, stage, span, cycle, payloads.reported_calls(exp.get("model_calls"), "experiment_writer"))

    def log_fix(self, outcome: Any) -> None:
        """Record what the repair of M5 came to (DL 7.15)."""
        payload: payloads.Payload = {"module": "fix", "best": {}}
        with Preparing(self, "fix"):
            kept = functools.partial(snapshot, self._folder, "M5", keep_everything=True)
            payload = payloads.fix(outcome, kept)
        with Recording(self, "fix") as run:
            parts = run.take_stage("M5", -1)
            self._stage_event(run, "fix", "M5", -1, payload, parts=parts)

    def log_stage_skipped(self, stage: str, reason_code: str, *, cycle: int = -1, detail: str = "") -> None:
        """Record that a stage was left out (DL 7.18)."""
        routed = routed_stage(stage)
        with Recording(self, "stage_skipped") as run:
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
        routed = routed_stage(module)
        with Recording(self, "tool_codegen") as run:
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
        routed = routed_stage(module)
        if not tools:
            return
        with Recording(self, "tool_registry") as run:
            cycle = whole(cycle)
            payload = payloads.tool_registry(module, tools)
            if routed is None:
                self._unrouted(run, "tool_registry", module, {"cycle": cycle, **payload})
                return
            self._validated("tool_registry", {"cycle": cycle, **payload})
            run.tell("tool_registry", payload, stage=routed, cycle=cycle)
            self._console.stage_event(routed, "tool_registry", {"cycle": cycle, **payload})
