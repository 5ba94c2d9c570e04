"""One scripted sequence of every call of a diagnose-loop logger, and a comparison of what two loggers made of it.

The script knows only the interface of DL section 1, so any logger can play it.
"""

import enum
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

STAGES = ("M1", "M2", "M3", "M4", "M5")


class Status(enum.Enum):
    PROPOSED = "proposed"
    SUPPORTED = "supported"


@dataclass
class Inputs:
    prompt: str
    image: Any = None
    audio: Any = None
    video: Any = None


@dataclass
class Case:
    id: str
    inputs: Inputs
    expected: str = "yes"
    observed: str = "no"
    label: str = "fail"
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        image = self.inputs.image
        return {
            "id": self.id,
            "inputs": {"prompt": self.inputs.prompt, "image": image and str(image)},
            "expected": self.expected,
            "observed": self.observed,
            "label": self.label,
            "metadata": {"größe": 3, "when": (1, 2), **self.extra},
        }


class Result:
    """An analyzer's result."""

    def __init__(self, findings: dict[str, Any], artifacts: dict[str, Any], *, overlay: bool = False) -> None:
        self.findings = findings
        self.artifacts = artifacts
        if overlay:
            self.image_overlays = self._overlays

    def summary(self) -> str:
        return f"{len(self.findings)} findings"

    def to_dict(self) -> dict[str, Any]:
        return {"analyzer": "a", "model": "m", "findings": self.findings, "metadata": {}, "n_cases": 2}

    def _overlays(self, folder: Path, stem: str) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{stem}_overlay.png"
        path.write_bytes(b"\x89PNG\r\n\x1a\nx")
        return [path]


def hypothesis(statement: str = "It ignores the image.", **more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            "id": "",
            "statement": statement,
            "plain_statement": "plain",
            "predicted_failure_mode": "blind",
            "status": Status.PROPOSED,
            "test_design": "swap images",
            "metadata": {"critic": "keep", "critic_reason": "sound"},
            **more,
        }
    )


def stats_row(signal: str) -> SimpleNamespace:
    return SimpleNamespace(
        to_dict=lambda: {"tool": "t", "config": {"signal": signal}, "effect": 0.25, "p_value": 0.01},
        effect=0.25,
        p_value=0.01,
        config={"signal": signal},
        tool="t",
        signal=signal,
    )


def analysis(run_dir: Path, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            "severity": "high",
            "narrative": "n",
            "findings": ["one", 2],
            "descriptive_only": False,
            "stats_tool": "welch",
            "llm_fallback_reason": "",
            "conclusion": "it is blind",
            "evidence_chain": [{"a": 1}],
            "stats_tool_results": [{"b": [1, 2]}],
            "visualizations": [],
            "stats_plan": {"plan": True},
            "corrected_rejections": {"x": False},
            "stats_results": [stats_row("acc"), stats_row("len")],
            "figures": [str(run_dir / "M2" / "artifacts" / "f.png"), "/elsewhere/g.png"],
            "llm_prompt": "judge this",
            "llm_raw": "judged",
            **more,
        }
    )


def explore_report() -> SimpleNamespace:
    return SimpleNamespace(
        ok=True,
        observations=[f"o{i}" for i in range(15)],
        candidate_signals=[1, 2],
        hypotheses=[1],
        charts=[{"figure_path": "a.png"}, {"title": "no path"}, "odd"],
        tables={"t": 1, "u": 2},
        adjudication={"method": "host", "alpha": 0.05, "other": 1, "n_rejected": 2},
        caveats=[f"c{i}" for i in range(10)],
        attempts=2,
        error="",
        code="print(1)",
        raw_outputs=["raw one", "raw two"],
        model_calls=[
            {"role": "explore_coder", "inputs": "p", "output": "q", "duration_sec": 1.23456, "metadata": {"k": 1}},
            {"inputs": {"a": 1}, "output": None, "error": "boom"},
        ],
    )


def diagnosis(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            "model_name": "m",
            "hypotheses": [hypothesis(), hypothesis("Other.", id="given", status=None, metadata=None)],
            "raw_judge_output": "raw",
            "n_critic_kept": 1,
            "n_critic_rejected": 0,
            "critic_raw_output": "critic said",
            "critic_prompt": "critic?",
            "proposed_hypotheses": [hypothesis("Proposed.")],
            "review_decisions": [{"decision": "keep"}, {"decision": "reject"}, {"decision": "keep"}],
            "referenced_charts": ["a.png"],
            "explore_context_used": 1,
            "failure_modes_used": False,
            "prompt": "diagnose",
            "review_prompt": "review?",
            "review_raw": "",
            "model_calls": [],
            **more,
        }
    )


def intervention(evidence: dict[str, Any] | None, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            "status": Status.SUPPORTED,
            "fixed": False,
            "confidence_score": 0.75,
            "evidence_dimensions": {"d": 1},
            "evidence": evidence,
            "new_data": [],
            **more,
        }
    )


def experiment(workdir: Path) -> dict[str, Any]:
    return {
        "provider": "coder",
        "verdict": "supported",
        "metrics": {"acc": 0.5},
        "returncode": 0,
        "timed_out": False,
        "code": "print('x')",
        "files": {},
        "stdout": "out\n",
        "stderr": "",
        "blueprint": {"b": 1},
        "validation_log": ["step one", "step two"],
        "cli_raw_output": "raw coder",
        "llm_calls": 2,
        "sandbox_runs": 1,
        "workdir": str(workdir),
        "trial_root": str(workdir),
        "model_calls": [{"inputs": "w", "output": "x"}],
    }


def loop_report() -> SimpleNamespace:
    result = SimpleNamespace(
        hypothesis=hypothesis(),
        status=Status.SUPPORTED,
        effect_size=0.4,
        confidence=0.9,
        is_consistent_with_protocol=True,
        verdict="supported",
        evidence={"p": 0.01},
    )
    return SimpleNamespace(
        cycles=2,
        stopped_by="criteria_met",
        resolved=True,
        hypotheses=[hypothesis()],
        final_hypotheses=[hypothesis()],
        all_hypotheses=[hypothesis(), hypothesis("Other.")],
        verified_hypotheses=[result],
        all_test_results=[result],
    )


class Outcome:
    def __init__(self, trial: Path) -> None:
        self._trial = trial

    def to_dict(self) -> dict[str, Any]:
        return {
            "max_tier": "L1",
            "repair_rounds": 1,
            "routed": ["prompt"],
            "attempted": [
                {
                    "tier": "T1",
                    "name": "patch",
                    "payload": {"prompt_template": "Look! {q}"},
                    "trial_root": str(self._trial),
                    "n_fixed": 3,
                    "n_broken": 1,
                    "effect": 0.2,
                    "fixed": True,
                    "outputs": {"case-1": "yes", "case-2": "no"},
                },
                {"tier": "T1", "name": "other", "trial_root": "", "effect": None, "n_fixed": None, "n_broken": None},
            ],
            "fixed": True,
            "recommendation": "ship it",
            "selection_attempted": [],
            "best": "patch",
        }


def play(log: Any, work: Path) -> None:
    """Call everything once or more. `work` holds files that calls name; both loggers get the same bytes under their own."""
    workspace = work / "workspace"
    (workspace / "sub").mkdir(parents=True)
    (workspace / "main.py").write_text("print('hi')\n", encoding="utf-8")
    (workspace / "sub" / "plot.png").write_bytes(b"\x89PNG\r\n\x1a\nabc")
    (workspace / "data.bin").write_bytes(b"\x00\x01")
    image = work / "cat.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\ncat")

    log.log_run_start(
        {
            "loop": "VLDiagnoseLoop",
            "model": "Model()",
            "max_cycles": 2,
            "n_cases": 3,
            "judge": "Judge()",
            "protocol": {"description": "Does it look?", "task_domain": "vqa"},
            "label_distribution": {"fail": 2, "pass": 1},
        }
    )
    cases = [
        Case("case-1", Inputs("What is it?", image=str(image)), observed="dog"),
        Case("case-2", Inputs("And this?", image="https://example.org/a.png"), label="pass"),
        Case("case-3", Inputs("Third")),
    ]
    log.log_cases(cases, split="explore")
    log.log_cases([*cases, Case("", Inputs("no id"))])

    log.current_cycle = 0
    for index, analyzer in enumerate(("sharpness", "sharpness", "attention", "helper"), start=1):
        log.log_model_call(
            cycle=0,
            analyzer=analyzer,
            call_index=index,
            method="generate",
            inputs={"prompt": f"What is it? {index}", "image": "x.png"} if index % 2 else "plain text",
            kwargs={"temperature": "0.5"},
            output="a dog" if index != 3 else None,
            duration_sec=0.123456,
            error="RuntimeError('x')" if index == 3 else None,
            case_id="case-1" if index == 1 else None,
            batch_case_ids=["case-1", "case-2"] if index == 2 else None,
        )
    results = {
        "sharpness": Result(
            {
                "mean": 0.5,
                "per_case": [
                    {"sample_id": "case-2", "blur_level": 0.1},
                    {"sample_id": "case-1", "blur_level": 0.9, "list": [1]},
                ],
            },
            {"attn_map": np.arange(6.0).reshape(2, 3), "table": {"a": 1}, "rows": [1, 2], "text": "dropped"},
            overlay=True,
        ),
        "attention": Result({"n_cases": 2}, {"layers": np.ones((2, 3, 4, 4)), "ids": np.arange(4)}),
    }
    log.log_probe(
        0,
        results,
        SimpleNamespace(rationale="because", selected_analyzers=["sharpness", "attention"]),
        cases=cases,
        judge_prompt="which?",
        judge_raw="these",
        duration_sec=2.34567,
        failed_analyzers={"broken": "ValueError"},
    )
    log.log_analysis(0, analysis(Path(log.run_dir)), duration_sec=1.23456)
    log.log_explore(0, explore_report(), out_dir=workspace, duration_sec=3.21)
    log.log_explore(0, None, out_dir=work / "missing")
    log.log_diagnosis(0, diagnosis(), duration_sec=0.5, explore_figures=["a.png"])
    log.log_diagnosis(
        0, diagnosis(model_calls=[{"role": "diagnosis_judge", "inputs": "p", "output": "o"}], review_decisions=[])
    )
    m4 = {"m4_test_name": "perm", "m4_effect_size": 0.3, "m4_verdict": "supported"}
    log.log_surgery(
        0, hypothesis(), intervention(m4), validation_cases=cases, duration_sec=1.5, judge_prompt="ok?", judge_raw="ok"
    )
    log.log_surgery(0, hypothesis("x" * 100), intervention(None, fixed=True, new_data=[1, 2]))
    trial = work / "trial"
    trial.mkdir()
    (trial / "run.sh").write_text("echo\n", encoding="utf-8")
    log.log_experiment(0, hypothesis(), SimpleNamespace(status=None, fixed=True, experiment=experiment(workspace)))
    log.log_experiment(1, hypothesis(), SimpleNamespace(status=Status.SUPPORTED, fixed=False), module="nowhere")
    log.log_model_exchange(
        "M5", role="fix_judge", operation="generate", inputs=Inputs("judge"), output={"a": [1]}, duration_sec=0.98765
    )
    log.log_model_exchange("M5", role="target_model", operation="generate", inputs="q", cycle=7, error="Timeout")
    log.log_fix(Outcome(trial))
    log.log_agent_decision(
        1,
        action="probe",
        params={"n": 1},
        rationale="look",
        judge_prompt="next?",
        judge_raw="probe",
        duration_sec=0.1234,
        judge_calls=[{"prompt": "p"}],
    )
    log.log_agent_decision(2, action="stop", valid=False, repair_attempts=1, fallback_used=True)
    log.log_agent_tool(1, tool="probe", ok=True, summary="fine", duration_sec=0.5)
    log.log_agent_tool(2, tool="stop", ok=False, error="nothing to do")
    log.log_stage_skipped("M5", "no_accepted_hypothesis", detail="none")
    log.log_tool_codegen(
        module="m1_probe",
        name="blur",
        need="measure blur",
        source="llm",
        ok=True,
        code="def blur(): ...",
        prompt="write",
        raw_output="done",
        extra={"cli_usage": {"tokens": 3}},
    )
    log.log_tool_codegen(module="fix_pipeline", name="f", need="n", source="cli:x", ok=False, error="bad", cycle=3)
    tool = SimpleNamespace(tool="blur", need="measure", source="llm", code="x=1")
    log.log_tool_registry(0, "m2_stats", [tool, SimpleNamespace()])
    log.log_tool_registry(0, "m2_stats", [])
    log.log_loop_end(loop_report(), tokens_used=123, timings={"M1": 1.23456, "M2": 2.0})
    log.log_loop_end(SimpleNamespace(cycles=1, resolved=False, final_hypotheses=[hypothesis()]))
    log.log_loop_end(SimpleNamespace(cycles=1, stopped_by="budget", verified_hypotheses=[]), timings={})
    log.log_diagnose_report(loop_report(), cases, discovery=[{"d": 1}])
    log.log_report_published({"schema_version": 2, "catalog_version": "c", "sha256": "s", "source_event_seq": 9})
    log.save_artifact_json("failure_modes.json", {"größe": [1, {"a": None}]})
    log.log_runtime_snapshot(work / "missing")
    log.close()
    log.log_manifest(run_id="run-1", config={"a": 1})
    log.log_report_published({})


class Broken(Result):
    """A result whose parts fail."""

    def __init__(self) -> None:
        super().__init__({"n_scored": 3}, {"rows": [{"x": 1}, [None]]})
        self.image_overlays = self._fail

    def to_dict(self) -> dict[str, Any]:
        raise ValueError("no dict")

    def _fail(self, folder: Path, stem: str) -> list[Path]:
        raise ValueError("no picture")


def play_edges(log: Any, work: Path) -> None:
    """Call everything with as little as it takes, and with tags that name no stage."""
    log.log_run_start()
    log.log_run_start({"ts": "2026-01-31T09:05:07Z", "model": "m", "python_version": "3.0", "git_commit": "abc"})
    log.log_cases([{"id": "", "x": 1}], split="val")
    log.log_model_exchange("nowhere", role="r", operation="o", inputs={"a": 1}, metadata={"k": (1, 2)})
    log.log_model_exchange("EXPLORE", role="r", operation="o", inputs=None)
    log.log_probe(0, {})
    log.current_cycle = 4
    log.log_model_call(
        cycle=-1,
        analyzer="generated:x/y",
        call_index=1,
        method="forward",
        inputs="q",
        kwargs={"capture": ["a"]},
        output={"tokens": ["t"], "provided": []},
        duration_sec=1,
        error=None,
        batch_case_ids=["a", "b"],
        n_batch_cases=40,
    )
    log.log_probe(-1, {"broken": Broken()}, SimpleNamespace(selected_analyzers=None), judge_raw="only raw")
    quiet = analysis(
        Path(log.run_dir),
        findings=[],
        stats_tool="",
        conclusion="",
        evidence_chain=[],
        stats_tool_results=[],
        stats_plan=None,
        corrected_rejections=None,
        stats_results=[],
        figures=[],
        llm_prompt="",
        llm_raw="",
        descriptive_only=True,
        llm_fallback_reason="no judge",
    )
    log.log_analysis(1, quiet)
    charts = [{"figure_path": "only.png"}]
    log.log_explore(1, SimpleNamespace(ok=False, error="it failed", charts=charts, tables=[1, 2, 3]))
    log.log_diagnosis(
        1,
        diagnosis(
            hypotheses=[],
            raw_judge_output=None,
            model_name=None,
            prompt="",
            critic_raw_output="",
            critic_prompt="",
            proposed_hypotheses=[],
            review_decisions=[],
            review_prompt="",
            referenced_charts=[],
            explore_context_used=False,
        ),
    )
    log.log_surgery(
        1,
        hypothesis(id=" given "),
        intervention({"m4_test_name": None}),
        validation_cases=[Case("p", Inputs("q"), label="pass")],
    )
    log.log_surgery(1, hypothesis("", id=None), intervention({}))
    log.log_experiment(1, hypothesis(), SimpleNamespace(status=Status.PROPOSED, fixed=False), module="M4_SURGERY")
    log.log_fix(SimpleNamespace(to_dict=lambda: {"attempted": [], "best": "nobody"}))
    log.log_fix(SimpleNamespace(to_dict=lambda: {"best": {"name": "kept", "effect": None}}))
    log.log_fix(SimpleNamespace(to_dict=dict))
    log.log_stage_skipped("nowhere", "r", cycle=3)
    log.log_stage_skipped(" Fix ", "r")
    log.log_tool_codegen(module="gemma2", name="t", need="n", source="", ok=False, prompt="p", raw_stream="s", code="c")
    log.log_tool_codegen(
        module="codegen_m2_stats", name="t", need="n", source="llm", ok=True, extra={"name": "x", "ok": False}
    )
    log.log_tool_registry(2, "nowhere", [SimpleNamespace(name="n", need="d", source="s", code="")])
    log.log_loop_end(SimpleNamespace(cycles=0))
    log.log_diagnose_report(SimpleNamespace(cycles=0, hypotheses=[], final_hypotheses=[hypothesis()]), [])
    log.save_artifact_json("nested", [float(1)])
    log.close()
    log.close()


IDS = re.compile(r"[0-9a-f]{12}(?=\.\w+$)")
DROPPED = {"ts", "trace_id", "created_at", "otel_span_id", "otel_parent_span_id", "notes", "spanfold_version"}


def normal(value: Any, work: Path) -> Any:
    """Take out what may differ: times, ids, durations, hashes in file names, and where the run stands."""
    if isinstance(value, dict):
        return {k: normal(v, work) for k, v in value.items() if k not in DROPPED}
    if isinstance(value, list):
        return [normal(v, work) for v in value]
    if isinstance(value, str):
        return IDS.sub("#", value.replace(str(work), "<work>"))
    return value


def documents(run_dir: Path) -> dict[str, Any]:
    """Return the documents that are there."""
    paths = ["run.json", *(f"{stage}/log.json" for stage in STAGES)]
    return {
        path: json.loads((run_dir / path).read_text(encoding="utf-8")) for path in paths if (run_dir / path).exists()
    }


def events(run_dir: Path) -> list[dict[str, Any]]:
    """Every list record of every document, by sequence number."""
    found: list[dict[str, Any]] = []
    for document in documents(run_dir).values():
        if isinstance(document.get("run_start"), dict):
            found.append(document["run_start"])
        found += [
            row for key, rows in document.items() if isinstance(rows, list) and key != "run_starts" for row in rows
        ]
    return sorted(found, key=lambda row: row["event_seq"])
