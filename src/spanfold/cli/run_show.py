"""`spanfold run show`: what happened in a run."""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from spanfold.cli._console import Console
from spanfold.cli._exits import Exit
from spanfold.cli._loop import print_loop
from spanfold.cli._places import find_run
from spanfold.cli._table import Cell, Column, Row, Style
from spanfold.cli._text import age, count, moment, shown, size
from spanfold.cli._timed import TimedWork, timed_work
from spanfold.cli.run_list import STATUS_STYLES
from spanfold.fold import CallWork, OpenWork, RunOverview, StageWork, show_run
from spanfold.journal import journal_files
from spanfold.timings import format_duration

SCHEMA: Final = "spanfold.run_show/1"

FIRST, LAST = 6, 24
"""Of a longer list, so many rows of its beginning and its end are printed. JSON has all."""
MOST_TIMED: Final = 10
"""So many rows of timed work are printed, those that took longest. JSON has all."""
_BAR: Final = 8
_BLOCKS: Final = " ▏▎▍▌▋▊▉█"
_MAX_FIELDS: Final = 12
_MAX_VALUE: Final = 60

_STAGE_COLUMNS: Final = (
    Column("stage", least=12),
    Column("cycle", ">", if_any=True),
    Column("status"),
    Column("duration", ">"),
    Column("share of the run", drop=1),
    Column("with", least=12, if_any=True),
)
_TIMED_COLUMNS: Final = (
    Column("name", least=16),
    Column("kind", drop=1),
    Column("count", ">"),
    Column("total", ">"),
    Column("failed", ">", if_any=True),
)
_SCORE_COLUMNS: Final = (
    Column("score", least=16),
    Column("stage", least=8, if_any=True),
    Column("cycle", ">", if_any=True),
    Column("value", ">"),
    Column("range", drop=1, if_any=True),
    Column("n", ">", drop=2),
    Column("comment", least=12, drop=3, if_any=True),
)
_ARTIFACT_COLUMNS: Final = (
    Column("artifact", least=24),
    Column("kind"),
    Column("size", ">"),
    Column("picture", drop=1, if_any=True),
)
_ERROR_COLUMNS: Final = (
    Column("where", least=16),
    Column("stage", least=8, if_any=True),
    Column("cycle", ">", if_any=True),
    Column("error", least=12),
    Column("n", ">"),
    Column("message", least=20, if_any=True),
)
_OPEN_COLUMNS: Final = (
    Column("kind"),
    Column("name", least=16),
    Column("stage", least=8, if_any=True),
    Column("cycle", ">", if_any=True),
    Column("started (UTC)", drop=1),
    Column("age", ">"),
    Column("state"),
)


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Show a run."""
    run = show_run(_with_journal(find_run(arguments.run), console))
    timed = timed_work(run.run_dir)
    if console.as_json:
        console.document(SCHEMA, {name: getattr(run, name) for name in run.__dataclass_fields__} | {"timed": timed})
    else:
        _head(run, console)
        if run.loop is not None:
            print_loop(run.loop, console)
        _stages(run, console)
        _calls(run, console)
        _timed(timed, console)
        _scores(run, console)
        _artifacts(run, console)
        _errors(run, console)
        _open(run, console)
        _journal(run, console)
    _next(run, console)
    return Exit.DONE


def _with_journal(run_dir: Path, console: Console) -> Path:
    """Return the directory to show: of a diagnose loop that has only documents the one with a journal made of them, if any."""
    if journal_files(run_dir):
        return run_dir
    from spanfold.diagnose import existing_outbox, needs_outbox

    outbox = existing_outbox(run_dir) if needs_outbox(run_dir) else None
    if outbox is None:
        return run_dir
    console.say(f"{run_dir} has documents and no journal; this is the one made of them to be sent, in {outbox}.")
    return outbox


def _head(run: RunOverview, console: Console) -> None:
    status = "running?" if run.status == "running" and run.writer == "unknown" else run.status
    parts = [console.paint(shown(run.name or "(no name)"), "bold"), console.paint(status, STATUS_STYLES[run.status])]
    if run.seconds is not None:
        parts.append(format_duration(run.seconds))
    elif run.silent_seconds is not None:
        parts.append(f"last record {age(run.silent_seconds)} ago")
    console.line("  ".join(parts))
    rows: list[Row] = [("directory", str(run.run_dir))]
    began = moment(run.start)
    rows.append(("time (UTC)", f"{began} to {moment(run.end)}" if run.end else f"since {began}"))
    if run.trace_id:
        rows.append(("trace", run.trace_id))
    rows += _facts(run.facts)
    if run.error:
        told = (run.error.get(key) for key in ("error_type", "status_message", "outcome"))
        text = ": ".join(dict.fromkeys(str(t) for t in told if t))
        if text == "abandoned":
            rows.append(("ended", Cell("with the program, which left it open", "yellow")))
        else:
            rows.append(("error", Cell(text, "red")))
    rows += [("given" if i == 0 else "", text) for i, text in enumerate(_fields(run.given))]
    rows += [("result" if i == 0 else "", text) for i, text in enumerate(_fields(run.results))]
    console.pairs(rows)


def _facts(facts: Mapping[str, Any]) -> Iterator[Row]:
    argv = facts.get("argv")
    if isinstance(argv, list):
        yield "command", " ".join(str(word) for word in cast("list[Any]", argv))
    made = [f"{label} {facts[key]}" for key, label in _MADE_WITH if facts.get(key)]
    if made:
        yield "made with", ", ".join(made)


_MADE_WITH: Final = (
    ("python_version", "Python"),
    ("spanfold_version", "spanfold"),
    ("git_commit", "commit"),
    ("host", "host"),
    ("pid", "process"),
)


def _fields(fields: Mapping[str, Any]) -> list[str]:
    found = [f"{name} = {_value(value)}" for name, value in _leaves(fields)]
    if len(found) > _MAX_FIELDS:
        found[_MAX_FIELDS:] = [f"and {len(found) - _MAX_FIELDS} more"]
    return found


def _leaves(fields: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, dict) and value and depth < 8:
            yield from _leaves(cast("dict[str, Any]", value), f"{prefix}{name}.", depth + 1)
        elif told := _artifact_names(value):
            yield from ((f"{prefix}{name}", one) for one in told)
        else:
            yield f"{prefix}{name}", value


def _artifact_names(value: Any) -> list[str]:
    """Return name and place of each artifact, when a field is a list of artifacts and nothing else."""
    if not isinstance(value, list):
        return []
    told: list[str] = []
    for item in cast("list[Any]", value):
        table = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        name, path = table.get("name"), table.get("path")
        if type(name) is not str or type(path) is not str:
            return []
        told.append(f"{name} ({path})")
    return told


def _value(value: Any) -> str:
    if isinstance(value, list):
        value = ", ".join(_value(item) for item in cast("list[Any]", value)[:8])
    elif isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False)
    text = {None: "null", True: "true", False: "false"}.get(value) if value is None or type(value) is bool else None
    text = str(value) if text is None else text
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"


# --- sections ----------------------------------------------------------------------------------------------------


def _stages(run: RunOverview, console: Console) -> None:
    if not run.stages:
        return
    console.heading("Stages")
    console.table(_STAGE_COLUMNS, _ends([_stage(work, run.status) for work in run.stages], len(_STAGE_COLUMNS)))


def _stage(work: StageWork, status: str) -> Row:
    name = "(no stage)" if work.stage is None else "  " * work.depth + work.stage
    times = work.ended + work.open
    return (
        f"{name} ×{times}" if times > 1 else name,
        _number_or_none(work.cycle),
        _stage_status(work, status),
        format_duration(work.seconds) if work.ended else "–" if work.open else "",
        "" if work.share is None else f"{_bar(work.share):{_BAR}} {100 * work.share:5.1f} %",
        ", ".join(count(number, noun) for number, noun in _parts(work) if number),
    )


def _parts(work: StageWork) -> tuple[tuple[int, str], ...]:
    return (
        (work.model_calls, "call"),
        (work.agents, "agent"),
        (work.tools, "tool"),
        (work.scores, "score"),
        (work.artifacts, "artifact"),
        (work.events, "event"),
    )


def _stage_status(work: StageWork, run_status: str) -> Cell:
    if work.open:
        word = "running" if run_status == "running" else "interrupted"
        return Cell(word, STATUS_STYLES[word])
    if work.interrupted:
        return Cell("interrupted", STATUS_STYLES["interrupted"])
    if work.failed:
        return Cell("failed" if work.failed == work.ended else f"{work.failed} of {work.ended} failed", "red")
    return Cell("ok" if work.ended else "")


def _bar(share: float) -> str:
    eighths = round(min(1.0, share) * _BAR * 8)
    return (_BLOCKS[8] * (eighths // 8) + _BLOCKS[eighths % 8]).rstrip()


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
                _number_or_none(score.last_cycle),
                _score(score.last_value) if score.last_value is not None else score.last_label or "",
                f"{_score(low)} – {_score(high)}" if low is not None and high is not None and low != high else "",
                f"{score.count:,}",
                score.last_comment or "",
            )
        )
    console.table(_SCORE_COLUMNS, _ends(rows, len(_SCORE_COLUMNS)))


def _score(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _artifacts(run: RunOverview, console: Console) -> None:
    if not run.artifacts:
        return
    total = sum(artifact.size_bytes or 0 for artifact in run.artifacts)
    console.heading(f"Artifacts ({len(run.artifacts):,}, {size(total)})")
    rows: list[Row] = [
        (
            artifact.path or Cell(f"{artifact.name or ''}: {artifact.reason or 'not kept'}", "yellow"),
            artifact.kind or "",
            size(artifact.size_bytes),
            "yes" if artifact.figure else "",
        )
        for artifact in run.artifacts
    ]
    console.table(_ARTIFACT_COLUMNS, _ends(rows, len(_ARTIFACT_COLUMNS)))


def _errors(run: RunOverview, console: Console) -> None:
    if not run.errors:
        return
    console.heading("Errors, where they arose")
    rows: list[Row] = [
        (
            error.name if error.kind in ("model_call", "agent", "tool") else f"{error.kind} {error.name}",
            error.stage or "",
            _number_or_none(error.last_cycle),
            Cell(error.error_type or error.outcome or "error", "red"),
            f"{error.count:,}",
            "" if error.last_message == error.error_type else error.last_message,
        )
        for error in run.errors
    ]
    console.table(_ERROR_COLUMNS, _ends(rows, len(_ERROR_COLUMNS)))
    if run.more_errors:
        console.prose(f"  and {count(run.more_errors, 'failure')} of yet other kinds.", indent="  ")


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
    return (
        work.kind or "",
        work.name or "",
        work.stage or "",
        _number_or_none(work.cycle),
        moment(work.start),
        age(work.age_seconds),
        Cell(state, STATUS_STYLES[state.rstrip("?")]),
    )


def _journal(run: RunOverview, console: Console) -> None:
    total = sum(file.size_bytes for file in run.files)
    parts = [count(run.records, "record"), f"{size(total)} in {count(len(run.files), 'file')}"]
    parts.append("not sealed" if not run.is_sealed else "sealed" if run.is_as_sealed else "not as it was sealed")
    parts += [f"{run.duplicates:,} recorded twice"] if run.duplicates else []
    console.heading("Journal")
    console.prose("  " + ", ".join(parts), indent="  ")
    if run.events:
        told = ", ".join(f"{name} ×{number:,}" if number > 1 else name for name, number in run.events.items())
        console.prose(f"  events: {told}", indent="  ")
    for text, style in _remarks(run):
        console.prose(f"  {text}", indent="    ", style=style)


def _remarks(run: RunOverview) -> Iterator[tuple[str, Style]]:
    if run.lost_records:
        yield f"! {count(run.lost_records, 'record')} could not be written. The warnings of the program say why.", "red"
    for what, n in run.losses.items():
        yield f"! lost {what} ({count(n, 'time')}) while it was recorded.", "red"
    if run.losses:
        yield "  The first of each kind is in the log of the program, with the place where it was lost.", ""
    if run.left_open:
        late = "The run ended them; what they did later is not in it. Wait for threads and pools inside of its `with`."
        yield f"! left open at the end of the run: {run.left_open:,}. {late}", "yellow"
    if run.recovered is not None:
        yield "! The process of this run died; `spanfold run recover` finished it.", "yellow"
    if run.is_as_sealed is False:
        yield (
            f"! Bytes were changed, added or lost since the seal; `spanfold run verify {run.run_dir}` names them.",
            "red",
        )
    for damage in run.damage:
        torn = damage.kind == "torn" and not run.is_sealed
        what = "being written, or torn" if torn and run.status == "running" else damage.kind
        where = f"{damage.path.name}, bytes {damage.offset} to {damage.offset + damage.length}"
        yield f"! {where}: {what}, {damage.found}", "yellow" if torn else "red"


def _next(run: RunOverview, console: Console) -> None:
    where = run.run_dir
    if run.status == "interrupted" and not run.is_sealed:
        living = [str(file.pid) for file in run.files if file.pid]
        if living:
            console.say(f"Its own process died, but process {', '.join(living)} still writes to the run.")
        else:
            console.say(f"`spanfold run recover {where}` finishes this run.")
    elif run.status == "running":
        console.say(f"`spanfold run tail {where}` follows it.")
    else:
        console.say(f"`spanfold timings plot {where}` shows where the time went.")


def _number(number: int) -> str:
    return f"{number:,}" if number else ""


def _number_or_none(number: int | None) -> str:
    return "" if number is None else str(number)


def _ends(rows: Iterable[Row], width: int) -> list[Row]:
    """Return the first and the last rows of a long list, with a row between them that says how many are left out."""
    found = list(rows)
    left_out = len(found) - FIRST - LAST
    if left_out <= 1:
        return found
    gap: Row = (Cell(f"… {left_out:,} more", "dim"), *[""] * (width - 1))
    return [*found[:FIRST], gap, *found[-LAST:]]
