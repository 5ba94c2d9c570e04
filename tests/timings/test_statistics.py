"""The statistics against the contract's vectors, SciPy, and slow obvious models."""

import itertools
import math
from random import Random
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.timings.statistics import (
    EXACT_LIMIT,
    RESAMPLE_LIMIT,
    _median_by_order_statistics,
    holm,
    median_ratio,
    quantile,
    rank_test,
    smallest_p,
)
from tests.timings.test_tree import VECTORS

pytestmark = pytest.mark.slow

STATISTICS: dict[str, Any] = VECTORS["statistics"]


@pytest.mark.parametrize("vector", STATISTICS["S1"])
def test_quantiles_are_those_of_the_contract(vector: dict[str, Any]) -> None:
    found = quantile(vector["x"], vector["p"])

    assert found == (None if vector["value"] is None else pytest.approx(vector["value"]))


def test_the_ratio_of_medians_and_its_interval_are_those_of_the_contract() -> None:
    vector = STATISTICS["S4"]
    ratio = median_ratio(vector["A"], vector["B"], seed=vector["seed"], replicates=vector["replicates"])

    assert ratio.value == pytest.approx(vector["value"], abs=1e-9)
    assert ratio.ci_low == pytest.approx(vector["ci_low"], abs=1e-9)
    assert ratio.ci_high == pytest.approx(vector["ci_high"], abs=1e-9)


def test_replicates_without_a_ratio_are_dropped_and_counted() -> None:
    ratio = median_ratio([0, 1, 2], [1, 1, 1])

    assert ratio.value == 1
    assert 0 < ratio.dropped_replicates < 2000


@pytest.mark.parametrize(("a", "b"), [([], [1.0]), ([1.0], []), ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0])])
def test_no_ratio_is_made_up_where_there_is_none(a: list[float], b: list[float]) -> None:
    assert median_ratio(a, b).value is None


@pytest.mark.parametrize("size", [RESAMPLE_LIMIT, RESAMPLE_LIMIT + 1, 10 * RESAMPLE_LIMIT, 10 * RESAMPLE_LIMIT + 1])
def test_the_short_cut_for_large_samples_draws_medians_of_the_same_law(size: int) -> None:
    """Against drawing value by value: spread and centre of the drawn medians must agree."""
    random = Random(7)
    values = sorted(random.lognormvariate(0, 0.5) for _ in range(size))
    draws = 1500
    quick = [_median_by_order_statistics(values, random) for _ in range(draws)]
    slow = [median(random.choices(values, k=size)) for _ in range(draws)]

    test = rank_test(quick, slow)
    assert test is not None
    assert test.p_value > 0.001
    for p in (0.025, 0.5, 0.975):
        spread = math.sqrt(p * (1 - p) / draws) * 5
        low, high = quantile(slow, max(0, p - spread)), quantile(slow, min(1, p + spread))
        found = quantile(quick, p)
        assert low is not None and high is not None and found is not None
        assert low <= found <= high


SAMPLES = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=6)


@given(a=SAMPLES, b=SAMPLES)
def test_the_exact_p_value_is_the_share_of_all_splits_as_far_from_balance(a: list[float], b: list[float]) -> None:
    pooled = [*a, *b]

    def rank(value: float) -> float:
        return sum((other < value) + 0.5 * (other == value) for other in pooled) + 0.5

    def distance(chosen: tuple[float, ...]) -> float:
        return abs(sum(map(rank, chosen)) - len(a) * (len(pooled) + 1) / 2)

    splits = list(itertools.combinations(pooled, len(a)))
    as_far = sum(distance(split) >= distance(tuple(a)) for split in splits)

    test = rank_test(a, b)
    assert test is not None
    assert (test.method, test.p_value) == ("exact", pytest.approx(as_far / len(splits)))


@given(
    values=st.lists(st.floats(0.001, 1000), min_size=2, max_size=EXACT_LIMIT, unique=True),
    split=st.integers(1, EXACT_LIMIT - 1),
)
def test_without_ties_the_exact_test_is_scipys(values: list[float], split: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    a, b = values[:split], values[split:]
    if not b:
        return

    test = rank_test(a, b)
    assert test is not None
    assert test.p_value == pytest.approx(stats.mannwhitneyu(a, b, method="exact").pvalue)


@given(
    a=st.lists(st.integers(0, 30).map(float), min_size=EXACT_LIMIT // 2, max_size=60),
    b=st.lists(st.integers(0, 30).map(float), min_size=EXACT_LIMIT // 2 + 1, max_size=60),
)
def test_large_samples_get_scipys_normal_approximation_with_ties(a: list[float], b: list[float]) -> None:
    stats = pytest.importorskip("scipy.stats")

    test = rank_test(a, b)
    assert test is not None
    expected = 1.0 if len({*a, *b}) == 1 else stats.mannwhitneyu(a, b, method="asymptotic").pvalue
    assert (test.method, test.p_value) == ("normal", pytest.approx(expected))


@given(a=SAMPLES, b=SAMPLES)
def test_the_rank_test_does_not_care_which_side_is_which(a: list[float], b: list[float]) -> None:
    assert rank_test(a, b) == rank_test(b, a)


@pytest.mark.parametrize(("n", "m"), [(3, 3), (3, 8), (5, 5)])
def test_complete_separation_gives_the_smallest_p_value_there_is(n: int, m: int) -> None:
    test = rank_test([float(v) for v in range(n)], [float(v) for v in range(100, 100 + m)])

    assert test is not None
    assert test.p_value == pytest.approx(smallest_p(n, m))


def test_holm_corrects_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(p_values=st.lists(st.floats(0, 1), max_size=8), alpha=st.floats(0.001, 0.999))
def test_holm_rejects_what_stepping_down_by_hand_rejects(p_values: list[float], alpha: float) -> None:
    rejected: set[int] = set()
    for step, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if (len(p_values) - step) * p_values[index] > alpha:
            break
        rejected.add(index)

    assert {index for index, p in enumerate(holm(p_values)) if p <= alpha} == rejected


def test_a_rank_test_of_equal_values_finds_nothing() -> None:
    test = rank_test([1.0] * 30, [1.0] * 30)

    assert test is not None
    assert test.p_value == 1.0
