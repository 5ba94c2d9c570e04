"""Find the row that encloses each row (EP 8.2, "parent row").

By span id where rows have ids. Rows without ids name only the stage and depth of
their parent, so it is looked for among the rows it could be: the shortest whose
interval contains the child's within 5 ms, the earliest in the file on ties.
Either way n rows take O(n log n).
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from spanfold.timings.rows import TimingRow

CONTAINMENT_TOLERANCE_NS: Final = 5_000_000
"""How far a child may stick out of its parent when there are no ids to go by."""

NO_PARENT: Final = -1

# Run, cell, stage, depth and pass: what a row without ids tells of its parent.
_Family = tuple[str | None, str | None, str, int, int | None]


@dataclass(frozen=True, slots=True)
class _Candidate:
    start_ns: int
    stop_ns: int
    index: int

    @property
    def rank(self) -> tuple[int, int]:
        return self.stop_ns - self.start_ns, self.index


def find_parents(rows: Sequence[TimingRow]) -> list[int]:
    """Return the index of each row's parent row, `NO_PARENT` for roots.

    Rows that name each other in a circle have no true order: the one that
    stands first in the file becomes a root.
    """
    by_span = {row.span_id: index for index, row in enumerate(rows) if row.span_id is not None}
    parents = [NO_PARENT] * len(rows)
    nameless: list[int] = []
    for index, row in enumerate(rows):
        if row.parent_span_id is not None:
            parents[index] = by_span.get(row.parent_span_id, NO_PARENT)
        elif row.parent is not None and row.start_ns is not None:
            nameless.append(index)
    if nameless:
        _match_by_interval(rows, nameless, parents)
    _cut_circles(parents)
    return parents


def _cut_circles(parents: list[int]) -> None:
    settled = [False] * len(parents)
    for start in range(len(parents)):
        chain: list[int] = []
        on_chain: set[int] = set()
        at = start
        while at != NO_PARENT and not settled[at] and at not in on_chain:
            chain.append(at)
            on_chain.add(at)
            at = parents[at]
        if at in on_chain:
            parents[min(chain[chain.index(at) :])] = NO_PARENT
        for index in chain:
            settled[index] = True


def _match_by_interval(rows: Sequence[TimingRow], children: Sequence[int], parents: list[int]) -> None:
    asked: dict[_Family, list[int]] = defaultdict(list)
    for index in children:
        row = rows[index]
        if row.parent is None or row.depth is None:
            continue
        # A parent outside any pass may enclose a child inside one.
        for pass_number in {row.pass_number, None}:
            asked[row.run_id, row.cell_id, row.parent, row.depth - 1, pass_number].append(index)
    offered: dict[_Family, list[_Candidate]] = defaultdict(list)
    for index, row in enumerate(rows):
        if row.start_ns is None or row.stop_ns is None or row.depth is None:
            continue
        family = (row.run_id, row.cell_id, row.stage, row.depth, row.pass_number)
        if family in asked:
            offered[family].append(_Candidate(row.start_ns, row.stop_ns, index))
    best: dict[int, _Candidate] = {}
    for family, candidates in offered.items():
        for index, candidate in _shortest_around(rows, asked[family], candidates):
            if index not in best or candidate.rank < best[index].rank:
                best[index] = candidate
    for index, candidate in best.items():
        parents[index] = candidate.index


def _shortest_around(
    rows: Sequence[TimingRow], children: Iterable[int], candidates: Iterable[_Candidate]
) -> Iterable[tuple[int, _Candidate]]:
    """Yield each child with the best candidate that contains it.

    Sweeps over starts: a candidate is offered once it starts early enough, and
    what remains to ask is the best of those that stop late enough.
    """
    offers = sorted(candidates, key=lambda candidate: candidate.start_ns)
    stops = _BestFromStop(candidate.stop_ns for candidate in offers)
    offered = 0
    for start_ns, stop_ns, index in sorted((*_interval(rows[index]), index) for index in children):
        while offered < len(offers) and offers[offered].start_ns <= start_ns + CONTAINMENT_TOLERANCE_NS:
            stops.offer(offers[offered])
            offered += 1
        candidate = stops.best(stop_ns - CONTAINMENT_TOLERANCE_NS)
        if candidate is not None:
            yield index, candidate


def _interval(row: TimingRow) -> tuple[int, int]:
    start_ns = row.start_ns or 0
    return start_ns, start_ns + row.duration_ns


class _BestFromStop:
    """The best candidate among those that stop at or after a moment.

    A Fenwick tree over the stops, latest first, so that "at or after" is a prefix; both operations are O(log n).
    """

    def __init__(self, stops: Iterable[int]) -> None:
        self._stops = sorted({-stop for stop in stops})
        self._tree: list[_Candidate | None] = [None] * (len(self._stops) + 1)

    def offer(self, candidate: _Candidate) -> None:
        at = bisect_left(self._stops, -candidate.stop_ns) + 1
        while at < len(self._tree):
            held = self._tree[at]
            if held is None or candidate.rank < held.rank:
                self._tree[at] = candidate
            at += at & -at

    def best(self, stop_ns: int) -> _Candidate | None:
        at = bisect_right(self._stops, -stop_ns)
        best: _Candidate | None = None
        while at > 0:
            held = self._tree[at]
            if held is not None and (best is None or held.rank < best.rank):
                best = held
            at -= at & -at
        return best
