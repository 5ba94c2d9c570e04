"""Inputs made to be slow: time stays in proportion to size, and nothing raises."""

import time

import pytest

from bench.bench_redact import HOSTILE, HOSTILE_RUNS
from spanfold.redact import Redactor, StreamRedactor

KIB = 1024
REDACTOR = Redactor()
INPUTS = {name: unit * (256 * KIB // len(unit)) for name, unit in HOSTILE.items()} | {
    name: first + rest * (256 * KIB // len(rest)) for name, (first, rest) in HOSTILE_RUNS.items()
}


@pytest.mark.slow
@pytest.mark.contract("AI-105")
@pytest.mark.parametrize("name", INPUTS)
def test_a_hostile_text_does_not_hang_the_engine(name: str) -> None:
    began = time.process_time()

    redacted = REDACTOR.redact(INPUTS[name])

    # Linear work takes well under a second. Quadratic work takes minutes.
    assert time.process_time() - began < 20
    assert redacted != "(REDACTED-engine-failure)"
    assert REDACTOR.redact(redacted) == redacted


@pytest.mark.slow
@pytest.mark.contract("AI-105")
@pytest.mark.parametrize("name", INPUTS)
def test_a_hostile_stream_does_not_hang(name: str) -> None:
    stream = StreamRedactor(REDACTOR)
    text = INPUTS[name]
    began = time.process_time()

    for at in range(0, len(text), 4 * KIB):
        stream.feed(text[at : at + 4 * KIB])
    stream.flush()

    assert time.process_time() - began < 20


@pytest.mark.slow
@pytest.mark.contract("AI-105")
@pytest.mark.parametrize("name", ["token", "eyJ", "M", "AKIA", "12345678:", "://a:", "sk-"])
def test_a_hostile_record_does_not_hang_the_pre_filter(name: str) -> None:
    data = (name * (4 * KIB * KIB // len(name))).encode()
    began = time.process_time()

    for _ in range(10):
        REDACTOR.suspects(data)

    assert time.process_time() - began < 20
