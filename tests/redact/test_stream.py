"""Streams: however a text is cut, nothing leaks that the whole text would not show."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.redact import Redactor, StreamRedactor, redact
from tests.redact.samples import FILLERS, WORD, json_web_tokens, private_keys, secret_values, secrets, words

K = "(REDACTED-private-key)"
PARTIAL = "(REDACTED-partial)"


def streamed(pieces: list[str], redactor: Redactor | None = None) -> str:
    stream = StreamRedactor(redactor)
    return "".join([*map(stream.feed, pieces), stream.flush()])


def cut(text: str, data: st.DataObject, most: int = 12) -> list[str]:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=most)))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


lines = st.lists(
    st.one_of(
        secrets().filter(lambda text: "PRIVATE" not in text), secret_values(), st.sampled_from(FILLERS[2:-12]),
        st.just("\n"), st.just("\r\n"), words(least=1),
    ),
    max_size=12,
).map("".join)  # fmt: skip


@pytest.mark.contract("AI-108")
@given(text=lines, data=st.data())
def test_a_cut_text_comes_out_like_the_whole_text(text: str, data: st.DataObject) -> None:
    whole = redact(text + "\n end\n")

    assert streamed(cut(text + "\n end\n", data)) == whole


@pytest.mark.contract("AI-108")
@pytest.mark.case("C-064")
@given(key=private_keys(), data=st.data())
def test_no_line_of_a_private_key_comes_out_however_it_is_cut(key: str, data: st.DataObject) -> None:
    material = [line for line in key.replace("\\n", "\n").split() if len(line) > 8 and "-" not in line]

    out = streamed(cut(f"before\n{key}\nafter\n", data))

    assert not any(line in out for line in material)
    assert out.startswith(f"before\n{K}")
    assert out.endswith("\nafter\n")


@pytest.mark.contract("AI-109")
def test_a_private_key_printed_line_by_line_gives_no_key_line() -> None:
    key = [WORD[at:] + "+/" + WORD[:at] for at in range(28)]
    stream = StreamRedactor()

    out = [
        stream.feed(f"{line}\n")
        for line in ["start", "-----BEGIN PRIVATE KEY-----", *key, "-----END PRIVATE KEY-----", "done"]
    ]

    assert out == ["start\n", f"{K}\n", *[""] * len(key), "\n", "done\n"]


def test_key_lines_behind_a_log_prefix_are_masked_and_the_prefix_stays() -> None:
    stream = StreamRedactor()
    key = WORD + "+/"

    out = (
        stream.feed("12:00 -----BEGIN PRIVATE KEY-----\n") + stream.feed(f"12:00 {key}\n") + stream.feed("12:01 Ab1=\n")
    )

    assert out == f"12:00 {K}\n12:00 {K}\n12:01 {K}\n"


def test_prose_behind_a_begin_line_comes_out() -> None:
    stream = StreamRedactor()

    assert stream.feed("-----BEGIN PRIVATE KEY-----\n") == f"{K}\n"
    assert (
        stream.feed("is how a key begins, 9f86d081884c7d659a2feaa0c55ad015\n")
        == "is how a key begins, 9f86d081884c7d659a2feaa0c55ad015\n"
    )


def test_putty_lines_are_counted_over_pieces() -> None:
    stream = StreamRedactor()

    out = [stream.feed(piece) for piece in ("Private-Lines: 3\nfirst\n", "second\n", "third\nPrivate-MAC: 00\n", "x\n")]

    assert out == [f"Private-Lines: 3\n{K}", "", "\nPrivate-MAC: 00\n", "x\n"]


@pytest.mark.contract("AI-109")
@given(head=st.integers(8, 22), windows=st.booleans())
def test_a_token_wrapped_over_two_appends_is_masked_in_both(head: int, windows: bool) -> None:
    token = "ghp_" + (WORD[10:] * 2)[:36]
    line_break = "\r\n" if windows else "\n"
    stream = StreamRedactor()

    first = stream.feed(f"one {token[:head]}{line_break}")
    rest = stream.feed(f"{token[head:]} two{line_break}") + stream.flush()

    assert first + rest == f"one (REDACTED-github){line_break}(REDACTED-github) two{line_break}"


def test_a_line_that_ends_like_a_token_comes_out_when_the_next_one_is_none() -> None:
    stream = StreamRedactor()

    assert stream.feed("see sk-begin\n") == ""
    assert stream.feed("another line\n") == "see sk-begin\nanother line\n"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_an_unfinished_token_at_the_end_becomes_partial(end: str) -> None:
    stream = StreamRedactor()
    stream.feed("x ghp_abcd" + end)

    assert stream.flush() == f"x {PARTIAL}{end}"


@pytest.mark.parametrize("text", ["x ghp_abc", "the pattern", "a task-force", "skeleton"])
def test_too_little_of_a_token_at_the_end_stays(text: str) -> None:
    assert streamed([text]) == text


def test_a_line_comes_out_with_its_end_and_no_later() -> None:
    stream = StreamRedactor()

    assert stream.feed("MY_TOKEN=ab") == ""
    assert stream.feed("c\nnext") == "MY_TOKEN=(REDACTED-assignment)\n"
    assert stream.feed("\n") == "next\n"
    assert stream.flush() == ""


@given(secret=st.one_of(json_web_tokens(), secret_values().map(lambda value: f"MY_TOKEN={value}")), data=st.data())
def test_a_secret_in_an_endless_line_does_not_leak_where_the_line_is_cut(secret: str, data: st.DataObject) -> None:
    before = data.draw(st.integers(0, 40_000))
    filler = data.draw(st.sampled_from(["word ", "abcdefgh", "1234,"]))
    text = (filler * 9000)[:before] + " " + secret + " " + (filler * 9000)[: data.draw(st.integers(0, 20_000))]
    size = data.draw(st.sampled_from([100, 4096, 10_000]))

    out = streamed([text[at : at + size] for at in range(0, len(text), size)])

    assert secret.removeprefix("MY_TOKEN=") not in out
    assert out == redact(text)


def test_an_endless_line_is_not_kept_whole() -> None:
    stream = StreamRedactor()

    shown = sum(len(stream.feed("some words " * 1000)) for _ in range(50))

    assert 550_000 - shown <= 32 * 1024


def test_without_rules_a_stream_masks_literals_only() -> None:
    redactor = Redactor(patterns=False)
    redactor.register_literal("open-sesame-1")

    assert (
        streamed(["open-se", "same-1 MY_TOKEN=abc\n", "ghp_abcd"], redactor)
        == "(REDACTED-literal) MY_TOKEN=abc\nghp_abcd"
    )


@given(data=st.data(), value=secret_values())
def test_json_lines_stay_json_lines(data: st.DataObject, value: str) -> None:
    text = "".join(json.dumps({"password": value, "n": number}) + "\n" for number in range(3))

    out = streamed(cut(text, data))

    assert [json.loads(line)["n"] for line in out.splitlines()] == [0, 1, 2]
    assert value not in out
