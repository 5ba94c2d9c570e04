"""Draw timings with matplotlib: a run as a waterfall, and A against B.

matplotlib is imported when something is drawn, never before, and without pyplot:
no window, no state shared with the program's own figures. Colours are of the
Okabe-Ito palette, which stays apart for colour-blind readers.
"""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from spanfold.errors import TimingsError
from spanfold.timings._frame import (
    FAINT,
    GRID,
    Axes,
    dots,
    finish,
    name_axis,
    new_figure,
    patches,
    style_lanes,
    write,
    write_labels,
)
from spanfold.timings.comparison import Comparison, StageComparison, compare
from spanfold.timings.layout import MAX_INDENT, Lane, lay_out
from spanfold.timings.sides import RunSource, load_read
from spanfold.timings.text import format_duration, outcome

FORMATS: Final = ("png", "svg")
MAX_STAGES: Final = 40
"""Of more stages a comparison draws the changed ones and those that took longest."""

_KIND_COLOURS: Final = {
    "run": "#9a9a9a",
    "stage": "#0072b2",
    "model_call": "#e69f00",
    "agent": "#009e73",
    "tool": "#cc79a7",
    "timing": "#56b4e9",
    "container": "#c8c8c8",
}
_OTHER_COLOUR: Final = "#6b6b6b"
_FAILED_COLOUR: Final = "#d55e00"
_A_COLOUR: Final = "#0072b2"
_B_COLOUR: Final = "#e69f00"
# A a little above B, so that both are seen where they coincide.
_APART: Final = 0.12
_OUTCOME_COLOURS: Final = {"slower": "#d55e00", "faster": "#009e73", "same": "#555555"}
_UNDECIDED_COLOUR: Final = "#a8a8a8"


def waterfall(source: RunSource, out_path: str | os.PathLike[str]) -> Path:
    """Draw the spans of one run as bars over time.

    A short run has a line for each span, a longer one a line for each path; what
    the figure does not show, it says.

    Args:
        source: The run: its directory, its `timings.jsonl`, or what was read from it.
        out_path: Where to write; `.png` or `.svg`. Replaced when it is there.

    Returns:
        Where it was written.

    Raises:
        TimingsError: The run has no timings, or none with a place in time.
        MissingExtra: matplotlib is not installed.
        ValueError: `out_path` ends in neither `.png` nor `.svg`.
    """
    target = _target(out_path)
    read = load_read(source)
    layout = lay_out(read)
    if not layout.lanes:
        raise TimingsError(f"{read.path}: expected measured rows with a start, found none. There is nothing to draw.")
    labels = ["   " * min(lane.depth, MAX_INDENT) + _lane_label(lane) for lane in layout.lanes]
    lengths = [format_duration(lane.seconds) for lane in layout.lanes]
    what = "one line per path" if layout.by_path else "one line per span"
    hidden = f" · {layout.hidden_lanes} shorter not drawn" if layout.hidden_lanes else ""
    figure = new_figure(len(layout.lanes))
    axes = figure.add_subplot()
    for place, lane in enumerate(layout.lanes):
        _draw_lane(axes, place, lane, layout.seconds)
    axes.set_xlim(0, layout.seconds or 1.0)
    _scale_time(axes, layout.seconds)
    style_lanes(axes, len(layout.lanes))
    left = write_labels(axes, labels, side="left")
    right = write_labels(axes, lengths, side="right")
    legend = patches(
        [(kind, _KIND_COLOURS.get(kind, _OTHER_COLOUR)) for kind in dict.fromkeys(lane.kind for lane in layout.lanes)]
        + ([("failed", _FAILED_COLOUR)] if any(lane.failed for lane in layout.lanes) else [])
    )
    subtitle = (
        f"{layout.spans} span{'s' if layout.spans != 1 else ''} in {format_duration(layout.seconds)} · {what}{hidden}"
    )
    finish(figure, left=left, right=right, title=_cut(layout.title, 80), subtitle=subtitle, legend=legend)
    write(figure, target)
    return target


def compare_plot(
    a: RunSource | Sequence[RunSource],
    b: RunSource | Sequence[RunSource],
    out_path: str | os.PathLike[str],
    **options: Any,
) -> Comparison:
    """Compare two sides and draw the result; arguments and errors as of `compare` and `plot_comparison`.

    Returns:
        What was drawn.
    """
    _target(out_path)  # a wrong name is refused before the work, not after it
    comparison = compare(a, b, **options)
    plot_comparison(comparison, out_path)
    return comparison


def plot_comparison(comparison: Comparison, out_path: str | os.PathLike[str]) -> Path:
    """Draw a comparison: the medians of A and B, and their ratio with its interval, stage by stage.

    Args:
        comparison: What `compare` gave.
        out_path: Where to write; `.png` or `.svg`. Replaced when it is there.

    Returns:
        Where it was written.

    Raises:
        TimingsError: The comparison has no stage.
        MissingExtra: matplotlib is not installed.
        ValueError: `out_path` ends in neither `.png` nor `.svg`.
    """
    target = _target(out_path)
    stages = _chosen(comparison.stages)
    if not stages:
        raise TimingsError(
            "Expected stages to compare, found none: neither side has measured rows. There is nothing to draw."
        )
    figure = new_figure(len(stages))
    medians, ratios = figure.subplots(1, 2, sharey=True, width_ratios=(1, 1.1))
    for place, stage in enumerate(stages):
        _draw_medians(medians, place, stage)
        _draw_ratio(ratios, place, stage)
    style_lanes(medians, len(stages))
    style_lanes(ratios, len(stages))
    _scale_medians(medians, comparison)
    _scale_ratios(ratios, comparison)
    left = write_labels(medians, [_cut(stage.path) for stage in stages], side="left")
    right = write_labels(ratios, [_verdict_label(stage) for stage in stages], side="right")
    hidden = len(comparison.stages) - len(stages)
    subtitle = (
        f"{comparison.verdict} · {comparison.measure} seconds per {comparison.unit} · 95 % bootstrap interval"
        + (f" · {hidden} stages not drawn" if hidden else "")
    )
    shown = {_OUTCOME_COLOURS.get(outcome(stage), _UNDECIDED_COLOUR) for stage in stages}
    colours = [*_OUTCOME_COLOURS.items(), ("inconclusive", _UNDECIDED_COLOUR)]
    legend = [
        *dots([("A", _A_COLOUR), ("B", _B_COLOUR)]),
        *patches([entry for entry in colours if entry[1] in shown]),
        *patches([("counts as same", GRID)]),
    ]
    title = f"A: {_side(comparison.a.runs)}   B: {_side(comparison.b.runs)}"
    finish(figure, left=left, right=right, title=title, subtitle=subtitle, legend=legend)
    write(figure, target)
    return target


# --- waterfall ---------------------------------------------------------------------------------------------------


def _lane_label(lane: Lane) -> str:
    return f"{_cut(lane.label)} ×{lane.count}" if lane.count > 1 else _cut(lane.label)


def _draw_lane(axes: Axes, place: int, lane: Lane, seconds: float) -> None:
    # A bar thinner than a pixel would vanish, and the rarest spans are often the ones looked for.
    least = seconds / 1500
    edge = {"edgecolors": "white", "linewidths": 0.4} if len(lane.bars) <= 60 else {"edgecolors": "none"}
    fine = [(bar.start_seconds, max(bar.seconds, least)) for bar in lane.bars if bar.ok]
    failed = [(bar.start_seconds, max(bar.seconds, 2 * least)) for bar in lane.bars if not bar.ok]
    axes.broken_barh(fine, (place - 0.36, 0.72), facecolors=_KIND_COLOURS.get(lane.kind, _OTHER_COLOUR), **edge)
    axes.broken_barh(failed, (place - 0.36, 0.72), facecolors=_FAILED_COLOUR, edgecolors="none")


def _scale_time(axes: Axes, seconds: float) -> None:
    """Label the time axis in the unit that suits the length of the run."""
    units = (("µs", 1e-6), ("ms", 1e-3), ("seconds", 1.0), ("minutes", 60.0), ("hours", 3600.0))
    name, size = next(((name, size) for name, size in reversed(units) if seconds >= 3 * size), units[0])
    longest = seconds / size
    step = next(step for decade in range(-3, 12) for step in _steps(decade) if longest / step <= 10)
    ticks = [step * count for count in range(int(longest / step) + 1)]
    axes.set_xticks([tick * size for tick in ticks], [f"{tick:g}" for tick in ticks])
    name_axis(axes, f"{name} from the start of the run")


def _steps(decade: int) -> tuple[float, float, float]:
    return 10.0**decade, 2 * 10.0**decade, 5 * 10.0**decade


# --- comparison --------------------------------------------------------------------------------------------------


def _chosen(stages: Sequence[StageComparison]) -> list[StageComparison]:
    if len(stages) <= MAX_STAGES:
        return list(stages)

    def weight(stage: StageComparison) -> tuple[bool, float]:
        return stage.verdict == "changed", max(stage.a.median_seconds or 0, stage.b.median_seconds or 0)

    kept = {stage.path for stage in sorted(stages, key=weight, reverse=True)[:MAX_STAGES]}
    return [stage for stage in stages if stage.path in kept]


def _draw_medians(axes: Axes, place: int, stage: StageComparison) -> None:
    a, b = stage.a.median_seconds, stage.b.median_seconds
    if a and b:
        axes.plot([a, b], [place - _APART, place + _APART], color=FAINT, linewidth=1, zorder=2)
    for value, colour, offset in ((a, _A_COLOUR, -_APART), (b, _B_COLOUR, _APART)):
        if value:  # 0 has no place on a logarithmic axis
            axes.plot([value], [place + offset], "o", color=colour, markersize=5.5, zorder=3)


def _draw_ratio(axes: Axes, place: int, stage: StageComparison) -> None:
    if not stage.ratio:
        return
    colour = _OUTCOME_COLOURS.get(outcome(stage), _UNDECIDED_COLOUR)
    if stage.ci_low and stage.ci_high:
        axes.plot(
            [stage.ci_low, stage.ci_high], [place, place], color=colour, linewidth=2, solid_capstyle="butt", zorder=2
        )
    # Hollow without an interval: a ratio that nothing backs.
    filled = colour if stage.ci_low is not None else "white"
    axes.plot([stage.ratio], [place], "D", color=colour, markerfacecolor=filled, markersize=5, zorder=3)


def _scale_medians(axes: Axes, comparison: Comparison) -> None:
    axes.set_xscale("log")
    axes.margins(x=0.08)
    _set_ticks(axes, _round_times(*axes.get_xlim()), format_duration)
    name_axis(axes, f"median time per {comparison.unit}")


def _scale_ratios(axes: Axes, comparison: Comparison) -> None:
    axes.set_xscale("log", base=2)
    low, high = axes.get_xlim()
    # As far to the left as to the right, so that twice as fast looks as large as twice as slow.
    reach = max(high, 1 / low, comparison.tolerance * 1.02, 1.25)
    axes.set_xlim(1 / reach, reach)
    axes.axvspan(1 / comparison.tolerance, comparison.tolerance, color=GRID, zorder=0)
    axes.axvline(1.0, color=FAINT, linewidth=0.8, zorder=1)
    _set_ticks(axes, _round_ratios(reach), lambda ratio: f"×{ratio:.4g}" if ratio >= 1 else f"×{ratio:.2g}")
    name_axis(axes, "B / A")


def _set_ticks(axes: Axes, ticks: Sequence[float], label: Callable[[float], str]) -> None:
    axes.minorticks_off()
    axes.set_xticks(ticks, [label(tick) for tick in ticks])


def _round_times(low: float, high: float) -> list[float]:
    """Return at most six round numbers between two times; the ends when there are no two."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
        if len(ticks) <= 6:
            return ticks if len(ticks) > 1 else [low, high]
    return ticks[:: math.ceil(len(ticks) / 6)]


def _round_ratios(reach: float) -> list[float]:
    """Return a few round ratios from 1/reach to reach, 1 among them."""
    largest = max(step for step in (1.1, 1.2, 1.5, 2, 4, 10, 100, 1000, math.inf) if step <= max(reach, 1.1))
    if math.isinf(largest):
        return [1.0]
    middle = round(math.sqrt(largest), 1)
    return sorted({1.0, largest, middle, 1 / largest, 1 / middle})


def _verdict_label(stage: StageComparison) -> str:
    return f"{outcome(stage)}  n {stage.a.n}, {stage.b.n}"


def _side(runs: Sequence[str]) -> str:
    return _cut(runs[0]) if len(runs) == 1 else f"{len(runs)} runs, {_cut(runs[0], 16)} … {_cut(runs[-1], 16)}"


def _cut(text: str, longest: int = 48) -> str:
    """Shorten a label from the left: the end of a path tells more than its beginning."""
    return text if len(text) <= longest else f"…{text[1 - longest :]}"


def _target(out_path: str | os.PathLike[str]) -> Path:
    target = Path(out_path)
    if target.suffix.lower().removeprefix(".") not in FORMATS:
        raise ValueError(f"{target}: expected a name that ends in .png or .svg, found {target.suffix or 'no suffix'}.")
    return target
