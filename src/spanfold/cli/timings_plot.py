"""`spanfold timings plot`: where the time of a run went."""

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from spanfold.cli._console import Console
from spanfold.cli._exits import Exit, NotFound
from spanfold.cli._table import Column, Row
from spanfold.cli._text import bar, size
from spanfold.cli.timings_compare import TIMINGS, find_side, require_rows, warn_of_damage
from spanfold.timings import (
    StageShare,
    TimingRead,
    breakdown,
    compare_plot,
    format_duration,
    read_timings,
    render_breakdown,
    render_waterfall_text,
    waterfall,
)

SCHEMA: Final = "spanfold.timings_plot/1"
PLAIN_WIDTH: Final = 100
"""Columns of a drawing that goes to a file or another program."""
_BAR: Final = 10
_COLUMNS: Final = (
    Column("self", ">"),
    Column("share", ">", drop=1),
    Column("", drop=2),
    Column("total", ">", drop=3),
    Column("share", ">", drop=4),
    Column("spans", ">", drop=5),
    Column("failed", ">", drop=6),
    Column("stage", least=16),
)


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Draw one run, or two against each other."""
    runs = [_one(text) for text in (arguments.run, arguments.against) if text is not None]
    reads = [_read(run) for run in runs]
    warn_of_damage(runs, console)
    figure = None if arguments.output is None else _draw(runs, Path(arguments.output))
    if console.as_json:
        shares = [
            {"run": run, "shares": [share.to_dict() for share in breakdown(read)]}
            for run, read in zip(runs, reads, strict=True)
        ]
        size_bytes = None if figure is None else figure.lstat().st_size
        console.document(SCHEMA, {"figure": figure, "figure_size_bytes": size_bytes, "runs": shares})
    elif figure is not None:
        console.text(str(figure))
    else:
        for number, read in enumerate(reads):
            if number:
                console.line("")
            _print_run(read, console)
    if figure is not None:
        console.say(f"{size(figure.lstat().st_size)}: {'a waterfall of the run' if len(runs) == 1 else 'A against B'}.")
    return Exit.DONE


def _print_run(read: TimingRead, console: Console) -> None:
    """Print the bars of a run over time, and its stages by their own time."""
    console.text(render_waterfall_text(read, console.width or PLAIN_WIDTH))
    console.line("")
    print_shares(breakdown(read), console)


def print_shares(shares: Sequence[StageShare], console: Console, *, indent: int = 0) -> None:
    """Print the stages of a run by their own time; on a terminal the table is made to fit."""
    if console.width is None or not shares:
        console.text(textwrap.indent(render_breakdown(shares), " " * indent))
    else:
        console.table(_COLUMNS, [_row(share) for share in shares], indent=indent)


def _row(share: StageShare) -> Row:
    return (
        format_duration(share.self_seconds),
        _percent(share.self_share),
        bar(share.self_share or 0, _BAR),
        format_duration(share.total_seconds),
        _percent(share.total_share),
        str(share.count),
        str(share.failed or ""),
        share.path,
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _one(text: str) -> Path:
    side = find_side(text)
    if len(side) > 1:
        raise NotFound(f"{text}: expected one run, found {len(side)} below it. Name one of them.")
    return side[0]


def _read(run: Path) -> TimingRead:
    read = read_timings(run / TIMINGS if run.is_dir() else run)
    if read.missing or read.diagnostics:
        raise NotFound(
            f"{read.path}: expected timings that can be read, found none. `spanfold run fold {run}` makes them."
        )
    require_rows([read])
    return read


def _draw(runs: list[Path], target: Path) -> Path:
    if len(runs) == 1:
        return waterfall(runs[0], target)
    compare_plot(runs[0], runs[1], target)
    return target
