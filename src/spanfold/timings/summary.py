"""Sum up the rows of one run or cell (EP 8.2). Pure.

Three sums answer three questions. `work_seconds`: how much was worked, nested
time once. `covered_seconds`: during how much of the clock was anything worked
on. `wall_seconds`: how long did it take. When no activity leaves the wall,
`wall = work - overlap + unattributed`.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from spanfold.intervals import Interval, covered, covered_within, merge
from spanfold.timings.clock import seconds
from spanfold.timings.plain import plain
from spanfold.timings.reader import TimingRead
from spanfold.timings.rows import TimingRow
from spanfold.timings.statistics import quantile
from spanfold.timings.tree import TimingTree

LOW_N: Final = 20
"""Below this many rows a 95th percentile says little (EP 16.2, S2)."""

OUTSIDE: Final = "outside"
"""Key of rows outside any pass."""

_RECONSTRUCTED: Final = frozenset({"command_log", "manifest"})


@dataclass(frozen=True, slots=True)
class StageSummary:
    """One stage: its rows that are measured and no containers. Seconds."""

    count: int
    failed: int
    """Rows that ended with `ok` false; they stay in every sum."""
    total_seconds: float
    """Without rows inside a row of the same stage, which already count."""
    self_seconds: float | None
    """Outside measured children; None when no row has a place in time."""
    min: float
    max: float
    mean: float
    median: float
    p95: float | None
    low_n: bool
    """Fewer than `LOW_N` rows: do not lean on `p95`."""


@dataclass(frozen=True, slots=True)
class ContainerSummary:
    """One stage that only encloses others. Seconds; in no total."""

    count: int
    seconds: float
    self_seconds: float | None
    """What no measured child accounts for."""


@dataclass(frozen=True, slots=True)
class ReportedSummary:
    """Durations somebody else measured, of one stage. In no total."""

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Where the time of one run or cell went. Seconds; None where nothing was measured, never 0 for that."""

    rows: int
    skipped: Mapping[str, int]
    """Reason -> lines the reader skipped; empty for rows that did not come from a read."""
    reconstructed: int
    """Rows that were rebuilt from other records."""
    orphans: int
    """Rows that name a parent which is not there."""
    wall_seconds: float | None
    wall_source: Literal["cell", "extent"] | None
    """`cell`: the sum of the cell's own rows. `extent`: from the first start to the last end."""
    work_seconds: float | None
    """Sum of self times."""
    covered_seconds: float | None
    """Length of the union of all eligible rows."""
    overlap_seconds: float | None
    """Work done in parallel: `work_seconds - covered_seconds`."""
    unattributed_seconds: float | None
    """Wall time that no eligible row covers."""
    between_processes_seconds: float | None
    """Gaps between the rows of several processes of one cell; not part of the wall."""
    stages: Mapping[str, StageSummary]
    containers: Mapping[str, ContainerSummary]
    reported: Mapping[str, ReportedSummary]
    by_pass: Mapping[str, Mapping[str, StageSummary]]
    """Pass number as text, or `OUTSIDE` -> the stages of that pass."""

    def to_dict(self) -> dict[str, object]:
        """Return a JSON object."""
        return plain(self)


def summarise(rows: TimingRead | Iterable[TimingRow]) -> Summary:
    """Sum up rows of one run or cell.

    Args:
        rows: What `read_timings` gave, or any rows of one cell in file order.

    Returns:
        The quantities of EP 8.2. No rows give zero counts and None for every sum.
    """
    if isinstance(rows, TimingRead):
        return _Sums(TimingTree(rows.rows)).summary(rows.skipped)
    return _Sums(TimingTree(rows)).summary({})


class _Sums:
    def __init__(self, tree: TimingTree) -> None:
        self._tree = tree
        self._self_ns = tree.self_ns()
        self._inside_same = tree.inside_same_stage()
        self._eligible = [index for index, row in enumerate(tree.rows) if row.is_eligible]

    def summary(self, skipped: Mapping[str, int]) -> Summary:
        rows = self._tree.rows
        placed = [interval for index in self._eligible if (interval := self._tree.intervals[index]) is not None]
        work = _sum_known(self._self_ns[index] for index in self._eligible)
        covered_ns = covered(placed) if placed else None
        windows, wall_source = self._wall()
        wall_ns = sum(stop - start for start, stop in windows) if wall_source else None
        gaps = None
        if wall_source == "cell":
            union = merge(windows)
            gaps = max(w.stop for w in windows) - min(w.start for w in windows) - covered(union)
        return Summary(
            rows=len(rows),
            skipped=skipped,
            reconstructed=sum(row.source in _RECONSTRUCTED for row in rows),
            orphans=sum(self._tree.is_orphan(index) for index in range(len(rows))),
            wall_seconds=_seconds(wall_ns),
            wall_source=wall_source,
            work_seconds=_seconds(work),
            covered_seconds=_seconds(covered_ns),
            overlap_seconds=None if work is None or covered_ns is None else seconds(work - covered_ns),
            unattributed_seconds=None
            if wall_ns is None
            else seconds(max(0, wall_ns - covered_within(placed, windows))),
            between_processes_seconds=_seconds(gaps),
            stages=self._stages(self._eligible),
            containers=self._containers(),
            reported=self._reported(),
            by_pass=self._by_pass(),
        )

    def _wall(self) -> tuple[list[Interval], Literal["cell", "extent"] | None]:
        measured = [
            (row, interval)
            for index, row in enumerate(self._tree.rows)
            if row.measured and (interval := self._tree.intervals[index]) is not None
        ]
        cells = [interval for row, interval in measured if row.container and row.stage == "cell"]
        if cells:
            return cells, "cell"
        if not measured:
            return [], None
        extent = Interval(min(i.start for _, i in measured), max(i.stop for _, i in measured))
        return [extent], "extent"

    def _stages(self, indices: Iterable[int]) -> dict[str, StageSummary]:
        return {stage: self._stage(members) for stage, members in self._by_stage(indices).items()}

    def _stage(self, indices: Sequence[int]) -> StageSummary:
        rows = [self._tree.rows[index] for index in indices]
        lengths = [row.seconds for row in rows]
        return StageSummary(
            count=len(rows),
            failed=sum(not row.ok for row in rows),
            total_seconds=seconds(
                sum(self._tree.rows[index].duration_ns for index in indices if not self._inside_same[index])
            ),
            self_seconds=_seconds(_sum_known(self._self_ns[index] for index in indices)),
            min=min(lengths),
            max=max(lengths),
            mean=statistics.fmean(lengths),
            median=statistics.median(lengths),
            p95=quantile(lengths, 0.95),
            low_n=len(rows) < LOW_N,
        )

    def _containers(self) -> dict[str, ContainerSummary]:
        indices = [index for index, row in enumerate(self._tree.rows) if row.measured and row.container]
        return {
            stage: ContainerSummary(
                count=len(members),
                seconds=seconds(sum(self._tree.rows[index].duration_ns for index in members)),
                self_seconds=_seconds(_sum_known(self._self_ns[index] for index in members)),
            )
            for stage, members in self._by_stage(indices).items()
        }

    def _reported(self) -> dict[str, ReportedSummary]:
        indices = [index for index, row in enumerate(self._tree.rows) if not row.measured]
        return {
            stage: ReportedSummary(len(members), seconds(sum(self._tree.rows[index].duration_ns for index in members)))
            for stage, members in self._by_stage(indices).items()
        }

    def _by_pass(self) -> dict[str, dict[str, StageSummary]]:
        passes: dict[int | None, list[int]] = defaultdict(list)
        for index in self._eligible:
            passes[self._tree.rows[index].pass_number].append(index)
        # Rows outside any pass first, then by number.
        ordered = sorted(passes, key=lambda number: (number is not None, number or 0))
        return {OUTSIDE if number is None else str(number): self._stages(passes[number]) for number in ordered}

    def _by_stage(self, indices: Iterable[int]) -> dict[str, list[int]]:
        grouped: dict[str, list[int]] = defaultdict(list)
        for index in indices:
            grouped[self._tree.rows[index].stage].append(index)
        return dict(sorted(grouped.items()))


def _sum_known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else seconds(ns)
