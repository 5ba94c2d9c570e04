"""The command line tells how a loop stands that goes on in a directory which was used."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spanfold.diagnose import RunLogger
from spanfold.fold import list_runs, show_run
from tests.diagnose.programs import LOOP
from tests.instrument.programs import Program

_PROGRAM = (
    LOOP
    + """
log.log_run_start({"model": "m"})
call(1)
print("ready", flush=True)
time.sleep(60)
"""
)


def spanfold(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spanfold", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NO_COLOR": "1"},
    )


def verified(run_dir: Path) -> dict[str, Any]:
    done = spanfold("run", "verify", run_dir, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory that a session ended in."""
    with RunLogger(tmp_path / "runs" / "one", observability_mode="offline") as log:
        log.log_run_start({"model": "m"})
    return log.run_dir


@pytest.fixture
def again(run_dir: Path) -> Iterator[Program]:
    """A second session in it, which lives."""
    with Program(_PROGRAM, run_dir) as running:
        assert running.line() == "ready"
        yield running


@pytest.mark.slow
@pytest.mark.contract("DL-147")
def test_a_loop_that_goes_on_in_a_used_directory_is_running(run_dir: Path, again: Program) -> None:
    shown, told = show_run(run_dir), spanfold("run", "show", run_dir)

    assert [run.status for run in list_runs(run_dir.parent)] == ["running"]
    assert (shown.status, shown.writer) == ("running", "alive")
    assert "its own process died" not in (told.stdout + told.stderr).lower()
    verdict = verified(run_dir)
    assert (verdict["state"], verdict["is_recorded"], verdict["journal"]["findings"]) == ("open", True, [])
    assert "interrupted" not in spanfold("run", "tail", "--no-follow", "--all", run_dir).stdout


@pytest.mark.slow
@pytest.mark.contract("DL-147")
def test_a_loop_that_was_killed_in_a_used_directory_is_interrupted_until_it_is_recovered(
    run_dir: Path, again: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPANFOLD_RUN_DIR", str(run_dir.parent))
    again.send(signal.SIGKILL)
    again.end()
    hint = f"spanfold run recover {run_dir}"

    listed = spanfold("run", "list", run_dir.parent)
    assert [run.status for run in list_runs(run_dir.parent)] == ["interrupted"]
    assert hint in listed.stdout + listed.stderr
    verdict = spanfold("run", "verify", run_dir)
    assert verified(run_dir)["state"] == "open"
    assert hint in verdict.stdout + verdict.stderr
    tail = spanfold("run", "tail", "--no-follow", run_dir)
    assert "interrupted: no process of this run is alive" in tail.stdout.splitlines()[-1]
    assert f"{run_dir} was interrupted" in spanfold("doctor").stdout

    assert spanfold("run", "recover", run_dir).returncode == 0

    (run,) = list_runs(run_dir.parent)
    assert (run.status, run.is_sealed) == ("interrupted", True)
    assert show_run(run_dir).recovered is not None
    assert verified(run_dir)["state"] == "intact"


@pytest.mark.slow
def test_a_file_put_beside_an_ended_loop_is_still_foreign(run_dir: Path, tmp_path: Path) -> None:
    with RunLogger(tmp_path / "runs" / "two", observability_mode="offline") as other:
        other.log_run_start({"model": "m"})
    (stranger,) = (other.run_dir / "journal").glob("*.otlp.jsonl")
    (run_dir / "journal" / stranger.name).write_bytes(stranger.read_bytes())

    assert spanfold("run", "verify", run_dir).returncode == 4
