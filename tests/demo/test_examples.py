"""The examples and the tutorial run as they are printed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TUTORIAL = ROOT / "docs" / "tutorial.md"


def run(*arguments: str, cwd: Path) -> str:
    # Warnings are errors, and so is anything on standard error: an example that loses a record says so there.
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments], cwd=cwd, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def python_of(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def parents(run_dir: Path) -> dict[str, str | None]:
    """Return the stage that each timed row of a run names as its parent."""
    rows = [json.loads(line) for line in (run_dir / "timings.jsonl").read_text(encoding="utf-8").splitlines()]
    return {row["stage"]: row["parent"] for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_alone_and_leaves_a_finished_run(example, tmp_path):
    run(str(example), cwd=tmp_path)
    runs = list((tmp_path / "runs").glob("*/run.json"))

    assert runs
    for document in runs:
        facts = document.with_name("spanfold.json")  # of a diagnose loop, whose run.json is as its contract says
        record = json.loads((facts if facts.exists() else document).read_text(encoding="utf-8"))
        assert record["run"]["status"] == "completed"
        assert record["open"] == {}


def test_every_example_is_in_their_readme_and_short_enough_to_read():
    readme = (EXAMPLES[0].parent / "README.md").read_text(encoding="utf-8")

    assert len(EXAMPLES) >= 3
    for example in EXAMPLES:
        assert f"({example.name})" in readme
        assert len(example.read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.slow
def test_the_python_of_the_tutorial_runs_from_top_to_bottom(tmp_path):
    blocks = python_of(TUTORIAL)
    printed = run("-c", "\n".join(blocks), cwd=tmp_path)

    assert len(blocks) >= 5
    assert "still ours: no cases to verify on" in printed
    record = json.loads((tmp_path / "runs" / "broken" / "run.json").read_text(encoding="utf-8"))
    assert record["run"]["status"] == "failed"
    mine = json.loads((tmp_path / "runs" / "mine" / "M1" / "log.json").read_text(encoding="utf-8"))
    assert [stage["failed"] for stage in mine["stage"]] == [["a", "c"], ["b"]]
    expected = dict.fromkeys(("to_thread", "in_executor", "thread", "pool"), "m1")
    assert parents(tmp_path / "runs" / "threads") == {**expected, "m1": None, "run": None}


@pytest.mark.slow
def test_a_span_of_an_instrumentor_lands_below_the_stage_in_both_ways_of_the_page(tmp_path):
    blocks = python_of(ROOT / "docs" / "settings.md")
    for block in blocks:
        run("-c", block, cwd=tmp_path)

    assert len(blocks) == 2
    for name in ("joined", "ours"):
        assert parents(tmp_path / "runs" / name) == {"model_call": "m1", "m1": None, "run": None}
