"""Sums of one run: each second in the right number, and in no number twice."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.timings import RUN_PATH, TimingRead, TimingRow, breakdown, read_timings, summarise
from spanfold.timings.clock import NS_PER_SECOND
from tests.timings.samples import loop_run, row, write_rows
from tests.timings.test_tree import VECTORS, nested_rows, timing, vector_rows


@pytest.mark.contract("EP-062", "EP-065")
@pytest.mark.parametrize("ids", [True, False], ids=["with span ids", "by name and interval"])
def test_the_cell_of_the_contract_sums_up_as_the_contract_says(ids: bool) -> None:
    expected: dict[str, Any] = VECTORS["nesting"]
    summary = summarise(vector_rows(ids=ids))

    for name in ("wall_seconds", "work_seconds", "covered_seconds", "overlap_seconds", "unattributed_seconds"):
        assert getattr(summary, name) == expected[name], name
    found = {stage: (s.count, s.total_seconds, s.self_seconds) for stage, s in summary.stages.items()}
    found |= {stage: (c.count, c.seconds, c.self_seconds) for stage, c in summary.containers.items()}
    assert found == {
        stage: (values["count"], values["total_seconds"], values["self_seconds"])
        for stage, values in expected["stages"].items()
    }
    assert {stage: {"count": r.count, "seconds": r.seconds} for stage, r in summary.reported.items()} == expected[
        "reported"
    ]
    assert list(summary.by_pass) == ["outside", "1", "2"]
    assert (summary.by_pass["1"]["agent"].total_seconds, summary.by_pass["2"]["agent"].failed) == (40, 1)
    assert (summary.wall_source, summary.orphans, summary.between_processes_seconds) == ("cell", 0, 0)


@pytest.mark.contract("EP-067")
def test_no_rows_give_no_numbers_rather_than_zeros() -> None:
    summary = summarise([])

    assert summary.to_dict() == {
        "rows": 0,
        "skipped": {},
        "reconstructed": 0,
        "orphans": 0,
        "wall_seconds": None,
        "wall_source": None,
        "work_seconds": None,
        "covered_seconds": None,
        "overlap_seconds": None,
        "unattributed_seconds": None,
        "between_processes_seconds": None,
        "stages": {},
        "containers": {},
        "reported": {},
        "by_pass": {},
    }


@pytest.mark.contract("EP-064")
def test_a_stage_inside_its_own_name_counts_once_in_the_total() -> None:
    outer = timing("m1", 0, 10, span_id="o")
    between = timing("agent", 1, 6, span_id="b", parent_span_id="o")
    inner = timing("m1", 2, 3, span_id="i", parent_span_id="b")

    stage = summarise([inner, between, outer]).stages["m1"]

    assert (stage.count, stage.total_seconds, stage.self_seconds) == (2, 10, 7)


@pytest.mark.contract("EP-055")
def test_containers_are_in_no_total() -> None:
    summary = summarise([timing("cell", 0, 100, container=True), timing("m1", 10, 5)])

    assert (summary.work_seconds, summary.wall_seconds, summary.unattributed_seconds) == (5, 100, 95)
    assert set(summary.stages) == {"m1"}


def test_a_row_without_a_place_counts_in_count_and_total_only() -> None:
    summary = summarise([timing("lease_wait", None, 8)])

    stage = summary.stages["lease_wait"]
    assert (stage.count, stage.total_seconds, stage.self_seconds) == (1, 8, None)
    assert (summary.work_seconds, summary.covered_seconds, summary.wall_seconds) == (None, None, None)


def test_the_gap_between_two_processes_of_a_cell_is_not_wall_time() -> None:
    summary = summarise([timing("cell", 0, 10, container=True), timing("cell", 25, 5, container=True)])

    assert (summary.wall_seconds, summary.between_processes_seconds) == (15, 15)


def test_a_read_tells_its_losses_to_the_summary(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "timings.jsonl", [row("m1"), row("m2", source="command_log", parent="gone", depth=1)])
    path.write_bytes(path.read_bytes() + b"{torn")

    summary = summarise(read_timings(path))

    assert (summary.rows, summary.skipped, summary.reconstructed, summary.orphans) == (2, {"malformed": 1}, 1, 1)


@given(rows=nested_rows())
def test_sums_are_what_counting_seconds_gives(rows: list[TimingRow]) -> None:
    summary = summarise(rows)

    eligible = [r for r in rows if r.measured and not r.container]
    placed = [
        range(r.start_ns // NS_PER_SECOND, r.start_ns // NS_PER_SECOND + round(r.seconds))
        for r in eligible
        if r.start_ns is not None
    ]
    if placed:
        assert summary.covered_seconds == len(set[int]().union(*placed))
        assert summary.overlap_seconds is not None
        assert summary.overlap_seconds >= 0
    else:
        assert (summary.covered_seconds, summary.work_seconds) == (None, None)
    json.dumps(summary.to_dict(), allow_nan=False)


@st.composite
def whole_cells(draw: st.DrawFn) -> list[TimingRow]:
    """One cell row, and rows nested at random that never leave their parent."""
    rows = [timing("cell", 0, 64, container=True, span_id="0")]
    for number in range(1, draw(st.integers(1, 15))):
        parent = rows[draw(st.integers(0, number - 1))]
        begin = (parent.start_ns or 0) // NS_PER_SECOND
        start = draw(st.integers(begin, begin + round(parent.seconds)))
        seconds = draw(st.integers(0, begin + round(parent.seconds) - start))
        stage = draw(st.sampled_from(["pass", "agent", "m1", "tool"]))
        rows.append(
            timing(stage, start, seconds, container=stage == "pass", span_id=str(number), parent_span_id=parent.span_id)
        )
    return rows


@pytest.mark.contract("EP-066")
@given(rows=whole_cells())
def test_wall_is_work_less_overlap_plus_what_nothing_accounts_for(rows: list[TimingRow]) -> None:
    summary = summarise(rows)

    assert summary.wall_seconds == 64
    work, overlap = summary.work_seconds or 0, summary.overlap_seconds or 0
    assert work - overlap + (summary.unattributed_seconds or 0) == 64


def test_a_breakdown_says_where_the_time_of_a_run_went(tmp_path: Path) -> None:
    shares = breakdown(read_timings(loop_run(tmp_path / "001", seed=1, noise=0) / "timings.jsonl"))

    assert [(s.path, s.count, s.total_seconds, s.self_seconds) for s in shares] == [
        ("m1", 1, 2.0, 2.0),
        ("m2/model_call", 4, 2.0, 2.0),
        ("load", 1, 0.4, 0.4),
        ("m2", 1, 2.3, 0.3),
        (RUN_PATH, 1, 4.7, 0.0),
    ]
    assert sum(share.self_share or 0 for share in shares) == pytest.approx(1)
    assert shares[-1].total_share == 1


def test_self_times_of_sequential_work_add_up_to_the_wall_however_deep_it_recurses() -> None:
    """Beyond a depth paths are shared by rows inside each other, which must still count once."""
    rows = [timing("a", n, 200 - 2 * n, span_id=str(n), parent_span_id=str(n - 1) if n else None) for n in range(100)]
    shares = breakdown(TimingRead(Path("timings.jsonl"), tuple(rows)))

    assert sum(share.self_seconds or 0 for share in shares) == 200
    assert max(share.total_seconds for share in shares) == 200
