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

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spanfold.diagnose import _logger_payloads as payloads
from spanfold.diagnose._logger_cases import case_media
from spanfold.diagnose._logger_core import Preparing, Recording
from spanfold.diagnose._logger_facts import run_facts
from spanfold.diagnose._logger_files import manifest_files, snapshot, store_artifact_json
from spanfold.diagnose._logger_run import LoopRun
from spanfold.diagnose._logger_stages import StageEvents
from spanfold.diagnose._logger_values import case_data, case_id, iter_cases, pure, rounded, text, whole
from spanfold.moments import utc


class RunLogger(StageEvents):
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

    # -- the run

    def log_run_start(self, config: dict[str, Any] | None = None) -> None:
        """Record how the run was set up (DL 7.1)."""
        with Recording(self, "run_start") as run:
            payload = {**(config or {})}
            payload.pop("trace_id", None)
            payload.update(run_facts(payload))
            self._validated("run_start", payload)
            run.tell("run_start", payload)
        self._console.run_event("run_start", config or {})

    def log_cases(self, cases: Iterable[Any], *, split: str | None = None) -> None:
        """Record cases, each once (DL 7.2)."""
        for case in iter_cases(cases):
            name = ""
            with Preparing(self, "case_record"):
                name = case_id(case)
            with self._lock:
                if not name or name in self._seen_cases:
                    continue
                self._seen_cases.add(name)
            payload: dict[str, Any] = {"case_id": name, "case": {"id": name}, "media_paths": []}
            refused: list[dict[str, str]] = []
            with Preparing(self, "case_record"):
                payload["case"] = pure(case_data(case))
                payload["media_paths"], refused = case_media(self._folder, case)
            if split:
                payload["split"] = split
            if refused:
                payload["media_refused"] = refused
            with Recording(self, "case_record", is_urgent=False) as run:
                self._validated("case_record", payload)
                run.tell("case_record", payload)
            self._console.run_event("cases", payload)

    def log_report_published(self, envelope: dict[str, Any]) -> None:
        """Record that a report was published (DL 7.3)."""
        self._run_event("report_published", lambda: payloads.report_published(envelope))

    def log_diagnose_report(self, report: Any, cases: list[Any], *, discovery: list[Any] | None = None) -> None:
        """Record the report of the whole diagnosis (DL 7.4)."""
        missing = self._missing("diagnose report")
        self._run_event("diagnose_report", lambda: payloads.diagnose_report(report, cases, discovery, missing))

    def log_loop_end(
        self, report: Any, *, tokens_used: int | None = None, timings: dict[str, float] | None = None
    ) -> None:
        """Record the end of a loop (DL 7.19)."""
        missing = self._missing("loop report")
        self._run_event("loop_end", lambda: payloads.loop_end(report, tokens_used, timings, missing))

    def log_manifest(self, *, run_id: str, config: dict[str, Any]) -> None:
        """Record which files the run directory holds (DL 7.5)."""
        files: list[str] = []
        facts: dict[str, Any] = {}
        with Preparing(self, "manifest"):
            files, facts = manifest_files(self._folder)
        with Recording(self, "manifest") as run:
            value = {"ts": _now(run), "run_id": run_id, "config": dict(config), "files": files, "file_facts": facts}
            run.tell("manifest", {"diagnose.value": value})

    def log_runtime_snapshot(self, root: Path) -> None:
        """Record the workspace of the run (DL 7.6)."""
        kept: dict[str, Any] | None = None
        with Preparing(self, "runtime_snapshot"):
            kept = snapshot(self._folder, "M5", root, keep_everything=True)
        with Recording(self, "runtime_snapshot") as run:
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
        payload: dict[str, Any] = given
        with Preparing(self, "agent_decision"):
            payload = payloads.agent_decision(given, judge_prompt, judge_raw, judge_calls, duration_sec)
        with Recording(self, "agent_decision") as run:
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
        with Recording(self, "agent_tool") as run:
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

    # -- files

    def save_artifact_json(self, stem: str, obj: Any) -> str | None:
        """Keep data as `artifacts/<stem>` (DL 7.22).

        Args:
            stem: The whole file name.
            obj: The data.

        Returns:
            The file, relative to the run directory; None when it could not be kept.
        """
        try:
            path = store_artifact_json(self._folder, stem, obj)
        except Exception as error:
            self._problem("an artifact, which could not be kept", error)
            return None
        with Recording(self, "the hash of an artifact", is_urgent=False) as run:
            run.files(run.span, {"path": path})
        return path


def _now(run: LoopRun) -> str | None:
    moment = utc(run.moment())
    return moment and moment + "+00:00"
