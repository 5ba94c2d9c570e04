"""What an answer means: the table of OTLP, and that no answer, however odd, raises or counts as an acknowledgement."""

import math
import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.deliver._answer import MAX_RETRY_AFTER_S, Answer, judge_grpc, judge_http

PROTOBUF = "application/x-protobuf"


def test_only_what_otlp_calls_retryable_is_tried_again_by_itself():
    answers = {status: judge_http(status, PROTOBUF, "", b"") for status in range(100, 600)}
    retried = {s for s, answer in answers.items() if answer.result == "retry" and answer.retry_after_s != math.inf}
    waiting = {s for s, answer in answers.items() if answer.result == "retry" and answer.retry_after_s == math.inf}
    assert retried == {429, 502, 503, 504}
    assert {s for s, answer in answers.items() if answer.result == "accepted"} == {200, 202}
    assert {s for s, answer in answers.items() if answer.result == "too_large"} == {413}
    # What is about the address or the key refuses no record.
    assert waiting == {*range(100, 400), 401, 403, 404, 405, 407, 415} - {200, 202}
    assert {s for s, answer in answers.items() if answer.result == "broken"} == {*range(500, 600)} - retried


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("120", 120, 120),
        ("0", 0, 0),
        (" 7 ", 7, 7),
        ("99999999999999999999", MAX_RETRY_AFTER_S, MAX_RETRY_AFTER_S),
    ],
)
def test_a_retry_after_is_read_as_seconds(text, least, most):
    found = judge_http(503, "", text, b"").retry_after_s
    assert found is not None and least <= found <= most


@pytest.mark.parametrize(("ahead_s", "least", "most"), [(3600, 3500, 3700), (-3600, 0, 0)])
def test_a_retry_after_is_read_as_a_date(ahead_s, least, most):
    found = judge_http(503, "", formatdate(time.time() + ahead_s, usegmt=True), b"").retry_after_s
    assert found is not None and least <= found <= most


@pytest.mark.parametrize("text", ["", "soon", "-5", "1.5", "nan", "inf", "٣", "Mon, 99 Foo 2026"])
def test_a_retry_after_that_is_none_leaves_the_pause_to_us(text):
    assert judge_http(503, "", text, b"").retry_after_s is None


@given(
    status=st.integers(100, 999),
    kind=st.sampled_from([PROTOBUF, "application/json", "text/html", ""]),
    retry_after=st.text(max_size=40),
    content=st.binary(max_size=60) | st.text(max_size=40).map(str.encode),
)
def test_no_answer_raises_and_none_but_an_otlp_one_acknowledges(status, kind, retry_after, content):
    answer = judge_http(status, kind, retry_after, content)
    assert isinstance(answer, Answer)
    if answer.result == "accepted":
        assert status in (200, 202) and (not content or kind in (PROTOBUF, "application/json"))
    assert answer.rejected >= 0
    assert answer.retry_after_s is None or answer.retry_after_s >= 0


@pytest.mark.parametrize(
    ("code", "details", "delay", "expected"),
    [
        ("UNAVAILABLE", "", None, ("retry", None)),
        ("UNAVAILABLE", "", 2.5, ("retry", 2.5)),
        ("RESOURCE_EXHAUSTED", "quota", 30.0, ("retry", 30.0)),
        ("RESOURCE_EXHAUSTED", "quota", None, ("retry", math.inf)),
        # As Go, C++, Java, .NET and Rust say it.
        ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (5 vs. 4)", None, ("too_large", None)),
        ("RESOURCE_EXHAUSTED", "Received message larger than max (5 vs. 4)", None, ("too_large", None)),
        ("RESOURCE_EXHAUSTED", "gRPC message exceeds maximum size 4: 5", None, ("too_large", None)),
        (
            "RESOURCE_EXHAUSTED",
            "Received message exceeds the maximum configured message size.",
            None,
            ("too_large", None),
        ),
        ("OUT_OF_RANGE", "Error, decoded message length too large: found 5 bytes", None, ("too_large", None)),
        ("OUT_OF_RANGE", "", None, ("retry", None)),
        ("INVALID_ARGUMENT", "", None, ("refused", None)),
        ("INVALID_ARGUMENT", "", 5.0, ("refused", None)),
        ("UNAUTHENTICATED", "", None, ("retry", math.inf)),
        ("INTERNAL", "", None, ("broken", None)),
    ],
)
def test_what_a_grpc_status_means(code, details, delay, expected):
    answer = judge_grpc(code, details, delay)
    assert (answer.result, answer.retry_after_s) == expected
    assert details not in answer.reason or not details
