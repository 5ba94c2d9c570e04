"""`read_timings` gives every good row, says exactly what it could not read, and never raises on content."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.timings import TimingRead, read_timings
from spanfold.timings.reader import MAX_LINE_BYTES
from tests.timings.samples import row, write_rows


def line(stage: str = "m1", **fields: object) -> bytes:
    return json.dumps(row(stage) | fields).encode() + b"\n"


def read_bytes(tmp_path: Path, content: bytes) -> TimingRead:
    path = tmp_path / "timings.jsonl"
    path.write_bytes(content)
    return read_timings(path)


def without(*keys: str, **fields: object) -> bytes:
    record = row("m1") | fields
    for key in keys:
        del record[key]
    return json.dumps(record).encode() + b"\n"


@pytest.mark.contract("EP-061", "EP-007")
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        pytest.param(b"{\n", "malformed", id="not JSON"),
        pytest.param(b"[1]\n", "malformed", id="no object"),
        pytest.param(b"null\n", "malformed", id="null"),
        pytest.param(line()[:-9], "malformed", id="torn tail"),
        pytest.param(b'{"stage": "m1", "seconds": 1, "run_id": "\xff"}\n', "malformed", id="no UTF-8"),
        pytest.param(b"[" * 100_000 + b"\n", "malformed", id="nested too deep"),
        pytest.param(b'{"stage":"m1","seconds":' + b"9" * 5000 + b"}\n", "malformed", id="number of 5,000 digits"),
        pytest.param(line(schema="spanfold.timing/2"), "schema", id="other major"),
        pytest.param(line(schema="other.timing/1"), "schema", id="other schema"),
        pytest.param(line(schema=1), "schema", id="schema is no text"),
        pytest.param(without("stage"), "no_stage", id="no stage"),
        pytest.param(line(stage="M 1"), "no_stage", id="stage breaks its grammar"),
        pytest.param(line(stage="m1\n"), "no_stage", id="stage ends in a newline"),
        pytest.param(line(stage="a" * 65), "no_stage", id="stage too long"),
        pytest.param(without("seconds", start=None), "bad_seconds", id="no seconds, no start"),
        pytest.param(
            without("seconds", end="2026-01-01T00:00:00.000000Z"), "bad_seconds", id="no seconds, end before start"
        ),
        pytest.param(line(seconds=-0.5), "bad_seconds", id="negative"),
        pytest.param(line(seconds=float("nan")), "bad_seconds", id="NaN"),
        pytest.param(line(seconds=float("inf")), "bad_seconds", id="infinite"),
        pytest.param(line(seconds=True), "bad_seconds", id="boolean"),
        pytest.param(line(seconds="1"), "bad_seconds", id="text"),
        pytest.param(line(seconds=1e300), "bad_seconds", id="longer than the calendar"),
    ],
)
def test_a_bad_line_is_counted_under_its_reason_with_its_position(tmp_path: Path, bad: bytes, reason: str) -> None:
    before = line("m1") + b"\n  \n"
    read = read_bytes(tmp_path, before + bad)

    assert [row.stage for row in read.rows] == ["m1"]
    assert [skipped.to_dict() for skipped in read.skipped_lines] == [
        {"reason": reason, "line": 4, "offset": len(before), "length": len(bad)}
    ]
    assert (read.skipped, read.lines) == ({reason: 1}, 2)


@pytest.mark.contract("EP-061")
def test_a_missing_file_is_no_timing_and_no_error(tmp_path: Path) -> None:
    read = read_timings(tmp_path / "nowhere" / "timings.jsonl")

    assert read.missing
    assert (read.rows, read.lines, read.skipped, read.diagnostics) == ((), 0, {}, ())


@pytest.mark.contract("EP-061")
@pytest.mark.parametrize("what", ["directory", "fifo", "link"])
def test_what_is_no_regular_file_is_unreadable_and_does_not_block(tmp_path: Path, what: str) -> None:
    path = tmp_path / "timings.jsonl"
    if what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(write_rows(tmp_path / "elsewhere.jsonl", [row("m1")]))

    read = read_timings(path)

    assert (read.rows, read.missing, read.diagnostics) == ((), False, ("unreadable",))


@pytest.mark.contract("EP-061")
def test_seconds_are_derived_from_start_and_end_when_absent(tmp_path: Path) -> None:
    [found] = read_bytes(tmp_path, without("seconds", end="2026-09-30T12:00:02.500000Z")).rows

    assert (found.seconds, found.flags) == (2.5, ("derived_seconds",))


@pytest.mark.contract("EP-061")
def test_an_end_before_its_start_is_recomputed_from_the_duration(tmp_path: Path) -> None:
    [found] = read_bytes(tmp_path, line(end="2026-09-30T11:59:59.000000Z", seconds=1.5)).rows

    assert (found.seconds, found.flags) == (1.5, ("bad_interval",))
    assert found.to_dict()["end"] == "2026-09-30T12:00:01.500000Z"


@pytest.mark.contract("EP-061")
def test_the_later_line_of_one_span_wins(tmp_path: Path) -> None:
    first, other, second = (line(span_id="a" * 16), line(span_id="b" * 16), line(span_id="a" * 16, seconds=7))
    read = read_bytes(tmp_path, first + other + second)

    assert [(found.span_id, found.seconds, found.line) for found in read.rows] == [
        ("b" * 16, 1.0, 2),
        ("a" * 16, 7.0, 3),
    ]
    assert [(s.reason, s.line, s.offset, s.length) for s in read.skipped_lines] == [("duplicate", 1, 0, len(first))]
    assert read.lines == 3


@pytest.mark.contract("EP-061", "EP-007")
def test_absent_fields_have_defaults_and_unknown_keys_are_kept(tmp_path: Path) -> None:
    read = read_bytes(tmp_path, b'{"stage": "cell", "seconds": 2, "novel": {"a": [1]}, "self_seconds": 0.5}\n')

    [found] = read.rows
    assert found.ok
    assert found.measured
    assert found.container  # by its name
    assert found.source == "timer"
    assert found.self_seconds == 0.5
    assert found.extra == {"novel": {"a": [1]}}
    assert found.to_dict()["novel"] == {"a": [1]}
    assert read.flags == {"defaulted": 1}


def test_a_field_of_the_wrong_type_costs_that_field_only(tmp_path: Path) -> None:
    [found] = read_bytes(
        tmp_path, line(phase=3, pass_=None, depth=-1, attributes=[1], ok="yes", start="noon", run_id=["x"])
    ).rows

    assert (found.phase, found.depth, dict(found.attributes), found.ok, found.start_ns, found.run_id) == (
        *(None, None, {}, True, None, None),
    )
    assert set(found.flags) == {"bad_field", "bad_time", "defaulted"}


@pytest.mark.contract("EP-003")
@pytest.mark.parametrize(
    ("text", "written", "flags"),
    [
        ("2026-09-30T12:44Z", "2026-09-30T12:44:00.000000Z", ()),
        ("2026-09-30T12:44:10Z", "2026-09-30T12:44:10.000000Z", ()),
        ("2026-09-30T12:44:10.5Z", "2026-09-30T12:44:10.500000Z", ()),
        ("2026-09-30T12:44:10.123456789Z", "2026-09-30T12:44:10.123456Z", ()),
        ("2026-09-30T12:44:10.999999999+00:00", "2026-09-30T12:44:10.999999Z", ()),
        ("2026-09-30T12:44:10+02:00", "2026-09-30T10:44:10.000000Z", ()),
        ("2026-09-30T12:44:10", "2026-09-30T12:44:10.000000Z", ("naive_timestamp",)),
        ("2026-02-31T12:44:10Z", None, ("bad_time",)),
        ("2026-09-30 12:44:10Z", None, ("bad_time",)),
        ("9999-12-31T23:59:59-05:00", None, ("bad_time",)),
    ],
)
def test_timestamps_are_read_in_every_accepted_form(
    tmp_path: Path, text: str, written: str | None, flags: tuple[str, ...]
) -> None:
    [found] = read_bytes(tmp_path, line(start=text, end=None, seconds=0)).rows

    assert (found.to_dict()["start"], found.flags) == (written, flags)


def test_a_byte_order_mark_and_carriage_returns_are_accepted(tmp_path: Path) -> None:
    read = read_bytes(tmp_path, b"\xef\xbb\xbf" + line("m1")[:-1] + b"\r\n" + line("m2"))

    assert [found.stage for found in read.rows] == ["m1", "m2"]


def test_values_only_python_calls_json_become_json(tmp_path: Path) -> None:
    read = read_bytes(
        tmp_path, b'{"stage":"m1","seconds":1,"run_id":"a\\ud800","attributes":{"x":NaN,"y":[Infinity]}}\n'
    )

    [found] = read.rows
    assert (found.run_id, found.attributes) == ("a\ufffd", {"x": None, "y": [None]})
    json.dumps(read.to_dict(), allow_nan=False)


@pytest.mark.case("C-050")
@pytest.mark.parametrize("glued", [True, False], ids=["glued to the next record", "on a line of its own"])
def test_good_rows_around_a_gap_of_nuls_are_used_and_the_gap_is_located(tmp_path: Path, glued: bool) -> None:
    before, gap, broken, after = line("m1"), b"\0" * 200_000, b'{"stage": "m\n', line("m2")
    end = b"" if glued else b"\n"
    read = read_bytes(tmp_path, before + gap + end + after + broken + after)

    assert [found.stage for found in read.rows] == ["m1", "m2", "m2"]
    start = len(before)
    assert [(s.reason, s.offset, s.length) for s in read.skipped_lines] == [
        ("malformed", start, len(gap + end)),
        ("malformed", start + len(gap + end + after), len(broken)),
    ]
    assert read.rows[1].offset == start + len(gap + end)


def test_a_record_torn_by_a_gap_of_nuls_is_one_stretch_of_damage(tmp_path: Path) -> None:
    read = read_bytes(tmp_path, b'{"stage": "m' + b"\0" * 9 + line("m2"))

    assert [found.stage for found in read.rows] == ["m2"]
    assert [(s.line, s.offset, s.length) for s in read.skipped_lines] == [(1, 0, 12 + 9)]


def test_a_line_longer_than_memory_should_hold_costs_itself_only(tmp_path: Path) -> None:
    path = tmp_path / "timings.jsonl"
    hole = 3 * MAX_LINE_BYTES
    with path.open("wb") as file:
        file.write(line("m1"))
        file.seek(hole, os.SEEK_CUR)  # a sparse file reads as NULs
        file.write(line("m2"))

    read = read_timings(path)

    assert [found.stage for found in read.rows] == ["m1", "m2"]
    assert [(s.offset, s.length) for s in read.skipped_lines] == [(len(line("m1")), hole)]


RECORDS = st.builds(
    lambda stage, seconds, attribute: {"stage": stage, "seconds": seconds, "attributes": {"a": attribute}},
    st.sampled_from(["m1", "model_call", "Bad Stage", None]),
    st.one_of(st.floats(), st.integers(), st.text(max_size=3), st.none()),
    st.one_of(st.text(max_size=5), st.floats(), st.none()),
)
PIECES = st.one_of(
    st.binary(max_size=20),
    RECORDS.map(lambda r: json.dumps(r).encode()),
    st.just(b"\n"),
    st.just(b"\0\0\0"),
    st.just(b" "),
)


@pytest.mark.contract("EP-061")
@given(pieces=st.lists(PIECES, max_size=12))
def test_any_bytes_are_read_without_an_error_and_the_counts_add_up(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    content = b"".join(pieces)
    read = read_bytes(tmp_path_factory.mktemp("any"), content)

    assert read.lines == len(read.rows) + sum(read.skipped.values())
    json.dumps(read.to_dict(), allow_nan=False)
    # Every byte is in a row, in a skipped stretch, or blank.
    left = bytearray(content)
    for skipped in read.skipped_lines:
        left[skipped.offset : skipped.offset + skipped.length] = b" " * skipped.length
    for found in read.rows:
        stop = min(
            (at for at in (left.find(b"\n", found.offset), left.find(b"\0", found.offset)) if at >= 0),
            default=len(left),
        )
        left[found.offset : stop] = b" " * (stop - found.offset)
    assert not bytes(left).removeprefix(b"\xef\xbb\xbf").strip()


@given(data=st.data())
def test_a_file_cut_at_any_byte_reads_as_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = b"".join(line(f"m{number}") for number in range(1, 6))
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    read = read_bytes(tmp_path_factory.mktemp("cut"), cut)

    # The last line may be whole but for its newline.
    complete = cut.count(b"\n") + cut.endswith(b"null}")
    assert [found.stage for found in read.rows] == [f"m{number}" for number in range(1, complete + 1)]
