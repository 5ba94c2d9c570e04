"""Something without a time limit of its own, done within one."""

import threading
import time

import pytest
from opentelemetry import context

from spanfold.deliver._bounded import within


def test_a_result_in_time_is_returned_and_an_error_raised():
    undone: list[int] = []
    assert within(time.monotonic() + 30, lambda: 7, undone.append) == 7
    with pytest.raises(ZeroDivisionError):
        within(time.monotonic() + 30, lambda: 1 // 0, undone.append)
    assert undone == []


def test_a_result_that_comes_too_late_is_undone_and_nobody_waits_for_it():
    released, undone = threading.Event(), threading.Event()

    def act() -> int:
        released.wait(30)
        return 7

    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        within(time.monotonic() + 0.05, act, lambda late: undone.set())
    assert time.monotonic() - begun < 10
    assert not undone.is_set()
    released.set()
    assert undone.wait(30)


def test_instrumentors_are_told_not_to_record_what_is_sent():
    keys = ("suppress_instrumentation", context._SUPPRESS_INSTRUMENTATION_KEY)
    found = within(time.monotonic() + 30, lambda: [context.get_value(key) for key in keys], lambda late: None)
    assert found == [True, True]
    assert [context.get_value(key) for key in keys] == [None, None]
