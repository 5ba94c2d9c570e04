import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.demo.reviewer import coin_p_value, review
from spanfold.demo.stats import mcnemar


def evidence(**changes):
    """Ten cases that are 7: the first model has four of them wrong, the second fixes all four."""
    truth = {f"digit-{n:04d}": 7 for n in range(10)}
    before = truth | dict.fromkeys(list(truth)[:4], 1)
    claim = {"n_fixed": 4, "n_broken": 0, "p_value": 0.125}
    return {"truth": truth, "before": before, "after": truth, "seen": ["digit-9999"], "claim": claim, **changes}


def test_a_true_claim_is_agreed_with():
    assert review(evidence()) == {"agrees": True, "n_fixed": 4, "n_broken": 0, "p_value": 0.125, "objections": []}


@pytest.mark.parametrize(
    ("lie", "objection"),
    [
        ({"claim": {"n_fixed": 5, "n_broken": 0, "p_value": 0.125}}, "4 fixed and 0 broken, not 5 and 0"),
        ({"claim": {"n_fixed": 4, "n_broken": 0, "p_value": 0.03}}, "p = 0.125, not 0.03"),
        ({"seen": ["digit-0003", "digit-0042"]}, "1 of the test cases had been used"),
    ],
)
def test_a_wrong_number_or_a_leaked_case_is_objected_to(lie, objection):
    answer = review(evidence(**lie))

    assert not answer["agrees"]
    assert [o for o in answer["objections"] if objection in o]


@given(st.integers(0, 60), st.integers(0, 60))
def test_two_ways_to_compute_the_p_value_agree(fixed, broken):
    assert coin_p_value(fixed, broken) == pytest.approx(mcnemar(fixed, broken), rel=1e-12)


def test_the_program_answers_json_on_standard_output_without_loading_scikit_learn():
    code = "import sys, spanfold.demo.reviewer as r; r.main(); print('sklearn' in sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(evidence()),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert json.loads(done.stdout) == review(evidence())
    assert done.stderr.strip().endswith("False")
