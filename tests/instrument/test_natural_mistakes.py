"""What people write at first, and what they then find."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import spanfold
from spanfold.journal import fields, read_journal
from spanfold.model import Span


def spans(run_dir) -> dict[str, Span]:
    return {r.name: r for r in read_journal(run_dir).records if isinstance(r, Span)}


def test_a_cycle_given_late_counts_and_one_that_is_no_number_is_kept(tmp_path):
    with spanfold.run("r", dir=tmp_path / "run") as run:
        with spanfold.stage("M1", cycle=0) as stage:
            stage.set(cycle=3)
            with spanfold.timed("inside"):
                pass
        with spanfold.stage("M2", cycle=0) as stage:
            stage.set(cycle="two")
        with spanfold.stage("M3", cycle="three"):  # type: ignore[arg-type]
            pass
    found = spans(run.dir)
    assert found["M1"].attributes["spanfold.cycle"] == 3 == found["inside"].attributes["spanfold.cycle"]
    assert found["M2"].attributes["spanfold.cycle"] == 0
    assert found["M2"].attributes["spanfold.field.cycle"] == "two"
    assert fields(found["M3"])["cycle_given"] == "three"


def test_async_with_works_for_runs_and_spans(tmp_path):
    async def main() -> None:
        async with spanfold.run("r", dir=tmp_path / "run"), spanfold.stage("M1") as stage:
            stage.set(seen=True)

    asyncio.run(main())
    assert set(spans(tmp_path / "run")) == {"r", "M1"}


def test_async_with_works_where_nothing_is_recorded():
    async def main() -> None:
        async with spanfold.stage("M1") as stage:
            stage.set(seen=True)

    asyncio.run(main())


def test_older_names_of_token_totals_are_the_totals(tmp_path):
    with spanfold.run("r", dir=tmp_path / "run") as run, spanfold.model_call("m") as call:
        call.usage(prompt_tokens=12, completion_tokens=3)
        call.finish_reasons(["stop", "length"])
    found = spans(run.dir)["chat m"].attributes
    assert found["gen_ai.usage.input_tokens"] == 12 and found["gen_ai.usage.output_tokens"] == 3
    assert found["gen_ai.response.finish_reasons"] == ["stop", "length"]


def test_a_run_nobody_closes_is_sealed_at_exit_as_abandoned(tmp_path):
    program = "import spanfold\nrun = spanfold.run('r', dir='run')\nwith spanfold.stage('M1'): pass"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert spans(tmp_path / "run")["r"].attributes["spanfold.outcome"] == "abandoned"


@pytest.mark.parametrize("given", ["dir='~/runs/001'", "dir=b'~/runs/001'", "dir=pathlib.Path('~/runs/001')", ""])
def test_a_directory_that_begins_with_a_tilde_is_in_the_users_home(tmp_path: Path, given: str) -> None:
    program = f"import pathlib, spanfold\nwith spanfold.run('r', {given}) as run: print(run.dir)"
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    env = {**os.environ, "HOME": str(home), "SPANFOLD_RUN_DIR": "~/runs"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=here, env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert Path(done.stdout.strip()).is_relative_to(home / "runs")
    assert Path(done.stdout.strip(), "run.json").is_file()
    assert list(here.iterdir()) == []


def test_a_directory_that_is_no_path_is_told_by_name_and_the_program_goes_on(tmp_path: Path) -> None:
    program = "import spanfold\nwith spanfold.run('r', dir=5): print('goes on')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "goes on\n"
    assert "lost a run (dir: expected a path (str or os.PathLike), found an int)" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "is_told"), [("'0.1'", False), ("'soon'", True), ("None", True), ("10**400", True), ("True", False)]
)
def test_a_time_limit_that_is_no_number_does_not_fail_the_program(tmp_path: Path, given: str, is_told: bool) -> None:
    program = (
        "import spanfold\nwith spanfold.run('r', dir='run'):\n"
        f"    print(spanfold.flush({given}).written, spanfold.shutdown({given}).written)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "1 1\n"
    assert ("timeout_s: expected seconds as a number, found an object" in done.stderr) == is_told
