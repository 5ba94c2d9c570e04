"""What a diagnose loop told, for people: the sections of `run show`, and rows of `run tail`."""

import io
from collections.abc import Callable, Mapping
from typing import Any, Final

from spanfold.cli._console import Console
from spanfold.cli._table import Cell, Column, Row, Style
from spanfold.cli._text import cycle
from spanfold.fold import LoopEvent, LoopHypothesis, LoopOverview, Moment
from spanfold.timings import format_duration

FIRST, LAST = 10, 30
"""Of a longer loop, so many rows of its beginning and its end are printed. JSON has all."""
_EVENT_COLUMNS: Final = (
    Column("stage"),
    Column("event", least=12),
    Column("cycle", ">", drop=2, if_any=True),
    Column("duration", ">", drop=1, if_any=True),
    Column("told", least=24),
)
_HYPOTHESIS_COLUMNS: Final = (
    Column("hypothesis", least=24),
    Column("failure mode", least=10, drop=2, if_any=True),
    Column("cycle", ">", drop=3, if_any=True),
    Column("status"),
    Column("effect", ">", if_any=True),
    Column("confidence", ">", drop=1, if_any=True),
    Column("verdict", least=12, if_any=True),
)
_STATUS: Final[Mapping[str, Style]] = {"supported": "green", "refuted": "red", "inconclusive": "yellow"}
_FIX_COLUMNS: Final = (
    Column("repair", least=16),
    Column("tier"),
    Column("effect", ">"),
    Column("fixed", ">"),
    Column("broken", ">"),
    Column("outcome"),
)


def print_loop(loop: LoopOverview, console: Console) -> None:
    """Print what a loop told: its set-up and end, its events, hypotheses and repair."""
    console.heading("Diagnose loop")
    console.pairs(_head(loop))
    rows = [_event(event) for event in loop.events]
    if len(rows) > FIRST + LAST:
        hidden = len(rows) - FIRST - LAST
        rows[FIRST:-LAST] = [("", Cell(f"… {hidden:,} more", "dim"), "", "", "")]
    if rows:
        console.heading(f"Events of the loop ({len(loop.events) + loop.more_events:,})")
        console.table(_EVENT_COLUMNS, rows)
    if loop.hypotheses:
        console.heading(f"Hypotheses ({len(loop.hypotheses):,})")
        console.table(_HYPOTHESIS_COLUMNS, [_hypothesis(hypothesis) for hypothesis in loop.hypotheses])
    if loop.fix:
        _print_fix(loop.fix, console)


def _head(loop: LoopOverview) -> list[Row]:
    start, end = loop.start, loop.end or {}
    rows: list[Row] = [("trace of documents", loop.trace_id or "")]
    if start.get("model"):
        rows.append(("model", str(start["model"])))
    if loop.cases:
        told = [f"{number:,} {split}".rstrip() for split, number in loop.cases.items()]
        rows.append(("cases", ", ".join(told)))
    if end:
        told = [f"{key} {end[key]}" for key in ("cycles", "stopped_by", "resolved") if end.get(key) is not None]
        rows.append(("end", ", ".join(told)))
    return rows


def _event(event: LoopEvent) -> Row:
    told = " ".join(" ".join(row.split()) for row in narrated_rows(event.event, event.stage, event.cycle, event.facts))
    return (
        event.stage or "RUN",
        event.event,
        cycle(event.cycle),
        "" if event.seconds is None else format_duration(event.seconds),
        told,
    )


def narrated_rows(event: str, stage: str | None, cycle: int | None, facts: Mapping[str, Any]) -> list[str]:
    """Return what the narrator says of an event, without badge and label; what it does not tell in words of our own."""
    from spanfold.diagnose import LoopNarrator

    stream = io.StringIO()
    narrator = LoopNarrator(stream=stream, color=False, scrub=lambda text: text)
    record = {key: value for key, value in facts.items() if value is not None}
    if event == "run_start":
        narrator.on_run_start(record)
    elif event == "loop_end":
        narrator.on_run_event("loop_end", record)
    elif stage is not None:
        narrator.on_event(stage, event, record)
    rows = [row.partition("· ")[2] or row for row in stream.getvalue().splitlines()]
    rows = [row.lstrip("· ") for row in rows]
    return rows or [_OTHERS[event](facts)] if event in _OTHERS or rows else [""]


def _tool(facts: Mapping[str, Any]) -> str:
    return f"step {facts.get('step')}: {facts.get('tool')} {'ok' if facts.get('ok') else 'failed'} {facts.get('summary') or ''}"


_OTHERS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "agent_decision": lambda facts: f"step {facts.get('step')}: {facts.get('action')}",
    "agent_tool": _tool,
    "case_record": lambda facts: f"{facts.get('case_id')} {facts.get('split') or ''}".rstrip(),
    "report_published": lambda facts: f"made from events up to {facts.get('source_event_seq')}",
    "diagnose_report": lambda facts: f"{facts.get('n_hypotheses')} hypotheses, {facts.get('n_verified')} verified",
    "tool_registry": lambda facts: f"{facts.get('n_tools')} tools for {facts.get('module')}",
    "stage_skipped": lambda facts: f"skipped: {facts.get('reason_code')} {facts.get('detail') or ''}".rstrip(),
    "tool_codegen": lambda facts: (
        f"{facts.get('module')}/{facts.get('tool_name')} {'ok' if facts.get('ok') else 'failed'}"
    ),
}


def _hypothesis(hypothesis: LoopHypothesis) -> Row:
    status = hypothesis.status or ""
    if hypothesis.fixed:
        status = "fixed"
    return (
        hypothesis.statement or hypothesis.id,
        hypothesis.failure_mode or "",
        cycle(hypothesis.cycle),
        Cell(status, "green" if hypothesis.fixed else _STATUS.get(status, "")),
        _number(hypothesis.effect),
        _number(hypothesis.confidence),
        hypothesis.verdict or "",
    )


def _print_fix(fix: Mapping[str, Any], console: Console) -> None:
    attempted: list[dict[str, Any]] = fix.get("attempted") or []
    best: dict[str, Any] = fix.get("best") or {}
    console.heading(f"Repair ({len(attempted)} tried)")
    rows: list[Row] = [
        (
            str(row.get("name") or "?"),
            str(row.get("tier") or ""),
            _number(row.get("effect"), "+.3f"),
            _number(row.get("n_fixed"), "g"),
            _number(row.get("n_broken"), "g"),
            Cell("selected", "green") if row.get("name") == best.get("name") else str(row.get("verdict") or ""),
        )
        for row in attempted
    ]
    if rows:
        console.table(_FIX_COLUMNS, rows)
    if not best.get("name"):
        console.prose("  None was selected.", indent="  ")


def _number(value: Any, form: str = ".3g") -> str:
    return format(value, form) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def loop_rows(moment: Moment) -> list[str]:
    """Return the rows of a moment that stands for an event of a loop; none when it stands for none."""
    facts = moment.facts or {}
    event = facts.get("loop_event")
    if not isinstance(event, str):
        return []
    record = {**facts.get("fields", {}), "duration_sec": moment.seconds or None}
    return [
        f"{moment.stage or 'RUN':<3} {event}  {row}".rstrip()
        for row in narrated_rows(event, moment.stage, moment.cycle, {"cycle": moment.cycle, **record})
    ]
