"""Registered literals: found in every spelling, shared, and never too short."""

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.redact import Redactor

L = "(REDACTED-literal)"

values = (
    st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=8, max_size=40)
    .map(str.strip)
    .filter(
        lambda text: len(text) >= 8 and len(text.splitlines()) == 1 and "REDACTED" not in text and text[:5] != "-----"
    )
)


def knowing(*literals: str) -> Redactor:
    redactor = Redactor()
    for literal in literals:
        assert redactor.register_literal(literal)
    return redactor


@pytest.mark.slow
@pytest.mark.contract("AI-111")
@given(value=values)
def test_a_literal_is_found_in_every_spelling(value: str) -> None:
    redactor = knowing(value)
    raw = value.encode()
    spellings = {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(value))[3:-3],
        quote(value, safe=""),
        quote(value),
        quote_plus(value),
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode(),
    }

    for spelling in spellings:
        assert redactor.redact(f"<{spelling}>") == f"<{L}>"


@pytest.mark.slow
@given(value=values, before=st.binary(max_size=5), after=st.binary(max_size=5))
def test_a_literal_inside_a_longer_base64_text_is_found(value: str, before: bytes, after: bytes) -> None:
    encoded = base64.b64encode(before + value.encode() + after).decode()

    redacted = knowing(value).redact(encoded)

    assert L in redacted
    # At most the characters that share bits with what stands beside the literal are left of it.
    assert len(redacted.replace(L, "")) <= -(-8 * (len(before) + len(after)) // 6) + 6


@pytest.mark.contract("AI-111")
def test_a_short_literal_is_refused() -> None:
    redactor = Redactor()

    assert not redactor.register_literal("1234567")
    assert redactor.redact("1234567") == "1234567"
    assert redactor.register_literal("12345678")


def test_a_literal_of_several_lines_is_masked_line_by_line() -> None:
    redactor = knowing("first line\nsecond line\nshort")

    assert redactor.redact("x first line\nsecond line\ny") == f"x {L}\n{L}\ny"


def test_a_literal_that_occurs_in_replacement_tokens_does_not_grow_them() -> None:
    redactor = knowing("REDACTED-literal", "(REDACTED-")

    once = redactor.redact("password=abc and REDACTED-literal")

    assert once == f"password=(REDACTED-assignment) and {L}"
    assert redactor.redact(once) == once


def test_the_longest_literal_wins() -> None:
    assert knowing("12345678", "1234567890").redact("1234567890 12345678") == f"{L} {L}"


@pytest.mark.case("C-062", "C-064")
def test_values_of_sensitive_variables_are_registered_and_others_are_not() -> None:
    redactor = Redactor()

    count = redactor.register_environment(
        {
            "MY_API_KEY": "open-sesame-1",
            "HOME": "/home/somebody",
            "A_TOKEN": "changeme",
            "B_SECRET": "short",
            "PWD": "/a/long/way",
        }
    )

    assert count == 1
    assert (
        redactor.redact("say open-sesame-1 in /home/somebody, /a/long/way") == f"say {L} in /home/somebody, /a/long/way"
    )


def test_redactors_that_share_literals_share_later_ones_too() -> None:
    first = Redactor()
    second = Redactor(patterns=False, literals_of=first)
    assert second.redact("open-sesame-1") == "open-sesame-1"

    first.register_literal("open-sesame-1")

    assert second.redact("open-sesame-1") == L
    assert second.redact("password=abcdefgh1") == "password=abcdefgh1"


def test_literals_with_lone_surrogates_and_line_ends_can_be_registered() -> None:
    redactor = knowing("abc\udc80defgh")

    assert redactor.redact("x abc\udc80defgh") == f"x {L}"


@pytest.mark.slow
def test_more_literals_than_the_automaton_can_hold_are_still_found() -> None:
    redactor = knowing("".join(f"{number:x}-" for number in range(400_000)), "open-sesame-1")

    assert redactor.suspects(b"anything")
    assert redactor.redact("x open-sesame-1") == f"x {L}"
    assert redactor.redact("anything") == "anything"
