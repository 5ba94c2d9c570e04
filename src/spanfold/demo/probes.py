"""What M1 measures on each case: signals a failure might have in common, and which pixels a decision hangs on.

No signal looks at the true label, so each could also be computed for a case
nobody has labelled yet: that is what makes a signal worth acting on.
"""

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from spanfold.demo.digits import Cases, Floats, Labels
from spanfold.demo.models import Model
from spanfold.demo.stats import entropy, margin

NEIGHBOURS: Final = 5

Occlusion = Literal["one by one", "batched"]
"""Two ways to run the same 64 questions about an image: a call each, or one call for all."""


def signals(probabilities: Floats, cases: Cases, train: Cases) -> dict[str, Floats]:
    """Return one number per case for each signal, by name.

    Args:
        probabilities: The model's answer, shape (n, 10).
        cases: What it was asked.
        train: What it learned from.
    """
    square = cases.images.reshape(-1, 8, 8)
    ink = square.sum(axis=(1, 2))
    offset = np.arange(8) - 3.5
    column = (square.sum(axis=1) @ offset) / ink
    row = (square.sum(axis=2) @ offset) / ink
    spread = (square.sum(axis=1) * (offset - column[:, np.newaxis]) ** 2).sum(axis=1) / ink
    distances = _distances(cases.images, train.images)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :NEIGHBOURS]
    return {
        "doubt": 1.0 - margin(probabilities),
        "entropy": entropy(probabilities),
        "disagreement": (train.labels[nearest] != probabilities.argmax(axis=1)[:, np.newaxis]).mean(axis=1),
        "novelty": np.take_along_axis(distances, nearest, axis=1).mean(axis=1),
        "off_centre": np.hypot(column, row),
        "width": np.sqrt(spread),
        "ink": ink,
    }


def _distances(images: Floats, others: Floats) -> Floats:
    """Return the Euclidean distance from each image to each of the others."""
    squares = (images**2).sum(axis=1)[:, np.newaxis] + (others**2).sum(axis=1) - 2 * images @ others.T
    distances: Floats = np.sqrt(np.clip(squares, 0.0, None))
    return distances


def saliency(model: Model, image: Floats, occlusion: Occlusion) -> Floats:
    """Return how much of the prediction's probability goes when each pixel is made paper, shape (8, 8).

    Args:
        model: The model to ask.
        image: Shape (64,).
        occlusion: How to ask; the answer is the same.
    """
    before = model.predict_proba(image[np.newaxis])[0]
    predicted = before.argmax()
    erased = np.where(np.eye(64, dtype=bool), 0.0, image)
    if occlusion == "batched":
        after = model.predict_proba(erased)[:, predicted]
    else:
        after = np.array([model.predict_proba(one[np.newaxis])[0, predicted] for one in erased])
    lost: Floats = before[predicted] - after
    return lost.reshape(8, 8)


def confusions(truth: Labels, predicted: Labels) -> NDArray[np.int64]:
    """Return how often each digit (row) was taken for each other (column), shape (10, 10); the diagonal is zero."""
    counts = np.zeros((10, 10), dtype=np.int64)
    np.add.at(counts, (truth, predicted), 1)
    np.fill_diagonal(counts, 0)
    return counts


def contact_sheet(images: Floats, columns: int = 6) -> Floats:
    """Return images side by side as one, `columns` to a row and a pixel of paper between them.

    Args:
        images: Shape (n, 64), at least one.
    """
    n_rows = -(-len(images) // columns)
    sheet = np.zeros((n_rows * 9 - 1, columns * 9 - 1))
    for place, image in enumerate(images.reshape(-1, 8, 8)):
        top, left = place // columns * 9, place % columns * 9
        sheet[top : top + 8, left : left + 8] = image
    return sheet
