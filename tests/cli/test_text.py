"""Text that is fit for a terminal, whatever it holds."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.cli._console import plain
from spanfold.cli._table import Cell, Column, Style, table
from spanfold.cli._text import age, columns, cut, moment, shown, size

TEXT = st.text(st.characters(), max_size=60)


def unpainted(text: str, style: Style) -> str:
    return text


@given(TEXT)
def test_what_is_shown_is_one_line_that_moves_nothing(text: str) -> None:
    safe = shown(text)

    assert len(safe.splitlines()) <= 1
    assert all(char.isprintable() or char in "\u200d\u3000\xa0" or char.isspace() for char in safe)
    assert not {"\x1b", "\x9b", "\u202e", "\u2066", "\r", "\n", "\b", "\ud800"} & set(safe)


@given(st.text("abc äöü日本 🎉-_/.", max_size=60))
def test_harmless_text_is_shown_as_it_is(text: str) -> None:
    assert shown(text) == text


@given(TEXT.map(shown), st.integers(1, 40))
def test_cut_text_fits_and_is_as_long_as_it_may_be(text: str, width: int) -> None:
    short = cut(text, width)

    assert columns(short) <= width
    if columns(text) <= width:
        assert short == text
    else:
        assert short.endswith("…")
        assert columns(short) >= width - 1  # a wide character may not fit in


@given(st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=8), st.integers(12, 120))
def test_a_table_fits_the_terminal_and_its_columns_are_straight(rows: list[tuple[str, str, str]], width: int) -> None:
    titles = (Column("first", least=8), Column("second", ">", least=8), Column("third", least=8, drop=1))

    block = table(titles, [(a, Cell(b, "red"), c) for a, b, c in rows], width=width, paint=unpainted)

    lines = block.removesuffix("\n").split("\n")
    assert len(lines) == len(rows) + 1
    assert all(columns(line) <= width for line in lines)


def test_a_narrow_table_loses_the_columns_that_matter_least() -> None:
    titles = (Column("a"), Column("b", drop=1), Column("c", drop=2))
    row = ("x" * 10, "y" * 10, "z" * 10)

    assert table(titles, [row], width=None, paint=unpainted).split() == ["a", "b", "c", *row]
    assert table(titles, [row], width=24, paint=unpainted).split() == ["a", "b", *row[:2]]
    assert table(titles, [row], width=12, paint=unpainted).split() == ["a", row[0]]


def test_the_name_of_a_row_is_the_last_to_go_wherever_it_stands() -> None:
    titles = (
        Column("took", ">", drop=1),
        Column("verdict"),
        Column("stage", least=8),
        Column("n", ">"),
        Column("p", ">"),
    )
    row = ("1.25s", "slower", "m1/saliency/fit", "56", "0.01")

    def told(width: int) -> list[str]:
        return table(titles, [row], width=width, paint=unpainted).splitlines()[1].split()

    assert told(41) == list(row)
    assert told(31) == ["slower", "m1/saliency…", "56", "0.01"]
    assert told(24) == ["slower", "m1/salienc…", "56"]
    assert told(16) == ["slower", "m1/sal…"]
    assert told(12) == ["slow…", "m1/s…"]


def test_what_was_cut_for_columns_that_are_left_out_is_given_back() -> None:
    titles = (Column("name", least=4), Column("note", drop=1))

    assert table(titles, [("x" * 12, "y" * 12)], width=14, paint=unpainted) == f"name\n{'x' * 12}\n"


def test_a_sentence_in_a_table_goes_on_in_the_next_line() -> None:
    titles = (Column("name", least=4), Column("what", least=6, wrap=True), Column("n", ">"))

    told = table(titles, [("aaaa", "one two three", "7"), ("b", "", "8")], width=16, paint=unpainted)

    assert told.splitlines() == ["name  what     n", "aaaa  one two  7", "      three", "b              8"]


def test_empty_tables_and_empty_columns_are_left_out() -> None:
    titles = (Column("a"), Column("b", if_any=True))

    assert table(titles, [], width=80, paint=unpainted) == ""
    assert table(titles, [("x", "")], width=80, paint=unpainted) == "a\nx\n"


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (11_152, "11.2 kB"),
        (999_600, "1.00 MB"),
        (3_400_000_000_000, "3.40 TB"),
        (None, "–"),
    ],
)
def test_sizes(n_bytes: int | None, text: str) -> None:
    assert size(n_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (89, "89 s"),
        (90, "2 min"),
        (5399, "90 min"),
        (5400, "2 h"),
        (100_000, "28 h"),
        (200_000, "2 d"),
        (None, "–"),
    ],
)
def test_ages(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.case("C-069")
def test_times_stay_utc_whatever_the_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")

    assert moment("2026-11-30T17:52:26.819391Z") == "2026-11-30 17:52:26"
    assert moment(None) == "–"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4) | st.tuples(inner, inner),
        max_leaves=20,
    )
)
def test_plain_data_is_json_that_any_parser_takes(value: object) -> None:
    text = json.dumps(plain({"value": value, "path": Path("a")}), allow_nan=False, ensure_ascii=False)

    assert json.loads(text.encode())["path"] == "a"


@pytest.mark.case("C-024")
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_null(number: float) -> None:
    assert plain({"value": [number, 1.5]}) == {"value": [None, 1.5]}
