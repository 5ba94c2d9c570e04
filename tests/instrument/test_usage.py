"""Token counts and scores: numbers of every library are taken, what is none is refused, counted and noted."""

import decimal
import enum
import fractions
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spanfold
from spanfold import names
from spanfold.fold import fold_run
from spanfold.instrument import losses
from tests.instrument.reading import Lost, events, span

REFUSED_COUNTS = "token counts that are no counts"
REFUSED_SCORES = "scores that are no number, boolean or text"


class Grade(enum.StrEnum):
    GOOD = "good"


class Level(enum.IntEnum):
    HIGH = 3


class Counted(int):
    def __index__(self) -> int:
        raise AssertionError("called")

    __int__ = __float__ = __str__ = __index__  # type: ignore[assignment]  # none may be called

    def __repr__(self) -> str:
        return "Counted"


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, 0),
        (12, 12),
        (12.0, 12),
        (np.int64(7), 7),
        (np.int32(7), 7),
        (np.uint8(7), 7),
        (np.float64(7.0), 7),
        (np.float32(7.0), 7),
        (np.array(7), 7),
        (decimal.Decimal(7), 7),
        (Level.HIGH, 3),
        (Counted(5), 5),
        (2**62, 2**62),
    ],
    ids=repr,
)
def test_a_count_of_any_library_is_recorded_as_an_integer(where: Path, count: Any, expected: int) -> None:
    with spanfold.run("r", dir=where), spanfold.model_call("m") as call:
        call.usage(input_tokens=count, output_tokens=None)

    attributes = span(where, "chat m").attributes
    assert attributes[names.GENAI_INPUT_TOKENS] == expected
    assert type(attributes[names.GENAI_INPUT_TOKENS]) is int
    assert names.GENAI_OUTPUT_TOKENS not in attributes


@pytest.mark.case("C-024")
@pytest.mark.parametrize(
    "count",
    [-1, 1.5, math.nan, math.inf, "12", True, 2**63, 10**400, -(10**400), b"1", [1], {}, object(), np.float64("nan"),
     np.int64(-1), np.bool_(True), np.array([1]), decimal.Decimal("NaN"), decimal.Decimal("1e400"), 1j, Grade.GOOD],
    ids=lambda value: "object" if type(value) is object else repr(value),
)  # fmt: skip
def test_what_is_no_count_is_refused_counted_and_noted(where: Path, lost: Lost, count: Any) -> None:
    with spanfold.run("r", dir=where), spanfold.agent("a") as agent:
        assert agent.usage(input_tokens=count, output_tokens=3) is agent

    attributes = span(where, "invoke_agent a").attributes
    assert names.GENAI_INPUT_TOKENS not in attributes
    assert attributes[names.GENAI_OUTPUT_TOKENS] == 3
    assert json.loads(attributes[names.NOTES]) == {names.GENAI_INPUT_TOKENS: "not a count"}
    assert lost() == {REFUSED_COUNTS: 1}


def test_parts_of_counts_have_their_own_names_and_unknown_ones_a_general_one(where: Path) -> None:
    with spanfold.run("r", dir=where), spanfold.model_call("m") as call:
        call.usage(
            input_tokens=10,
            output_tokens=5,
            cache_read_tokens=4,
            cache_write_tokens=1,
            reasoning_tokens=2,
            audio_tokens=3,
        )
        call.usage(input_tokens=11)

    found = {k: v for k, v in span(where, "chat m").attributes.items() if k.startswith("gen_ai.usage.")}
    assert found == {
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.cache_write.input_tokens": 1,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "gen_ai.usage.audio_tokens": 3,
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.93, 0.93),
        (1, 1),
        (True, True),
        (-3.5, -3.5),
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(4), 4),
        (np.bool_(False), False),
        (np.array(0.25), 0.25),
        (decimal.Decimal("0.25"), 0.25),
        (fractions.Fraction(1, 4), 0.25),
        (Level.HIGH, 3),
        (2**70, float(2**70)),
    ],
    ids=repr,
)
def test_a_score_of_any_library_is_recorded_as_its_number(where: Path, value: Any, expected: Any) -> None:
    with spanfold.run("r", dir=where), spanfold.stage("M3", cycle=2):
        spanfold.score("accuracy", value, comment="held out", fold=3)

    (told,) = events(where, names.EVENT_SCORE)
    assert told.span_id == span(where, "M3").span_id
    attributes = dict(told.attributes)
    found = attributes.pop(names.SCORE_VALUE)
    assert (found, type(found)) == (expected, type(expected))
    assert attributes == {
        "spanfold.stage": "M3",
        "spanfold.cycle": 2,
        "gen_ai.evaluation.name": "accuracy",
        "gen_ai.evaluation.explanation": "held out",
        "spanfold.fold": 3,
    }


@pytest.mark.parametrize(("value", "label"), [("pass", "pass"), (Grade.GOOD, "good"), ("", ""), ("a\udcff", "a\ufffd")])
def test_a_text_is_the_label_of_a_score(where: Path, value: Any, label: str) -> None:
    with spanfold.run("r", dir=where):
        spanfold.score("verdict", value)

    (told,) = events(where, names.EVENT_SCORE)
    assert told.attributes[names.SCORE_LABEL] == label
    assert names.SCORE_VALUE not in told.attributes


class Odd(float):
    def __float__(self) -> float:
        raise AssertionError("code of the value")

    __repr__ = __str__ = __add__ = __float__  # type: ignore[assignment]


@pytest.mark.case("C-024")
@pytest.mark.parametrize(
    ("value", "label"),
    [
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (np.float64("nan"), "NaN"),
        (np.float32("-inf"), "-Infinity"),
        (decimal.Decimal("NaN"), "NaN"),
        (decimal.Decimal("Infinity"), "Infinity"),
    ],
)
def test_a_score_that_is_not_finite_is_a_label(where: Path, value: Any, label: str) -> None:
    with spanfold.run("r", dir=where), spanfold.stage("M1"):
        spanfold.score("loss", value)

    (told,) = events(where, names.EVENT_SCORE)
    assert told.attributes[names.SCORE_LABEL] == label
    assert names.SCORE_VALUE not in told.attributes
    fold_run(where)
    (shown,) = json.loads((where / "M1" / "log.json").read_text(), parse_constant=pytest.fail)["score"]
    assert (shown["name"], shown["label"]) == ("loss", label)


def test_no_code_of_a_score_that_is_not_finite_runs(where: Path) -> None:
    with spanfold.run("r", dir=where):
        spanfold.score("loss", Odd("nan"))

    (told,) = events(where, names.EVENT_SCORE)
    assert told.attributes[names.SCORE_LABEL] == "NaN"


@pytest.mark.case("C-024")
@pytest.mark.parametrize(
    "value",
    [None, [1], [math.nan], {}, object(), b"x", 1j, np.array([1.0]), np.array([math.nan]), 10**400],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_what_is_no_score_is_refused_and_counted(where: Path, lost: Lost, value: Any) -> None:
    with spanfold.run("r", dir=where):
        spanfold.score("accuracy", value)
        spanfold.score("after", 1)

    assert [e.attributes[names.SCORE_NAME] for e in events(where, names.EVENT_SCORE)] == ["after"]
    assert lost() == {REFUSED_SCORES: 1}


def test_the_log_names_the_score_that_was_refused_and_not_its_value(
    where: Path, lost: Lost, caplog: pytest.LogCaptureFixture
) -> None:
    losses.pop(REFUSED_SCORES, None)  # the first of its kind is logged, in a process
    with spanfold.run("r", dir=where):
        spanfold.score("margin password=hunter2abc99", [12345.5])

    (line,) = [record.getMessage() for record in caplog.records if REFUSED_SCORES in record.getMessage()]
    assert "'margin password=(REDACTED-assignment)'" in line
    assert "12345" not in line
    assert losses[REFUSED_SCORES] == 1
    lost()  # asked for, so that the loss is no surprise


def test_every_line_is_strict_json_whatever_number_is_in_it(where: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    with spanfold.run("r", dir=where, nan=math.nan), spanfold.stage("s") as stage:
        stage.set(inf=math.inf, nested={"a": [math.nan]}, keys={math.nan: 1, 1: 2, "1": 3})
        stage.set_attributes({"nan": math.nan, "list": [1.0, math.nan]})
        stage.event("e", nan=-math.inf)

    for path in (where / "journal").iterdir():
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
            json.loads(line, parse_constant=refuse)
