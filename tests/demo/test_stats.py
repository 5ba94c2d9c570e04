"""The demo's statistics against known values, against SciPy, and against what must hold for any data."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from spanfold.demo.stats import entropy, holm, margin, mcnemar, rank_test

# A few values, so that ties are common.
VALUES = st.sampled_from([-3.0, 0.0, 0.1, 0.5, 1.0, 7.25])


@st.composite
def two_groups(draw):
    pairs = draw(st.lists(st.tuples(VALUES, st.booleans()), min_size=2, max_size=40))
    return np.array([value for value, _ in pairs]), np.array([failed for _, failed in pairs])


@given(two_groups())
def test_auc_is_the_share_of_pairs_the_failure_wins_with_ties_counted_half(groups):
    values, failed = groups
    pairs = list(itertools.product(values[failed], values[~failed]))
    won = [1.0 if f > s else 0.5 if f == s else 0.0 for f, s in pairs]

    assert rank_test(values, failed).auc == pytest.approx(sum(won) / len(won) if won else 0.5)


@given(two_groups(), st.sampled_from([None, "higher", "lower"]))
def test_the_rank_test_agrees_with_scipy(groups, direction):
    values, failed = groups
    ours = rank_test(values, failed, direction)
    if failed.all() or not failed.any() or len(set(values)) == 1:
        assert ours.p_value == 1.0
        return
    alternative = {None: "two-sided", "higher": "greater", "lower": "less"}[direction]
    theirs = scipy_stats.mannwhitneyu(values[failed], values[~failed], alternative=alternative, method="asymptotic")

    assert ours.p_value == pytest.approx(theirs.pvalue, rel=1e-9, abs=1e-15)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_never_lowers_a_p_value_keeps_their_order_and_stays_below_bonferroni(p_values):
    adjusted = holm(p_values)

    assert all(p <= a <= min(1.0, p * len(p_values)) for p, a in zip(p_values, adjusted, strict=True))
    by_p = sorted(zip(p_values, adjusted, strict=True))
    assert [a for _, a in by_p] == sorted(adjusted)


def test_holm_gives_the_textbook_example():
    # Holm (1979) as worked in most textbooks: 0.005 x 4, 0.01 x 3, 0.03 x 2, and 0.04 held up by the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize(("fixed", "broken"), [(0, 0), (1, 0), (5, 5), (12, 2), (2, 12), (40, 21), (700, 600)])
def test_mcnemar_is_the_exact_binomial_test_on_the_cases_that_differ(fixed, broken):
    expected = scipy_stats.binomtest(fixed, fixed + broken).pvalue if fixed + broken else 1.0

    assert mcnemar(fixed, broken) == pytest.approx(expected, rel=1e-9)


def test_mcnemar_of_twelve_fixed_and_two_broken_is_the_number_one_can_count_by_hand():
    assert mcnemar(12, 2) == 2 * (1 + 14 + 91) / 2**14


def test_entropy_and_margin_of_certainty_a_tie_and_ignorance():
    rows = np.array([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25]])

    assert entropy(rows) == pytest.approx([0.0, 1.0, 2.0], abs=1e-9)
    assert margin(rows) == pytest.approx([1.0, 0.0, 0.0])
