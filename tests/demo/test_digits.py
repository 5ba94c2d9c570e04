import numpy as np
import pytest
from sklearn.datasets import load_digits

from spanfold.demo.digits import split_digits


def test_no_case_is_in_two_parts_and_every_one_is_in_one():
    digits = split_digits(seed=0)
    parts = [digits.train, digits.explore, *digits.verify, digits.test]
    ids = [case for part in parts for case in part.ids]

    assert len(ids) == len(set(ids)) == 1797
    assert min(len(part) for part in parts) > 100


def test_a_case_is_the_row_of_the_file_its_name_says():
    everything = load_digits()
    test = split_digits(seed=3).test

    for case, image, label in zip(test.ids, test.images, test.labels, strict=True):
        row = int(case.removeprefix("digit-"))
        assert label == everything.target[row]
        assert np.array_equal(image * 16, everything.data[row])


def test_the_seed_decides_who_is_where_and_nothing_else_does():
    assert split_digits(seed=1).test.ids == split_digits(seed=1).test.ids
    assert split_digits(seed=1).test.ids != split_digits(seed=2).test.ids
    assert split_digits(seed=1).train.ids == split_digits(seed=2).train.ids


def test_fewer_cases_shrink_every_part_but_the_training_half():
    digits = split_digits(seed=0, n_cases=100)

    assert [len(p) for p in (digits.explore, *digits.verify, digits.test)] == [30, 15, 15, 40]
    assert len(digits.train) == 898


def test_too_few_cases_are_refused_with_the_number_that_would_do():
    with pytest.raises(ValueError, match="20 or more"):
        split_digits(seed=0, n_cases=19)


def test_batches_are_the_cases_in_order_with_a_short_last_one():
    cases = split_digits(seed=0, n_cases=100).test
    batches = list(cases.batches(16))

    assert [len(b) for b in batches] == [16, 16, 8]
    assert tuple(case for b in batches for case in b.ids) == cases.ids
    assert np.array_equal(np.concatenate([b.images for b in batches]), cases.images)
