"""Write results as plain text for a terminal. Strings only: nothing is printed and nothing is coloured."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from spanfold.timings.comparison import Comparison, StageComparison
from spanfold.timings.layout import MAX_INDENT, Lane, lay_out, printable
from spanfold.timings.reader import TimingRead
from spanfold.timings.shares import StageShare

MIN_WIDTH: Final = 40
"""A terminal narrower than this gets lines of this width."""

_BLOCKS: Final = " ▏▎▍▌▋▊▉█"
_ORDER: Final = ("slower", "faster", "inconclusive", "same", "only in A", "only in B")


def format_duration(seconds: float | None) -> str:
    """Write a duration with three digits or in whole seconds: `850 µs`, `45.6 ms`, `1.23 s`, `2 m 03 s`, `1 h 02 m`."""
    if seconds is None:
        return "–"
    if seconds < 59.95:
        for unit, size in (("s", 1.0), ("ms", 1e-3)):
            if seconds >= 0.9995 * size:
                return f"{_three_digits(seconds / size)} {unit}"
        return f"{seconds * 1e6:.0f} µs"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} m"


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


# --- comparison --------------------------------------------------------------------------------------------------


def render_comparison(comparison: Comparison) -> str:
    """Write a comparison as a table, changed stages first, then what speaks against trusting it."""
    rows = [_comparison_row(stage, comparison) for stage in comparison.stages]
    rows.sort(key=lambda row: (_ORDER.index(row[0]), row[1]))
    header = ("verdict", "stage", "n A, B", "median A", "median B", "B / A", "95 % interval", "p")
    parts = [
        _about(comparison),
        _table([header, *rows], "<<>>>>><") if rows else "No stage to compare.",
        _counts(comparison),
    ]
    notes = [*_left_out(comparison), *(f"! {caution.message}" for caution in comparison.cautions)]
    if comparison.unknown_facts:
        told = ", ".join(fact.replace("_", " ") for fact in comparison.unknown_facts)
        notes.append(f"? Not told by every run, so not compared: {told}.")
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])]) + "\n"


def _left_out(comparison: Comparison) -> list[str]:
    a, b = Counter(comparison.a.excluded), Counter(comparison.b.excluded)
    for stage in comparison.stages:
        if stage.a.rows and stage.b.rows:  # that a path is missing on one side is in the table
            a.update(stage.a.excluded)
            b.update(stage.b.excluded)
    return [
        f"Left out of {name}: "
        + ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in sorted(counts.items()))
        for name, counts in (("A", a), ("B", b))
        if counts
    ]


def outcome(stage: StageComparison) -> str:
    """Return the verdict of a stage in one word or two: the direction, or the side it is missing on."""
    if stage.a.rows == 0:
        return "only in B"
    if stage.b.rows == 0:
        return "only in A"
    return stage.direction or stage.verdict


def _about(comparison: Comparison) -> str:
    sides = [
        (name, f"{len(side.runs)} run{'s' if len(side.runs) != 1 else ''}", f"{side.rows} rows", _names(side.runs))
        for name, side in (("A", comparison.a), ("B", comparison.b))
    ]
    method = (
        f"{comparison.measure} seconds, {'summed over each run' if comparison.unit == 'run' else 'span by span'}; "
        f"within {1 / comparison.tolerance:.2f} to {comparison.tolerance:.2f} is the same; alpha {comparison.alpha:g}, "
        f"Holm over stages; seed {comparison.seed}"
    )
    return f"{_table(sides, '<>><')}\n{method}"


def _names(runs: Sequence[str]) -> str:
    return ", ".join(printable(run) for run in runs[:4]) + (f" and {len(runs) - 4} more" if len(runs) > 4 else "")


def _comparison_row(stage: StageComparison, comparison: Comparison) -> tuple[str, ...]:
    interval = f"{stage.ci_low:.3f} – {stage.ci_high:.3f}" if stage.ci_low is not None else "–"
    return (
        outcome(stage),
        stage.path,
        f"{stage.a.n}, {stage.b.n}",
        format_duration(stage.a.median_seconds),
        format_duration(stage.b.median_seconds),
        "–" if stage.ratio is None else f"{stage.ratio:.3f}",
        interval,
        _p_value(stage.p_adjusted, comparison.alpha),
    )


def _p_value(p: float | None, alpha: float) -> str:
    if p is None:
        return "–"
    shown = "< 0.001" if p < 0.001 else f"{p:.3f}"
    return f"{shown} *" if p <= alpha else shown


def _counts(comparison: Comparison) -> str:
    found = [outcome(stage) for stage in comparison.stages]
    counts = ", ".join(f"{found.count(word)} {word}" for word in _ORDER if word in found)
    return f"Verdict: {comparison.verdict}" + (f" ({counts})" if counts else "")


# --- one run -----------------------------------------------------------------------------------------------------


def render_breakdown(shares: Iterable[StageShare]) -> str:
    """Write what `breakdown` gave as a table."""
    rows = [
        (
            format_duration(share.self_seconds),
            _percent(share.self_share),
            _bar(share.self_share or 0),
            format_duration(share.total_seconds),
            _percent(share.total_share),
            str(share.count),
            str(share.failed or ""),
            share.path,
        )
        for share in shares
    ]
    if not rows:
        return "No measured time.\n"
    header = ("self", "share", "", "total", "share", "spans", "failed", "stage")
    return _table([header, *rows], ">><>>>><") + "\n"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _bar(share: float, width: int = 10) -> str:
    eighths = round(min(1.0, share) * width * 8)
    return (_BLOCKS[8] * (eighths // 8) + _BLOCKS[eighths % 8]).rstrip()


def render_waterfall_text(read: TimingRead, width: int = 100) -> str:
    """Draw a run as bars of block characters.

    Args:
        read: The run.
        width: Columns of the terminal.
    """
    layout = lay_out(read)
    if not layout.lanes:
        return "No span with a place in time.\n"
    width = max(width, MIN_WIDTH)
    lengths = [format_duration(lane.seconds) for lane in layout.lanes]
    labels = [_lane_label(lane) for lane in layout.lanes]
    right = max(map(cells, lengths))
    left = min(max(map(cells, labels)), width * 2 // 5)
    columns = width - left - right - 4
    end = format_duration(layout.seconds)
    lines = [f"{_fit(layout.title, left)}  0{end:>{columns - 1}}"]
    for lane, label, length in zip(layout.lanes, labels, lengths, strict=True):
        lines.append(f"{_fit(label, left)}  {_drawn(lane, layout.seconds, columns)}  {length:>{right}}")
    kind = "paths" if layout.by_path else "spans"
    if layout.hidden_lanes:
        lines.append(f"{layout.hidden_lanes} shorter {kind} are not drawn.")
    return "\n".join(lines) + "\n"


def _lane_label(lane: Lane) -> str:
    count = f" ×{lane.count}" if lane.count > 1 else ""
    failed = "" if not lane.failed else " ✗" if lane.failed == lane.count else f" ✗{lane.failed}"
    return f"{'  ' * min(lane.depth, MAX_INDENT)}{lane.label}{count}{failed}"


def _drawn(lane: Lane, seconds: float, columns: int) -> str:
    """Fill each column in proportion to the part of it that some bar covers, and show every bar at least as a line."""
    filled = [0.0] * columns
    scale = columns / seconds if seconds > 0 else 0.0
    for bar in lane.bars:
        start, stop = bar.start_seconds * scale, (bar.start_seconds + bar.seconds) * scale
        first = min(int(start), columns - 1)
        for column in range(first, min(int(stop), columns - 1) + 1):
            filled[column] += max(0.0, min(stop, column + 1) - max(start, column))
        filled[first] = max(filled[first], 1 / 8)
    return "".join(_BLOCKS[min(8, round(part * 8))] for part in filled)


# --- tables ------------------------------------------------------------------------------------------------------


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _fit(text: str, width: int) -> str:
    """Cut or fill a text to exactly `width` columns."""
    if cells(text) > width:
        while text and cells(text) > width - 1:
            text = text[:-1]
        text += "…"
    return text + " " * (width - cells(text))


def _table(rows: Sequence[Sequence[str]], align: str) -> str:
    widths = [max(cells(row[column]) for row in rows) for column in range(len(rows[0]))]

    def cell(text: str, width: int, side: Literal["<", ">"] | str) -> str:
        fill = " " * (width - cells(text))
        return fill + text if side == ">" else text + fill

    return "\n".join("  ".join(map(cell, row, widths, align)).rstrip() for row in rows)
