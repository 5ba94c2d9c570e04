"""Say why two sides may differ for another reason than the one asked about."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from spanfold.timings.facts import FACTS, SETTINGS, RunFacts
from spanfold.timings.sides import LoadedRun, Side

_NAMED: Final = 6
"""How many names a message lists before it says how many more there are."""


@dataclass(frozen=True, slots=True)
class Caution:
    """A reason not to take a comparison at face value."""

    code: str
    """Stable, for programs: `model_differs`, `host_mixed`, `damaged_rows`, …"""
    message: str
    """For people."""


def cautions(a: Side, b: Side) -> tuple[Caution, ...]:
    """Return what makes the two sides hard to compare, differences of facts first."""
    found: list[Caution] = []
    for fact in FACTS:
        if fact != SETTINGS:
            found.extend(_about_fact(fact, a, b))
    found.extend(_about_settings(a, b))
    found.extend(_about_repeats(a, b))
    for side in (a, b):
        found.extend(_about_runs(side))
    return tuple(found)


def unknown_facts(a: Side, b: Side) -> tuple[str, ...]:
    """Return the facts at least one run does not tell, so that nobody can say whether they agree."""
    runs = [*a.runs, *b.runs]
    return tuple(fact for fact in FACTS if any(not _tells(run.facts, fact) for run in runs))


def _tells(facts: RunFacts, fact: str) -> bool:
    return facts.settings is not None if fact == SETTINGS else fact in facts.values


def _about_fact(fact: str, a: Side, b: Side) -> Iterable[Caution]:
    told = {side.name: [run.facts.values[fact] for run in side.runs if fact in run.facts.values] for side in (a, b)}
    word = fact.replace("_", " ")
    known = {name: frozenset[str]().union(*sets) for name, sets in told.items()}
    for name, sets in told.items():
        if len(set(sets)) > 1:
            yield Caution(f"{fact}_mixed", f"The runs of {name} differ in {word}: {_list(known[name])}.")
    ours, theirs = known["A"], known["B"]
    if ours and theirs and ours != theirs:
        yield Caution(f"{fact}_differs", f"A and B differ in {word}: {_list(ours)} against {_list(theirs)}.")


def _about_settings(a: Side, b: Side) -> Iterable[Caution]:
    tables = [run.facts.settings for run in (*a.runs, *b.runs) if run.facts.settings is not None]
    values: dict[str, set[str | None]] = {}
    for name in {name for table in tables for name in table}:
        values[name] = {table.get(name) for table in tables}
    different = sorted(name for name, found in values.items() if len(found) > 1)
    if different:
        # Names only: a value may be long, and may be nobody's business here.
        yield Caution("settings_differ", f"Not all runs have the same settings: {_list(different)}.")


def _about_repeats(a: Side, b: Side) -> Iterable[Caution]:
    given = Counter(run.read.path.resolve() for run in (*a.runs, *b.runs))
    repeated = [path.parent.name for path, times in given.items() if times > 1]
    if repeated:
        yield Caution(
            "repeated_run",
            f"Given more than once: {_list(repeated)}. One run is one observation, however often it is named.",
        )


def _about_runs(side: Side) -> Iterable[Caution]:
    def listed(holds: Callable[[LoadedRun], bool]) -> str:
        return _list([run.label for run in side.runs if holds(run)])

    empty = listed(lambda run: not run.samples)
    if empty:
        yield Caution("no_rows", f"No measured rows in these runs of {side.name}: {empty}.")
    failed = listed(lambda run: run.failed)
    if failed:
        yield Caution("failed_runs", f"These runs of {side.name} failed, which may have cut them short: {failed}.")
    open_ended = listed(lambda run: run.orphans > 0)
    if open_ended:
        yield Caution("interrupted_runs", f"Some activities of these runs of {side.name} never ended: {open_ended}.")
    damaged: Mapping[str, int] = Counter(reason for run in side.runs for reason in run.read.skipped)
    if damaged:
        lines = sum(len(run.read.skipped_lines) for run in side.runs)
        yield Caution("damaged_rows", f"{lines} lines of {side.name} are no rows: {_list(sorted(damaged))}.")


def _list(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _NAMED
    return ", ".join(ordered[:_NAMED]) + (f" and {more} more" if more > 0 else "")
