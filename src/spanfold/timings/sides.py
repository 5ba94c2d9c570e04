"""Load the runs of one side of a comparison and line their rows up by path."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, NamedTuple

from spanfold.errors import TimingsError
from spanfold.timings.clock import NS_PER_SECOND
from spanfold.timings.facts import RunFacts, read_facts
from spanfold.timings.parents import NO_PARENT
from spanfold.timings.reader import TimingRead, read_timings
from spanfold.timings.tree import RUN_PATH, TimingTree

RunSource = str | os.PathLike[str] | TimingRead
"""A run: its directory, its `timings.jsonl`, or what was read from it."""

Measure = Literal["total", "self"]
"""`total`: seconds from start to end. `self`: seconds outside measured children."""

TIMINGS: Final = "timings.jsonl"
_SOURCES: Final = frozenset({"timer", "command_log", "manifest"})


class Sample(NamedTuple):
    """One row, as far as a comparison looks at it."""

    seconds: float | None
    """None when the measure cannot be taken: self time of a row without a place in time."""
    ok: bool
    container: bool


@dataclass(frozen=True)
class LoadedRun:
    """One run of a side."""

    label: str
    read: TimingRead
    facts: RunFacts
    samples: Mapping[str, Sequence[Sample]]
    """Path -> its rows."""
    excluded: Mapping[str, int]
    """Why rows are in no sample -> how many."""
    orphans: int
    """Rows whose enclosing activity has no row."""

    @property
    def failed(self) -> bool:
        """Whether the run as a whole ended badly."""
        return any(not sample.ok for sample in self.samples.get(RUN_PATH, ()))


@dataclass(frozen=True)
class Side:
    """The runs of one side."""

    name: Literal["A", "B"]
    runs: Sequence[LoadedRun]

    @cached_property
    def paths(self) -> frozenset[str]:
        """Every path any of the runs has."""
        return frozenset(path for run in self.runs for path in run.samples)


def load_side(name: Literal["A", "B"], sources: RunSource | Sequence[RunSource], measure: Measure) -> Side:
    """Load one side.

    Raises:
        TimingsError: A run has no timings file, or it cannot be read.
        ValueError: No run is given.
    """
    listed = [sources] if isinstance(sources, str | os.PathLike | TimingRead) else list(sources)
    if not listed:
        raise ValueError(f"side {name}: expected at least one run, found an empty list.")
    return Side(name, [_load(source, measure) for source in listed])


def load_read(source: RunSource) -> TimingRead:
    """Read the timings of a run, wherever it is named from.

    Raises:
        TimingsError: There is no timings file, or it cannot be read.
    """
    if isinstance(source, TimingRead):
        return source
    where = Path(source)
    read = read_timings(where / TIMINGS if where.is_dir() else where)
    if read.missing:
        raise TimingsError(
            f"{read.path}: expected the timings of a run, found no such file. "
            f"Give a run directory that holds {TIMINGS}; `spanfold run fold` writes it from the journal."
        )
    if read.diagnostics:
        raise TimingsError(
            f"{read.path}: expected a regular file that can be read, found one that cannot. Check its owner and "
            "mode, and that it is no link."
        )
    return read


def _load(source: RunSource, measure: Measure) -> LoadedRun:
    read = load_read(source)
    # What was read may come from anywhere; only a directory somebody named is looked into.
    run_dir = None if isinstance(source, TimingRead) else read.path.parent
    tree = TimingTree(read.rows)
    paths = tree.paths()
    self_ns = tree.self_ns() if measure == "self" else None
    samples: dict[str, list[Sample]] = {}
    excluded: Counter[str] = Counter()
    for index, row in enumerate(tree.rows):
        if not row.measured:
            excluded["not_measured"] += 1
        elif row.source not in _SOURCES:
            excluded["source"] += 1
        elif tree.parents[index] != NO_PARENT and paths[tree.parents[index]] == paths[index]:
            excluded["nested_too_deep"] += 1
        else:
            value = row.seconds if self_ns is None else _seconds(self_ns[index])
            samples.setdefault(paths[index], []).append(Sample(value, row.ok, row.container))
    return LoadedRun(
        label=read.path.absolute().parent.name or str(read.path),
        read=read,
        facts=read_facts(run_dir, read.rows),
        samples=samples,
        excluded=dict(sorted(excluded.items())),
        orphans=sum(tree.is_orphan(index) for index in range(len(tree.rows))),
    )


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_SECOND
