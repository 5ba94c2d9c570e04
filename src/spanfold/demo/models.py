"""The model under diagnosis and the repairs it can be given: plain scikit-learn.

A `Recipe` says what a model is made of, a repair adds one ingredient to it, and
`fit` makes the model. Everything is deterministic: no ingredient draws numbers
that its seed does not fix.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, cast

import numpy as np
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC

from spanfold.demo.digits import Cases, Floats, Labels
from spanfold.demo.records import REPAIRS, Repair
from spanfold.demo.stats import margin

PROVIDER: Final = "scikit-learn"

DOUBT: Final = 0.5
"""Margin below which the experts are asked."""
RBF_GAMMA: Final = 0.25
RBF_FEATURES: Final = 300


class _Estimator(Protocol):
    """What is used of scikit-learn, which publishes no types."""

    def fit(self, images: Floats, labels: Labels) -> object: ...
    def predict(self, images: Floats) -> Labels: ...
    def predict_proba(self, images: Floats) -> Floats: ...


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a model is made of: logistic regression on the pixels, and any of three additions."""

    kernel: bool = False
    """Radial basis functions in place of pixels, so that boundaries between classes can bend."""
    shifts: bool = False
    """Every training image also one pixel up, down, left and right."""
    experts: bool = False
    """A support-vector machine per pair of classes has the last word where the model is in doubt."""

    def with_repair(self, repair: Repair) -> "Recipe":
        """Return this recipe with one ingredient more; the same recipe if it is there already."""
        added: dict[str, Any] = {repair: True}
        return replace(self, **added)

    @property
    def name(self) -> str:
        """Name of a model made this way, such as `sklearn-logistic-regression+kernel`."""
        return "+".join(["sklearn-logistic-regression", *(r for r in REPAIRS if getattr(self, r))])


@dataclass(frozen=True, slots=True)
class Model:
    """A fitted model. Predicts ten probabilities per image."""

    recipe: Recipe
    classifier: _Estimator
    train: Cases
    """What it learned from, additions included."""
    experts: dict[tuple[int, int], _Estimator] = field(default_factory=dict[tuple[int, int], _Estimator])
    """Made when a pair of classes first needs one."""

    @property
    def name(self) -> str:
        """Name of its recipe."""
        return self.recipe.name

    def predict_proba(self, images: Floats) -> Floats:
        """Return class probabilities, shape (n, 10); the largest is the prediction."""
        probabilities = self.classifier.predict_proba(images)
        if self.recipe.experts:
            for row in np.flatnonzero(margin(probabilities) < DOUBT):
                _let_expert_decide(self, images[row], probabilities[row])
        return probabilities


def fit(recipe: Recipe, train: Cases) -> Model:
    """Fit a model on `train`."""
    if recipe.shifts:
        train = with_shifts(train)
    # C: less regularisation for features that are already smooth.
    linear = LogisticRegression(C=10.0 if recipe.kernel else 1.0, max_iter=1000, tol=1e-3)
    features = Nystroem(gamma=RBF_GAMMA, n_components=min(RBF_FEATURES, len(train)), random_state=0)
    classifier = cast("_Estimator", Pipeline([("features", features), ("linear", linear)]) if recipe.kernel else linear)
    classifier.fit(train.images, train.labels)
    return Model(recipe, classifier, train)


def with_shifts(cases: Cases) -> Cases:
    """Return the cases and each of them one pixel to the right, left, down and up; ink pushed off the edge is lost."""
    square = cases.images.reshape(-1, 8, 8)
    moved = [np.roll(square, step, axis) for axis in (2, 1) for step in (1, -1)]
    # Roll wraps around; the row or column that came in from the far side is paper.
    moved[0][:, :, 0] = moved[1][:, :, -1] = moved[2][:, 0, :] = moved[3][:, -1, :] = 0.0
    images = np.concatenate([square, *moved]).reshape(-1, 64)
    return Cases(cases.ids * 5, images, np.tile(cases.labels, 5))


def _let_expert_decide(model: Model, image: Floats, probabilities: Floats) -> None:
    """Swap the two largest of `probabilities` in place if the expert for these two classes says so."""
    second, first = (int(c) for c in np.argsort(probabilities, kind="stable")[-2:])
    pair = (min(first, second), max(first, second))
    if pair not in model.experts:
        rows = np.flatnonzero(np.isin(model.train.labels, pair))
        expert = cast("_Estimator", SVC(gamma=RBF_GAMMA, C=10.0))  # pyright: ignore[reportArgumentType]  # a guess: scikit-learn has no types
        expert.fit(model.train.images[rows], model.train.labels[rows])
        model.experts[pair] = expert
    if int(model.experts[pair].predict(image[np.newaxis])[0]) == second:
        probabilities[[first, second]] = probabilities[[second, first]]
