"""`spanfold timings compare`: did B get slower than A, where, and is it real?"""

import argparse
from pathlib import Path
from typing import Final

from spanfold.cli._console import Console
from spanfold.cli._exits import Exit, NotFound, UsageError
from spanfold.cli._places import run_folder
from spanfold.cli._table import Style
from spanfold.cli._text import cut, shown
from spanfold.timings import Comparison, compare, render_comparison

VERDICT_STYLES: Final[dict[str, Style]] = {
    "slower": "red",
    "faster": "green",
    "inconclusive": "dim",
    "only": "yellow",
}
"""First word of a line -> its style."""


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Compare two sides."""
    a, b = find_side(arguments.a), find_side(arguments.b)
    try:
        comparison = compare(a, b, tolerance=arguments.tolerance, seed=arguments.seed, measure=arguments.measure)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if console.as_json:
        content = comparison.to_dict()
        console.document(str(content.pop("schema")), content)
    else:
        print_comparison(comparison, console)
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
    raise NotFound(
        f"{text}: expected a run directory, a timings.jsonl or a folder of runs, found none there. `spanfold run list` shows "
        "what there is; `spanfold run fold` makes the timings of a run."
    )


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the table, its lines cut and coloured on a terminal, and the prose below it, wrapped."""
    for line in render_comparison(comparison).removesuffix("\n").split("\n"):
        if line.startswith(("! ", "? ")):
            console.prose(line, indent="  ")
            continue
        safe = shown(line) if console.width is None else cut(shown(line), console.width)
        console.line(console.paint(safe, VERDICT_STYLES.get(line.partition(" ")[0], "")))


def _is_to_fail(comparison: Comparison, fail_on: str | None) -> bool:
    if fail_on == "changed":
        return comparison.verdict == "changed"
    return fail_on == "slower" and any(stage.direction == "slower" for stage in comparison.stages)
