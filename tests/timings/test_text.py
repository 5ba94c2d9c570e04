"""What a terminal shows: aligned, complete, and unable to move its cursor."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.timings import (
    TimingRead,
    breakdown,
    compare,
    format_duration,
    read_timings,
    render_breakdown,
    render_comparison,
    render_waterfall_text,
)
from spanfold.timings.layout import MAX_LANES
from spanfold.timings.text import cells
from tests.timings.samples import RunWriter, kind, loop_run


def read_of(made: RunWriter, tmp_path: Path) -> TimingRead:
    return read_timings(made.write(tmp_path / made.name) / "timings.jsonl")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0 µs"),
        (0.00085, "850 µs"),
        (0.00456, "4.56 ms"),
        (0.9999, "1.00 s"),
        (9.999, "10.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 m 00 s"),
        (3599.7, "1 h 00 m"),
        (90000, "25 h 00 m"),
    ],
)
def test_durations_are_written_for_people(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_waterfall_shows_each_span_of_a_short_run_where_it_ran(tmp_path: Path) -> None:
    made = RunWriter("small")
    top = made.run(8)
    made.span("m1", 0, 4, top, **kind("stage", name="M1"))
    second = made.span("m2", 4, 4, top, **kind("stage"))
    made.span("tool", 6, 2, second, **kind("tool", name="execute_tool grep", tool="grep"), ok=False)

    assert render_waterfall_text(read_of(made, tmp_path), width=49).splitlines() == [
        "small            0                 8.00 s",
        "(run)            ████████████████████████  8.00 s",
        "  m1             ████████████              4.00 s",
        "  m2                         ████████████  4.00 s",
        "    tool grep ✗                    ██████  2.00 s",
    ]


def test_a_long_run_is_rolled_up_by_path_and_says_how_many_spans(tmp_path: Path) -> None:
    text = render_waterfall_text(
        read_timings(loop_run(tmp_path / "001", seed=1, calls=500) / "timings.jsonl"), width=80
    )

    labels = [line[:19].strip() for line in text.splitlines()]
    assert labels == ["001", "(run)", "load", "m1", "m2", "model_call ×500"]


def test_of_very_many_paths_the_longest_are_drawn_and_the_rest_counted(tmp_path: Path) -> None:
    made = RunWriter("wide")
    for number in range(MAX_LANES + 7):
        made.span(f"step{number}", number, 0.5 + (number % 2))
    text = render_waterfall_text(read_of(made, tmp_path))

    assert len(text.splitlines()) == 1 + MAX_LANES + 1
    assert text.endswith("7 shorter paths are not drawn.\n")


@given(
    name=st.text(max_size=30),
    width=st.integers(0, 200),
    start=st.floats(0, 1e6),
    seconds=st.floats(0, 1e6),
    depth=st.integers(1, 20),
)
def test_no_line_of_a_waterfall_is_wider_than_asked_or_moves_the_cursor(
    tmp_path_factory: pytest.TempPathFactory, name: str, width: int, start: float, seconds: float, depth: int
) -> None:
    made = RunWriter(name)
    parent = None
    for number in range(depth):
        parent = made.span("tool", start + number, seconds, parent, **kind("tool", name=name))
    folder = tmp_path_factory.mktemp("w")
    text = render_waterfall_text(read_timings(made.write(folder) / "timings.jsonl"), width)

    for line in text.splitlines():
        assert cells(line) <= max(width, 40)
        assert line.isprintable()
    assert len(text.split("\n")) == depth + 2


def test_a_run_without_rows_is_said_to_have_none() -> None:
    empty = TimingRead(Path("timings.jsonl"))

    assert render_waterfall_text(empty) == "No span with a place in time.\n"
    assert render_breakdown(breakdown(empty)) == "No measured time.\n"
    assert "No stage to compare." in render_comparison(compare(empty, empty))


def test_a_breakdown_is_a_table_of_shares(tmp_path: Path) -> None:
    read = read_timings(loop_run(tmp_path / "001", seed=1, noise=0) / "timings.jsonl")

    assert render_breakdown(breakdown(read)).splitlines() == [
        "  self   share          total    share  spans  failed  stage",
        "2.00 s  42.6 %  ████▎  2.00 s   42.6 %      1          m1",
        "2.00 s  42.6 %  ████▎  2.00 s   42.6 %      4          m2/model_call",
        "400 ms   8.5 %  ▉      400 ms    8.5 %      1          load",
        "300 ms   6.4 %  ▋      2.30 s   48.9 %      1          m2",
        "  0 µs   0.0 %         4.70 s  100.0 %      1          (run)",
    ]


def test_a_comparison_puts_changes_first_and_doubts_last(tmp_path: Path) -> None:
    a = [loop_run(tmp_path / f"a{n}", seed=n, noise=0.01, run={"host": "x"}) for n in range(6)]
    b = [loop_run(tmp_path / f"b{n}", seed=n + 9, noise=0.01, slow=2, run={"host": "y"}) for n in range(6)]
    lines = render_comparison(compare(a, b)).splitlines()

    assert lines[0].split() == ["A", "6", "runs", "48", "rows", "a0,", "a1,", "a2,", "a3", "and", "2", "more"]
    table = lines[4:10]
    assert [line.split()[0] for line in table] == ["verdict", "slower", "slower", "slower", "same", "same"]
    assert len({len(line.rstrip(" *")) for line in table[1:]}) <= 2
    assert "Verdict: changed (3 slower, 2 same)" in lines
    assert lines[-2] == "! A and B differ in host: x against y."
    assert lines[-1] == "? Not told by every run, so not compared: commit, spanfold version, python version, settings."


def test_names_from_outside_cannot_move_the_cursor(tmp_path: Path) -> None:
    hostile = tmp_path / "a\x1b[2Jb\u202e"
    text = render_comparison(compare(loop_run(hostile, seed=1), loop_run(tmp_path / "c", seed=1)))

    assert all(line.isprintable() for line in text.splitlines())
