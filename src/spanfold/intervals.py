"""Lengths and unions of intervals of integer nanoseconds."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """From `start`, inclusive, to `stop`, exclusive; nanoseconds, `stop >= start`."""

    start: int
    stop: int


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union as disjoint intervals in order; empty ones are left out."""
    merged: list[Interval] = []
    for start, stop in sorted(intervals):
        if start >= stop:
            continue
        if merged and start <= merged[-1].stop:
            merged[-1] = Interval(merged[-1].start, max(stop, merged[-1].stop))
        else:
            merged.append(Interval(start, stop))
    return merged


def covered(intervals: Iterable[Interval]) -> int:
    """Return the length of the union: time that several intervals share counts once."""
    return sum(stop - start for start, stop in merge(intervals))


def clip(intervals: Iterable[Interval], to: Interval) -> list[Interval]:
    """Return the parts that lie inside `to`."""
    return [Interval(max(start, to.start), min(stop, to.stop)) for start, stop in intervals]


def without(interval: Interval, inner: Iterable[Interval]) -> list[Interval]:
    """Return the parts of an interval that no inner one covers, in order."""
    parts: list[Interval] = []
    at = interval.start
    for start, stop in merge(clip(inner, interval)):
        if start > at:
            parts.append(Interval(at, start))
        at = stop
    return [*parts, Interval(at, interval.stop)] if at < interval.stop else parts


def covered_within(intervals: Iterable[Interval], windows: Sequence[Interval]) -> int:
    """Return how much of the union of `windows` the union of `intervals` covers."""
    # |A ∩ B| = |A| + |B| - |A ∪ B|
    ours, theirs = merge(intervals), merge(windows)
    return covered(ours) + covered(theirs) - covered([*ours, *theirs])
