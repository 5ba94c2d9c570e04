"""How long a span worked itself: its duration without the time covered by its children.

Kept as numbers while the span is open, without a row for each child: children
that overlap are one busy period, and of many periods the older half is summed.
"""

import os
import threading
import time
from collections.abc import Iterable
from typing import Final

_MAX_PERIODS: Final = 512
_perf = time.perf_counter_ns


def _merged(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of intervals as intervals that do not overlap, in order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def _union(intervals: list[tuple[int, int]], low: int, high: int) -> int:
    """Return the length of the union of intervals, clipped to [low, high]."""
    covered, frontier = 0, low
    for start, end in sorted(intervals):
        start, end = max(start, frontier), min(end, high)
        if start < end:
            covered, frontier = covered + end - start, end
    return covered


def _overlap(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return first[1] > second[0]


class Guard:
    """Protects the counters of all spans; re-entrant because a finalizer can end a span inside of it."""

    lock = threading.RLock()

    @classmethod
    def renew(cls) -> None:
        """Replace the lock in a forked child: another thread of the parent may have held it."""
        cls.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Guard.renew)


class OwnTime:
    """The counters of one span."""

    start_ns: int
    """Wall clock at the start."""
    _mono: int
    """Monotonic clock at the start, nanoseconds."""
    _open_children = 0
    _period_start = 0
    _covered_ns = 0
    """How long children took that ended, those of hand-given times only as far as they were folded."""
    _folded_ns = 0
    _floor = 0
    """Before this moment the time of children is one number, `_folded_ns`; 0 when nothing was folded."""
    _periods: list[tuple[int, int]] | None = None
    _extra: list[tuple[int, int]] | None = None

    def _child_started(self, mono: int) -> None:
        with Guard.lock:
            if self._open_children == 0:
                self._period_start = mono
            self._open_children += 1

    def _child_ended(self, mono: int) -> None:
        with Guard.lock:
            self._open_children -= 1
            # While at least one child is open the union of their intervals has no gap,
            # so a whole busy period is one interval, however many children it had.
            if self._open_children == 0:
                self._covered_ns += mono - self._period_start
                if self._periods is None:
                    self._periods = []
                self._periods.append((self._period_start, mono))
                if len(self._periods) >= _MAX_PERIODS:
                    self._fold_periods()

    def _child_reported(self, start: int, end: int) -> None:
        """Count a child whose times were given by hand."""
        with Guard.lock:
            start = max(start, self._floor) if self._floor else start
            if start >= end or (self._open_children and start >= self._period_start and end <= _perf()):
                return  # outside of what is counted, or inside of what is covered anyway
            if self._extra is None:
                self._extra = []
            self._extra.append((start, end))
            if len(self._extra) >= _MAX_PERIODS:
                self._fold_periods()

    def foreign_child(self, start_ns: int, end_ns: int) -> None:
        """Count a child of another tracer, in wall clock."""
        offset = self._mono - self.start_ns
        self._child_reported(start_ns + offset, end_ns + offset)

    def foreign_child_started(self, start_ns: int) -> None:
        """Count a child of another tracer that started just now, in wall clock."""
        # By its own time: a thread can be stopped for long between taking that and telling us.
        self._child_started(min(_perf(), start_ns + self._mono - self.start_ns))

    def foreign_child_ended(self, end_ns: int | None = None) -> None:
        """Count that a child of another tracer ended just now, in wall clock."""
        now = _perf()
        self._child_ended(
            now if end_ns is None else min(now, max(end_ns + self._mono - self.start_ns, self._period_start))
        )

    def _fold_periods(self) -> None:
        """Add the older half of what is known of the children up to one number.

        What is given by hand later about the time before that is not counted any
        more: only that keeps the memory of a long span bounded.
        """
        periods = self._periods
        if periods and not self._extra and not any(map(_overlap, periods, periods[1:])):
            # As it nearly always is: one after the other.
            older = len(periods) // 2
            self._folded_ns += sum(end - start for start, end in periods[:older])
            self._floor, self._periods = periods[older][0], periods[older:]
            return
        intervals = sorted([*(periods or ()), *(self._extra or ())])
        floor = intervals[len(intervals) // 2][0]
        if self._open_children:
            floor = min(floor, self._period_start)
        self._folded_ns += _union(intervals, max(self._mono, self._floor or self._mono), floor)
        self._floor = floor
        self._periods = [(max(start, floor), end) for start, end in self._periods or () if end > floor]
        self._extra = _merged((max(start, floor), end) for start, end in self._extra or () if end > floor) or None
        self._covered_ns = self._folded_ns + sum(end - start for start, end in self._periods)

    def _self_ns(self, end_mono: int) -> int:
        with Guard.lock:
            intervals = [*(self._periods or ()), *(self._extra or ())]
            if self._open_children:
                intervals.append((self._period_start, end_mono))
            covered = self._folded_ns + _union(intervals, max(self._mono, self._floor or self._mono), end_mono)
        return max(0, end_mono - self._mono - covered)
