"""`spanfold timings compare`: did B get slower than A, where, and is it real?"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from spanfold.cli._console import Console
from spanfold.cli._exits import Exit, NotFound, UsageError
from spanfold.cli._places import LATEST, latest_run, run_folder
from spanfold.cli._table import Cell, Column, Style
from spanfold.cli._text import count
from spanfold.errors import JournalMissing, SpanfoldError
from spanfold.timings import (
    Comparison,
    StageComparison,
    TimingRead,
    compare,
    format_duration,
    read_timings,
    render_comparison,
)

TIMINGS: Final = "timings.jsonl"

_STYLES: Final[dict[str, Style]] = {
    "slower": "red",
    "faster": "green",
    "inconclusive": "dim",
    "same": "",
    "only in A": "yellow",
    "only in B": "yellow",
}
_ORDER: Final = tuple(_STYLES)
_COLUMNS: Final = (
    Column("verdict"),
    Column("stage", least=20),
    Column("n A, B", ">", drop=4),
    Column("median A", ">", drop=2),
    Column("median B", ">", drop=2),
    Column("B / A", ">"),
    Column("95 % interval", ">", drop=1),
    Column("p", ">", drop=3),
)


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Compare two sides."""
    a, b = find_side(arguments.a), find_side(arguments.b)
    try:
        comparison = compare(a, b, tolerance=arguments.tolerance, seed=arguments.seed, measure=arguments.measure)
    except ValueError as error:
        raise UsageError(str(error)) from error
    for runs, side in ((a, comparison.a), (b, comparison.b)):
        if not side.rows:
            require_rows([read_timings(run / TIMINGS if run.is_dir() else run) for run in runs])
    warn_of_damage([*a, *b], console)
    if console.as_json:
        content = comparison.to_dict()
        console.document(str(content.pop("schema")), content)
    else:
        print_comparison(comparison, console, everything=arguments.all)
    return Exit.CHANGED if _is_to_fail(comparison, arguments.fail_on) else Exit.DONE


def find_side(text: str) -> list[Path]:
    """Return the runs of a side: the run that is named, its timings file, or every run below a folder of runs.

    Raises:
        NotFound: There is no such file, folder or run.
    """
    from spanfold.fold import find_runs

    candidates = [Path(text), *([] if Path(text).is_absolute() else [run_folder() / text])]
    for place in candidates:
        if place.is_file() or (place / "timings.jsonl").is_file():
            return [place]
        if place.is_dir():
            runs = sorted(find_runs(place))
            if runs:
                return runs
    if text == LATEST:
        return [latest_run(run_folder())]
    raise NotFound(
        f"{text}: expected a run directory, a timings.jsonl or a folder of runs, found none there. `spanfold run list` shows "
        "what there is; `spanfold run fold` makes the timings of a run."
    )


def require_rows(reads: Sequence[TimingRead]) -> None:
    """Refuse files that hold something, and not one row of timings.

    Raises:
        NotFound: It is so.
    """
    lines = sum(read.lines for read in reads)
    if lines and not any(read.rows for read in reads):
        raise NotFound(
            f"{reads[0].path}: expected rows of timings, found none in {count(lines, 'line')}. Name a run directory, or the "
            f"{TIMINGS} in one."
        )


def warn_of_damage(runs: Iterable[Path], console: Console) -> None:
    """Say of which runs the journal is not as it was recorded: their times may not be either."""
    from spanfold.journal import verify_journal

    for run in dict.fromkeys(run for run in runs if run.is_dir()):
        try:
            is_damaged = verify_journal(run).damage is not None
        except JournalMissing:
            continue  # a loop of another logger has none
        except (SpanfoldError, OSError):
            is_damaged = True
        if is_damaged:
            console.say(
                f"! {run}: the journal is not as it was recorded, and these times may not be either; `spanfold run verify "
                f"{run}` says what is wrong."
            )


def print_comparison(comparison: Comparison, console: Console, *, everything: bool) -> None:
    """Print a comparison; on a terminal its table is made to fit and coloured, and the prose around it wrapped.

    Args:
        comparison: What was compared.
        console: Where to.
        everything: Print the stages that nothing can be said of on a terminal too.
    """
    text = render_comparison(comparison)
    if console.width is None:
        console.text(text)
        _explain(comparison, console)
        return
    about, _, *rest = text.removesuffix("\n").split("\n\n")
    for line in about.split("\n"):
        console.prose(line, indent="  ")
    console.line("")
    telling = [
        stage for stage in comparison.stages if everything or _is_telling(stage, comparison)
    ] or comparison.stages
    print_stages(telling, console, indent=0)
    if (others := len(comparison.stages) - len(telling)) > 0:
        console.prose(f"and {count(others, 'inconclusive stage')}; --all shows them", indent="  ")
    for block in rest:
        console.line("")
        for line in block.split("\n"):
            console.prose(line, indent="  ")
    _explain(comparison, console)


def _is_telling(stage: StageComparison, comparison: Comparison) -> bool:
    """Whether a stage has a verdict, or differs by more than chance without one."""
    is_on_one_side = not (stage.a.rows and stage.b.rows)
    return is_on_one_side or stage.verdict != "inconclusive" or _is_significant(stage, comparison)


def _is_significant(stage: StageComparison, comparison: Comparison) -> bool:
    return stage.p_adjusted is not None and stage.p_adjusted <= comparison.alpha


def _explain(comparison: Comparison, console: Console) -> None:
    """Say why a stage can differ by more than chance and be inconclusive, when one does."""
    if any(stage.verdict == "inconclusive" and _is_significant(stage, comparison) for stage in comparison.stages):
        low, high = 1 / comparison.tolerance, comparison.tolerance
        console.prose(
            f"Inconclusive with a small p: there is a difference, but its interval does not lie wholly beyond {low:.2f} or "
            f"{high:.2f}, so it may be within the tolerance.",
            indent="  ",
        )


def print_stages(stages: Iterable[StageComparison], console: Console, *, indent: int = 2) -> None:
    """Print a row for each stage, those that changed first."""
    rows = sorted((_row(stage) for stage in stages), key=lambda row: (_ORDER.index(row[0].text), row[1]))
    console.table(_COLUMNS, rows, indent=indent)


def _row(stage: StageComparison) -> tuple[Cell, str, str, str, str, str, str, str]:
    word: str = stage.direction or stage.verdict
    if not (stage.a.rows and stage.b.rows):
        word = "only in A" if stage.a.rows else "only in B"
    return (
        Cell(word, _STYLES[word]),
        stage.path,
        f"{stage.a.n}, {stage.b.n}",
        format_duration(stage.a.median_seconds),
        format_duration(stage.b.median_seconds),
        "–" if stage.ratio is None else f"{stage.ratio:.3f}",
        "–" if stage.ci_low is None else f"{stage.ci_low:.3f} – {stage.ci_high:.3f}",
        "–" if stage.p_adjusted is None else "< 0.001" if stage.p_adjusted < 0.001 else f"{stage.p_adjusted:.3f}",
    )


def _is_to_fail(comparison: Comparison, fail_on: str | None) -> bool:
    if fail_on == "changed":
        return comparison.verdict == "changed"
    return fail_on == "slower" and any(stage.direction == "slower" for stage in comparison.stages)
