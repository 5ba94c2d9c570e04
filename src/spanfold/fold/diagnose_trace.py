"""`langfuse_trace.json` of a diagnose loop: spans, generations and scores as its contract names them (DL 7, 10.2, 10.4).

Each event of the loop that has a trace record says everything that record
needs, so the trace is made from the same spans as the documents. Times are the
true ones; ids are those of OpenTelemetry.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from spanfold import names
from spanfold.fold._encoding import encode, item
from spanfold.fold.composing import joined_list, joined_object
from spanfold.fold.diagnose import adopted_records
from spanfold.fold.entry import Entry
from spanfold.fold.family import Composition, Output, Urgency
from spanfold.fold.run_state import RunState
from spanfold.fold.trace_bundle import DOCUMENT, GENERATIONS, SCORES, SPANS
from spanfold.model import Span
from spanfold.moments import epoch_seconds

CALLS_SHOWN: Final = 50
"""Generations shown of one analyzer of one probe (DL 7.9); its span tells the true number."""
_ANALYZERS: Final = 1_024
"""Analyzers whose model calls are counted at a time."""
_STATEMENT: Final = 60
"""Characters of a hypothesis in the name of a span."""
_NO_RESULT: Final = "model calls of an analyzer that has no result"

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


class DiagnoseTraceFamily:
    """Keeps spans, generations and scores of a diagnose loop ready; the document itself is one for the end."""

    name = "diagnose_trace"

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._start: _Row = {}
        self._calls: dict[str, int] = {}
        """Span id of an analyzer -> its model calls so far, of those that were called last.

        Not until its end: where that is the time of its last call, either may come first.
        """

    def begin(self, out: Output) -> None:
        """Do nothing: the document appears at the end."""

    def fold(self, entry: Entry, out: Output) -> None:
        """Add what the trace shows of an event."""
        event = entry.attributes.get(names.DL_EVENT)
        if type(event) is not str:
            return
        if event == "run_start":
            self._start = _trace_metadata(entry)
        elif event == "model_call":
            self._call(entry, out)
        elif event == "adopted":
            for adopted in adopted_records(entry):
                self._adopt(adopted)
        elif entry.span is not None:
            self._event(event, entry, entry.span, out)

    def finish(self, out: Output) -> None:
        """Do nothing: the trace bundle has the document written."""

    def _adopt(self, adopted: Mapping[str, Any]) -> None:
        """Take over what the trace of another logger is about; its spans, generations and scores are items already."""
        value = adopted.get("record")
        if adopted.get("document") == DOCUMENT and adopted.get("bucket") == "trace" and isinstance(value, dict):
            metadata = cast("_Row", value).get("metadata")
            self._start = dict(cast("_Row", metadata)) if isinstance(metadata, dict) else {}

    def _call(self, entry: Entry, out: Output) -> None:
        span = entry.span
        if span is None or "analyzer" not in entry.fields:
            return
        above = span.parent_span_id
        count = self._calls.pop(above, 0) + 1
        self._calls[above] = count
        if len(self._calls) > _ANALYZERS:
            del self._calls[next(iter(self._calls))]
        if count > CALLS_SHOWN:
            return
        fields = entry.fields
        error = fields.get("error")
        shown = Generation(
            f"{fields.get('analyzer')} · {fields.get('method')} #{fields.get('call_index')}",
            "target_model",
            entry.input,
            entry.output if error is None else error,
            {"duration_sec": fields.get("duration_sec"), "error": error},
        )
        self._generate(shown, entry, above, span.span_id, out)

    def _event(self, event: str, entry: Entry, span: Span, out: Output) -> None:
        if event == "analyzer":
            shown = self._analyzer(entry, span)
        elif event == "stage":
            shown = Shown(f"{entry.stage}: without a result", str(entry.stage))
        else:
            show = _EVENTS.get(event)
            if show is None:
                return
            record = dict(entry.fields)
            # What the loop measured, not rounded; a stage it did not time has no duration.
            record["duration_sec"] = entry.seconds if "duration_sec" in record else None
            shown = show(record, str(self._start.get("judge") or "diagnosis_judge"))
        row = {
            "id": span.span_id,
            "trace_id": self._run.document_trace_id,
            "parent_id": self._parent(span),
            "name": shown.name,
            "stage": shown.stage,
            "start_time": epoch_seconds(span.start_ns),
            "input": shown.input,
            "metadata": shown.metadata,
            "status": "failed" if span.status_code == 2 else shown.status,
            "end_time": epoch_seconds(span.end_ns),
            "duration_sec": entry.seconds,
            "output": shown.output,
        }
        out.append(DOCUMENT, SPANS, item(row), Urgency.LAST)
        for number, generation in enumerate(shown.generations):
            digest = hashlib.sha256(f"{span.span_id}:{number}".encode()).hexdigest()
            self._generate(generation, entry, span.span_id, digest[:16], out)
        for score in shown.scores:
            self._score(score, entry, span.span_id, out)

    def _parent(self, span: Span) -> str | None:
        """Return the parent of a span; stages stand right under the trace."""
        return span.parent_span_id if span.parent_span_id and span.parent_span_id != self._run.root_id else None

    def _analyzer(self, entry: Entry, span: Span) -> Shown:
        fields = entry.fields
        name = fields.get("diagnose.analyzer")
        calls = self._calls.get(span.span_id, 0)
        is_failed = span.status_code == 2
        stage, given = f"M1_{name}", {"probe": name}
        if "diagnose.findings" not in fields:
            title = f"Probe: {name}{' (failed)' if is_failed else ''}"
            return Shown(title, stage, given, {"note": _NO_RESULT}, {"n_model_calls": calls})
        output = {"findings": fields["diagnose.findings"], "n_model_calls": calls}
        return Shown(f"Probe: {name}", stage, given, {"n_scored": fields.get("diagnose.n_scored")}, output)

    def _generate(self, shown: Generation, entry: Entry, span_id: str, digest: str, out: Output) -> None:
        row = {
            "id": f"gen_{digest}",
            "trace_id": self._run.document_trace_id,
            "span_id": span_id,
            "name": shown.name,
            "model": shown.model,
            "prompt": shown.prompt,
            "completion": shown.completion,
            "usage": entry.usage if shown.model == "target_model" else {},
            "metadata": shown.metadata,
            "timestamp": epoch_seconds(entry.record.time_ns),
        }
        out.append(DOCUMENT, GENERATIONS, item(row), Urgency.LAST)

    def _score(self, shown: Score, entry: Entry, span_id: str, out: Output) -> None:
        value = _number(shown.value)
        if value is None:
            return
        row = {
            "name": shown.name,
            "value": value,
            "comment": shown.comment,
            "span_id": span_id,
            "timestamp": epoch_seconds(entry.record.time_ns),
        }
        out.append(DOCUMENT, SCORES, item(row), Urgency.LAST)

    # -- the document

    def compose(self, document: str, buckets: Sequence[str]) -> Composition | None:
        """Return the trace."""
        if document != DOCUMENT or not self._run.is_diagnose:
            return None
        return joined_object(self._keys(buckets))

    def _keys(self, buckets: Sequence[str]) -> Iterator[tuple[str, Composition]]:
        model = self._start.get("model")
        trace = {
            "id": self._run.document_trace_id,
            "name": f"EvalRX: {model or 'Model'}",
            "metadata": self._start,
            "duration_sec": self._run.seconds,
        }
        yield "trace", (encode(trace, 1),)
        for bucket in (SPANS, GENERATIONS, SCORES, "events"):
            yield bucket, joined_list(bucket, buckets)

    def state(self) -> Mapping[str, Any]:
        """Return what the family remembers, as JSON data."""
        return {"start": self._start, "calls": self._calls}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._start, self._calls = dict(state["start"]), dict(state["calls"])


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _trace_metadata(entry: Entry) -> _Row:
    """Return the metadata of the trace: what it is about, then the run-start record (DL 7.1)."""
    record = {key: value for key, value in entry.fields.items() if key not in names.DL_OWN}
    protocol = record.get("protocol")
    if isinstance(protocol, dict):
        protocol = cast("_Row", protocol).get("description")
    n_cases = _number(record.get("n_cases"))
    return {
        "model": str(record.get("model") or "Target Model"),
        "benchmark": str(record.get("benchmark_name") or protocol or "Benchmark"),
        "n_cases": int(n_cases) if n_cases is not None else 0,
        "created_at": epoch_seconds(entry.record.time_ns),
        "ts": record.pop("ts", entry.ts),
        **record,
    }


# -- events (DL section 7): from the record of each to what the trace shows


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
    show = _EVENTS.get(str(record.get("key")))
    return show(record, judge) if show else Shown(f"Unrouted: {record.get('key')}", "RUN")


_EVENTS: Final[Mapping[str, Callable[[_Row, str], Shown]]] = {
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
