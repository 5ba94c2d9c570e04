import numpy as np
import pytest

from spanfold.demo.digits import split_digits
from spanfold.demo.models import Recipe, fit, with_shifts
from spanfold.demo.probes import confusions, saliency, signals
from spanfold.demo.records import REPAIRS
from spanfold.demo.stats import margin


@pytest.fixture(scope="module")
def digits():
    return split_digits(seed=0, n_cases=200)


def test_a_repair_adds_one_ingredient_and_its_name():
    assert Recipe().name == "sklearn-logistic-regression"
    assert Recipe().with_repair("experts").with_repair("kernel").name == "sklearn-logistic-regression+kernel+experts"
    for repair in REPAIRS:
        once = Recipe().with_repair(repair)
        assert once != Recipe()
        assert once.with_repair(repair) == once


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", [Recipe(), Recipe(kernel=True), Recipe(experts=True), Recipe(kernel=True, experts=True)]
)
def test_a_model_learns_gives_probabilities_and_is_the_same_each_time(digits, recipe):
    answers = fit(recipe, digits.train).predict_proba(digits.test.images)

    assert answers.sum(axis=1) == pytest.approx(1.0)
    # Guessing is right one time in ten.
    assert (answers.argmax(axis=1) == digits.test.labels).mean() > 0.8
    assert np.array_equal(answers, fit(recipe, digits.train).predict_proba(digits.test.images))


@pytest.mark.slow
def test_experts_change_only_what_the_model_doubts_and_only_to_its_second_choice(digits):
    alone = fit(Recipe(), digits.train).predict_proba(digits.test.images)
    advised = fit(Recipe(experts=True), digits.train).predict_proba(digits.test.images)
    changed = alone.argmax(axis=1) != advised.argmax(axis=1)

    assert changed.any()
    assert (margin(alone)[changed] < 0.5).all()
    assert np.array_equal(advised.argmax(axis=1)[changed], np.argsort(alone, axis=1)[changed, -2])
    assert np.array_equal(np.sort(alone, axis=1), np.sort(advised, axis=1))


def test_shifts_move_ink_by_one_pixel_and_wrap_nothing_around(digits):
    one = digits.train.take(np.array([5]))
    original, right, left, down, up = with_shifts(one).images.reshape(5, 8, 8)

    assert np.array_equal(right[:, 1:], original[:, :-1])
    assert np.array_equal(left[:, :-1], original[:, 1:])
    assert np.array_equal(down[1:], original[:-1])
    assert np.array_equal(up[:-1], original[1:])
    assert not right[:, 0].any()
    assert not left[:, -1].any()
    assert not down[0].any()
    assert not up[-1].any()
    assert with_shifts(one).labels.tolist() == one.labels.tolist() * 5


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [Recipe(), Recipe(kernel=True, experts=True)])
def test_saliency_is_the_same_one_by_one_and_batched_and_zero_where_there_is_no_ink(digits, recipe):
    model = fit(recipe, digits.train)
    for image in digits.explore.images[:3]:
        batched = saliency(model, image, "batched")
        assert batched == pytest.approx(saliency(model, image, "one by one"), abs=1e-9)
        assert not np.abs(batched[image.reshape(8, 8) == 0]).max() > 1e-9
        assert np.abs(batched).max() > 0


@pytest.mark.slow
def test_signals_are_one_finite_number_per_case_and_do_not_see_the_true_label(digits):
    cases = digits.explore
    answers = fit(Recipe(), digits.train).predict_proba(cases.images)
    measured = signals(answers, cases, digits.train)
    blinded = signals(answers, type(cases)(cases.ids, cases.images, cases.labels * 0), digits.train)

    for name, values in measured.items():
        assert values.shape == (len(cases),), name
        assert np.isfinite(values).all(), name
        assert np.array_equal(values, blinded[name]), name


def test_confusions_count_each_error_once_by_truth_and_answer():
    counts = confusions(np.array([1, 1, 1, 7]), np.array([9, 9, 1, 2]))

    assert counts.sum() == 3
    assert counts[1, 9] == 2
    assert counts[7, 2] == 1
