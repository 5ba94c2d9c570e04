"""The statistics of the demo's loop: pure functions over NumPy arrays and integers.

Every p-value here is exact or a textbook approximation that says when it
holds. SciPy has the same tests; written out, they can be read beside the loop
(tests/demo/test_stats.py compares the two).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spanfold.demo.records import Direction


class RankTest(NamedTuple):
    """Whether failures and successes differ in one signal."""

    auc: float
    """0 to 1. Chance that a random failure has the larger value, ties counted half; 0.5 is no separation."""
    p_value: float
    """0 to 1. Of a difference this large, or larger, if the two groups were alike."""
    n_failures: int
    n_successes: int

    @property
    def direction(self) -> Direction:
        """Whether failures have the higher or the lower values."""
        return "higher" if self.auc >= 0.5 else "lower"


def rank_test(values: NDArray[np.float64], failed: NDArray[np.bool_], direction: Direction | None = None) -> RankTest:
    """Compare failures with successes by Mann and Whitney's rank test.

    The p-value is the normal approximation with corrections for ties and
    continuity, good from about eight cases on each side.

    Args:
        values: One finite number per case.
        failed: Which cases failed; same length.
        direction: What was predicted before looking, for a one-sided test; None tests both sides.

    Returns:
        AUC 0.5 and p-value 1 where one side is empty or all values are equal: nothing can be said.
    """
    n_failures, n_cases = int(failed.sum()), len(values)
    n_successes = n_cases - n_failures
    if n_failures == 0 or n_successes == 0:
        return RankTest(0.5, 1.0, n_failures, n_successes)
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - (sizes - 1) / 2)[group]
    pairs = n_failures * n_successes
    won = float(ranks[failed].sum()) - n_failures * (n_failures + 1) / 2
    tied = float((sizes.astype(float) ** 3 - sizes).sum()) / (n_cases * (n_cases - 1))
    spread = math.sqrt(pairs / 12 * (n_cases + 1 - tied))
    return RankTest(won / pairs, _normal_tail(won - pairs / 2, spread, direction), n_failures, n_successes)


def _normal_tail(excess: float, spread: float, direction: Direction | None) -> float:
    """Return the p-value of `excess` pairs over the expected half, half a pair taken off for continuity."""
    if spread == 0:
        return 1.0
    match direction:
        case "higher":
            return math.erfc((excess - 0.5) / spread / math.sqrt(2)) / 2
        case "lower":
            return math.erfc((-excess - 0.5) / spread / math.sqrt(2)) / 2
        case None:
            return min(1.0, math.erfc((abs(excess) - 0.5) / spread / math.sqrt(2)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct for having tested several things at once, by Holm's step-down rule.

    Returns:
        Adjusted p-values in the order given: below 0.05 is significant at 5 % for the whole family.
    """
    adjusted, floor = [1.0] * len(p_values), 0.0
    for done, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        floor = max(floor, min(1.0, p_values[index] * (len(p_values) - done)))
        adjusted[index] = floor
    return adjusted


def mcnemar(n_fixed: int, n_broken: int) -> float:
    """Return McNemar's exact two-sided p-value for two models on the same cases.

    Only the cases on which the models differ count: were the models equally
    good, each would be a fair coin.

    Args:
        n_fixed: Cases only the second model has right.
        n_broken: Cases only the first model has right.
    """
    n_coins, fewer = n_fixed + n_broken, min(n_fixed, n_broken)
    # Whole numbers up to the one division, so the result is exact for any count.
    as_uneven = 2 * sum(math.comb(n_coins, k) for k in range(fewer + 1))
    return min(1.0, as_uneven / (1 << n_coins))


def entropy(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the entropy in bits of each row of class probabilities."""
    bits: NDArray[np.float64] = -(probabilities * np.log2(np.clip(probabilities, 1e-12, 1.0))).sum(axis=1)
    return bits


def margin(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each row, how far the best class is ahead of the second: 0 is a tie, 1 is certainty."""
    top_two = np.partition(probabilities, -2, axis=1)[:, -2:]
    ahead: NDArray[np.float64] = top_two[:, 1] - top_two[:, 0]
    return ahead
