"""The data: 1,797 handwritten digits that ship with scikit-learn, in five parts that share no case.

The file is in the order in which it was collected, so neighbours tend to come
from one writer. The model learns from the first half and meets mostly other
hands in the second, which is why it fails there more often than a shuffled
split would show. Nothing is downloaded and nothing is generated.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

MAX_CYCLES: Final = 2
"""How often the loop may go round; each time has a part of its own to verify on."""
EXPLORE_SHARE: Final = 0.30
VERIFY_SHARE: Final = 0.15

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cases:
    """Images with their labels and names, in one order."""

    ids: tuple[str, ...]
    """`digit-<row of the file>`, four digits."""
    images: Floats
    """Shape (n, 64): eight rows of eight pixels, 0 is paper and 1 is ink."""
    labels: Labels
    """Shape (n,): what the writer meant, 0 to 9."""

    def __len__(self) -> int:
        return len(self.ids)

    def __add__(self, other: "Cases") -> "Cases":
        images, labels = np.concatenate([self.images, other.images]), np.concatenate([self.labels, other.labels])
        return Cases(self.ids + other.ids, images, labels)

    def take(self, rows: NDArray[np.intp]) -> "Cases":
        """Return the cases of these rows, in this order."""
        return Cases(tuple(self.ids[int(row)] for row in rows), self.images[rows], self.labels[rows])

    def batches(self, size: int) -> Iterator["Cases"]:
        """Yield the cases in order, `size` at a time; the last batch may be smaller."""
        for start in range(0, len(self), size):
            yield self.take(np.arange(start, min(start + size, len(self))))


@dataclass(frozen=True, slots=True)
class Digits:
    """The five parts. What one part was used for is never asked of it again."""

    train: Cases
    """The first half of the file."""
    explore: Cases
    """Where failures are looked at, and repairs are chosen."""
    verify: tuple[Cases, ...]
    """Where hypotheses are tested: one part per cycle."""
    test: Cases
    """Where the final model is compared with the first one, once."""


def split_digits(seed: int, n_cases: int | None = None) -> Digits:
    """Load the digits and split them; the same arguments give the same parts.

    Args:
        seed: Which cases of the second half go to which part.
        n_cases: Use only so many of its 899 cases; None uses all.

    Raises:
        ValueError: `n_cases` is less than 20: some part would have too few cases to fail.
    """
    if n_cases is not None and n_cases < 20:
        raise ValueError(f"cases: expected 20 or more, so that every part gets some, found {n_cases}.")
    images, labels = cast("tuple[Floats, Labels]", load_digits(return_X_y=True))
    everything = Cases(tuple(f"digit-{row:04d}" for row in range(len(labels))), images / 16.0, labels.astype(np.int64))
    half = len(everything) // 2
    order = half + np.random.default_rng(seed).permutation(len(everything) - half)[:n_cases]
    sizes = [round(len(order) * share) for share in (EXPLORE_SHARE, *[VERIFY_SHARE] * MAX_CYCLES)]
    explore, *verify, test = np.split(order, np.cumsum(sizes))
    return Digits(
        train=everything.take(np.arange(half)),
        explore=everything.take(explore),
        verify=tuple(everything.take(part) for part in verify),
        test=everything.take(test),
    )
