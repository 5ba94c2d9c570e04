"""Tokens that tell their kind by their spelling: one positive and one near-miss test for each shape."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanfold.redact import redact
from spanfold.redact._tokens import SHAPES, TokenShape
from tests.redact.samples import WORD, json_web_tokens, shaped

ROOT = Path(__file__).resolve().parents[2]
# The kinds of contract rows 4 to 54 that are whole tokens; 6, 7, 10, 11 and 42 stand under their names.
KINDS = set(
    "age-key aws-key-id google-api-key google-oauth azure-client-secret digitalocean alibaba heroku cloudflare fly vault "
    "terraform databricks pulumi doppler supabase planetscale github gitlab bitbucket npm pypi rubygems crates nuget docker "
    "huggingface jfrog sentry ci anthropic openai llm slack discord telegram sendgrid mail twilio stripe square shopify "
    "braintree facebook observability saas".split()
)

each_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.kind}:{shape.start}")
# The shapes are many, and each is simple.
few = settings(max_examples=settings().max_examples // 5)


def shortened(token: str, shape: TokenShape) -> str | None:
    """Return the longest beginning of `token` that is no token any more."""
    whole = re.compile(shape.start + shape.rest)
    for length in range(len(token) - 1, 4, -1):
        if not whole.match(token[:length]):
            return token[:length]
    return None


def test_every_kind_of_the_contract_that_is_a_prefixed_token_has_a_shape() -> None:
    assert {shape.kind for shape in SHAPES} == KINDS


@pytest.mark.contract("AI-093")
@each_shape
@few
@given(data=st.data())
def test_a_token_of_each_shape_is_replaced_whole_and_nothing_beside_it(shape: TokenShape, data: st.DataObject) -> None:
    token = data.draw(shaped(shape))
    before = data.draw(st.sampled_from(["", " ", "x: ", '"', "(", "\n", "\\n", "%20", "\x1b[32m", "/", "\\u000a", ","]))
    after = data.draw(
        st.sampled_from(["", " ", '"', ")", "\n", "\\n", "\x1b[0m", "'", "<", ";", "%20" if shape.whole_word else ""])
    )

    redacted = redact(before + token + after)

    assert redacted == f"{before}(REDACTED-{shape.kind}){after}"


@pytest.mark.contract("AI-093")
@each_shape
@few
@given(data=st.data())
def test_a_token_one_character_short_is_no_token(shape: TokenShape, data: st.DataObject) -> None:
    short = shortened(data.draw(shaped(shape)), shape)
    if short is None:
        return

    # Its payload is drawn at random and may hold a whole token of another kind.
    assert f"(REDACTED-{shape.kind})" not in redact(f"<{short}>")


@pytest.mark.slow
@pytest.mark.contract("AI-112")
@pytest.mark.parametrize("folder", ["src", "tests", "docs", "examples", "bench", "changes"])
def test_no_token_stands_in_a_file_of_the_project(folder: str) -> None:
    made_up = []
    for path in (ROOT / folder).rglob("*"):
        if path.suffix not in {".py", ".md", ".txt", ".json", ".jsonl"}:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            redacted = redact(line)
            made_up += [
                f"{path}:{number}: {shape.kind}"
                for shape in SHAPES
                if redacted.count(f"(REDACTED-{shape.kind})") > line.count(f"(REDACTED-{shape.kind})")
                and re.search(shape.start + shape.rest, line)
            ]

    assert made_up == []


@each_shape
@few
@given(data=st.data())
def test_a_token_does_not_begin_inside_a_word(shape: TokenShape, data: st.DataObject) -> None:
    token = data.draw(shaped(shape))
    text = "Q" + token
    if any(re.search(other.start + other.rest, text[at:]) for other in SHAPES for at in boundaries(text)):
        return  # a part of the sample is a token of its own

    assert redact(text) == text


def boundaries(text: str) -> list[int]:
    return [0, *(at for at in range(1, len(text)) if text[at - 1] not in WORD)]


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.whole_word], ids=lambda shape: shape.start)
@few
@given(data=st.data())
def test_a_token_of_fixed_length_does_not_go_on(shape: TokenShape, data: st.DataObject) -> None:
    token = data.draw(shaped(shape))
    longer = token + "".join(random.Random(len(token)).choices("zZyY", k=24))

    assert f"(REDACTED-{shape.kind})z" not in redact(longer).lower()


@pytest.mark.contract("AI-093")
@given(
    token=json_web_tokens(), encrypted=st.booleans(), after=st.sampled_from(["", " ", '"', ",", "/next", "&x=1", "\\n"])
)
def test_a_json_web_token_is_replaced_with_all_its_parts(token: str, encrypted: bool, after: str) -> None:
    whole = f"{token}.AbCd12.EfGh34" if encrypted else token

    assert redact(f"<{whole}{after}") == f"<(REDACTED-jwt){after}"


@pytest.mark.parametrize(
    "text", ["eyJhbGciOiJub25l", "eyJhbGci.eyJ", "xeyJhbGci.eyJzdWIi.x1", "eyJhbGci eyJzdWIi eyJzdWIi"]
)
def test_what_only_begins_like_a_json_web_token_stays(text: str) -> None:
    assert redact(text) is text


def test_a_json_web_token_in_standard_base64_is_replaced_with_its_padding() -> None:
    assert redact("t=eyJhbGci.eyJzd+Ii.a/b+c/d== end") == "t=(REDACTED-jwt) end"


@pytest.mark.contract("AI-099")
def test_a_cache_key_built_on_a_hash_is_not_a_mailgun_key() -> None:
    digest = "0123456789abcdef" * 2

    assert redact(f"cache-key-{digest} x_key-{digest}") == f"cache-key-{digest} x_key-{digest}"
    assert redact(f"key-{digest}") == "(REDACTED-mail)"


def test_a_langfuse_secret_key_is_replaced_without_a_name_beside_it_and_the_public_key_stays() -> None:
    identifier = "01234567-89ab-4def-8123-456789abcdef"

    assert redact(f"key sk-lf-{identifier}, pk-lf-{identifier}") == f"key (REDACTED-observability), pk-lf-{identifier}"


@pytest.mark.parametrize(
    ("start", "length"), [("nvapi-", 64), ("tvly-", 32), ("tvly-dev-", 32), ("tgp_v1_", 43)], ids=str
)
def test_the_keys_of_model_and_search_services_are_replaced(start: str, length: int) -> None:
    key = start + "aB3_"[: 3 if "tvly" in start else 4] * length

    assert redact(f"using {key[: len(start) + length]} now") == "using (REDACTED-llm) now"
