"""Where did the time go: the paths of one run by the time they took themselves."""

from collections import defaultdict
from dataclasses import dataclass

from spanfold.intervals import covered
from spanfold.timings.clock import seconds
from spanfold.timings.parents import NO_PARENT
from spanfold.timings.plain import plain
from spanfold.timings.reader import TimingRead
from spanfold.timings.tree import TimingTree


@dataclass(frozen=True, slots=True)
class StageShare:
    """The measured rows of one path of one run."""

    path: str
    """Stages from the root down, `m2/model_call`."""
    count: int
    failed: int
    container: bool
    """Whether it only encloses others; its self time is what no child accounts for."""
    total_seconds: float
    self_seconds: float | None
    """Outside measured children; None when no row has a place in time."""
    total_share: float | None
    """Part of the run's span of time, from the first start to the last end of its rows, in which any of them ran: at most 1
    however many ran at once. None without a place in time."""
    self_share: float | None
    """The same of the time outside measured children."""

    def to_dict(self) -> dict[str, object]:
        """Return a JSON object."""
        return plain(self)


def breakdown(read: TimingRead) -> list[StageShare]:
    """Say for each path how much of the run's time it took.

    Rows that nobody measured are left out. Without parallel work the self times
    add up to the time of the run, less gaps in which nothing ran.

    Returns:
        Largest self time first, then by path.
    """
    tree = TimingTree(read.rows)
    paths, self_parts = tree.paths(), tree.self_parts()
    placed = [i for row, i in zip(tree.rows, tree.intervals, strict=True) if row.measured and i is not None]
    whole = max(i.stop for i in placed) - min(i.start for i in placed) if placed else 0
    grouped: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(tree.rows):
        if row.measured:
            grouped[paths[index]].append(index)

    def share(path: str, indices: list[int]) -> StageShare:
        ran = [interval for index in indices if (interval := tree.intervals[index]) is not None]
        own = [part for index in indices for part in self_parts[index] or ()]
        # Only the one path of everything beyond MAX_PATH_DEPTH holds rows inside each other.
        outermost = [i for i in indices if tree.parents[i] == NO_PARENT or paths[tree.parents[i]] != path]
        total_s = seconds(sum(tree.rows[index].duration_ns for index in outermost))
        self_s = seconds(sum(stop - start for start, stop in own)) if ran else None
        return StageShare(
            path=path,
            count=len(indices),
            failed=sum(not tree.rows[index].ok for index in indices),
            container=all(tree.rows[index].container for index in indices),
            total_seconds=total_s,
            self_seconds=self_s,
            total_share=covered(ran) / whole if whole and ran else None,
            self_share=covered(own) / whole if whole and ran else None,
        )

    shares = [share(path, indices) for path, indices in grouped.items()]
    return sorted(shares, key=lambda share: (-(share.self_seconds or 0), share.path))
