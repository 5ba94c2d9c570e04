"""The redactor as a whole: clean texts come back untouched, odd ones do no harm, failure withholds, forks and threads work."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spanfold.redact
from spanfold.redact import Redactor, default_redactor, redact
from tests.redact.samples import TOKEN, secret_values, texts

A = "(REDACTED-assignment)"


@given(text=st.text())
def test_a_clean_text_comes_back_as_the_same_object(text: str) -> None:
    redacted = redact(text)

    assert redacted is text or redacted != text


@pytest.mark.contract("AI-113")
@given(text=texts())
def test_redacting_twice_is_redacting_once(text: str) -> None:
    once = redact(text)

    assert redact(once) == once
    assert once != "(REDACTED-engine-failure)"
    assert len(TOKEN.findall(once)) >= once.count("(REDACTED-") - text.count("(REDACTED-")


@pytest.mark.slow
@pytest.mark.contract("AI-104")
@settings(max_examples=400)
@given(many=st.lists(texts(), min_size=25, max_size=25))
def test_redacting_any_of_ten_thousand_texts_twice_is_redacting_it_once(many: list[str]) -> None:
    once = [redact(text) for text in many]

    assert [redact(text) for text in once] == once


@given(text=texts().filter(lambda text: "PRIVATE" not in text and "Private" not in text))
def test_no_line_is_lost(text: str) -> None:
    assert redact(text).count("\n") == text.count("\n")


@given(secret=secret_values(), left=st.text(), right=st.text(st.characters(exclude_characters="\"'`")))
def test_the_text_around_a_secret_is_kept_character_by_character(secret: str, left: str, right: str) -> None:
    expected_left, expected_right = redact(left + "\n"), redact("\n" + right)

    redacted = redact(f"{left}\nMY_TOKEN={secret}\n{right}")

    assert redacted == f"{expected_left}MY_TOKEN={A}{expected_right}"


def test_anything_can_be_redacted() -> None:
    class Text(str):
        def __str__(self) -> str:
            return "MY_TOKEN=other"

    assert redact(None) == ""
    assert redact(7) == "7"
    assert redact(b"MY_TOKEN=abc \xff") == f"MY_TOKEN={A} \\xff"
    assert redact(Text("MY_TOKEN=abc")) == f"MY_TOKEN={A}"
    assert type(redact(Text("x"))) is str
    assert redact("\ud800 MY_TOKEN=a\udfffb \ud83d\ude00") == f"\ud800 MY_TOKEN={A} \ud83d\ude00"


@pytest.mark.contract("AI-107")
@pytest.mark.case("C-065")
def test_a_text_that_cannot_be_read_is_withheld() -> None:
    class Unreadable:
        def __str__(self) -> str:
            raise ValueError("MY_TOKEN=abc")

    assert redact(Unreadable()) == "(REDACTED-engine-failure)"
    assert redact("(REDACTED-engine-failure)") == "(REDACTED-engine-failure)"


def test_a_text_longer_than_a_piece_is_redacted_like_its_parts() -> None:
    lines = [
        f"{number} MY_TOKEN=abc{number}x é" if number % 700 == 0 else f"{number} some plain text"
        for number in range(9000)
    ]

    redacted = redact("\n".join(lines))

    assert redacted.split("\n") == [redact(line) for line in lines]
    assert redacted.count(A) == 13


def test_a_long_clean_text_comes_back_as_the_same_object() -> None:
    text = "some plain text\n" * 20_000

    assert redact(text) is text


def test_the_functions_of_the_module_use_the_redactor_of_the_process() -> None:
    spanfold.redact.register_literal("only-known-here-1")

    assert spanfold.redact.redact("only-known-here-1") == "(REDACTED-literal)"
    assert default_redactor.redact("only-known-here-1") == "(REDACTED-literal)"
    assert Redactor().redact("only-known-here-1") == "only-known-here-1"


def test_nothing_is_read_from_the_environment() -> None:
    value = "from-the-environment-1"
    os.environ["MY_API_KEY"] = value

    assert Redactor().redact(value) == value


@pytest.mark.slow
def test_threads_register_and_redact_at_once() -> None:
    redactor = Redactor()
    start = threading.Barrier(4)

    def work(thread: int) -> int:
        start.wait()
        found = 0
        for number in range(10):
            literal = f"literal-{thread}-{number}-x"
            redactor.register_literal(literal)
            found += redactor.redact(f"<{literal}>") == "<(REDACTED-literal)>"
        return found

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [10] * 4


@pytest.mark.slow
def test_a_forked_child_redacts_while_the_parent_searches_in_other_threads() -> None:
    redactor = Redactor()
    redactor.register_literal("open-sesame-1")
    stop = threading.Event()
    # New states of the automaton are made under a lock: random texts keep it busy while we fork.
    source = [os.urandom(20_000).hex() + "sk-xoxb-AKIA" + str(number) for number in range(50)]

    def search() -> None:
        while not stop.is_set():
            for text in source:
                redactor.redact(text)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                ok = redactor.redact("open-sesame-1 MY_TOKEN=abc") == f"(REDACTED-literal) MY_TOKEN={A}"
                os._exit(0 if ok else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
