"""Did B get slower than A, where, and is it real?

Stages of both sides are aligned by their path from the root, and each gets a
verdict:

- `changed`: the whole interval of the ratio lies beyond the tolerance, and the
  rank test, corrected for the number of stages, finds the difference at alpha;
- `same`: the whole interval lies within the tolerance;
- `inconclusive`: everything else, always with fewer than three values on a side.

Needing both can only make `changed` rarer than either alone. So when nothing
differs, the chance that any stage at all is called changed is at most alpha, as
long as the units are independent. Runs are; spans of one run are not, and a
result that had to count spans says so.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from spanfold.timings.comparability import Caution, cautions, unknown_facts
from spanfold.timings.plain import plain
from spanfold.timings.sides import LoadedRun, Measure, RunSource, Sample, Side, load_side
from spanfold.timings.statistics import MIN_FOR_INTERVAL, REPLICATES, holm, median_ratio, rank_test, smallest_p

Verdict = Literal["changed", "same", "inconclusive"]
Direction = Literal["slower", "faster"]
Unit = Literal["run", "span"]


@dataclass(frozen=True, slots=True)
class StageSide:
    """One path on one side."""

    n: int
    """Values compared: runs or spans, see `Comparison.unit`."""
    rows: int
    failed: int
    """Rows that ended with `ok` false. Sums over a run include them; single spans leave them out unless asked."""
    median_seconds: float | None
    excluded: Mapping[str, int]
    """Why a unit has no value -> how many: `missing`, `failed`, `unplaced`."""


@dataclass(frozen=True, slots=True)
class StageComparison:
    """One path on both sides."""

    path: str
    container: bool
    """Whether it only encloses others: its seconds are theirs too."""
    a: StageSide
    b: StageSide
    ratio: float | None
    """Median of B over median of A; above 1 means B is slower."""
    ci_low: float | None
    """Limits of the 95 % bootstrap interval of the ratio; None with fewer than three values on a side."""
    ci_high: float | None
    dropped_replicates: int
    """Bootstrap replicates without a ratio, because the median of A was 0 in them."""
    p_value: float | None
    """Two-sided Mann-Whitney; None where there is no interval."""
    p_adjusted: float | None
    """`p_value` after the Holm correction over all stages that have one."""
    test: Literal["exact", "normal"] | None
    verdict: Verdict
    direction: Direction | None
    """Which way, when the verdict is `changed`."""


@dataclass(frozen=True, slots=True)
class SideSummary:
    """What one side of a comparison was made of."""

    runs: tuple[str, ...]
    """Folder names, in the order given."""
    rows: int
    skipped: Mapping[str, int]
    """Why lines are no rows -> how many."""
    excluded: Mapping[str, int]
    """Why rows are compared nowhere -> how many: `not_measured`, `source`, `nested_too_deep`."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answer, and everything needed to doubt it."""

    unit: Unit
    """What was counted: `run`, rows summed to the run first, when a side has several runs; else single spans."""
    measure: Measure
    tolerance: float
    alpha: float
    seed: int
    replicates: int
    a: SideSummary
    b: SideSummary
    stages: tuple[StageComparison, ...]
    """By path; paths that only one side has included."""
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    cautions: tuple[Caution, ...]
    """Why the sides may not be comparable."""
    unknown_facts: tuple[str, ...]
    """Facts that not all runs tell: nobody checked whether they agree."""

    @property
    def verdict(self) -> Verdict:
        """`changed` if any stage is, `same` if every stage is, otherwise `inconclusive`."""
        verdicts = {stage.verdict for stage in self.stages}
        if "changed" in verdicts:
            return "changed"
        return "same" if verdicts == {"same"} else "inconclusive"

    def to_dict(self) -> dict[str, object]:
        """Return a JSON object; the same comparison gives the same bytes."""
        return {"schema": "spanfold.comparison/1", "verdict": self.verdict, **plain(self)}


def compare(
    a: RunSource | Sequence[RunSource],
    b: RunSource | Sequence[RunSource],
    *,
    tolerance: float = 1.10,
    seed: int = 0,
    alpha: float = 0.05,
    measure: Measure = "total",
    include_failed: bool = False,
    replicates: int = REPLICATES,
) -> Comparison:
    """Compare the stages of two runs, or of two sets of runs.

    Args:
        a: The baseline: one run, or several runs of the same thing.
        b: What is compared with it.
        tolerance: Ratio up to which two times count as the same, at least 1.
        seed: Of the bootstrap; one seed, one result.
        alpha: Chance of calling any stage changed when none is, between 0 and 1.
        measure: `total` seconds of a stage, or `self` seconds outside its children.
        include_failed: Count failed spans as values when single spans are compared.
        replicates: Bootstrap replicates, at least 1.

    Raises:
        TimingsError: A run has no timings file, or it cannot be read.
        ValueError: An argument is out of range.
    """
    _check(tolerance, alpha, replicates)
    side_a, side_b = load_side("A", a, measure), load_side("B", b, measure)
    unit: Unit = "run" if max(len(side_a.runs), len(side_b.runs)) > 1 else "span"
    stages = [
        _compare_path(path, side_a, side_b, unit, include_failed, seed, replicates)
        for path in sorted(side_a.paths | side_b.paths)
    ]
    judged = _with_verdicts(stages, tolerance, alpha)
    return Comparison(
        unit=unit,
        measure=measure,
        tolerance=tolerance,
        alpha=alpha,
        seed=seed,
        replicates=replicates,
        a=_summary(side_a),
        b=_summary(side_b),
        stages=judged,
        only_in_a=tuple(sorted(side_a.paths - side_b.paths)),
        only_in_b=tuple(sorted(side_b.paths - side_a.paths)),
        cautions=(*_about_sample(judged, unit, alpha), *cautions(side_a, side_b)),
        unknown_facts=unknown_facts(side_a, side_b),
    )


def _check(tolerance: float, alpha: float, replicates: int) -> None:
    if not (math.isfinite(tolerance) and tolerance >= 1):
        raise ValueError(f"tolerance: expected a finite ratio of at least 1, found {tolerance}.")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha: expected a probability between 0 and 1, found {alpha}.")
    if replicates < 1:
        raise ValueError(f"replicates: expected at least 1, found {replicates}.")


def _compare_path(
    path: str, a: Side, b: Side, unit: Unit, include_failed: bool, seed: int, replicates: int
) -> StageComparison:
    values_a, side_a = _values(path, a, unit, include_failed)
    values_b, side_b = _values(path, b, unit, include_failed)
    ratio = median_ratio(values_a, values_b, seed=seed, replicates=replicates)
    test = rank_test(values_a, values_b) if min(len(values_a), len(values_b)) >= MIN_FOR_INTERVAL else None
    samples = [sample for run in (*a.runs, *b.runs) for sample in run.samples.get(path, ())]
    return StageComparison(
        path=path,
        container=all(sample.container for sample in samples),
        a=side_a,
        b=side_b,
        ratio=ratio.value,
        ci_low=ratio.ci_low,
        ci_high=ratio.ci_high,
        dropped_replicates=ratio.dropped_replicates,
        p_value=test.p_value if test else None,
        p_adjusted=None,
        test=test.method if test else None,
        verdict="inconclusive",
        direction=None,
    )


def _values(path: str, side: Side, unit: Unit, include_failed: bool) -> tuple[list[float], StageSide]:
    excluded: Counter[str] = Counter()
    values: list[float] = []
    for run in side.runs:
        samples = run.samples.get(path, ())
        if unit == "run":
            values.extend(_sum_of_run(samples, excluded))
        else:
            values.extend(_spans(samples, include_failed, excluded))
    samples = [sample for run in side.runs for sample in run.samples.get(path, ())]
    return values, StageSide(
        n=len(values),
        rows=len(samples),
        failed=sum(not sample.ok for sample in samples),
        median_seconds=median(values) if values else None,
        excluded=dict(sorted(excluded.items())),
    )


def _sum_of_run(samples: Sequence[Sample], excluded: Counter[str]) -> list[float]:
    known = [sample.seconds for sample in samples if sample.seconds is not None]
    if known:
        return [math.fsum(known)]
    # A run that never did this has no time for it; 0 would say that it did it at once.
    excluded["unplaced" if samples else "missing"] += 1
    return []


def _spans(samples: Sequence[Sample], include_failed: bool, excluded: Counter[str]) -> list[float]:
    values: list[float] = []
    for sample in samples:
        if sample.seconds is None:
            excluded["unplaced"] += 1
        elif sample.ok or include_failed:
            values.append(sample.seconds)
        else:
            excluded["failed"] += 1
    return values


def _with_verdicts(stages: Sequence[StageComparison], tolerance: float, alpha: float) -> tuple[StageComparison, ...]:
    tested = [stage.p_value for stage in stages if stage.p_value is not None]
    adjusted = iter(holm(tested))
    return tuple(
        _judge(replace(stage, p_adjusted=None if stage.p_value is None else next(adjusted)), tolerance, alpha)
        for stage in stages
    )


def _judge(stage: StageComparison, tolerance: float, alpha: float) -> StageComparison:
    low, high, p = stage.ci_low, stage.ci_high, stage.p_adjusted
    if low is None or high is None or p is None:
        return stage
    if 1 / tolerance <= low and high <= tolerance:
        return replace(stage, verdict="same")
    if low > tolerance and p <= alpha:
        return replace(stage, verdict="changed", direction="slower")
    if high < 1 / tolerance and p <= alpha:
        return replace(stage, verdict="changed", direction="faster")
    return stage


def _about_sample(stages: Sequence[StageComparison], unit: Unit, alpha: float) -> list[Caution]:
    found: list[Caution] = []
    if unit == "span":
        found.append(
            Caution(
                "spans_not_independent",
                "One run a side, so single spans are compared. Spans of one run share its warm-up, load and drift: the "
                "intervals are narrower than the truth. Give several runs a side.",
            )
        )
    tested = [stage for stage in stages if stage.p_value is not None]
    if not tested:
        found.append(
            Caution("too_few", f"No stage has {MIN_FOR_INTERVAL} values on both sides, so nothing can be concluded.")
        )
    elif all(smallest_p(stage.a.n, stage.b.n) * len(tested) > alpha for stage in tested):
        needed = next(n for n in range(MIN_FOR_INTERVAL, 1000) if smallest_p(n, n) * len(tested) <= alpha)
        found.append(
            Caution(
                "too_few",
                f"No difference in so few values can be told from chance at alpha {alpha:g} over {len(tested)} stages: "
                f"it takes at least {needed} a side.",
            )
        )
    return found


def _summary(side: Side) -> SideSummary:
    def total(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
        return dict(sorted(sum((Counter(count) for count in counts), Counter[str]()).items()))

    runs: Sequence[LoadedRun] = side.runs
    return SideSummary(
        runs=tuple(run.label for run in runs),
        rows=sum(len(run.read.rows) for run in runs),
        skipped=total([run.read.skipped for run in runs]),
        excluded=total([run.excluded for run in runs]),
    )
