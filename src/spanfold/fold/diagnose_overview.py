"""What happened in a diagnose loop, as plain data: its cycles and stages, its hypotheses, their verdicts, the repair.

Gathered record by record, so that it holds as much as a loop that is running,
or was killed, has told so far.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from spanfold import names
from spanfold.fold.diagnose import adopted_records
from spanfold.fold.entry import Entry
from spanfold.routing import STAGES

NARRATED: Final[Mapping[str, tuple[str, ...]]] = {
    "run_start": ("model", "n_cases", "loop"),
    "probe": ("analyzers", "failed_analyzers"),
    "analysis": ("n_findings", "severity", "figures", "conclusion"),
    "explore": ("ok", "n_observations", "error"),
    "diagnosis": ("n_hypotheses",),
    "surgery": ("hypothesis_id", "hypothesis", "status", "fixed"),
    "experiment": ("hypothesis_id", "fixed", "verdict", "status"),
    "fix": ("attempted", "best"),
    "loop_end": ("cycles", "resolved", "stopped_by", "n_hypotheses"),
    "agent_decision": ("step", "action", "valid"),
    "agent_tool": ("step", "tool", "ok", "summary"),
    "stage_skipped": ("reason_code", "detail"),
    "case_record": ("case_id", "split"),
    "report_published": ("source_event_seq", "sha256"),
    "diagnose_report": ("cycles", "n_hypotheses", "n_verified"),
    "tool_registry": ("module", "n_tools"),
    "tool_codegen": ("tool_name", "module", "ok"),
}
"""Event -> the fields that tell it in a row."""
_ROW: Final = ("tier", "name", "fixed", "effect", "n_fixed", "n_broken", "verdict")
_UNTOLD: Final = frozenset(
    {"analyzer", "stage", "model_call", "case_record", "adopted", "manifest", "runtime_snapshot"}
)
MAX_EVENTS: Final = 10_000
"""Events kept one by one; of a longer loop the first so many."""


@dataclass(frozen=True, slots=True)
class LoopEvent:
    """Something the loop told."""

    event: str
    """Event name: `probe`, `analysis` ..."""
    stage: str | None
    """M1 ... M5, None for the run."""
    cycle: int | None
    time: str | None
    """When it was told."""
    seconds: float | None
    """How long it took, as far as the loop said so."""
    facts: Mapping[str, Any]
    """What tells it in a row."""


@dataclass(slots=True)
class LoopHypothesis:
    """A hypothesis and what became of it."""

    id: str
    statement: str | None = None
    failure_mode: str | None = None
    cycle: int | None = None
    """In which it was first told."""
    status: str | None = None
    """As it was told last."""
    verdict: str | None = None
    effect: float | None = None
    confidence: float | None = None
    fixed: bool | None = None


@dataclass(slots=True)
class LoopOverview:
    """What a diagnose loop told."""

    trace_id: str | None = None
    """Of its documents."""
    start: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """How it was set up: the scalar values of the last run start."""
    cases: dict[str, int] = field(default_factory=dict[str, int])
    """Split -> number of cases; empty text for those without one."""
    events: list[LoopEvent] = field(default_factory=list[LoopEvent])
    more_events: int = 0
    hypotheses: list[LoopHypothesis] = field(default_factory=list[LoopHypothesis])
    fix: Mapping[str, Any] | None = None
    """`best`, `attempted` rows, `recommendation` and `max_tier` of the last repair."""
    end: Mapping[str, Any] | None = None
    """Cycles, stopped_by, resolved and total_duration_sec of the last loop end."""


class LoopGathering:
    """Takes the records of a run that stand for events of a loop."""

    def __init__(self) -> None:
        self.found = LoopOverview()
        self._hypotheses: dict[str, LoopHypothesis] = {}

    def add(self, entry: Entry) -> None:
        """Take in a record; others than those of a loop are passed over."""
        event = entry.attributes.get(names.DL_EVENT)
        if type(event) is not str:
            return
        if event == "adopted":
            for adopted in adopted_records(entry):
                self._add_adopted(adopted.get("record"))
        elif entry.kind != "started":
            self._add(event, entry.fields, _Told(entry.stage, entry.cycle, entry.ts, _took(entry)))

    def _add_adopted(self, value: Any) -> None:
        """Take in a record of another logger, which says itself what it is."""
        record = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        event = record.get("event")
        if type(event) is str:
            cycle = record.get("cycle")
            told = _Told(
                _text(record.get("stage")),
                cycle if type(cycle) is int else None,
                _text(record.get("ts")),
                _number(record.get("duration_sec")),
            )
            self._add(event, record, told)

    def _add(self, event: str, fields: Mapping[str, Any], told: "_Told") -> None:
        if event == "case_record":
            split = fields.get("split")
            key = split if type(split) is str else ""
            self.found.cases[key] = self.found.cases.get(key, 0) + 1
        if event in _UNTOLD:
            return
        self._event(event, told, fields)
        if event == "run_start":
            self.found.start = {k: v for k, v in fields.items() if isinstance(v, str | int | float | bool)}
        elif event == "diagnosis":
            for row in _rows(fields.get("hypotheses")):
                self._hypothesis(row.get("id"), row, told.cycle)
        elif event in ("surgery", "experiment"):
            self._judged(fields, told.cycle)
        elif event == "fix":
            self.found.fix = {
                "best": _named(fields.get("best")),
                "attempted": [_named(row) for row in _rows(fields.get("attempted"))],
                "recommendation": fields.get("recommendation"),
                "max_tier": fields.get("max_tier"),
            }
        elif event == "loop_end":
            keys = ("cycles", "stopped_by", "resolved", "total_duration_sec", "tokens_used")
            self.found.end = {key: fields[key] for key in keys if key in fields}

    def overview(self, trace_id: str | None) -> LoopOverview:
        """Return what was gathered."""
        self.found.trace_id = trace_id
        self.found.hypotheses = list(self._hypotheses.values())
        return self.found

    def _event(self, event: str, told: "_Told", fields: Mapping[str, Any]) -> None:
        if len(self.found.events) >= MAX_EVENTS:
            self.found.more_events += 1
            return
        stage = told.stage if told.stage in STAGES else None
        self.found.events.append(LoopEvent(event, stage, told.cycle, told.ts, told.seconds, narrated(event, fields)))

    def _hypothesis(self, given: Any, row: Mapping[str, Any], cycle: int | None) -> LoopHypothesis | None:
        if type(given) is not str:
            return None
        known = self._hypotheses.get(given)
        if known is None:
            known = self._hypotheses[given] = LoopHypothesis(given, cycle=cycle)
        known.statement = known.statement or _text(row.get("statement") or row.get("hypothesis"))
        known.failure_mode = known.failure_mode or _text(row.get("failure_mode"))
        known.status = _text(row.get("status")) or known.status
        return known

    def _judged(self, fields: Mapping[str, Any], cycle: int | None) -> None:
        known = self._hypothesis(fields.get("hypothesis_id"), fields, cycle)
        if known is None:
            return
        evidence = fields.get("evidence")
        told = cast("dict[str, Any]", evidence) if isinstance(evidence, dict) else {}
        known.verdict = _text(told.get("m4_verdict") or fields.get("verdict")) or known.verdict
        known.effect = _number(told.get("m4_effect_size")) if "m4_effect_size" in told else known.effect
        known.confidence = _number(fields.get("confidence_score")) if "confidence_score" in fields else known.confidence
        if fields.get("module") != "m4" and type(fields.get("fixed")) is bool:
            known.fixed = fields["fixed"]


class _Told(NamedTuple):
    """Where and when an event was told."""

    stage: str | None
    cycle: int | None
    ts: str | None
    seconds: float | None


def _took(entry: Entry) -> float | None:
    return entry.seconds if entry.span is not None and entry.seconds > 0 else None


def narrated(event: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that tell an event in a row; of a repair only what is told of each attempt."""
    found = {key: fields[key] for key in NARRATED.get(event, ()) if key in fields}
    if event == "fix":
        found["attempted"] = [_named(row) for row in _rows(fields.get("attempted"))]
        found["best"] = _named(fields.get("best"))
    return found


def _named(row: Any) -> dict[str, Any]:
    told = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
    return {key: told[key] for key in _ROW if key in told}


def _rows(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        return []
    return [cast("dict[str, Any]", row) for row in cast("list[Any]", value) if isinstance(row, dict)]


def _text(value: Any) -> str | None:
    return value if type(value) is str else None


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) else None
