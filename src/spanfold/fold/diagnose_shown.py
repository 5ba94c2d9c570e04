"""How the trace of a diagnose loop shows each event: from the event's record to a span, generations and scores (DL 7).

Pure functions, one for each event; `diagnose_trace` gives what they return its ids and times.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, cast

_STATEMENT: Final = 60
"""Characters of a hypothesis in the name of a span."""

_Row = dict[str, Any]


class Generation(NamedTuple):
    """What a model was asked and said, as an event tells it."""

    name: str
    model: str
    prompt: Any
    completion: Any
    metadata: _Row = {}  # noqa: RUF012 - never changed


class Score(NamedTuple):
    """A number an event gives."""

    name: str
    value: Any
    comment: str


class Shown(NamedTuple):
    """How the trace shows an event."""

    name: str
    stage: str
    input: Any = None
    metadata: _Row = {}  # noqa: RUF012 - never changed
    output: Any = None
    status: str = "completed"
    generations: tuple[Generation, ...] = ()
    scores: tuple[Score, ...] = ()


def _asked(name: str, model: str, record: _Row, prompt: str = "judge_prompt", raw: str = "judge_response") -> Any:
    """Return the generation of a judge, if it was asked."""
    if not (record.get(prompt) or record.get(raw)):
        return ()
    return (Generation(name, model, record.get(prompt) or "", record.get(raw) or ""),)


def _probe(record: _Row, judge: str) -> Shown:
    return Shown(
        f"M1: Multi-Dimensional Checkup (Cycle {record.get('cycle')})",
        "M1",
        {"analyzers": record.get("analyzers"), "selected_analyzers": record.get("selected_analyzers") or []},
        {
            "duration_sec": record["duration_sec"],
            "artifacts": {
                "artifact_paths": record.get("artifact_paths"),
                "figures": record.get("diagnose.figures", []),
            },
        },
        {"n_probes": len(record.get("analyzers") or ())},
        generations=_asked("M1 Analyzer Selection", "judge", record),
    )


def _analysis(record: _Row, judge: str) -> Shown:
    scores = tuple(
        Score(f"m2_effect_{_signal(row)}", row["effect"], f"p={row.get('p_value')}")
        for row in _rows(record.get("stats_results"))
        if row.get("effect") is not None
    )
    return Shown(
        f"M2: Screening & Confirmatory Signals (Cycle {record.get('cycle')})",
        "M2",
        {"severity": record.get("severity"), "n_findings": record.get("n_findings")},
        {
            "duration_sec": record["duration_sec"],
            "stats_tool": record.get("stats_tool"),
            "artifacts": {"figures": record.get("figures", [])},
        },
        {"conclusion": record.get("conclusion") or ""},
        generations=_asked("M2 Statistical Screening Analysis", "judge", record),
        scores=scores,
    )


def _signal(row: _Row) -> Any:
    config = row.get("config")
    named = cast("_Row", config).get("signal") if isinstance(config, dict) else None
    return named or row.get("tool") or "signal"


def _explore(record: _Row, judge: str) -> Shown:
    raw: list[Any] = record.get("raw_outputs") or []
    generations = [
        Generation(f"Explore Coder Agent (attempt {number})", "coder_agent", None, text)
        for number, text in enumerate(raw, start=1)
    ]
    if record.get("code"):
        generations.append(Generation("Explore Analysis Code (analysis.py)", "coder_agent", None, record["code"]))
    return Shown(
        f"Explore: Free-form EDA (Cycle {record.get('cycle')})",
        "EXPLORE",
        {"ok": record.get("ok"), "attempts": record.get("attempts")},
        {
            "duration_sec": record["duration_sec"],
            "artifacts": {
                "out_dir": record.get("diagnose.out_dir"),
                "report_path": record.get("report_path"),
                "figures": record.get("figures"),
            },
        },
        {"n_observations": record.get("n_observations"), "n_candidate_signals": record.get("n_candidate_signals")},
        generations=tuple(generations),
    )


def _diagnosis(record: _Row, judge: str) -> Shown:
    statements = [row.get("statement") for row in _rows(record.get("hypotheses"))]
    asked = Generation(
        "AI Doctor Diagnostician",
        judge,
        record.get("judge_prompt") or "",
        record.get("raw_judge_output") or "",
        {"hypotheses": statements},
    )
    review = record.get("review")
    decisions = cast("_Row", review).get("decisions") if isinstance(review, dict) else None
    reviewed: tuple[Generation, ...] = ()
    if record.get("review_prompt") or record.get("review_response"):
        reviewed = (
            Generation(
                "M3 Adversarial Evidence Review",
                judge,
                record.get("review_prompt"),
                record.get("review_response"),
                {"decisions": decisions or []},
            ),
        )
    return Shown(
        f"M3: Root-Cause Diagnosis (Cycle {record.get('cycle')})",
        "M3",
        {"model_name": record.get("model_name"), "n_hypotheses": record.get("n_hypotheses")},
        {"duration_sec": record["duration_sec"]},
        {
            "n_hypotheses": record.get("n_hypotheses"),
            "n_proposed": len(_rows(record.get("proposed_hypotheses"))) or record.get("n_hypotheses"),
            "review": review,
        },
        generations=(asked, *reviewed),
    )


def _surgery(record: _Row, judge: str) -> Shown:
    is_m4 = record.get("module") == "m4"
    title = "M4 Adjudication" if is_m4 else "M5 Intervention"
    confidence = record.get("confidence_score")
    scores: tuple[Score, ...] = ()
    if confidence is not None:
        comment = f"status={record.get('status')}, fixed={record.get('fixed')}"
        scores = (Score("adjudication_confidence", confidence, comment),)
    return Shown(
        f"{title}: {_short(record)}",
        "M4" if is_m4 else "M5_SURGERY",
        {"hypothesis": record.get("hypothesis"), "failure_mode": record.get("failure_mode")},
        {"status": record.get("status"), "fixed": record.get("fixed"), "confidence_score": confidence},
        {"evidence": record.get("evidence") or {}},
        generations=_asked(f"{title}: Protocol Consistency Judge", "judge", record),
        scores=scores,
    )


def _experiment(record: _Row, judge: str) -> Shown:
    stage = record.get("diagnose.stage") or "M5"
    module, coder = str(record.get("module")).upper(), record.get("provider") or "coder_agent"
    generations: list[Generation] = []
    if record.get("cli_raw_output"):
        generations.append(Generation(f"{module} Coder Agent", coder, None, record["cli_raw_output"]))
    if record.get("validation_log"):
        lines = "\n".join(str(line) for line in record["validation_log"])
        generations.append(Generation(f"{module} Validation Log", coder, None, lines))
    return Shown(
        f"{stage}: Experiment — {_short(record)}",
        f"{stage}_EXPERIMENT",
        {"hypothesis": record.get("hypothesis"), "failure_mode": record.get("failure_mode")},
        {"provider": record.get("provider"), "returncode": record.get("returncode")},
        {key: record.get(key) for key in ("status", "fixed", "verdict")},
        generations=tuple(generations),
    )


def _fix(record: _Row, judge: str) -> Shown:
    best = record.get("best")
    best = cast("_Row", best) if isinstance(best, dict) else {}
    payload = best.get("payload")
    template = cast("_Row", payload).get("prompt_template") if isinstance(payload, dict) else None
    scores: tuple[Score, ...] = ()
    if best.get("effect") is not None:
        comment = f"cured={best.get('n_fixed')}, broken={best.get('n_broken')}"
        scores = (Score("repair_net_accuracy_gain", best["effect"], comment),)
    patch = (Generation("Winning Repair Patch", "evalrx_repair", "Repair Candidate Search", template),)
    return Shown(
        "M5: Targeted Repair & Confirmation",
        "M5_FIX",
        {"candidates_evaluated": len(_rows(record.get("attempted")))},
        {},
        {"selected": best.get("name")},
        generations=patch if template else (),
        scores=scores,
    )


def _decision(record: _Row, judge: str) -> Shown:
    return Shown(
        f"Agent Decision: step {record.get('step')}",
        "AGENT_DECISION",
        {"action": record.get("action"), "params": record.get("params")},
        {key: record.get(key) for key in ("valid", "repair_attempts", "fallback_used")},
        {"action": record.get("action"), "rationale": record.get("rationale")},
        generations=_asked("Agent Decision Judge", "judge", record),
    )


def _skipped(record: _Row, judge: str) -> Shown:
    stage, reason = record.get("diagnose.stage"), {"reason_code": record.get("reason_code")}
    return Shown(f"{stage}: skipped", str(stage), reason, {"detail": record.get("detail")}, reason, "skipped")


def _codegen(record: _Row, judge: str) -> Shown:
    module, name = record.get("module"), record.get("tool_name")
    asked: tuple[Generation, ...] = ()
    if record.get("prompt") or record.get("raw_output"):
        said = record.get("raw_stream") or record.get("raw_output") or record.get("code")
        asked = (Generation(f"Tool Synthesis: {name}", str(record.get("source")), record.get("prompt") or "", said),)
    return Shown(
        f"Tool Codegen: {module}/{name}",
        f"CODEGEN_{module}",
        {"need": record.get("need"), "source": record.get("source")},
        {"ok": record.get("ok"), "error": record.get("error")},
        {"ok": record.get("ok"), "code_chars": len(record.get("code") or "")},
        generations=asked,
    )


def _unrouted(record: _Row, judge: str) -> Shown:
    """Show what could not be routed as what it is."""
    show = EVENTS.get(str(record.get("key")))
    return show(record, judge) if show else Shown(f"Unrouted: {record.get('key')}", "RUN")


EVENTS: Final[Mapping[str, Callable[[_Row, str], Shown]]] = {
    "probe": _probe,
    "analysis": _analysis,
    "explore": _explore,
    "diagnosis": _diagnosis,
    "surgery": _surgery,
    "experiment": _experiment,
    "fix": _fix,
    "agent_decision": _decision,
    "stage_skipped": _skipped,
    "tool_codegen": _codegen,
    "unrouted": _unrouted,
}
"""Event -> how the trace shows it; others are in documents only."""


def _rows(value: Any) -> list[_Row]:
    return (
        [cast("_Row", row) for row in cast("list[Any]", value) if isinstance(row, dict)]
        if isinstance(value, list)
        else []
    )


def _short(record: _Row) -> str:
    return str(record.get("hypothesis") or "")[:_STATEMENT]
