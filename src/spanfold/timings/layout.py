"""Arrange a run for a waterfall: lanes from top to bottom, bars from left to right.

A short run gets a lane for each span, like the view of a trace browser. A longer
one gets a lane for each path, with one bar for each span. Beyond `MAX_BARS`
spans, bars of a lane that lie closer than the eye can part them become one, so
that a run of any length draws in bounded size. The terminal and the figure
draw the same lanes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from spanfold.intervals import Interval, merge
from spanfold.timings.clock import NS_PER_SECOND
from spanfold.timings.reader import TimingRead
from spanfold.timings.rows import TimingRow
from spanfold.timings.tree import RUN_PATH, TimingTree

SINGLE_LANES: Final = 40
"""Up to this many spans each has a lane of its own."""

MAX_BARS: Final = 400
"""Beyond this many spans neighbouring bars are drawn as one."""

MAX_LANES: Final = 60
"""Of more paths only those that took longest are drawn."""

MAX_INDENT: Final = 10
"""Labels of deeper lanes are indented no further."""

# The name of such a span repeats what was done; this attribute says with whom.
_NAMED_BY: Final = {"model_call": "model", "agent": "agent", "tool": "tool"}

_PARTS: Final = 1500
"""Bars closer than this part of the whole are drawn as one when there are many."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One span, or several that lie too close to tell apart."""

    start_seconds: float
    """From the start of the run."""
    seconds: float
    ok: bool


@dataclass(frozen=True, slots=True)
class Lane:
    """One line of a waterfall."""

    label: str
    """Free of control characters; without the indent."""
    depth: int
    """Number of lanes around it, from 0."""
    kind: str
    """What the spans stand for, `stage`, `model_call`, …"""
    count: int
    """Spans in the lane."""
    failed: int
    seconds: float
    """Their durations added up."""
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """A run, ready to draw."""

    title: str
    seconds: float
    """From the first start to the last end."""
    spans: int
    by_path: bool
    """Whether a lane is a path rather than a span."""
    lanes: tuple[Lane, ...]
    hidden_lanes: int
    """Lanes left out because there were too many."""


def lay_out(read: TimingRead) -> Layout:
    """Arrange the measured rows that have a place in time."""
    rows = [row for row in read.rows if row.measured and row.start_ns is not None]
    tree = TimingTree(rows)
    paths = tree.paths()
    intervals = [interval for interval in tree.intervals if interval is not None]
    extent = Interval(min((i.start for i in intervals), default=0), max((i.stop for i in intervals), default=0))
    by_path = len(rows) > SINGLE_LANES
    order = _in_order(tree)
    groups: dict[str, list[int]] = {}
    for index in order:
        groups.setdefault(paths[index] if by_path else f"{paths[index]} {index}", []).append(index)
    shown = _longest(groups, rows) if len(groups) > MAX_LANES else list(groups)
    gap = (extent.stop - extent.start) // _PARTS if len(rows) > MAX_BARS else None
    depths = _depths(tree)

    def lane(key: str) -> Lane:
        members = groups[key]
        first = rows[members[0]]
        return Lane(
            label=_label_of_path(paths[members[0]]) if by_path else _label_of_span(first),
            depth=depths[members[0]],
            kind=first.kind or ("container" if first.container else "stage"),
            count=len(members),
            failed=sum(not rows[index].ok for index in members),
            seconds=sum(rows[index].seconds for index in members),
            bars=tuple(_bars([(intervals[index], rows[index].ok) for index in members], extent.start, gap)),
        )

    return Layout(
        title=printable(
            next((row.run_id or row.cell_id for row in rows if row.run_id or row.cell_id), read.path.parent.name)
        ),
        seconds=(extent.stop - extent.start) / NS_PER_SECOND,
        spans=len(rows),
        by_path=by_path,
        lanes=tuple(lane(key) for key in shown),
        hidden_lanes=len(groups) - len(shown),
    )


def printable(text: object) -> str:
    """Return text that cannot move a cursor or turn the writing direction; other characters become U+FFFD."""
    return "".join(char if char.isprintable() else "\ufffd" for char in str(text))


def _in_order(tree: TimingTree) -> list[int]:
    """Return every index, each row followed by its children in order of their start."""

    def earliest_last(indices: Iterable[int]) -> list[int]:
        return sorted(indices, key=lambda index: (tree.rows[index].start_ns or 0, index), reverse=True)

    todo = earliest_last(index for index, parent in enumerate(tree.parents) if parent < 0)
    order: list[int] = []
    while todo:
        index = todo.pop()
        order.append(index)
        todo.extend(earliest_last(tree.children[index]))
    return order


def _depths(tree: TimingTree) -> list[int]:
    depths = [0] * len(tree.rows)
    for index in tree.top_down():
        for child in tree.children[index]:
            depths[child] = depths[index] + 1
    return depths


def _longest(groups: dict[str, list[int]], rows: Sequence[TimingRow]) -> list[str]:
    lengths = {key: sum(rows[index].seconds for index in members) for key, members in groups.items()}
    kept = set(sorted(groups, key=lambda key: -lengths[key])[:MAX_LANES])
    return [key for key in groups if key in kept]


def _label_of_path(path: str) -> str:
    return path if path == RUN_PATH else path.rpartition("/")[2]


def _label_of_span(row: TimingRow) -> str:
    if row.kind == "run":
        return RUN_PATH  # its name is the title
    keys = (_NAMED_BY.get(row.kind or "", "name"), "name")
    name = next((value for key in keys if isinstance(value := row.attributes.get(key), str)), "")
    return row.stage if name.lower() in ("", row.stage) else f"{row.stage} {printable(name)}"


def _bars(spans: Sequence[tuple[Interval, bool]], origin: int, gap: int | None) -> Iterable[Bar]:
    for ok in (True, False):
        chosen = [interval for interval, row_ok in spans if row_ok is ok]
        if gap is not None:
            # Widened by the gap, neighbours touch and merge; then the width is given back.
            chosen = [Interval(i.start, i.stop - gap) for i in merge(Interval(i.start, i.stop + gap) for i in chosen)]
        for start, stop in chosen:
            yield Bar((start - origin) / NS_PER_SECOND, (stop - start) / NS_PER_SECOND, ok)
