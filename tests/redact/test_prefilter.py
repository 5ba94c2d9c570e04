"""The law of the pre-filter: what a rule would change, the automaton suspects, however the text is escaped."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spanfold.redact import Redactor
from tests.redact.samples import documents, escaped, secret_values, secrets, texts

pytestmark = pytest.mark.slow

NASTY = 'pä"ss\\wo/rd\t=1%'


def knowing(*literals: str, patterns: bool = True) -> Redactor:
    redactor = Redactor(patterns=patterns)
    for literal in literals:
        redactor.register_literal(literal)
    return redactor


ALL = knowing(NASTY)
LITERALS_ONLY = knowing(NASTY, patterns=False)


def with_hyperscan(redactor: Redactor) -> Redactor:
    pytest.importorskip("hyperscan", reason='needs Hyperscan: pip install "spanfold[fast]"')
    assert redactor.accelerate()
    return redactor


@pytest.fixture(scope="module")
def fast() -> Redactor:
    return with_hyperscan(knowing(NASTY))


@pytest.fixture(scope="module")
def fast_literals_only() -> Redactor:
    return with_hyperscan(knowing(NASTY, patterns=False))


@given(text=texts(st.just(NASTY)))
@example(text="")
@example(text="line one\nsk-" + "a1" * 12)
def test_hyperscan_suspects_what_re2_suspects(fast: Redactor, fast_literals_only: Redactor, text: str) -> None:
    for form in escaped(text):
        assert fast.suspects(form) == ALL.suspects(form)
        assert fast_literals_only.suspects(form) == LITERALS_ONLY.suspects(form)


@given(data=st.binary(max_size=400))
def test_hyperscan_suspects_what_re2_suspects_of_any_bytes(fast: Redactor, data: bytes) -> None:
    assert fast.suspects(data) == ALL.suspects(data)


def test_a_literal_registered_after_hyperscan_was_built_is_suspect() -> None:
    redactor = with_hyperscan(Redactor())
    assert not redactor.suspects(b"we say open sesame here")

    redactor.register_literal("open sesame")

    assert redactor.suspects(b"we say open sesame here")
    assert with_hyperscan(redactor).suspects(b"we say open sesame here")


def test_threads_that_share_hyperscan_get_right_answers(fast: Redactor) -> None:
    clean, dirty = b"nothing to see here " * 20_000, b"nothing to see here " * 20_000 + b"MY_TOKEN=abc123"

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(fast.suspects, [clean, dirty] * 100))

    assert answers == [False, True] * 100


def test_a_process_that_records_much_gets_hyperscan_by_itself() -> None:
    pytest.importorskip("hyperscan", reason='needs Hyperscan: pip install "spanfold[fast]"')
    program = """
import threading
from spanfold.redact import Redactor
redactor = Redactor()
for _ in range(5):
    redactor.suspects(b"x" * 1_000_000)
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
import sys
print("hyperscan" in sys.modules, redactor.suspects(b"nothing"), redactor.suspects(b"MY_TOKEN=abc123"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.split() == ["True", "False", "True"]


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
