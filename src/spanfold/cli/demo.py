"""`spanfold demo`: a real diagnose loop on real data, and a look at everything it left."""

import argparse
import importlib.util
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from spanfold.bundle import Exported, export, verify
from spanfold.cli._console import Console
from spanfold.cli._exits import Exit, UsageError
from spanfold.cli._places import is_writable, near, run_folder
from spanfold.cli._table import Cell, Row
from spanfold.cli._text import count, shown
from spanfold.cli._tree import COLUMNS as TREE_COLUMNS
from spanfold.cli._tree import tree_rows
from spanfold.cli.bundle_export import as_dict as bundle_as_dict
from spanfold.cli.timings_compare import print_stages
from spanfold.cli.timings_plot import print_shares
from spanfold.demo import DemoResult, run_demo
from spanfold.errors import MissingExtra
from spanfold.timings import (
    Comparison,
    breakdown,
    compare,
    plot_comparison,
    read_timings,
    waterfall,
)

SCHEMA: Final = "spanfold.demo/1"

_TOP: Final = 8
"""Rows of the breakdown that are printed."""


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Run the demo and show what it left."""
    for module in ("sklearn", "threadpoolctl", "matplotlib"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra("demo", "The demo")
    directory = run_folder() if arguments.directory is None else Path(arguments.directory)
    if not is_writable(directory):
        raise UsageError(
            f"{directory}: expected a folder that can be written to, found none. `spanfold demo DIR` records into another."
        )
    begun = time.monotonic()
    result = run_demo(directory, seed=arguments.seed, cases=arguments.cases, narrate=console.say)
    seconds = round(time.monotonic() - begun, 3)
    console.say("drawing, comparing, packing ...")
    comparison = None if arguments.no_compare else compare(result.run_dir, result.second_run_dir)
    figures = _figures(result, comparison)
    exported = export(result.run_dir)
    is_intact = verify(exported.path).ok
    if console.as_json:
        bundle = {**bundle_as_dict(exported), "ok": is_intact}
        compared = None if comparison is None else comparison.to_dict()
        console.document(
            SCHEMA, {**asdict(result), "seconds": seconds, "figures": figures, "comparison": compared, "bundle": bundle}
        )
        return Exit.DONE
    console.table(TREE_COLUMNS, tree_rows(near(result.run_dir)), indent=0)
    _verdict(result, console)
    _time(result.run_dir, console)
    if comparison is not None:
        _compared(comparison, console)
    _kept(figures, exported, is_intact, console)
    _next(near(result.run_dir), near(result.second_run_dir), near(exported.path), console)
    return Exit.DONE


def _figures(result: DemoResult, comparison: Comparison | None) -> dict[str, Path]:
    """Draw the pictures beside the run directories: nothing is added to what was recorded."""
    folder, one, two = result.run_dir.parent, result.run_dir.name, result.second_run_dir.name
    figures = {"waterfall": waterfall(result.run_dir, folder / f"{one}-waterfall.png")}
    if comparison is not None:
        figures["comparison"] = plot_comparison(comparison, folder / f"{one}-{two}.png")
    return figures


# --- for people --------------------------------------------------------------------------------------------------


def _verdict(result: DemoResult, console: Console) -> None:
    console.heading("The verdict")
    before, after = 100 * result.accuracy_before, 100 * result.accuracy_after
    verified = sum(hypothesis.status == "verified" for hypothesis in result.hypotheses)
    rows: list[Row] = [
        ("failures", f"{result.failures} of {count(result.explored, 'case')} explored"),
        ("hypotheses", f"{verified} of {len(result.hypotheses)} held on fresh cases"),
        ("repair", result.repair or "none helped"),
        ("held out", f"{before:.1f} % of {count(result.held_out, 'case')} right before, {after:.1f} % after"),
        ("", f"{result.n_fixed} fixed, {result.n_broken} broken"),
        ("McNemar's test", f"p = {result.mcnemar_p:.2g}"),
        ("reviewer", "an independent process came to the same numbers" if result.reviewer_agrees else "disagrees"),
        ("so it is", Cell("confirmed", "green") if result.confirmed else Cell("not confirmed", "yellow")),
    ]
    console.pairs(rows)


def _time(run_dir: Path, console: Console) -> None:
    console.heading("Where the time went")
    shares = breakdown(read_timings(run_dir / "timings.jsonl"))
    print_shares(shares[:_TOP], console, indent=2)
    if len(shares) > _TOP:
        console.line(f"  and {len(shares) - _TOP} more stages with less")


def _compared(comparison: Comparison, console: Console) -> None:
    console.heading("Was the second run faster?")
    decided = [stage for stage in comparison.stages if stage.verdict != "inconclusive"]
    print_stages(decided, console)
    others = len(comparison.stages) - len(decided)
    console.prose(
        f"  {count(others, 'stage')} {'is' if others == 1 else 'are'} inconclusive: one run a side has too few spans of them to "
        "tell a difference from chance.",
        indent="  ",
    )


def _kept(figures: dict[str, Path], exported: Exported, is_intact: bool, console: Console) -> None:
    console.heading("Files beside the run")
    rows: list[Row] = [(name, str(near(path))) for name, path in figures.items()]
    bundle = near(exported.path)
    rows.append(("bundle", f"{bundle}, verified" if is_intact else Cell(f"{bundle}, NOT intact", "red")))
    console.pairs(rows)


def _next(one: Path, two: Path, bundle: Path, console: Console) -> None:
    console.heading("What to try next")
    spanfold = _program()
    commands = (
        ("what happened", f"{spanfold} run show {one}"),
        ("the run over time", f"{spanfold} timings plot {one}"),
        ("every stage of both runs", f"{spanfold} timings compare {one} {two}"),
        ("is it as it was recorded?", f"{spanfold} run verify {one}"),
        ("lose documents, get them back", f"rm {one}/run.json {one}/M1/log.json; {spanfold} run fold {one}"),
        ("check the one file", f"{spanfold} bundle verify {bundle}"),
    )
    width = max(len(what) for what, _ in commands) + 2
    for what, typed in commands:
        # Never wrapped: a command is there to be copied.
        console.line(f"  {what:{width}}{shown(typed)}")


def _program() -> str:
    """Return how to call the command line: by its name where a shell finds it, else by the path it was called by."""
    called = Path(sys.argv[0])
    return "spanfold" if shutil.which("spanfold") or called.name != "spanfold" else str(near(called))
