"""`spanfold run show`: what happened in a run."""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from spanfold.cli._console import Console
from spanfold.cli._exits import Exit
from spanfold.cli._loop import print_loop
from spanfold.cli._places import find_run
from spanfold.cli._run_tables import print_tables
from spanfold.cli._table import Cell, Row, Style
from spanfold.cli._text import age, count, moment, shown, size
from spanfold.cli._timed import timed_work
from spanfold.cli.run_list import STATUS_STYLES
from spanfold.cli.run_recover import how_to_finish
from spanfold.fold import RunOverview, show_run
from spanfold.journal import journal_files
from spanfold.timings import format_duration

SCHEMA: Final = "spanfold.run_show/1"

_MAX_FIELDS: Final = 12
_MAX_VALUE: Final = 60


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
        print_tables(run, timed, console)
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
        yield "  The first of each kind is in the log of the program.", ""
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
            console.say(how_to_finish(where))
    elif run.status == "running":
        console.say(f"`spanfold run tail {where}` follows it.")
    else:
        console.say(f"`spanfold timings plot {where}` shows where the time went.")
