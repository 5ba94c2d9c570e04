"""The tables of `run show`: stages, calls, timings, scores, artifacts, errors, open work. Each is left out when it is empty."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from spanfold.cli._console import Console
from spanfold.cli._table import Cell, Column, Row
from spanfold.cli._text import age, bar, count, cycle, moment, size
from spanfold.cli._timed import TimedWork
from spanfold.cli.run_list import STATUS_STYLES
from spanfold.fold import CallWork, OpenWork, RunOverview, StageWork
from spanfold.timings import format_duration

FIRST, LAST = 6, 24
"""Of a longer list, so many rows of its beginning and its end are printed. JSON has all."""
MOST_TIMED: Final = 10
"""So many rows of timed work are printed, those that took longest. JSON has all."""


def print_tables(run: RunOverview, timed: list[TimedWork], console: Console) -> None:
    """Print what was done in a run, a table for each kind of work."""
    _stages(run, console)
    _calls(run, console)
    _timed(timed, console)
    _scores(run, console)
    _artifacts(run, console)
    _errors(run, console)
    _open(run, console)


_STAGE_COLUMNS: Final = (
    Column("stage", least=12),
    Column("cycle", ">", if_any=True),
    Column("status"),
    Column("duration", ">"),
    Column("share of the run", drop=1),
    Column("with", least=12, if_any=True),
)
_BAR: Final = 8


def _stages(run: RunOverview, console: Console) -> None:
    if not run.stages:
        return
    console.heading("Stages")
    refused = Counter((artifact.stage, artifact.cycle) for artifact in run.artifacts if artifact.path is None)
    rows = [_stage(work, run.status, refused[work.stage, work.cycle]) for work in run.stages]
    console.table(_STAGE_COLUMNS, _ends(rows, len(_STAGE_COLUMNS)))


def _stage(work: StageWork, status: str, refused: int) -> Row:
    name = "(no stage)" if work.stage is None else "  " * work.depth + work.stage
    times = work.ended + work.open
    return (
        f"{name} ×{times}" if times > 1 else name,
        cycle(work.cycle),
        _stage_status(work, status),
        format_duration(work.seconds) if work.ended else "–" if work.open else "",
        "" if work.share is None else f"{bar(work.share, _BAR):{_BAR}} {100 * work.share:5.1f} %",
        ", ".join(_parts(work, refused)),
    )


def _parts(work: StageWork, refused: int) -> Iterator[str]:
    for number, noun in (
        (work.model_calls, "call"),
        (work.agents, "agent"),
        (work.tools, "tool"),
        (work.scores, "score"),
        (work.artifacts - refused, "artifact"),
        (work.events, "event"),
    ):
        if number > 0:
            yield count(number, noun)
    if refused:
        yield count(refused, "artifact not kept", "artifacts not kept")


def _stage_status(work: StageWork, run_status: str) -> Cell:
    if work.open:
        word = "running" if run_status == "running" else "interrupted"
        return Cell(word, STATUS_STYLES[word])
    if work.interrupted:
        return Cell("interrupted", STATUS_STYLES["interrupted"])
    if work.failed:
        return Cell("failed" if work.failed == work.ended else f"{work.failed} of {work.ended} failed", "red")
    return Cell("ok" if work.ended else "")


def _calls(run: RunOverview, console: Console) -> None:
    tokens = list(dict.fromkeys(token for call in (*run.models, *run.agents) for token in call.usage))
    for title, kind, calls in (
        ("Model calls", "model", run.models),
        ("Agents", "agent", run.agents),
        ("Tools", "tool", run.tools),
    ):
        if not calls:
            continue
        console.heading(f"{title} ({sum(call.calls for call in calls):,})")
        columns = (
            Column(kind, least=16),
            Column("provider", least=8, drop=3, if_any=True),
            Column("calls", ">"),
            Column("failed", ">", if_any=True),
            Column("time", ">"),
            *(Column(_TOKEN_TITLES.get(token, token), ">", drop=1, if_any=True) for token in tokens),
        )
        console.table(columns, _ends([_call(call, tokens) for call in calls], len(columns)))
    wrapped = run.totals.get("wrapped")
    if wrapped:
        console.prose(f"  {count(wrapped, 'call')} recorded by two libraries, counted once.", indent="  ")


_TOKEN_TITLES: Final = {
    "input_tokens": "tokens in",
    "output_tokens": "tokens out",
    "cache_read_tokens": "of them cached",
    "cache_write_tokens": "cached new",
    "reasoning_tokens": "reasoning",
}


def _call(call: CallWork, tokens: list[str]) -> Row:
    return (
        call.name or "(no name)",
        call.provider or "",
        f"{call.calls:,}",
        Cell(_number(call.failed), "red"),
        format_duration(call.seconds),
        *(f"{call.usage[token]:,}" if token in call.usage else "" for token in tokens),
    )


_TIMED_COLUMNS: Final = (
    Column("name", least=16),
    Column("kind", drop=1),
    Column("count", ">"),
    Column("total", ">"),
    Column("failed", ">", if_any=True),
)


def _timed(timed: list[TimedWork], console: Console) -> None:
    if not timed:
        return
    console.heading(f"Timings and traced functions ({sum(work.count for work in timed):,})")
    rows: list[Row] = [
        (
            work.name,
            _TIMED_KINDS.get(work.kind, work.kind),
            f"{work.count:,}",
            format_duration(work.seconds),
            Cell(_number(work.failed), "red"),
        )
        for work in timed[:MOST_TIMED]
    ]
    console.table(_TIMED_COLUMNS, rows)
    if len(timed) > MOST_TIMED:
        console.prose(f"  and {count(len(timed) - MOST_TIMED, 'other name')} with less time", indent="  ")


_TIMED_KINDS: Final = {"timing": "timed", "span": "traced"}


def _score_columns(last: str) -> tuple[Column, ...]:
    """Return the columns; of several values of a score, cycle, value and comment are those of the last."""
    return (
        Column("score", least=16),
        Column("stage", least=8, drop=1, if_any=True),
        Column(f"{last}cycle", ">", drop=1, if_any=True),
        Column(f"{last}value", ">"),
        Column("range", drop=1, if_any=True),
        Column("n", ">", drop=2),
        Column(f"{last}comment", least=12, drop=3, if_any=True),
    )


def _scores(run: RunOverview, console: Console) -> None:
    if not run.scores:
        return
    console.heading("Scores")
    rows: list[Row] = []
    for score in run.scores:
        low, high = score.min_value, score.max_value
        rows.append(
            (
                score.name or "(no name)",
                score.stage or "",
                cycle(score.last_cycle),
                _score(score.last_value) if score.last_value is not None else score.last_label or "",
                f"{_score(low)} – {_score(high)}" if low is not None and high is not None and low != high else "",
                f"{score.count:,}",
                score.last_comment or "",
            )
        )
    columns = _score_columns("last " if any(score.count > 1 for score in run.scores) else "")
    console.table(columns, _ends(rows, len(columns)))


def _score(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


_ARTIFACT_COLUMNS: Final = (
    Column("artifact", least=24),
    Column("kind"),
    Column("size", ">"),
    Column("picture", drop=1, if_any=True),
)


def _artifacts(run: RunOverview, console: Console) -> None:
    if not run.artifacts:
        return
    refused = [artifact for artifact in run.artifacts if artifact.path is None]
    kept = len(run.artifacts) - len(refused)
    total = f", {size(sum(artifact.size_bytes or 0 for artifact in run.artifacts))}" if kept else ""
    console.heading(f"Artifacts ({kept:,}{total}{f', {len(refused):,} not kept' if refused else ''})")
    rows: list[Row] = [
        (
            artifact.path or artifact.name or "(no name)",
            (artifact.kind or "") if artifact.path else Cell("not kept", "yellow"),
            size(artifact.size_bytes),
            "yes" if artifact.figure else "",
        )
        for artifact in run.artifacts
    ]
    console.table(_ARTIFACT_COLUMNS, _ends(rows, len(_ARTIFACT_COLUMNS)))
    for artifact in refused[:FIRST]:
        told = f"  ! not kept: {artifact.name or '(no name)'}: {artifact.reason or 'no reason was recorded'}"
        console.prose(told, indent="    ", style="yellow")
    if len(refused) > FIRST:
        console.prose(f"  and {len(refused) - FIRST:,} more that were not kept", indent="  ")


_ERROR_COLUMNS: Final = (
    Column("where", least=16),
    Column("stage", least=8, drop=1, if_any=True),
    Column("cycle", ">", drop=2, if_any=True),
    Column("error", least=12),
    Column("n", ">", drop=3),
    Column("message", least=20, if_any=True),
)


def _errors(run: RunOverview, console: Console) -> None:
    if not run.errors:
        return
    console.heading("Errors, where they arose")
    rows: list[Row] = [
        (
            error.name if error.kind in ("model_call", "agent", "tool") else f"{error.kind} {error.name}",
            error.stage or "",
            cycle(error.last_cycle),
            Cell(error.error_type or error.outcome or "error", "red"),
            f"{error.count:,}",
            "" if error.last_message == error.error_type else error.last_message,
        )
        for error in run.errors
    ]
    console.table(_ERROR_COLUMNS, _ends(rows, len(_ERROR_COLUMNS)))
    if run.more_errors:
        console.prose(f"  and {count(run.more_errors, 'failure')} of yet other kinds.", indent="  ")


_OPEN_COLUMNS: Final = (
    Column("kind"),
    Column("name", least=16),
    Column("stage", least=8, drop=1, if_any=True),
    Column("cycle", ">", drop=1, if_any=True),
    Column("started (UTC)", drop=3),
    Column("open for", ">", drop=2),
    Column("state"),
)


def _open(run: RunOverview, console: Console) -> None:
    if not run.open:
        return
    console.heading("Started and not ended")
    console.table(_OPEN_COLUMNS, _ends([_open_row(work) for work in run.open], len(_OPEN_COLUMNS)))
    if run.end is not None and run.recovered is None:
        console.prose(
            "  The run has ended. These were started without `with` and never ended, or in a process that died or still runs.",
            indent="  ",
        )


def _open_row(work: OpenWork) -> Row:
    state = {"alive": "running", "dead": "interrupted", "unknown": "running?"}[work.writer]
    lasted = age(work.age_seconds)
    if work.writer == "dead":  # so long it was surely open; nothing is known of one that began as the last
        lasted = f"≥ {format_duration(work.age_seconds)}" if work.age_seconds else ""
    return (
        work.kind or "",
        work.name or "",
        work.stage or "",
        cycle(work.cycle),
        moment(work.start),
        lasted,
        Cell(state, STATUS_STYLES[state.rstrip("?")]),
    )


def _number(number: int) -> str:
    return f"{number:,}" if number else ""


def _ends(rows: Iterable[Row], width: int) -> list[Row]:
    """Return the first and the last rows of a long list, with a row between them that says how many are left out."""
    found = list(rows)
    left_out = len(found) - FIRST - LAST
    if left_out <= 1:
        return found
    gap: Row = (Cell(f"… {left_out:,} more", "dim"), *[""] * (width - 1))
    return [*found[:FIRST], gap, *found[-LAST:]]
