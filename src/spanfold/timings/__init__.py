"""Read timings, sum them up, compare runs, draw them.

    read = read_timings("runs/001/timings.jsonl")
    summarise(read).work_seconds
    breakdown(read)[0].path
    compare("runs/001", "runs/002").verdict

A damaged file gives what can be read and says what cannot; a comparison gives a
verdict with everything needed to doubt it. docs/timings.md defines each number.
"""

from spanfold.timings.comparability import Caution
from spanfold.timings.comparison import Comparison, SideSummary, StageComparison, StageSide, compare
from spanfold.timings.plots import compare_plot, plot_comparison, waterfall
from spanfold.timings.reader import SkippedLine, TimingRead, read_timings
from spanfold.timings.rows import TimingRow
from spanfold.timings.shares import StageShare, breakdown
from spanfold.timings.sides import RunSource
from spanfold.timings.summary import ContainerSummary, ReportedSummary, StageSummary, Summary, summarise
from spanfold.timings.text import format_duration, render_breakdown, render_comparison, render_waterfall_text
from spanfold.timings.tree import RUN_PATH, stage_paths

__all__ = [
    "RUN_PATH",
    "Caution",
    "Comparison",
    "ContainerSummary",
    "ReportedSummary",
    "RunSource",
    "SideSummary",
    "SkippedLine",
    "StageComparison",
    "StageShare",
    "StageSide",
    "StageSummary",
    "Summary",
    "TimingRead",
    "TimingRow",
    "breakdown",
    "compare",
    "compare_plot",
    "format_duration",
    "plot_comparison",
    "read_timings",
    "render_breakdown",
    "render_comparison",
    "render_waterfall_text",
    "stage_paths",
    "summarise",
    "waterfall",
]
