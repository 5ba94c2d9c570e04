"""The gate: clean records pass, the user's callback is bounded, and every failure withholds the value."""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from spanfold.redact import Gate, Redactor

FAILED = "(REDACTED-engine-failure)"
A = "(REDACTED-assignment)"


def line(text: str) -> bytes:
    return orjson.dumps({"attributes": [{"key": "spanfold.note", "value": {"stringValue": text}}]})


def test_a_record_without_secrets_is_clean_and_one_with_a_secret_is_not() -> None:
    gate = Gate(Redactor())

    assert gate.is_clean(line("nothing here"))
    assert not gate.is_clean(line("MY_TOKEN=abc"))
    assert gate.scrub_text("MY_TOKEN=abc") == f"MY_TOKEN={A}"
    assert gate.scrub_value({"password": "x y", "n": [1, None, "MY_TOKEN=abc"]}) == {
        "password": A,
        "n": [1, None, f"MY_TOKEN={A}"],
    }
    assert gate.is_sensitive_name("spanfold.api_key")
    assert gate.failures == 0


def test_without_rules_literals_and_sensitive_keys_stay_on() -> None:
    redactor = Redactor()
    redactor.register_literal("open-sesame-1")
    gate = Gate(redactor, False)

    assert gate.is_clean(line("sk-" + "a1" * 12))
    assert gate.scrub_text("MY_TOKEN=abc open-sesame-1") == "MY_TOKEN=abc (REDACTED-literal)"
    assert not gate.is_clean(line("open-sesame-1"))
    assert not gate.is_clean(line('{"password": "x y"}'))
    assert gate.scrub_value({"password": "x y"}) == {"password": A}


def test_a_callback_sees_every_string_after_the_rules_and_the_rules_see_its_answer() -> None:
    seen: list[str] = []

    def callback(text: str) -> str:
        seen.append(text)
        return text.replace("Alice", "somebody").replace("LEAK", "MY_TOKEN=abc")

    gate = Gate(Redactor(), callback)

    assert not gate.is_clean(line("nothing here"))
    assert gate.scrub_text("Alice MY_TOKEN=xyz") == f"somebody MY_TOKEN={A}"
    assert gate.scrub_value({"Alice": ["Alice", 7, None, "LEAK"]}) == {
        "somebody": ["somebody", 7, None, f"MY_TOKEN={A}"]
    }
    assert seen == [f"Alice MY_TOKEN={A}", "Alice", "Alice", "LEAK"]


def _raises(text: str) -> str:
    raise ValueError(f"cannot stand {text}")


def _exits(text: str) -> str:
    raise SystemExit(text)


@pytest.mark.contract("AI-107")
@pytest.mark.case("C-065")
@pytest.mark.parametrize(
    ("callback", "reason"),
    [
        (_raises, "raised ValueError"),
        (_exits, "raised SystemExit"),
        (lambda text: None, "returned a NoneType"),
        (lambda text: 7, "returned a int"),
        (lambda text: text.encode(), "returned a bytes"),
    ],
    ids=["raises", "exits", "None", "number", "bytes"],
)
def test_a_failing_callback_withholds_the_value_and_says_so_once(
    callback: Callable[[str], Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(Redactor(), callback)
    with caplog.at_level(logging.WARNING, logger="spanfold"):
        assert gate.scrub_text("private words") == FAILED
        assert gate.scrub_value({"a": "private words", "n": 1}) == {FAILED: FAILED, f"{FAILED}#2": 1}

    assert gate.scrub_name("spanfold.note") == "spanfold.note"
    assert gate.failures == 4
    assert len(caplog.records) == 1
    assert reason in caplog.text
    assert "private words" not in caplog.text


@pytest.mark.contract("AI-107")
@pytest.mark.case("C-065")
def test_a_hanging_callback_is_abandoned_and_everything_after_it_is_withheld(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    asked: list[str] = []

    def callback(text: str) -> str:
        asked.append(text)
        if text == "hang":
            release.wait(60)
        return text

    gate = Gate(Redactor(), callback, timeout_s=0.2)
    try:
        assert gate.scrub_text("first") == "first"
        began = time.monotonic()
        assert gate.scrub_text("hang") == FAILED
        assert [gate.scrub_text("later") for _ in range(100)] == [FAILED] * 100
        assert time.monotonic() - began < 10
    finally:
        release.set()

    assert asked == ["first", "hang"]
    assert gate.failures == 101
    assert "longer than 0.2 s" in caplog.text


def test_a_callback_that_records_something_itself_does_not_hang() -> None:
    inner: list[str] = []

    def callback(text: str) -> str:
        inner.append(gate.scrub_text("from inside"))
        return text

    gate = Gate(Redactor(), callback)

    assert gate.scrub_text("outside") == "outside"
    assert inner == [FAILED]


def test_threads_ask_a_callback_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=30)

    def callback(text: str) -> str:
        both.wait()
        return text.upper()

    gate = Gate(Redactor(), callback, timeout_s=30)
    answers: list[str] = []
    threads = [threading.Thread(target=lambda name=name: answers.append(gate.scrub_text(name))) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(answers) == ["A", "B"]


def test_a_forked_child_asks_a_callback_on_a_thread_of_its_own() -> None:
    gate = Gate(Redactor(), str.upper)
    assert gate.scrub_text("parent") == "PARENT"

    child = os.fork()
    if child == 0:
        os._exit(0 if gate.scrub_text("child") == "CHILD" and gate.failures == 0 else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_redact_setting_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="redact= must be True, False or a callable, not a str"):
        Gate(Redactor(), "yes")  # type: ignore[arg-type]  # what a caller may get wrong


@pytest.mark.slow
def test_a_value_of_any_depth_is_scrubbed() -> None:
    deep: Any = "MY_TOKEN=abc"
    for _ in range(50_000):
        deep = [deep]

    scrubbed = Gate(Redactor()).scrub_value(deep)

    while isinstance(scrubbed, list):
        scrubbed = scrubbed[0]
    assert scrubbed == f"MY_TOKEN={A}"
