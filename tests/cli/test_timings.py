"""`timings compare` and `timings plot`."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spanfold.cli._commands import parse
from spanfold.cli._exits import Exit
from spanfold.cli._wording import sentence
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


def test_latest_is_the_newest_run(spanfold: Spanfold, runs: Path) -> None:
    newest = spanfold("run", "list", "--json").document["runs"][0]["run_dir"]

    assert spanfold("timings", "plot", "latest", "--json").document["runs"][0]["run"] == newest
    compared = spanfold("timings", "compare", "latest", "ok", "--json").document
    assert (compared["a"]["runs"], compared["b"]["runs"]) == ([Path(newest).name], ["ok"])
    shutil.rmtree(runs)
    assert spanfold("timings", "plot", "latest").code == Exit.NOT_FOUND


def test_a_file_without_a_row_of_timings_is_refused_and_one_with_bad_lines_is_not(
    spanfold: Spanfold, runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "loop.py").write_text("import os\n\nprint(os)\n")
    rows = (runs / "ok" / "timings.jsonl").read_text()
    (tmp_path / "mixed.jsonl").write_text(f"no row\n{rows}no row either\n")

    for words in (("plot", "loop.py"), ("compare", "ok", "loop.py"), ("compare", "loop.py", "ok")):
        answer = spanfold("timings", *words)
        assert (answer.code, answer.out) == (Exit.NOT_FOUND, "")
        assert answer.err.startswith("spanfold: loop.py: expected rows of timings, found none in 2 lines. ")
    assert spanfold("timings", "plot", "mixed.jsonl").out == spanfold("timings", "plot", "runs/ok/timings.jsonl").out
    assert spanfold("timings", "compare", "ok", "mixed.jsonl").code == Exit.DONE


def test_times_of_a_run_with_a_damaged_journal_are_shown_with_a_warning(spanfold: Spanfold, runs: Path) -> None:
    (journal,) = (runs / "ok" / "journal").glob("*.jsonl")
    whole = spanfold("timings", "plot", "ok")
    assert whole.err == ""
    journal.write_bytes(journal.read_bytes().replace(b"held out", b"held 0ut", 1))

    drawn, compared = spanfold("timings", "plot", "ok"), spanfold("timings", "compare", "fail", "ok")

    assert (drawn.code, drawn.out) == (Exit.DONE, whole.out)
    assert compared.code == Exit.DONE
    for answer in (drawn, compared):
        assert answer.err.startswith("! runs/ok: the journal is not as it was recorded, ")
        assert "`spanfold run verify runs/ok`" in answer.err


def test_a_figure_that_cannot_be_written_names_what_was_typed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.parent)

    def told(place: str, *words: str) -> str:
        error = PermissionError(errno.EACCES, "Permission denied", place)
        return sentence(error, parse(words))

    temporary = ".a.png.8103.dbb057a5.tmp"
    for place in (temporary, f"{runs.parent}/{temporary}"):
        assert told(place, "timings", "plot", "ok", "-o", "a.png").startswith(
            "a.png: expected a place that is writable"
        )
    assert told(temporary, "timings", "plot", "ok", "-o", "figures/a.png").startswith("figures: expected a place")
    assert told(".run.json.8103.dbb057a5.tmp", "run", "fold", "ok", "--into", "view").startswith(
        "view: expected a place"
    )
    assert told(f"{runs}/ok/.run.json.8103.dbb057a5.tmp", "run", "fold", "ok").startswith("runs/ok: expected a place")


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
