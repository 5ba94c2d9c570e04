"""Where did the time go: the paths of one run by the time they took themselves."""

from collections import defaultdict
from dataclasses import dataclass

from spanfold.timings.clock import seconds
from spanfold.timings.parents import NO_PARENT
from spanfold.timings.plain import plain
from spanfold.timings.reader import TimingRead
from spanfold.timings.summary import summarise
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
    """`total_seconds` as a part of the wall; more than 1 when rows run in parallel, None without a wall."""
    self_share: float | None
    """`self_seconds` as a part of the wall."""

    def to_dict(self) -> dict[str, object]:
        """Return a JSON object."""
        return plain(self)


def breakdown(read: TimingRead) -> list[StageShare]:
    """Say for each path how much of the run's wall time it took.

    Rows that nobody measured are left out. Without parallel work the self times
    add up to the wall.

    Returns:
        Largest self time first, then by path.
    """
    tree = TimingTree(read.rows)
    wall, paths, self_ns = summarise(read).wall_seconds, tree.paths(), tree.self_ns()
    grouped: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(tree.rows):
        if row.measured:
            grouped[paths[index]].append(index)

    def share(path: str, indices: list[int]) -> StageShare:
        own = [ns for index in indices if (ns := self_ns[index]) is not None]
        # Only the one path of everything beyond MAX_PATH_DEPTH holds rows inside each other.
        outermost = [i for i in indices if tree.parents[i] == NO_PARENT or paths[tree.parents[i]] != path]
        total_s = seconds(sum(tree.rows[index].duration_ns for index in outermost))
        self_s = seconds(sum(own)) if own else None
        return StageShare(
            path=path,
            count=len(indices),
            failed=sum(not tree.rows[index].ok for index in indices),
            container=all(tree.rows[index].container for index in indices),
            total_seconds=total_s,
            self_seconds=self_s,
            total_share=total_s / wall if wall else None,
            self_share=self_s / wall if wall and self_s is not None else None,
        )

    shares = [share(path, indices) for path, indices in grouped.items()]
    return sorted(shares, key=lambda share: (-(share.self_seconds or 0), share.path))
