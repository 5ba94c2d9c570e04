"""The tree of a run's timing rows: parents, paths from the root, self time.

Self time is what EP 8.2 defines: the duration of a row outside the union of its
measured children, clipped to it. Children that overlap are subtracted once, and
a mere container between a row and its work is looked through.

Everything is O(n log n) for n rows, however they nest; pure functions over rows.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from spanfold.intervals import Interval, without
from spanfold.timings.parents import NO_PARENT, find_parents
from spanfold.timings.rows import TimingRow

RUN_PATH: Final = "(run)"
"""Path of a run as a whole. Below it paths start at the run's own stages: `m2/model_call`."""

LOST: Final = "…"
"""First component of a path whose upper part is unknown, because a row that encloses it was never written."""

MAX_PATH_DEPTH: Final = 64
"""Deeper rows share one path that ends in `LOST`, so that a deep recursion does not make paths as long as itself."""


class TimingTree:
    """Rows with their parent rows.

    Indices are positions in `rows`.
    """

    def __init__(self, rows: Iterable[TimingRow]) -> None:
        self.rows: Final[Sequence[TimingRow]] = tuple(rows)
        self.parents: Final[Sequence[int]] = find_parents(self.rows)
        self.children: Final[Sequence[Sequence[int]]] = _children(self.parents)
        self.intervals: Final[Sequence[Interval | None]] = [_interval(row) for row in self.rows]
        """Where each row lies in time; None when it has no place."""

    def is_orphan(self, index: int) -> bool:
        """Tell whether a row names a parent that is not there."""
        return self.parents[index] == NO_PARENT and self.rows[index].parent is not None

    def top_down(self) -> list[int]:
        """Return every index, parents before their children, in file order among siblings."""
        order = [index for index, parent in enumerate(self.parents) if parent == NO_PARENT]
        for index in order:  # grows while it is read: breadth first
            order.extend(self.children[index])
        return order

    def inside_same_stage(self) -> list[bool]:
        """Tell for each row whether any row around it is of its own stage."""
        inside = [False] * len(self.rows)
        open_stages: Counter[str] = Counter()
        # Entering a row and leaving it are two visits; the second is written as its complement.
        visits = [index for index, parent in enumerate(self.parents) if parent == NO_PARENT]
        while visits:
            index = visits.pop()
            if index < 0:
                open_stages[self.rows[~index].stage] -= 1
                continue
            stage = self.rows[index].stage
            inside[index] = open_stages[stage] > 0
            open_stages[stage] += 1
            visits.append(~index)
            visits.extend(self.children[index])
        return inside

    def self_ns(self) -> list[int | None]:
        """Return nanoseconds each row ran outside its measured children; None for a row without a place in time."""
        return [None if parts is None else sum(stop - start for start, stop in parts) for parts in self.self_parts()]

    def self_parts(self) -> list[list[Interval] | None]:
        """Return when each row ran outside its measured children; None for a row without a place in time."""
        inner: list[list[Interval]] = [[] for _ in self.rows]
        owner = self._nearest_that_works()
        for index, row in enumerate(self.rows):
            interval, parent = self.intervals[index], self.parents[index]
            if interval is None or not row.measured or parent == NO_PARENT:
                continue
            if self.rows[parent].container:
                inner[parent].append(interval)
            if not row.container and owner[parent] != NO_PARENT:
                inner[owner[parent]].append(interval)
        return [self._outside(index, inner[index]) for index in range(len(self.rows))]

    def paths(self) -> list[str]:
        """Return the path of each row: the stages from the root down to its own, joined by `/`.

        Equal paths are equal strings held once.
        """
        paths = [""] * len(self.rows)
        depths = [0] * len(self.rows)
        joined: dict[tuple[str, str], str] = {}
        for index in self.top_down():
            above, depth = self._path_above(index, paths, depths)
            stage = self.rows[index].stage
            if depth > MAX_PATH_DEPTH:
                above, stage, depth = above.removesuffix(f"/{LOST}"), LOST, MAX_PATH_DEPTH
            if self._is_run(index):
                paths[index], depths[index] = RUN_PATH, 0
            else:
                paths[index] = joined.setdefault((above, stage), f"{above}/{stage}" if above else stage)
                depths[index] = depth
        return paths

    def _is_run(self, index: int) -> bool:
        return self.parents[index] == NO_PARENT and self.rows[index].kind == "run"

    def _path_above(self, index: int, paths: Sequence[str], depths: Sequence[int]) -> tuple[str, int]:
        parent, row = self.parents[index], self.rows[index]
        if parent != NO_PARENT:
            above = paths[parent]
            return ("", 1) if above == RUN_PATH else (above, depths[parent] + 1)
        # An interrupted activity has no row. Where only the run is missing, its stages align with those of a whole run.
        if row.parent is None or row.depth in (None, 0) or (row.depth == 1 and row.parent == "run"):
            return "", 1
        return (row.parent, 2) if row.depth == 1 else (f"{LOST}/{row.parent}", 3)

    def _nearest_that_works(self) -> list[int]:
        """Return for each row the nearest row, itself included, that is no container; `NO_PARENT` when there is none."""
        nearest = [NO_PARENT] * len(self.rows)
        for index in self.top_down():
            parent = self.parents[index]
            if not self.rows[index].container:
                nearest[index] = index
            elif parent != NO_PARENT:
                nearest[index] = nearest[parent]
        return nearest

    def _outside(self, index: int, inner: Sequence[Interval]) -> list[Interval] | None:
        interval = self.intervals[index]
        return None if interval is None else without(interval, inner)


def stage_paths(rows: Iterable[TimingRow]) -> dict[str, tuple[TimingRow, ...]]:
    """Group rows by their path from the root.

    A path names the stages from the root down, `m2/model_call`; the run itself is
    `RUN_PATH` and is not repeated in front of its stages, so that runs of different
    names align. Activities of one name under one parent share a path.

    Returns:
        Path -> its rows, earliest start first; paths in alphabetical order.
    """
    tree = TimingTree(rows)
    grouped: dict[str, list[TimingRow]] = {}
    for path, row in zip(tree.paths(), tree.rows, strict=True):
        grouped.setdefault(path, []).append(row)
    return {path: tuple(sorted(grouped[path], key=_start)) for path in sorted(grouped)}


def _interval(row: TimingRow) -> Interval | None:
    return None if row.start_ns is None else Interval(row.start_ns, row.start_ns + row.duration_ns)


def _start(row: TimingRow) -> int:
    return row.start_ns or 0


def _children(parents: Sequence[int]) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in parents]
    for index, parent in enumerate(parents):
        if parent != NO_PARENT:
            children[parent].append(index)
    return children
