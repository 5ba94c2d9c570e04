"""The trace of a diagnose run as one document, made of its documents alone (DL 11.1), and all of it sent at once (DL 11.3).

What the recorder writes itself, `langfuse_trace.json`, says more: this is for
runs that have no such file, or not the whole of it.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from spanfold.diagnose._backfill import send_all
from spanfold.diagnose._documents import Documents, Event, epoch_ns, number, read_documents, rows, table
from spanfold.errors import SpanfoldError
from spanfold.fs import SafeRoot
from spanfold.instrument import version
from spanfold.journal import to_tree
from spanfold.moments import epoch_seconds

log = logging.getLogger("spanfold")

Row = dict[str, Any]

BUNDLE: Final = "langfuse_trace.json"
_QUESTION: Final = "Measures model behavior across this dimension"


def export_langfuse_bundle(
    run_dir: str | Path, out_json: str | os.PathLike[str] | None = None, *, overwrite: bool = False
) -> Row:
    """Return the trace of a run, made of its documents.

    Args:
        run_dir: The directory with `run.json` and `M1/log.json` ..., or one with them in `logs`.
        out_json: Write it here too.
        overwrite: Replace a bundle that is there although it says more.

    Returns:
        `trace`, `spans`, `generations` and `scores`.

    Raises:
        FileNotFoundError: There is no run.
        FileExistsError: A bundle is there that says more, and `overwrite` is false. Nothing was written.
        OSError: The file cannot be written.
    """
    documents = read_documents(run_dir)
    bundle = _Bundle(documents).made()
    if out_json is not None:
        _write(Path(out_json), bundle, overwrite=overwrite)
    return bundle


def sync_to_langfuse(run_dir: str | Path, *, environ: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> bool:
    """Send all of a run to Langfuse, and tell whether all of it is there now; never raises.

    Args:
        run_dir: As for `backfill`.
        environ: As for `backfill`.
        timeout_s: As for `backfill`.
    """
    try:
        problem = send_all(run_dir, environ=environ, timeout_s=timeout_s)
    except Exception as error:
        problem = str(error) if isinstance(error, SpanfoldError) else type(error).__name__
    if problem:
        log.warning("%s: not all of it is at Langfuse (%s).", run_dir, problem)
    return not problem


def _write(path: Path, bundle: Row, *, overwrite: bool) -> None:
    root = SafeRoot(path.absolute().parent, create=True)
    if not overwrite and _says_more(root, path.name, bundle):
        raise FileExistsError(
            f"{path}: expected no bundle, or one that says no more than this one, found one that does. Choose another file, or "
            "overwrite=True."
        )
    data = json.dumps(to_tree(bundle)[0], indent=2, ensure_ascii=False, allow_nan=False)
    root.replace_atomic(path.name, data.encode("utf-8", "replace"), durable=False)


def _says_more(root: SafeRoot, name: str, bundle: Row) -> bool:
    """Whether there is a bundle with more spans or generations, or whose spans have children this one does not know."""
    try:
        found = table(orjson.loads(root.read_bytes(name)))
    except (OSError, SpanfoldError, ValueError):
        return False
    if any(len(rows(found.get(part))) > len(bundle[part]) for part in ("spans", "generations", "scores")):
        return True
    # A live one has the true times of its spans and the statuses they ended with.
    return any("status" in span for span in rows(found.get("spans")))


class _Bundle:
    """The parts of one bundle."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._start = documents.run_start
        self._id = self._trace_id()
        self._probe: Event = documents.last("probe") or {}
        self._analysis: Event = documents.last("analysis") or {}
        self._diagnosis: Event = documents.last("diagnosis") or {}
        self._fix: Event = documents.last("fix") or {}
        self._best = table(self._fix.get("best"))
        self._surgeries = [event for event in documents.events if event["event"] == "surgery"]

    def _trace_id(self) -> str:
        """Return the trace id of a bundle that is there, else that of the documents, else one made of the data."""
        try:
            root = SafeRoot(self._documents.run_dir.resolve())
            found = table(table(orjson.loads(root.read_bytes(BUNDLE))).get("trace")).get("id")
        except (OSError, SpanfoldError, ValueError):
            found = None
        if isinstance(found, str) and found:
            return found
        if self._documents.trace_id:
            return self._documents.trace_id
        fingerprint = str(self._start.get("data_fingerprint") or "evalrx")
        return hashlib.md5(fingerprint.encode(), usedforsecurity=False).hexdigest()

    def made(self) -> Row:
        """Return the bundle."""
        return {
            "trace": self._trace(),
            "spans": list(self._spans()),
            "generations": list(self._generations()),
            "scores": list(self._scores()),
        }

    def _trace(self) -> Row:
        start = self._start
        model = str(start.get("model") or "Model")
        benchmark = str(start.get("benchmark_name") or self._documents.run_dir.resolve().parent.name)
        end = self._documents.last("loop_end") or {}
        cases = sum(event["event"] == "case_record" for event in self._documents.events)
        protocol = start.get("protocol")
        return {
            "id": self._id,
            "name": f"EvalRX: {model} · {benchmark}",
            "release": f"v{start.get('evalrx_version') or version()}",
            "tags": [str(tag) for tag in ("evalrx", model, benchmark, end.get("stopped_by")) if tag],
            "metadata": {
                "model": model,
                "raw_model": start.get("model"),
                "benchmark": benchmark,
                "n_cases": start.get("n_cases", cases),
                "cycles": end.get("cycles"),
                "protocol": table(protocol).get("description", protocol if isinstance(protocol, str) else ""),
                "data_fingerprint": start.get("data_fingerprint") or "",
                "logs_dir": str(self._documents.run_dir),
            },
        }

    def _span(self, suffix: str, name: str, stage: str, event: Event, given: Any, result: Any, **metadata: Any) -> Row:
        """Return a span, with the times of its event where there is one."""
        took = number(event.get("duration_sec"))
        end = epoch_seconds(epoch_ns(event.get("ts")))
        times: Row = {} if end is None else {"start_time": end - (took or 0.0), "end_time": end}
        return {
            "id": f"{self._id}_{suffix}",
            "name": name,
            "type": "span",
            "metadata": {"stage": stage, **metadata},
            "input": given,
            "output": result,
            **times,
        }

    def _spans(self) -> Iterator[Row]:
        search = self._documents.last("probe_search")
        if search is not None:
            count = search.get("n_synthesized")
            yield self._span(
                "pre_m1",
                "PRE-M1: Case Synthesis & Adversarial Probing",
                "PRE-M1",
                search,
                {"criteria": search.get("criteria", "adversarial_blindspots")},
                {"synthesized_cases_count": count},
                n_synthesized=count,
            )
        yield from self._probes()
        analysis, diagnosis = self._analysis, self._diagnosis
        tests = rows(analysis.get("stats_results"))
        yield self._span(
            "m2",
            "M2: Screening & Confirmatory Signals (EDA)",
            "M2",
            analysis,
            {"n_signals_screened": len(tests)},
            {
                "conclusion": analysis.get("conclusion") or "",
                "significant_signals": [_signal(test) for test in tests if test.get("reject")],
            },
            severity=analysis.get("severity"),
            duration_sec=analysis.get("duration_sec"),
            n_tests=len(tests),
            n_rejected=sum(bool(test.get("reject")) for test in tests),
        )
        hypotheses = rows(diagnosis.get("hypotheses"))
        yield self._span(
            "m3",
            "M3: Root-Cause Diagnosis (AI Doctor)",
            "M3",
            diagnosis,
            {"screened_anomalies": analysis.get("conclusion") or ""},
            {"hypotheses": hypotheses},
            duration_sec=diagnosis.get("duration_sec"),
            n_hypotheses=len(hypotheses),
        )
        yield from self._adjudications(hypotheses)
        if self._fix:
            attempted = rows(self._fix.get("attempted"))
            yield self._span(
                "m5_fix",
                "M5-FIX: Targeted Repair & Confirmation",
                "M5-Fix",
                self._fix,
                {"candidates": [row.get("name") for row in attempted]},
                {"best_candidate": self._best.get("name"), "confirm": self._best},
                fixed=self._fix.get("fixed"),
                n_candidates_screened=len(attempted),
            )

    def _probes(self) -> Iterator[Row]:
        probe = self._probe
        findings = table(probe.get("findings"))
        yield self._span(
            "m1",
            "M1: Multi-Dimensional Checkup & Signals",
            "M1",
            probe,
            {"analyzers": probe.get("analyzers") or []},
            {"summary": [f"{name}: {_title(name)}" for name in sorted(findings)]},
            analyzers=probe.get("analyzers") or [],
            duration_sec=probe.get("duration_sec"),
            n_probes=len(findings),
        )
        for name in sorted(findings):
            found = table(findings[name])
            row = self._span(
                f"m1_{name}",
                f"Probe: {_title(name)} ({name})",
                f"M1_{name}",
                probe,
                {"probe_name": name, "question": _QUESTION},
                found,
                probe_code=name,
                question=_QUESTION,
                n_scored=_n_scored(found),
            )
            yield {**row, "parent_id": f"{self._id}_m1"}

    def _adjudications(self, hypotheses: list[Row]) -> Iterator[Row]:
        m4 = [event for event in self._surgeries if event.get("module") == "m4"]
        m5 = [event for event in self._surgeries if event.get("module") != "m4"]
        if m4:
            yield self._span(
                "m4",
                "M4: Independent Blind Adjudication",
                "M4",
                m4[-1],
                {"hypotheses_tested": [row.get("statement") for row in hypotheses]},
                {"event": m4[-1], "results": [_adjudication(event) for event in m4]},
                results_count=len(m4),
            )
        if m5:
            title = "M5-SURGERY: Causal Mechanism Interventions"
            yield self._span("m5_surgery", title, "M5-Surgery", m5[-1], None, {"surgeries": m5})

    def _generations(self) -> Iterator[Row]:
        asked = f"Analyze screened signals: {self._analysis.get('conclusion') or ''}"
        for index, row in enumerate(rows(self._diagnosis.get("hypotheses")), start=1):
            yield {
                "id": f"gen_m3_hyp_{index}",
                "trace_id": self._id,
                "span_id": f"{self._id}_m3",
                "name": f"AI Doctor Diagnosis #{index}",
                "model": "AI Diagnostician Agent",
                "prompt": asked,
                "completion": json.dumps(row, indent=2, ensure_ascii=False),
                "metadata": {"failure_mode": row.get("failure_mode")},
            }
        template = table(self._best.get("payload")).get("prompt_template")
        if template:
            yield {
                "id": "gen_m5_patch",
                "trace_id": self._id,
                "span_id": f"{self._id}_m5_fix",
                "name": "Winning Repair Patch",
                "model": "Repair Search Agent",
                "prompt": "Synthesize targeted prompt patch based on diagnosed mechanism",
                "completion": template,
                "metadata": {"candidate_name": self._best.get("name")},
            }

    def _scores(self) -> Iterator[Row]:
        for test in rows(self._analysis.get("stats_results")):
            value = number(test.get("p_value"))
            if value is not None:
                comment = f"FDR p-value (reject={bool(test.get('reject'))})"
                yield _score(f"m2_fdr_p_{_signal(test)}", value, comment, f"{self._id}_m2")
        best = self._best
        pairs, correct = number(best.get("n_pairs")), number(best.get("n_baseline_correct"))
        if pairs and correct is not None:
            yield _score("baseline_accuracy", correct / pairs, f"{correct:g} of {pairs:g} cases")
        effect = number(best.get("effect"))
        if effect is not None:
            yield _score("repair_net_gain", effect, f"Net accuracy shift: {effect:+.2%}")
        e_value = number(best.get("e_value"))
        if e_value is not None:
            yield _score("evidence_strength_e_value", e_value, f"threshold={best.get('e_threshold')}")


def _score(name: str, value: float, comment: str, span_id: str | None = None) -> Row:
    return {"name": name, "value": value, "comment": comment, **({"span_id": span_id} if span_id else {})}


def _title(name: str) -> str:
    return name.replace("_", " ").title()


def _signal(test: Row) -> Any:
    return table(test.get("config")).get("signal") or test.get("tool") or "signal"


def _n_scored(findings: Row) -> Any:
    return next((findings[key] for key in ("n_scored", "n_cases") if key in findings), None)


def _adjudication(event: Event) -> Row:
    evidence = table(event.get("evidence"))
    return {
        "hypothesis_id": event.get("hypothesis_id"),
        "hypothesis": event.get("hypothesis"),
        "status": event.get("status"),
        "effect_size": evidence.get("m4_effect_size", evidence.get("effect_size")),
        "confidence": event.get("confidence_score"),
        "verdict": evidence.get("m4_verdict"),
        "evidence_grade": evidence.get("m4_evidence_grade"),
        "protocol_consistent": evidence.get("m4_protocol_consistent"),
    }
