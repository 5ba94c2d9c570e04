"""The set of spans that were folded."""

from functools import partial

from spanfold.fold._seen import Seen
from tests.fold.journals import TRACE
from tests.journal.steps import steps


def test_ids_that_differ_in_few_bits_take_as_many_steps_as_others() -> None:
    def add(shift: int) -> None:
        seen = Seen()
        for number in range(1, 2_001):
            assert seen.add(TRACE, f"{number << shift:016x}")

    assert max(steps(partial(add, shift)) for shift in (8, 24, 40, 53)) < 2 * steps(partial(add, 0))
