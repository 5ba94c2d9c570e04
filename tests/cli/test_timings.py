"""`timings compare` and `timings plot`."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spanfold.cli._exits import Exit
from tests.cli.conftest import Spanfold

pytestmark = pytest.mark.slow


@pytest.fixture
def sides(runs: Path, tmp_path: Path) -> Callable[..., None]:
    """Make folders `base` and `new` with five runs each, all durations of `new` times a factor."""

    def make(factor: float) -> None:
        rows = [json.loads(line) for line in (runs / "ok" / "timings.jsonl").read_text().splitlines()]
        for side, scale in (("base", 1.0), ("new", factor)):
            for number in range(5):
                run = Path(shutil.copytree(runs / "ok", tmp_path / side / f"{number:03d}"))
                changed = [
                    {**row, "seconds": round((0.1 + number / 1000) * scale, 6), "start": None, "end": None}
                    for row in rows
                ]
                (run / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))

    return make


def test_two_folders_of_runs_are_compared_run_by_run(spanfold: Spanfold, sides: Callable[..., None]) -> None:
    sides(2.0)

    answer = spanfold("timings", "compare", "base", "new", "--json")

    assert answer.code == Exit.DONE
    assert (answer.document["unit"], answer.document["verdict"]) == ("run", "changed")
    assert {stage["direction"] for stage in answer.document["stages"]} == {"slower"}
    assert all(stage["ratio"] == pytest.approx(2, rel=1e-3) for stage in answer.document["stages"])
    assert len(answer.document["a"]["runs"]) == 5


@pytest.mark.parametrize(
    ("factor", "fail_on", "code"),
    [
        (2.0, "slower", Exit.CHANGED),
        (2.0, "changed", Exit.CHANGED),
        (0.5, "slower", Exit.DONE),
        (0.5, "changed", Exit.CHANGED),
        (1.0, "changed", Exit.DONE),
    ],
)
def test_the_exit_code_tells_a_change_on_request(
    spanfold: Spanfold, sides: Callable[..., None], factor: float, fail_on: str, code: Exit
) -> None:
    sides(factor)

    assert spanfold("timings", "compare", "base", "new", "--fail-on", fail_on).code == code
    assert spanfold("timings", "compare", "base", "new").code == Exit.DONE


@pytest.mark.case("C-076")
def test_the_same_comparison_gives_the_same_bytes_and_one_run_a_side_is_cautioned(
    spanfold: Spanfold, runs: Path
) -> None:
    first = spanfold("timings", "compare", "ok", "fail", "--json", "--seed", "3")
    second = spanfold("timings", "compare", "ok", "runs/fail/timings.jsonl", "--json", "--seed", "3")

    assert first.out == second.out
    assert "spans_not_independent" in {caution["code"] for caution in first.document["cautions"]}
    assert "Verdict: " in spanfold("timings", "compare", "ok", "fail").out


def test_a_side_that_is_not_there_is_not_found(spanfold: Spanfold, runs: Path) -> None:
    (runs / "empty").mkdir()

    for side in ("nowhere", "empty"):
        answer = spanfold("timings", "compare", "ok", side)
        assert answer.code == Exit.NOT_FOUND
        assert answer.err.startswith(f"spanfold: {side}: expected a run directory")


def test_a_run_without_timings_says_how_to_make_them(spanfold: Spanfold, runs: Path) -> None:
    (runs / "ok" / "timings.jsonl").unlink()

    compared, drawn = spanfold("timings", "compare", "ok", "fail"), spanfold("timings", "plot", "ok")

    assert [answer.code for answer in (compared, drawn)] == [Exit.NOT_FOUND] * 2
    assert "`spanfold run fold" in compared.err
    assert "`spanfold run fold runs/ok` makes them" in drawn.err
    assert spanfold("run", "fold", "ok").code == Exit.DONE
    assert spanfold("timings", "plot", "ok").code == Exit.DONE


def test_a_run_is_drawn_in_the_terminal_and_as_numbers(spanfold: Spanfold, runs: Path) -> None:
    drawn = spanfold("timings", "plot", "ok").out
    numbers = spanfold("timings", "plot", "ok", "--against", "fail", "--json").document

    assert "m1 cycle 0" in drawn or "m1" in drawn
    assert "self" in drawn
    assert [run["run"] for run in numbers["runs"]] == ["runs/ok", "runs/fail"]
    assert {share["path"] for share in numbers["runs"][0]["shares"]} >= {"(run)", "m1", "m1/model_call", "m1/tool"}
    assert numbers["figure"] is None


@pytest.mark.parametrize("words", [("-o", "one.png"), ("--against", "fail", "-o", "two.svg")])
def test_a_figure_is_written_where_it_is_asked_for(
    spanfold: Spanfold, runs: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    answer = spanfold("timings", "plot", "ok", *words, "--json", strict=False)

    figure = tmp_path / words[-1]
    assert answer.document["figure"] == words[-1]
    assert answer.document["figure_size_bytes"] == figure.stat().st_size
    assert figure.read_bytes().startswith(b"\x89PNG" if words[-1].endswith("png") else b"<?xml")
