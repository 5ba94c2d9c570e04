"""Parents, paths and self time of rows, whatever shape they nest in."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.timings import RUN_PATH, TimingRow, read_timings, stage_paths, summarise
from spanfold.timings.clock import NS_PER_SECOND
from spanfold.timings.tree import MAX_PATH_DEPTH, TimingTree
from tests.timings.samples import RunWriter, kind, loop_run, row, write_rows

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors.json").read_text(encoding="utf-8"))


def timing(stage: str, start: float | None, seconds: float, **fields: Any) -> TimingRow:
    return TimingRow(
        stage=stage, seconds=seconds, start_ns=None if start is None else round(start * NS_PER_SECOND), **fields
    )


def vector_rows(*, ids: bool) -> list[TimingRow]:
    """The cell of the contract's vectors, with span ids or with names and depths only."""
    rows: list[TimingRow] = []
    listed = {record["id"]: record for record in VECTORS["nesting"]["rows"]}

    def depth(identity: str) -> int:
        parent = listed[identity]["parent"]
        return 0 if parent is None else depth(parent) + 1

    for identity, record in listed.items():
        parent = record["parent"]
        rows.append(
            timing(
                record["stage"],
                record["start"],
                record["seconds"],
                container=record["container"],
                measured=record["measured"],
                ok=record["ok"],
                pass_number=record["pass"],
                parent=None if parent is None else listed[parent]["stage"],
                depth=depth(identity),
                span_id=identity if ids else None,
                parent_span_id=parent if ids else None,
            )
        )
    return rows[::-1]  # children before parents, as they end


@pytest.mark.contract("EP-068")
def test_parents_are_the_same_by_id_and_by_name_depth_pass_and_interval() -> None:
    assert TimingTree(vector_rows(ids=True)).parents == TimingTree(vector_rows(ids=False)).parents


@pytest.mark.contract("EP-063")
def test_parallel_children_are_subtracted_once() -> None:
    parent = timing("m1", 0, 10, span_id="p")
    children = [timing("model_call", start, 4, span_id=f"c{start}", parent_span_id="p") for start in (1, 2, 3)]

    assert TimingTree([*children, parent]).self_ns()[-1] == 4 * NS_PER_SECOND


def test_a_child_outside_its_parent_takes_nothing_from_it() -> None:
    parent = timing("m1", 10, 2, span_id="p")
    early = timing("a", 0, 5, span_id="c", parent_span_id="p")
    over = timing("b", 11, 50, span_id="d", parent_span_id="p")

    assert TimingTree([early, over, parent]).self_ns()[-1] == 1 * NS_PER_SECOND


@pytest.mark.contract("EP-055")
def test_a_container_is_looked_through_and_an_unmeasured_child_is_not_subtracted() -> None:
    rows = [
        timing("m1", 0, 10, span_id="top"),
        timing("pass", 1, 8, span_id="box", parent_span_id="top", container=True),
        timing("model_call", 2, 3, span_id="work", parent_span_id="box"),
        timing("agent_reported", 2, 6, span_id="said", parent_span_id="top", measured=False),
    ]

    assert TimingTree(rows).self_ns()[:3] == [7 * NS_PER_SECOND, 5 * NS_PER_SECOND, 3 * NS_PER_SECOND]


def test_rows_that_name_each_other_as_parents_do_not_loop() -> None:
    rows = [
        timing("a", 0, 1, span_id="1", parent_span_id="2", parent="b"),
        timing("b", 0, 1, span_id="2", parent_span_id="3", parent="c"),
        timing("c", 0, 1, span_id="3", parent_span_id="1", parent="a"),
        timing("d", 0, 1, span_id="4", parent_span_id="4", parent="d"),
    ]
    tree = TimingTree(rows)

    assert tree.parents == [-1, 2, 0, -1]
    assert [tree.is_orphan(index) for index in range(4)] == [True, False, False, True]
    assert tree.paths() == ["a", "a/c/b", "a/c", "d"]


def test_paths_start_below_the_run_so_that_runs_of_different_names_align(tmp_path: Path) -> None:
    read = read_timings(loop_run(tmp_path / "001", seed=1) / "timings.jsonl")

    grouped = stage_paths(read.rows)

    assert {path: len(rows) for path, rows in grouped.items()} == {
        RUN_PATH: 1,
        "load": 1,
        "m1": 1,
        "m2": 1,
        "m2/model_call": 4,
    }
    starts = [row.start_ns or 0 for row in grouped["m2/model_call"]]
    assert starts == sorted(starts)


def test_stages_of_an_interrupted_run_align_with_those_of_a_whole_one(tmp_path: Path) -> None:
    made = RunWriter()
    top = made.run(10)
    stage = made.span("m2", 1, 5, top, **kind("stage"))
    call = made.span("model_call", 2, 1, stage, **kind("model_call"))
    made.span("tool", 2, 0.5, call)
    made.rows = [row for row in made.rows if row["stage"] != "run"]
    whole_stage = stage_paths(read_timings(made.write(tmp_path / "no-run") / "timings.jsonl").rows)
    made.rows = [row for row in made.rows if row["stage"] != "m2"]
    lost_stage = stage_paths(read_timings(made.write(tmp_path / "no-stage") / "timings.jsonl").rows)

    made.rows = [row for row in made.rows if row["stage"] != "model_call"]
    lost_call = stage_paths(read_timings(made.write(tmp_path / "no-call") / "timings.jsonl").rows)

    assert list(whole_stage) == ["m2", "m2/model_call", "m2/model_call/tool"]
    assert list(lost_stage) == ["m2/model_call", "m2/model_call/tool"]
    assert list(lost_call) == ["…/model_call/tool"]


def test_a_deep_recursion_shares_one_path_beyond_a_depth() -> None:
    rows = [timing("a", 0, 1, span_id="0")]
    rows += [timing("a", 0, 1, span_id=str(n), parent_span_id=str(n - 1)) for n in range(1, 30_000)]

    grouped = stage_paths(rows)

    assert len(grouped) == MAX_PATH_DEPTH + 1
    assert len(grouped["/".join(["a"] * MAX_PATH_DEPTH) + "/…"]) == 30_000 - MAX_PATH_DEPTH


# --- against slow, obvious models --------------------------------------------------------------------------------


@st.composite
def nested_rows(draw: st.DrawFn) -> list[TimingRow]:
    """Rows on a grid of whole seconds, each inside or partly outside of an earlier one; some without a place."""
    rows: list[TimingRow] = []
    for number in range(draw(st.integers(0, 14))):
        parent = draw(st.integers(-1, number - 1))
        around = rows[parent] if parent >= 0 else None
        begin = 0 if around is None or around.start_ns is None else around.start_ns // NS_PER_SECOND
        rows.append(
            timing(
                draw(st.sampled_from(["a", "b", "c"])),
                draw(st.one_of(st.none(), st.integers(begin - 1, begin + 6))),
                draw(st.integers(0, 8)),
                container=draw(st.booleans()),
                measured=draw(st.integers(0, 4)) > 0,
                pass_number=draw(st.sampled_from([None, 1, 2])),
                span_id=str(number),
                parent_span_id=None if around is None else str(parent),
                parent=None if around is None else around.stage,
            )
        )
    return draw(st.permutations(rows))


def seconds_of(row: TimingRow) -> set[int]:
    if row.start_ns is None:
        return set()
    return set(range(row.start_ns // NS_PER_SECOND, row.start_ns // NS_PER_SECOND + round(row.seconds)))


def slow_self(rows: Sequence[TimingRow], row: TimingRow) -> int:
    """Count the seconds of a row one by one and strike out those of its children."""

    def children(parent: TimingRow) -> list[TimingRow]:
        found: list[TimingRow] = []
        for child in rows:
            if child.parent_span_id == parent.span_id and child is not parent:
                found += children(child) if child.container and not row.container else [child] if child.measured else []
        return found

    taken = set[int]().union(*(seconds_of(child) for child in children(row)))
    return len(seconds_of(row) - taken)


@pytest.mark.slow
@pytest.mark.contract("EP-063")
@given(rows=nested_rows())
def test_self_time_is_what_counting_seconds_gives(rows: list[TimingRow]) -> None:
    found = TimingTree(rows).self_ns()

    for row_, self_ns in zip(rows, found, strict=True):
        if row_.start_ns is None:
            assert self_ns is None
        else:
            assert self_ns == slow_self(rows, row_) * NS_PER_SECOND


@pytest.mark.contract("EP-064")
@given(rows=nested_rows())
def test_a_stage_inside_its_own_name_is_found_by_walking_up(rows: list[TimingRow]) -> None:
    by_id = {row_.span_id: row_ for row_ in rows}

    def inside(row_: TimingRow) -> bool:
        at = row_
        while at.parent_span_id is not None:
            at = by_id[at.parent_span_id]
            if at.stage == row_.stage:
                return True
        return False

    assert TimingTree(rows).inside_same_stage() == [inside(row_) for row_ in rows]


@st.composite
def nameless_rows(draw: st.DrawFn) -> list[TimingRow]:
    return [
        timing(
            draw(st.sampled_from(["a", "b"])),
            draw(st.one_of(st.none(), st.integers(0, 6).map(lambda n: n * 0.004))),
            draw(st.integers(0, 6).map(lambda n: n * 0.004)),
            depth=draw(st.integers(0, 2)),
            parent=draw(st.sampled_from([None, "a", "b"])),
            pass_number=draw(st.sampled_from([None, 1, 2])),
            cell_id=draw(st.sampled_from(["x", "y"])),
        )
        for _ in range(draw(st.integers(0, 12)))
    ]


def slow_parent(rows: Sequence[TimingRow], child: TimingRow) -> int:
    """The definition of EP 8.2, read aloud."""
    found: list[tuple[int, int]] = []
    for index, row_ in enumerate(rows):
        if None in (child.parent, child.start_ns, row_.start_ns, child.stop_ns, row_.stop_ns):
            continue
        assert child.start_ns is not None
        assert child.stop_ns is not None
        assert row_.start_ns is not None
        assert row_.stop_ns is not None
        if (
            row_.stage == child.parent
            and row_.depth == (child.depth or 0) - 1
            and row_.cell_id == child.cell_id
            and row_.pass_number in (child.pass_number, None)
            and row_.start_ns <= child.start_ns + 5_000_000
            and row_.stop_ns >= child.stop_ns - 5_000_000
        ):
            found.append((row_.duration_ns, index))
    return min(found)[1] if found else -1


@pytest.mark.slow
@pytest.mark.contract("EP-068")
@given(rows=nameless_rows())
def test_without_ids_the_parent_is_the_shortest_row_that_fits(rows: list[TimingRow]) -> None:
    assert TimingTree(rows).parents == [slow_parent(rows, child) for child in rows]


@pytest.mark.slow
@pytest.mark.case("C-035")
@pytest.mark.parametrize("ids", [True, False])
def test_ten_thousand_children_of_one_stage_find_their_parent_quickly(tmp_path: Path, ids: bool) -> None:
    """Quadratic work on this many rows takes minutes; a hang guard of pytest-like size is enough to tell."""
    count = 10_000
    rows = [row("m1", 0, count, span_id="p" if ids else None)]
    for number in range(count):
        extra: dict[str, object] = {"span_id": f"c{number}", "parent_span_id": "p"} if ids else {}
        rows.append(row("model_call", number, 0.5, parent="m1", depth=1, **extra))
    read = read_timings(write_rows(tmp_path / "timings.jsonl", rows))

    summary = summarise(read)

    assert (summary.orphans, summary.stages["m1"].self_seconds) == (0, count / 2)
