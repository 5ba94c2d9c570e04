"""`run tail`: a run as it happens, from another process."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import HANG_S, Spanfold, check, finish


def follow(*words: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "spanfold", "run", "tail", *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_until(process: subprocess.Popen[str], wanted: Callable[[str], bool]) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if wanted(lines[-1]):
            return lines
    raise AssertionError(f"the end came first, after {lines}")


@pytest.mark.slow
def test_a_live_run_is_followed_to_its_end(live: subprocess.Popen[bytes], tmp_path: Path) -> None:
    follower = follow("live", cwd=tmp_path)
    before = read_until(follower, lambda line: "agent helper" in line)
    assert len(before) <= 10  # of what happened before

    finish(live)
    out, err = follower.communicate(timeout=HANG_S)

    assert follower.returncode == 0
    assert err == ""
    ends = [line for line in out.splitlines() if "■" in line]
    assert [end.split("■ ")[1].split("  ")[0] for end in ends] == [
        "model call gpt-y",
        "agent helper",
        "inner work, cycle 7",
        "run loop",
        "sealed: the run is over",
    ]


@pytest.mark.slow
def test_objects_arrive_one_a_line_while_the_run_goes_on(live: subprocess.Popen[bytes], tmp_path: Path) -> None:
    follower = follow("live", "--json", "--from-start", "--all", cwd=tmp_path)
    # The last record before the program waits is the start of the model call: it is here while the run goes on.
    lines = read_until(follower, lambda line: "gpt-y" in line)
    items = [json.loads(line) for line in lines]
    finish(live)
    out, _ = follower.communicate(timeout=HANG_S)
    items += [json.loads(line) for line in out.splitlines()]

    for item in items:
        check(item)
    assert items[0]["type"] == "started"
    assert items[0]["kind"] == "run"
    assert items[-1]["type"] == "sealed"
    (call,) = [i for i in items if i["type"] == "ended" and i["kind"] == "model_call" and i["cycle"] == 0]
    assert call["facts"]["usage"] == {"input_tokens": 12, "output_tokens": 3}
    assert "what is this?" not in json.dumps(items)  # content stays where it is


def test_a_run_that_ended_is_told_and_left(spanfold: Spanfold, runs: Path) -> None:
    items = spanfold("run", "tail", "ok", "--json", "--lines", "3").items

    assert [item["type"] for item in items] == ["ended", "ended", "sealed"]
    assert [item["kind"] for item in items] == ["stage", "run", ""]


@pytest.mark.slow
def test_a_run_whose_process_dies_meanwhile_ends_as_interrupted(live: subprocess.Popen[bytes], tmp_path: Path) -> None:
    follower = follow("live", cwd=tmp_path)
    read_until(follower, lambda line: "agent helper" in line)

    live.kill()
    out, err = follower.communicate(timeout=HANG_S)

    assert follower.returncode == 0
    assert out.splitlines()[-1].endswith("interrupted: no process of this run is alive")
    assert "`spanfold run recover runs/live`" in err


def test_a_failure_is_told_with_type_and_message(spanfold: Spanfold, runs: Path) -> None:
    answer = spanfold("run", "tail", "fail", "--from-start")

    failed = [line.split("✗ ")[1] for line in answer.lines if "✗" in line]
    assert [" ".join(line.split()[:2]) for line in failed] == [
        "tool broken",
        "tool broken",
        "agent helper",
        "M2 " + failed[3].split()[1],
        "run loop",
    ]
    assert all(line.endswith("RuntimeError: no luck") for line in failed[2:])


@pytest.mark.parametrize(("words", "wanted"), [(("--lines", "0"), 0), (("--lines", "2"), 2), (("--from-start",), None)])
def test_how_much_of_the_past_is_shown_can_be_said(
    spanfold: Spanfold, runs: Path, words: tuple[str, ...], wanted: int | None
) -> None:
    answer = spanfold("run", "tail", "ok", *words)

    whole = len(spanfold("run", "tail", "ok", "--lines", "1000").lines)
    assert len(answer.lines) == (whole if wanted is None else wanted)


def test_no_follow_stops_at_what_is_there(spanfold: Spanfold, live: subprocess.Popen[bytes]) -> None:
    answer = spanfold("run", "tail", "live", "--no-follow")

    assert answer.code == 0
    assert "agent helper" in answer.lines[-1]
