"""What each event of a diagnose loop says, as a dict in the order of its record (DL section 7).

Pure: objects of the loop in, payloads out. Required attributes that are
missing become null and are named by `Missing`, so that an event is recorded
whatever the loop hands over.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from spanfold.diagnose._logger_values import (
    attr,
    called,
    copied,
    first,
    hypothesis_id,
    item_or_attr,
    listed,
    pure,
    rounded,
    seconds,
    sized,
    status_of,
    text,
    validation_example,
)

Payload = dict[str, Any]
Missing = Callable[[str], None]
"""Told of each required attribute that is missing."""

MAX_OBSERVATIONS: Final = 12
MAX_CAVEATS: Final = 8
IMAGES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp")
_ADJUDICATION: Final = (
    *("method", "alpha", "split", "n_host_adjudicated", "n_rejected", "n_in_family", "n_descriptive_only"),
)
_ABSENT: Final = object()


def required(source: object, name: str, missing: Missing) -> Any:
    """Return an attribute that must be there; None, and somebody is told, when it is not."""
    value = attr(source, name, _ABSENT)
    if value is _ABSENT:
        missing(name)
        return None
    return value


def _timed(payload: Payload, duration_sec: Any, digits: int = 3) -> Payload:
    if duration_sec is not None:
        payload["duration_sec"] = rounded(duration_sec, digits)
    return payload


def _when(payload: Payload, **given: Any) -> None:
    """Add what is truthy."""
    payload.update({key: value for key, value in given.items() if _truthy(value)})


def _truthy(value: Any) -> bool:
    try:
        return bool(value)
    except Exception:  # an array of several elements has no truth
        return value is not None


# -- M2


def analysis(report: object, portable: Callable[[str], str], duration_sec: Any, missing: Missing) -> Payload:
    """Return the payload of `log_analysis` (DL 7.10)."""
    findings = listed(required(report, "findings", missing))
    payload: Payload = {
        "severity": required(report, "severity", missing),
        "n_findings": len(findings),
        "findings": [text(finding) for finding in findings],
        "narrative": required(report, "narrative", missing),
        "descriptive_only": bool(attr(report, "descriptive_only", False)),
    }
    _when(payload, **{key: attr(report, key) for key in ("stats_tool", "llm_fallback_reason", "conclusion")})
    _when(payload, **{key: attr(report, key) for key in ("evidence_chain", "stats_tool_results", "visualizations")})
    _when(payload, stats_plan=attr(report, "stats_plan"))
    _when(payload, stats_results=[_stats_row(row) for row in listed(attr(report, "stats_results"))])
    _when(payload, corrected_rejections=attr(report, "corrected_rejections"))
    _when(payload, figures=[portable(text(figure)) for figure in listed(attr(report, "figures"))])
    _when(payload, judge_prompt=attr(report, "llm_prompt"), judge_response=attr(report, "llm_raw"))
    return _timed(payload, duration_sec)


def _stats_row(row: object) -> Any:
    converted = called(row, "to_dict")
    return row if converted is None else converted


def explore(
    report: object | None, snapshot: Mapping[str, Any] | None, out_dir: Any, has_report: bool, duration_sec: Any
) -> Payload:
    """Return the payload of `log_explore` (DL 7.11).

    Args:
        report: What the explorer found, None when it found nothing.
        snapshot: Of its folder.
        out_dir: The folder as it was given.
        has_report: Whether `exploratory_report.json` is in a folder of which there is no snapshot.
        duration_sec: How long it took.
    """
    charts = [cast("Payload", chart) for chart in listed(attr(report, "charts")) if isinstance(chart, dict)]
    figures = [chart["figure_path"] for chart in charts if chart.get("figure_path")]
    if snapshot and snapshot["media"]:
        figures = [path for path in snapshot["media"] if path.lower().endswith(IMAGES)]
    adjudication = attr(report, "adjudication")
    known = cast("Payload", adjudication) if isinstance(adjudication, dict) else {}
    payload: Payload = {
        "ok": bool(attr(report, "ok", False)),
        "n_observations": sized(attr(report, "observations", ())),
        "n_charts": sized(attr(report, "charts", ())),
        "n_charts_rendered": len(figures),
        "n_tables": sized(attr(report, "tables", ())),
        "n_candidate_signals": sized(attr(report, "candidate_signals", ())),
        "n_hypotheses": sized(attr(report, "hypotheses", ())),
        "adjudication": {key: known[key] for key in _ADJUDICATION if key in known},
        "observations": [text(o) for o in listed(attr(report, "observations"))[:MAX_OBSERVATIONS]],
        "caveats": [text(c) for c in listed(attr(report, "caveats"))[:MAX_CAVEATS]],
        "figures": [text(figure) for figure in figures],
        "workspace_snapshot": snapshot,
        "attempts": attr(report, "attempts", 0) or 0,
    }
    error = "explorer produced no report" if report is None else attr(report, "error")
    _when(payload, error=error)
    if out_dir is not None and snapshot is None:
        payload["out_dir"] = text(out_dir)
        if has_report:
            payload["report_path"] = f"{text(out_dir)}/exploratory_report.json"
    _when(payload, code=attr(report, "code"), raw_outputs=listed(attr(report, "raw_outputs")))
    return _timed(payload, duration_sec)


# -- M3


def _statement(hypothesis: object, *keys: str) -> Payload:
    known: dict[str, Callable[[], Any]] = {
        "id": lambda: hypothesis_id(hypothesis),
        "statement": lambda: item_or_attr(hypothesis, "statement"),
        "plain_statement": lambda: attr(hypothesis, "plain_statement", ""),
        "failure_mode": lambda: item_or_attr(hypothesis, "predicted_failure_mode"),
        "status": lambda: status_of(hypothesis),
        "test_design": lambda: item_or_attr(hypothesis, "test_design"),
    }
    return {key: known[key]() for key in keys}


def _hypothesis(hypothesis: object) -> Payload:
    metadata = attr(hypothesis, "metadata")
    told = cast("Payload", metadata) if isinstance(metadata, dict) else {}
    return {
        **_statement(hypothesis, "id", "statement", "plain_statement", "failure_mode", "status", "test_design"),
        "critic": told.get("critic"),
        "critic_reason": told.get("critic_reason"),
    }


def diagnosis(diag: object, explore_figures: Any, duration_sec: Any, missing: Missing) -> Payload:
    """Return the payload of `log_diagnosis` (DL 7.12)."""
    hypotheses = listed(required(diag, "hypotheses", missing))
    payload: Payload = {
        "model_name": required(diag, "model_name", missing),
        "n_hypotheses": len(hypotheses),
        "hypotheses": [_hypothesis(hypothesis) for hypothesis in hypotheses],
        "raw_judge_output": required(diag, "raw_judge_output", missing),
        "n_critic_kept": attr(diag, "n_critic_kept", 0),
        "n_critic_rejected": attr(diag, "n_critic_rejected", 0),
    }
    critic = attr(diag, "critic_raw_output")
    if critic:
        payload["critic_raw_output"], payload["critic_prompt"] = critic, attr(diag, "critic_prompt")
    proposed = listed(attr(diag, "proposed_hypotheses"))
    _when(
        payload,
        proposed_hypotheses=[
            _statement(hypothesis, "statement", "plain_statement", "failure_mode", "test_design")
            for hypothesis in proposed
        ],
    )
    decisions = listed(attr(diag, "review_decisions"))
    if decisions:
        told = [item_or_attr(decision, "decision") for decision in decisions]
        payload["review"] = {
            "n_kept": told.count("keep"),
            "n_rejected": told.count("reject"),
            "decisions": [pure(decision) for decision in decisions],
        }
    _when(payload, referenced_charts=listed(attr(diag, "referenced_charts")))
    for key in ("explore_context_used", "failure_modes_used"):
        if attr(diag, key):
            payload[key] = True
    _when(payload, explore_figures=[text(figure) for figure in listed(explore_figures)])
    _when(payload, judge_prompt=attr(diag, "prompt"))
    prompt, raw = attr(diag, "review_prompt"), attr(diag, "review_raw")
    if prompt or raw:
        payload["review_prompt"], payload["review_response"] = prompt or "", raw or ""
    return _timed(payload, duration_sec)


# -- M4, M5


def is_verification(iv: object) -> bool:
    """Whether a surgery is the verification of M4 rather than an intervention of M5 (DL section 5)."""
    evidence = attr(iv, "evidence")
    try:
        return evidence is not None and "m4_test_name" in evidence
    except TypeError:
        return False


def surgery(
    hypothesis: object,
    iv: object,
    validation_cases: Any,
    duration_sec: Any,
    judge_prompt: Any,
    judge_raw: Any,
    missing: Missing,
) -> Payload:
    """Return the payload of `log_surgery` (DL 7.13)."""
    is_m4 = is_verification(iv)
    new_data = attr(iv, "new_data")
    payload: Payload = {
        "module": "m4" if is_m4 else "m5",
        "hypothesis_id": hypothesis_id(hypothesis),
        "hypothesis": required(hypothesis, "statement", missing),
        "failure_mode": required(hypothesis, "predicted_failure_mode", missing),
        "status": status_of(iv),
        "fixed": required(iv, "fixed", missing),
        "confidence_score": required(iv, "confidence_score", missing),
        "evidence_dimensions": required(iv, "evidence_dimensions", missing),
        "evidence": required(iv, "evidence", missing),
        "n_refocused_cases": sized(new_data) if _truthy(new_data) else None,
    }
    if is_m4 and validation_cases is not None:
        _when(payload, validation_examples=validation_example(validation_cases))
    _when(payload, judge_prompt=judge_prompt, judge_response=judge_raw)
    return _timed(payload, duration_sec)


def experiment(hypothesis: object, iv: object, module: str, snapshot: Any, missing: Missing) -> Payload:
    """Return the payload of `log_experiment` (DL 7.14)."""
    exp = experiment_of(iv)
    files = exp.get("files")
    if not files:
        files = {"main.py": exp["code"]} if exp.get("code") else {}
    log = listed(exp.get("validation_log"))
    return {
        "module": module,
        "hypothesis_id": hypothesis_id(hypothesis),
        "hypothesis": required(hypothesis, "statement", missing),
        "failure_mode": required(hypothesis, "predicted_failure_mode", missing),
        "status": status_of(iv),
        "fixed": required(iv, "fixed", missing),
        **{key: exp.get(key) for key in ("provider", "verdict", "metrics", "returncode", "timed_out")},
        **{key: exp.get(key) for key in ("cli_usage", "llm_calls", "sandbox_runs")},
        "code": files,
        **{key: exp.get(key) for key in ("stdout", "stderr", "blueprint", "cli_raw_output")},
        "validation_log": log or None,
        "workspace_snapshot": snapshot,
        "trial_root": exp.get("trial_root"),
    }


def experiment_of(iv: object) -> Payload:
    """Return what is known of an experiment."""
    exp = attr(iv, "experiment")
    return cast("Payload", exp) if isinstance(exp, dict) else {}


def fix(outcome: object, snapshot_of: Callable[[Any], Any]) -> Payload:
    """Return the payload of `log_fix` (DL 7.15).

    Args:
        outcome: Has `to_dict`.
        snapshot_of: Returns the snapshot of the workspace of one trial.
    """
    told = pure(called(outcome, "to_dict"))
    data = cast("Payload", told) if isinstance(told, dict) else {}
    attempted = listed(data.get("attempted"))
    for row in (*attempted, *listed(data.get("selection_attempted"))):
        if isinstance(row, dict):
            known = cast("Payload", row)
            if known.get("trial_root"):
                known["workspace_snapshot"] = snapshot_of(known["trial_root"])
    best: Any = data.get("best")
    if not isinstance(best, dict):
        named = first(attempted, lambda row: isinstance(row, dict) and cast("Payload", row).get("name") == best)
        best = named if best is not None and named is not None else {}
    return {"module": "fix", **{key: value for key, value in data.items() if key != "cycle"}, "best": best}


# -- codegen


def tool_codegen(given: Payload, extra: Any) -> Payload:
    """Return the payload of `log_tool_codegen` (DL 7.20): texts that are empty are null, `extra` comes last."""
    texts = ("error", "code", "prompt", "raw_output", "raw_stream", "stdout")
    payload = {key: value if key not in texts else value or None for key, value in given.items()}
    return {**payload, **(cast("Payload", extra) if isinstance(extra, dict) else {})}


def tool_registry(module: Any, generated: list[Any]) -> Payload:
    """Return the payload of `log_tool_registry` (DL 7.21)."""
    tools = [
        {
            "name": attr(tool, "name", "tool"),
            "need": attr(tool, "need", ""),
            "source": attr(tool, "source", ""),
            "code": attr(tool, "code", None) or None,
        }
        for tool in generated
    ]
    return {"module": module, "n_tools": len(tools), "tools": tools}


# -- run level


def _result(result: object) -> Payload:
    hypothesis = attr(result, "hypothesis")
    return {
        "hypothesis": attr(hypothesis, "statement"),
        "failure_mode": attr(hypothesis, "predicted_failure_mode"),
        "status": status_of(result),
        "effect_size": attr(result, "effect_size"),
        "confidence": attr(result, "confidence"),
        "protocol_consistent": attr(result, "is_consistent_with_protocol"),
        "verdict": attr(result, "verdict"),
        "evidence": copied(attr(result, "evidence")),
    }


def diagnose_report(report: object, cases: Any, discovery: Any, missing: Missing) -> Payload:
    """Return the payload of `log_diagnose_report` (DL 7.4)."""
    hypotheses: Any = attr(report, "all_hypotheses")
    if hypotheses is None:
        hypotheses = attr(report, "final_hypotheses") or []
    shown = [
        _statement(hypothesis, "statement", "plain_statement", "failure_mode", "status")
        for hypothesis in listed(hypotheses)
    ]
    return {
        "cycles": required(report, "cycles", missing),
        "stopped_by": attr(report, "stopped_by"),
        "resolved": attr(report, "resolved"),
        "n_cases": sized(cases),
        "n_hypotheses": len(shown),
        "n_verified": sized(attr(report, "verified_hypotheses", ())),
        "hypotheses": shown,
        "m4_results": [_result(result) for result in listed(attr(report, "all_test_results"))],
        "discovery": listed(discovery),
    }


def loop_end(report: object, tokens_used: Any, timings: Any, missing: Missing) -> Payload:
    """Return the payload of `log_loop_end` (DL 7.19)."""
    payload: Payload = {"cycles": required(report, "cycles", missing)}
    if tokens_used is not None:
        payload["tokens_used"] = tokens_used
    if isinstance(timings, dict) and timings:
        known = cast("Payload", timings)
        payload["timings_sec"] = {key: rounded(value, 3) for key, value in known.items()}
        payload["total_duration_sec"] = rounded(sum(seconds(value) or 0.0 for value in known.values()), 3)
    resolved = attr(report, "resolved", _ABSENT)
    if resolved is not _ABSENT:
        final = listed(attr(report, "final_hypotheses"))
        payload["resolved"] = resolved
        payload["n_hypotheses"] = len(final)
        payload["final_hypotheses"] = [
            _statement(hypothesis, "statement", "plain_statement", "failure_mode", "status") for hypothesis in final
        ]
    stopped_by = attr(report, "stopped_by", _ABSENT)
    if stopped_by is not _ABSENT:
        verified = listed(attr(report, "verified_hypotheses"))
        payload["stopped_by"] = stopped_by
        payload["n_hypotheses"] = sized(attr(report, "all_hypotheses", ()))
        payload["n_verified"] = len(verified)
        keys = ("hypothesis", "failure_mode", "status", "confidence", "protocol_consistent", "verdict")
        rows = [_result(result) for result in verified]
        payload["verified_hypotheses"] = [
            {"statement": row["hypothesis"], **{key: row[key] for key in keys[1:]}} for row in rows
        ]
    return payload


def agent_decision(given: Payload, judge_prompt: Any, judge_raw: Any, calls: Any, duration_sec: Any) -> Payload:
    """Return the payload of `log_agent_decision` (DL 7.16)."""
    payload = dict(given)
    _when(payload, judge_prompt=judge_prompt, judge_response=judge_raw)
    _when(payload, model_calls=[pure(call) for call in listed(calls)])
    return _timed(payload, duration_sec)


def report_published(envelope: Any) -> Payload:
    """Return the payload of `log_report_published` (DL 7.3)."""
    told = cast("Payload", envelope) if isinstance(envelope, dict) else {}
    return {
        "report_schema_version": told.get("schema_version", 1),
        "catalog_version": told.get("catalog_version", ""),
        "json_render_version": told.get("json_render_version", ""),
        "source_event_seq": told.get("source_event_seq", 0),
        "sha256": told.get("sha256", ""),
        "generated_by": told.get("generated_by", {}),
        "report_paths": ["report/report_data.json", "report/report_spec.json"],
    }


# -- calls that an event tells of


def reported_calls(calls: Any, role: str) -> list[Payload]:
    """Return the model calls an object reports, as arguments of an exchange (DL 7.11, 7.12, 7.14)."""
    return [
        {
            "role": text(call.get("role") or role),
            "operation": text(call.get("operation") or "generate"),
            "inputs": call.get("inputs"),
            "output": call.get("output"),
            "error": call.get("error"),
            "duration_sec": call.get("duration_sec"),
            "metadata": call.get("metadata") or {},
        }
        for call in (cast("Payload", call) for call in listed(calls) if isinstance(call, dict))
    ]


def diagnosis_calls(diag: object, duration_sec: Any) -> list[Payload]:
    """Return the exchanges of a diagnosis: those it reports, else what its texts tell (DL 7.12)."""
    reported = listed(attr(diag, "model_calls"))
    if reported:
        return reported_calls(reported, "diagnosis_judge")
    calls: list[Payload] = []
    prompt, raw = attr(diag, "prompt"), attr(diag, "raw_judge_output")
    if prompt or raw:
        calls.append(judge_call("diagnosis_judge", prompt, raw, duration_sec))
    asked = [attr(diag, key) for key in ("critic_prompt", "review_prompt")]
    said = [attr(diag, key) for key in ("critic_raw_output", "review_raw")]
    if any(asked) or any(said):
        calls.append(judge_call("hypothesis_critic", asked[0] or asked[1], said[0] or said[1], None))
    return calls


def judge_call(role: str, prompt: Any, raw: Any, duration_sec: Any) -> Payload:
    """Return the arguments of the exchange with a judge."""
    return {
        "role": role,
        "operation": "generate",
        "inputs": prompt or "",
        "output": raw or "",
        "duration_sec": duration_sec,
    }
