"""`spanfold run list`: the runs below a folder."""

import argparse
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from spanfold.cli._console import Console
from spanfold.cli._exits import Exit, NotFound
from spanfold.cli._places import run_folder
from spanfold.cli._table import Cell, Column, Style
from spanfold.cli._text import age, count, moment
from spanfold.fold import ListedRun, list_runs
from spanfold.timings import format_duration

SCHEMA: Final = "spanfold.run_list/1"

_COLUMNS: Final = (
    Column("run", least=16),
    Column("name", least=12, drop=2),
    Column("status", least=12),
    Column("started (UTC)", drop=1),
    Column("duration", ">"),
    Column("records", ">", drop=4),
    Column("lost", ">", if_any=True),
)
STATUS_STYLES: Final[dict[str, Style]] = {
    "completed": "green",
    "failed": "red",
    "interrupted": "yellow",
    "running": "blue",
    "unreadable": "red",
}


def command(arguments: argparse.Namespace, console: Console) -> int:
    """List runs."""
    folder = run_folder() if arguments.directory is None else Path(arguments.directory)
    if not folder.is_dir():
        raise NotFound(
            f"{folder}: expected a folder with runs, found {'a file' if folder.exists() else 'nothing'}. Name another "
            "folder, or make a first run with `spanfold demo`."
        )
    unreadable: list[Path] = []
    runs = list_runs(folder, unreadable=unreadable.append)
    now = datetime.now(UTC)
    if console.as_json:
        console.document(
            SCHEMA,
            {
                "folder": folder,
                "runs": [{**_as_dict(run), "age_seconds": _age(run, now)} for run in runs],
                "unreadable": unreadable,
            },
        )
    else:
        console.table(_COLUMNS, [_row(run, now) for run in runs], indent=0)
    _tell(console, folder, runs)
    if unreadable:
        console.say(
            f"! {count(len(unreadable), 'folder')} below it cannot be read by you, such as {unreadable[0]}: "
            "runs in there are not listed. Ask the owner, or be the user who recorded them."
        )
    return Exit.DONE


def _as_dict(run: ListedRun) -> dict[str, object]:
    return {name: getattr(run, name) for name in run.__dataclass_fields__}


def _row(run: ListedRun, now: datetime) -> tuple[str | Cell, ...]:
    seconds = run.seconds
    if run.status == "running" and run.writer == "alive":
        seconds = _since(run.start, now)
    return (
        str(run.run_dir),
        run.name or "",
        Cell(_status(run, now), STATUS_STYLES[run.status]),
        moment(run.start),
        format_duration(seconds),
        "" if run.records is None else f"{run.records:,}",
        f"{run.lost_records:,}" if run.lost_records else "",
    )


def _status(run: ListedRun, now: datetime) -> str:
    if run.status == "interrupted":
        if run.is_sealed:  # one that is not recovered was left open by its program
            return "interrupted (recovered)" if run.is_recovered else "interrupted"
        return f"interrupted, {age(_age(run, now))} ago"
    return "running?" if run.status == "running" and run.writer == "unknown" else run.status


def _age(run: ListedRun, now: datetime) -> float | None:
    """Return how long ago an interrupted run was last heard of; None for other runs."""
    return _since(run.last_record, now) if run.status == "interrupted" else None


def _since(text: str | None, now: datetime) -> float | None:
    if text is None:
        return None
    try:
        return max(0.0, round((now - datetime.fromisoformat(text)).total_seconds(), 3))
    except ValueError:  # a run.json that somebody edited
        return None


def _tell(console: Console, folder: Path, runs: list[ListedRun]) -> None:
    counts = Counter(run.status for run in runs)
    how = ", ".join(f"{number} {status}" for status, number in counts.most_common())
    place = f"below {folder}" if folder != Path() else "in and below this folder"
    console.say(f"{count(len(runs), 'run')} {place}" + (f": {how}." if how else "."))
    interrupted = [run.run_dir for run in runs if run.status == "interrupted" and not run.is_sealed]
    if interrupted:
        console.say(f"`spanfold run recover {interrupted[0]}` finishes a run that was interrupted.")
    if any(run.status == "running" and run.writer == "unknown" for run in runs):
        console.say("running?: recorded on another machine, so nobody here can tell whether its process lives.")
    for run in runs:
        if run.problem:
            console.say(f"! {run.problem if str(run.run_dir) in run.problem else f'{run.run_dir}: {run.problem}'}")
    unreadable = [run.run_dir for run in runs if run.status == "unreadable"]
    if unreadable:
        console.say(
            f"`spanfold run verify {unreadable[0]}` says what is not as it was recorded; `spanfold run fold {unreadable[0]}` "
            "makes run.json again from the journal."
        )
