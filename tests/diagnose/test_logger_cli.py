"""The command line understands the runs of a diagnose loop: ended, running, and killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from evalrx.eval_agent.run_logger_v2 import RunLoggerV2

from spanfold.bundle import export, verify
from spanfold.diagnose import RunLogger, outbox_of
from spanfold.fold import list_runs, show_run
from spanfold.journal import open_journals
from spanfold.timings import breakdown, read_timings
from tests.bundle.archives import unpack
from tests.diagnose.programs import LOOP
from tests.diagnose.script import documents, play
from tests.instrument.programs import Program


def spanfold(*words: object, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "spanfold", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def played(tmp_path: Path) -> Path:
    play(RunLogger(tmp_path / "run", observability_mode="offline"), tmp_path)
    return tmp_path / "run"


@pytest.mark.slow
def test_show_tells_cycles_stages_hypotheses_verdicts_and_the_repair(played: Path) -> None:
    out = spanfold("run", "show", played)

    told = json.loads(spanfold("run", "show", played, "--json"))["loop"]
    for line in (
        "M1     probe                 0    2.35 s  2 analyzers run",
        "M4     surgery               0    1.50 s  ✓ It ignores the image. — supported",
        "RUN    agent_tool                 500 ms  step 1: probe ok fine",
    ):
        assert line in out
    assert [h["status"] for h in told["hypotheses"]] == ["supported", None, "supported"]
    assert [h["verdict"] for h in told["hypotheses"]] == ["supported", None, None]
    assert told["hypotheses"][0]["effect"] == 0.3
    assert told["fix"]["best"]["name"] == "patch"
    assert told["end"]["stopped_by"] == "budget"
    assert told["cases"] == {"explore": 3}
    assert told["trace_id"] == documents(played)["run.json"]["trace_id"]
    assert not [work for work in show_run(played).stages if work.open]


@pytest.mark.slow
@pytest.mark.contract("DL-147")
def test_a_running_and_then_killed_loop_is_listed_shown_tailed_and_recovered_from_outside(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "one"
    program = (
        LOOP
        + """
log.log_run_start({"model": "m", "n_cases": 2})
call(1)
log.log_diagnosis(0, SimpleNamespace(model_name="m", hypotheses=[], raw_judge_output="r"), duration_sec=1.5)
print("ready", flush=True)
time.sleep(60)
"""
    )
    with Program(program, run_dir) as running:
        running.says("ready")
        assert [(r.run_dir, r.status) for r in list_runs(tmp_path / "runs")] == [(run_dir, "running")]
        assert json.loads(spanfold("run", "show", run_dir, "--json"))["status"] == "running"
        rows = spanfold("run", "tail", run_dir, "--no-follow", "--from-start")
        assert "RUN run_start  starting · model=m · n_cases=2" in rows
        assert "M3  diagnosis  cycle 0 · 0 falsifiable hypotheses proposed (1.5s)" in rows
        assert "is being recorded" in said("run", "recover", run_dir, status=5)
        running.send(signal.SIGKILL)
        running.end()

    assert [(r.run_dir, r.status) for r in list_runs(tmp_path / "runs")] == [(run_dir, "interrupted")]
    recovered = json.loads(spanfold("run", "recover", run_dir, "--json"))
    assert recovered["changed"]
    assert open_journals() == []
    assert len(documents(run_dir)["M1/log.json"]["model_calls"]) == 1
    assert set(documents(run_dir)) == {"run.json", *(f"M{n}/log.json" for n in range(1, 6))}
    assert "intact" in spanfold("run", "verify", run_dir)
    assert [r.status for r in list_runs(tmp_path / "runs")] == ["interrupted"]


def said(*words: Any, status: int = 0, **environment: str) -> str:
    """Return what a command said to people, beside its output."""
    done = subprocess.run(
        [sys.executable, "-m", "spanfold", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr


@pytest.mark.slow
def test_a_loop_is_tailed_and_followed_across_the_moment_its_journal_moves(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    program = (
        LOOP
        + """
log.log_run_start({"model": "m"})
print("ready", flush=True); sys.stdin.readline()
call(1)
log.log_stage_skipped("M4", "last words")
log.close()
print("closed", flush=True); sys.stdin.readline()
"""
    )
    with Program(program, run_dir) as running:
        running.says("ready")
        tail = subprocess.Popen(
            [sys.executable, "-m", "spanfold", "run", "tail", str(run_dir), "--from-start"],
            stdout=subprocess.PIPE,
            text=True,
        )
        follower = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "spanfold",
                "run",
                "fold",
                str(run_dir),
                "--follow",
                "--into",
                str(tmp_path / "else"),
            ]
        )
        assert tail.stdout is not None
        while "run_start" not in tail.stdout.readline():
            pass
        while not (tmp_path / "else" / "run.json").exists():
            time.sleep(0.05)
        running.tell()
        running.says("closed")
        rows, _ = tail.communicate(timeout=60)
        assert follower.wait(timeout=60) == 0
        running.tell()

    assert "skipped: last words" in rows
    assert "sealed: the run is over" in rows
    assert documents(tmp_path / "else") == documents(run_dir)


OPEN = (
    LOOP
    + """
log.log_run_start({"model": "m"})
call(1)
print("ready", flush=True)
time.sleep(60)
"""
)


@pytest.mark.slow
def test_a_bundle_of_a_loop_that_goes_on_or_was_killed_holds_its_journal(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with Program(OPEN, run_dir) as running:
        running.says("ready")
        assert "--allow-open" in said("bundle", "export", run_dir, status=5)
        live = export(run_dir, tmp_path / "live.tar.zst", allow_open=True)
        running.send(signal.SIGKILL)
        running.end()
    killed = export(run_dir, tmp_path / "killed.tar.zst")

    assert not (run_dir / "journal").exists()
    for bundle, status in ((live, "running"), (killed, "interrupted")):
        assert bundle.status == status
        assert [e.kind for e in bundle.entries].count("journal") == 1
        assert verify(bundle.path).findings == ()
        unpacked = tmp_path / status
        for name, data in unpack(bundle.path).items():
            (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
            (unpacked / name).write_bytes(data)
        assert show_run(unpacked / "run").records == show_run(run_dir).records
    assert json.loads(spanfold("run", "recover", run_dir, "--json"))["changed"]


@pytest.mark.slow
def test_a_loop_that_is_recorded_is_not_folded_in_place_and_one_that_was_killed_is_interrupted(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with Program(OPEN, run_dir) as running:
        running.says("ready")
        before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
        assert f"being recorded by process {running.process.pid}" in said("run", "fold", run_dir, status=5)
        assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before
        assert "running" in said("run", "fold", run_dir, "--into", tmp_path / "else")
        running.send(signal.SIGKILL)
        running.end()

    assert "the run is interrupted" in said("run", "fold", run_dir)
    assert json.loads(spanfold("run", "fold", run_dir, "--json"))["status"] == "interrupted"
    assert not (run_dir / "journal").exists()
    assert json.loads(spanfold("run", "recover", run_dir, "--json"))["changed"]
    assert open_journals() == []


def test_stages_that_began_before_their_run_are_no_more_than_the_whole_of_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    log = RunLogger(run_dir, observability_mode="offline")
    log.log_run_start({"model": "m"})
    for cycle in (0, 0, 1):
        log.log_probe(cycle, {}, duration_sec=50.0)
    log.log_stage_skipped("M2", "no time", cycle=1)

    def told() -> list[float]:
        return [work.share for work in show_run(run_dir).stages if work.stage == "M1" and work.share is not None]

    while_open = told()
    log.close()

    for shares in (while_open, told()):
        assert len(shares) == 2
        assert all(0.9 < share <= 1 for share in shares)
    drawn = {share.path: share.total_share for share in breakdown(read_timings(run_dir / "timings.jsonl"))}
    assert all(share is not None and share <= 1 for share in drawn.values())
    assert drawn["m1_probe"] == pytest.approx(max(told()), rel=0.05)


@pytest.mark.slow
def test_a_loop_whose_open_journal_is_not_found_is_told_where_it_was_looked_for(tmp_path: Path) -> None:
    run_dir, copy, elsewhere = tmp_path / "run", tmp_path / "copy", tmp_path / "state"
    with Program(OPEN, run_dir) as running:
        running.says("ready")
        running.send(signal.SIGKILL)
        running.end()
    shutil.copytree(run_dir, copy)

    for command in ("show", "recover"):
        told = said("run", command, run_dir, status=3, SPANFOLD_STATE_DIR=str(elsewhere))
        assert f"none of it in {elsewhere / 'open'}, where it stands until its logger is closed" in told
        assert "SPANFOLD_STATE_DIR" in told
        assert "not a copy" in said("run", command, copy, status=3)
    spanfold("run", "recover", run_dir)
    assert "interrupted" in spanfold("run", "show", run_dir)


@pytest.mark.slow
def test_documents_of_another_logger_are_said_to_have_no_journal_and_the_one_made_of_them_is_shown(
    tmp_path: Path,
) -> None:
    run_dir, begun = tmp_path / "run", tmp_path / "begun"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        play(RunLoggerV2(run_dir, observability_mode="offline"), tmp_path)
        RunLoggerV2(begun, observability_mode="offline").log_run_start({"model": "m"})

    for command in ("show", "recover"):
        told = said("run", command, run_dir, status=3)
        assert "that another logger wrote, which keeps no journal" in told
        assert f"`spanfold run deliver {run_dir}`" in told
    assert "now there is none" in said("run", "deliver", begun, "--to", "otlp", "--dry-run", status=3)
    outbox = outbox_of(run_dir).run_dir
    assert f"`spanfold run show {outbox}`" in said("run", "recover", run_dir, status=3)

    shown = json.loads(spanfold("run", "show", run_dir, "--json"))
    assert shown["run_dir"] == str(outbox)
    assert shown["loop"]["end"]["stopped_by"] == "budget"
    assert f"has documents and no journal; this is the one made of them to be sent, in {outbox}" in said(
        "run", "show", run_dir
    )
