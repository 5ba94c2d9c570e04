"""Nested data: sensitive keys, names beside values, odd Python values, depth and size."""

import dataclasses
import datetime
import enum
import json
import math
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given

from spanfold.redact import redact, redact_dict
from tests.journal.steps import steps
from tests.redact.samples import documents

A = "(REDACTED-assignment)"
H = "(REDACTED-header)"


@pytest.mark.contract("AI-096")
def test_values_under_sensitive_keys_are_masked_whole_or_leaf_by_leaf() -> None:
    given = {
        "password": "x y",
        "pin_token": 1234567,
        "api_key": None,
        "secret": True,
        "credentials": {"user": "bob", "numbers": [1, 1234567, False], "deep": {"a": "b"}},
        "max_tokens": 4096,
        "text": "GITHUB_TOKEN=abc",
    }
    before = json.dumps(given)

    assert redact_dict(given) == {
        "password": A,
        "pin_token": A,
        "api_key": None,
        "secret": True,
        "credentials": {"user": A, "numbers": [1, A, False], "deep": {"a": A}},
        "max_tokens": 4096,
        "text": f"GITHUB_TOKEN={A}",
    }
    assert json.dumps(given) == before


@pytest.mark.case("C-066")
def test_parameters_of_model_calls_are_masked() -> None:
    call = {
        "api_key": "abc",
        "default_headers": {"Authorization": "Bearer abc", "X-Api-Key": "abc", "Accept": "json"},
        "azure_ad_token": "abc",
        "base_url": "https://u:p4ss@host/v1",
        "max_tokens": 100,
    }

    assert redact_dict(call) == {
        "api_key": A,
        "default_headers": {"Authorization": H, "X-Api-Key": H, "Accept": "json"},
        "azure_ad_token": A,
        "base_url": "https://u:(REDACTED-url-userinfo)@host/v1",
        "max_tokens": 100,
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"name": "API_KEY", "value": "x"}, {"name": "API_KEY", "value": A}),
        ({"name": "REGION", "value": "x"}, {"name": "REGION", "value": "x"}),
        (
            {"key": "spanfold.api_key", "value": {"stringValue": "x"}},
            {"key": "spanfold.api_key", "value": {"stringValue": A}},
        ),
        ({"h": [("Authorization", "Bearer x"), ("Accept", "y")]}, {"h": [["Authorization", H], ["Accept", "y"]]}),
        ({"h": [(b"Cookie", b"x"), (b"Accept", b"y")]}, {"h": [["Cookie", H], ["Accept", "y"]]}),
        ({"cmd": ["x", "--token", "V"]}, {"cmd": ["x", "--token", A]}),
        ({"cmd": ("mysql", "-pV")}, {"cmd": ["mysql", f"-p{A}"]}),
    ],
)
def test_a_name_beside_its_value_counts_like_a_key(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert redact_dict(given) == expected


@pytest.mark.contract("AI-096")
def test_keys_are_redacted_and_stay_apart() -> None:
    first, second = ("ghp_" + letter * 30 for letter in "ab")

    assert redact_dict({first: 1, second: 2}) == {"(REDACTED-github)": 1, "(REDACTED-github)#2": 2}


def test_keys_that_all_become_the_same_take_steps_in_proportion_to_their_number() -> None:
    def keyed(n: int) -> dict[str, int]:
        return {f"ghp_{number:030d}": number for number in range(n)}

    redact_dict(keyed(3))  # what is made once is made

    assert steps(lambda: redact_dict(keyed(1_000))) < 2.5 * steps(lambda: redact_dict(keyed(500)))


class Colour(enum.Enum):
    RED = "password=abc"


@dataclasses.dataclass
class Config:
    user: str
    password: str


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_odd_values_become_json() -> None:
    redacted = redact_dict(
        {
            "nan": math.nan, "inf": -math.inf, "tuple": (1, 2), "set": {2, 1}, "bytes": b"a\xff", "path": PurePosixPath("/a/b"),
            "date": datetime.date(2026, 1, 2), "config": Config("u", "p w"), "enum": Colour.RED, "hostile": Hostile(), 7: "seven",
            None: "none", "big": 10**30, "huge": 1 << 20_000,
        }
    )  # fmt: skip

    assert redacted == {
        "nan": "NaN", "inf": "-Infinity", "tuple": [1, 2], "set": [1, 2], "bytes": "a\\xff", "path": "/a/b",
        "date": "2026-01-02", "config": {"user": "u", "password": A}, "enum": f"password={A}", "hostile": "[UNSERIALISABLE:Hostile]",
        "7": "seven", "None": "none", "big": 10**30, "huge": hex(1 << 20_000),
    }  # fmt: skip
    assert json.loads(json.dumps(redacted)) == redacted


@pytest.mark.slow
def test_depth_cycles_and_size_are_bounded() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    cycle: list[Any] = []
    cycle.append(cycle)

    redacted = redact_dict({"cycle": cycle, "deep": deep})
    assert redacted["cycle"] == ["[OMITTED:cycle]"]
    inner, depth = redacted, 0
    while isinstance(inner, dict):
        inner, depth = inner.get("deep", inner.get("a")), depth + 1
    assert (inner, depth) == ("[OMITTED:depth]", 64)
    assert redact_dict({"wide": list(range(200_000))})["wide"][-1] == "[OMITTED:nodes]"
    same = [1]
    assert redact_dict({"a": same, "b": [same, same]}) == {"a": [1], "b": [[1], [1]]}


def shape(value: Any) -> Any:
    match value:
        case dict():
            return {"dict": [shape(item) for item in value.values()]}
        case list():
            return [shape(item) for item in value]
    return type(value).__name__ if isinstance(value, bool | None) else "leaf"


@pytest.mark.contract("AI-100")
@given(document=documents())
def test_a_document_keeps_its_shape_and_its_text_still_parses(document: Any) -> None:
    whole = {"document": document}

    assert shape(redact_dict(whole)) == shape(whole)
    for text in (json.dumps(whole), json.dumps(whole, ensure_ascii=False, indent=1), json.dumps(json.dumps(whole))):
        json.loads(redact(text))


@given(document=documents())
def test_redacting_a_document_twice_is_redacting_it_once(document: Any) -> None:
    once = redact_dict({"document": document})

    assert redact_dict(once) == once
