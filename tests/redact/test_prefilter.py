"""The law of the pre-filter: what a rule would change, the automaton suspects, however the text is escaped."""

import json

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spanfold.redact import Redactor
from tests.redact.samples import documents, escaped, secret_values, secrets, texts

NASTY = 'pä"ss\\wo/rd\t=1%'


def knowing(*literals: str, patterns: bool = True) -> Redactor:
    redactor = Redactor(patterns=patterns)
    for literal in literals:
        redactor.register_literal(literal)
    return redactor


ALL = knowing(NASTY)
LITERALS_ONLY = knowing(NASTY, patterns=False)


@given(text=texts(st.just(NASTY)))
@example(text="line one\nsk-" + "a1" * 12)
def test_a_text_that_redact_changes_is_suspect_in_every_escaped_form(text: str) -> None:
    if ALL.redact(text) == text:
        return
    for form in escaped(text):
        assert ALL.suspects(form)


@given(secret=secrets(), before=st.sampled_from(["n", "\n", "\t", "x\n", '"', "\\", "é"]))
def test_a_secret_is_suspect_right_behind_an_escape(secret: str, before: str) -> None:
    text = before + secret
    if ALL.redact(text) == text:
        return
    for form in escaped(text):
        assert ALL.suspects(form)


@pytest.mark.parametrize("redactor", [ALL, LITERALS_ONLY], ids=["rules", "literals only"])
@given(document=documents(st.just(NASTY)))
@example(document={"token": 1234567})
@example(document={"a": {"name": "API_KEY", "n": 1, "value": "x"}})
@example(document=["mysql", "-psecret"])
@example(document=["curl", "-u", "a:bcdefgh"])
@example(document=["Authorization", "x"])
def test_a_document_that_redact_dict_changes_is_suspect_as_json_and_as_json_in_a_string(
    redactor: Redactor, document: object
) -> None:
    whole = {"document": document}
    if redactor.redact_dict(whole) == whole:
        return
    for line in (json.dumps(whole), json.dumps(whole, ensure_ascii=False), json.dumps(whole, indent=1)):
        for form in escaped(line):
            assert redactor.suspects(form)


@given(value=secret_values(), name=st.sampled_from(["spanfold.api_key", "http.request.header.authorization"]))
def test_a_sensitive_attribute_of_a_record_is_suspect(value: str, name: str) -> None:
    line = orjson.dumps({"attributes": [{"key": name, "value": {"stringValue": value}}]})

    assert ALL.suspects(line)


@pytest.mark.parametrize(
    "name",
    ["gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.request.max_tokens", "gen_ai.token.type",
     "spanfold.cycle", "service.instance.id", "code.function.name", "author", "gen_ai.response.finish_reasons"],
)  # fmt: skip
def test_ordinary_attributes_are_not_suspect(name: str) -> None:
    line = orjson.dumps({"attributes": [{"key": name, "value": {"intValue": "12"}}, {"key": "x", "value": {}}]})

    assert not ALL.suspects(line)


def test_an_ordinary_model_call_is_not_suspect() -> None:
    prompt = (
        "You are a careful engineer. The password is wrong when the tokenizer splits a token; don't sign anything.\n"
        "def probe(model, cases):\n    for case in cases:\n        yield model(case.x)[0] @ weights.T\n"
        "See https://example.org/docs/page?x=1&y=2#part, mail a@b.example, and 9f86d081884c7d659a2feaa0c55ad015.\n"
    )
    messages = orjson.dumps([{"role": "user", "parts": [{"type": "text", "content": prompt}]}]).decode()

    assert not ALL.suspects(orjson.dumps({"key": "gen_ai.input.messages", "value": {"stringValue": messages}}))


def test_a_literal_registered_later_is_suspect_from_then_on() -> None:
    redactor = Redactor()
    line = orjson.dumps({"text": "we say open sesame here"})
    assert not redactor.suspects(line)

    redactor.register_literal("open sesame")

    assert redactor.suspects(line)
    assert redactor.redact("we say open sesame here") == "we say (REDACTED-literal) here"
