"""The statistics behind a comparison (EP 16.2): pure functions over lists of numbers.

Every result is the same for the same arguments on every machine: resampling
draws from `random.Random(seed)`, whose stream Python keeps.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from statistics import median
from typing import Final, Literal

REPLICATES: Final = 2000
"""Bootstrap replicates (EP 16.2, S4)."""

MIN_FOR_INTERVAL: Final = 3
"""Fewer values than this on a side give no interval (EP 16.2, S4)."""

RESAMPLE_LIMIT: Final = 100
"""A larger sample is not drawn value by value: its median is drawn from the law those draws have."""

EXACT_LIMIT: Final = 40
"""Largest number of values, both sides together, for the exact rank test."""


def quantile(values: Sequence[float], p: float) -> float | None:
    """Return the type 7 quantile: linear between the order statistics (EP 16.2, S1); None of nothing."""
    if not values:
        return None
    return _quantile_of_sorted(sorted(values), p)


def _quantile_of_sorted(ordered: Sequence[float], p: float) -> float:
    position = (len(ordered) - 1) * p
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


# --- ratio of medians --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times larger the median of B is than the median of A."""

    value: float | None
    """None when a side is empty or the median of A is not positive."""
    ci_low: float | None
    """Lower limit of the 95 % interval; None when a side has fewer than `MIN_FOR_INTERVAL` values."""
    ci_high: float | None
    """Upper limit of the 95 % interval."""
    dropped_replicates: int = 0
    """Replicates left out because the median of A was not positive in them."""


def median_ratio(a: Sequence[float], b: Sequence[float], *, seed: int = 0, replicates: int = REPLICATES) -> Ratio:
    """Compare the medians of two unpaired samples (EP 16.2, S4).

    The interval is a percentile bootstrap: both samples are drawn again with
    replacement, A before B, and the limits are quantiles of the ratios.
    """
    if not a or not b or median(a) <= 0:
        return Ratio(None, None, None)
    value = median(b) / median(a)
    if min(len(a), len(b)) < MIN_FOR_INTERVAL:
        return Ratio(value, None, None)
    draw_a, draw_b = _median_of_resample(a), _median_of_resample(b)
    random = Random(seed)
    ratios: list[float] = []
    for _ in range(replicates):
        below, above = draw_a(random), draw_b(random)
        if below > 0:
            ratios.append(above / below)
    return Ratio(value, quantile(ratios, 0.025), quantile(ratios, 0.975), replicates - len(ratios))


def _median_of_resample(values: Sequence[float]) -> Callable[[Random], float]:
    if len(values) <= RESAMPLE_LIMIT:
        kept, size = tuple(values), len(values)
        return lambda random: median([kept[random.randrange(size)] for _ in range(size)])
    ordered = sorted(values)
    return lambda random: _median_by_order_statistics(ordered, random)


def _median_by_order_statistics(ordered: Sequence[float], random: Random) -> float:
    """Draw the median of a resample of the same size, without drawing the resample.

    Drawing a value is `ordered[int(n * u)]` with u uniform, which does not
    decrease in u. So the k-th smallest of n draws belongs to the k-th smallest
    of n uniforms, which is Beta(k, n - k + 1); and given that it is v, the one
    below it is the largest of k - 1 uniforms on (0, v).
    """
    size = len(ordered)
    rank = size // 2 + 1
    upper = random.betavariate(rank, size - rank + 1)
    high = ordered[min(int(size * upper), size - 1)]
    if size % 2:
        return high
    lower = upper * random.random() ** (1 / (rank - 1))
    return (ordered[min(int(size * lower), size - 1)] + high) / 2


# --- rank test ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankTest:
    """Two-sided Mann-Whitney test: could the two samples be draws from one distribution?"""

    p_value: float
    method: Literal["exact", "normal"]


def rank_test(a: Sequence[float], b: Sequence[float]) -> RankTest | None:
    """Test whether one sample tends to be larger than the other; None when a side is empty.

    Exact, ties included, up to `EXACT_LIMIT` values: the share of all ways to
    split these values in two samples that lie at least as far from balance.
    Beyond that the normal approximation with tie and continuity correction.
    """
    if not a or not b:
        return None
    ranks = _doubled_ranks([*a, *b])
    if len(ranks) <= EXACT_LIMIT:
        return RankTest(_exact_p(ranks, len(a)), "exact")
    return RankTest(_normal_p(ranks, len(a), len(b)), "normal")


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Return twice the rank of each value, from 1; ties share the mean rank, which doubling keeps whole."""
    ordered = sorted(values)
    return [bisect_left(ordered, value) + bisect_right(ordered, value) + 1 for value in values]


def _exact_p(ranks: Sequence[int], size_a: int) -> float:
    size = min(size_a, len(ranks) - size_a)
    chosen = ranks[:size_a] if size == size_a else ranks[size_a:]
    # Twice the expected sum of `size` doubled ranks is size * 2(n + 1): all integers, so no rounding decides a tie.
    balance = size * 2 * (len(ranks) + 1)
    observed = abs(2 * sum(chosen) - balance)
    counts = _rank_sum_counts(tuple(sorted(ranks)), size)
    as_far = sum(ways for total, ways in counts.items() if abs(2 * total - balance) >= observed)
    return as_far / math.comb(len(ranks), size)


@lru_cache(maxsize=64)
def _rank_sum_counts(ranks: tuple[int, ...], size: int) -> dict[int, int]:
    """Return, for each possible sum of `size` of the ranks, how many ways give it."""
    ways: list[Counter[int]] = [Counter({0: 1}), *(Counter[int]() for _ in range(size))]
    for rank in ranks:
        for taken in range(size, 0, -1):
            for total, count in ways[taken - 1].items():
                ways[taken][total + rank] += count
    return dict(ways[size])


def _normal_p(ranks: Sequence[int], size_a: int, size_b: int) -> float:
    size = size_a + size_b
    statistic = sum(ranks[:size_a]) / 2 - size_a * (size_a + 1) / 2
    ties = sum(count**3 - count for count in Counter(ranks).values())
    variance = size_a * size_b / 12 * (size + 1 - ties / (size * (size - 1)))
    if variance <= 0:  # all values are equal
        return 1.0
    distance = abs(statistic - size_a * size_b / 2) - 0.5
    return min(1.0, math.erfc(distance / math.sqrt(2 * variance)))


def smallest_p(size_a: int, size_b: int) -> float:
    """Return the smallest p value the rank test can give for samples of these sizes."""
    return min(1.0, 2 / math.comb(size_a + size_b, size_a))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values for having asked several questions at once (EP 16.2, S8).

    Returns:
        Holm-adjusted p values in the order given: rejecting where they are at
        most alpha makes any false alarm at all no likelier than alpha.
    """
    adjusted = [0.0] * len(p_values)
    reached = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        reached = max(reached, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = reached
    return adjusted
