"""`run show`: what happened, of a run in any state, without changing it."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spanfold.cli._exits import Exit
from tests.cli.conftest import Spanfold, finish

pytestmark = pytest.mark.slow


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_completed_run_is_told_whole(spanfold: Spanfold, runs: Path) -> None:
    run = spanfold("run", "show", "runs/ok", "--json").document

    assert (run["name"], run["status"], run["is_sealed"]) == ("loop", "completed", True)
    assert run["given"] == {"lr": 0.1, "tags": ["a", "b"], "deep": {"inner": None}}
    assert run["results"] == {"verdict": "good"}
    assert [
        (s["stage"], s["cycle"], s["ended"], s["model_calls"], s["tools"], s["scores"], s["artifacts"], s["events"])
        for s in run["stages"]
    ] == [
        ("M1", 0, 1, 1, 2, 1, 1, 1),
        ("M1", 1, 1, 1, 2, 1, 1, 1),
    ]
    (model,) = run["models"]
    assert (model["name"], model["provider"], model["calls"], model["failed"]) == ("gpt-x", "openai", 2, 0)
    assert model["usage"] == {"input_tokens": 24, "output_tokens": 6} == run["totals"]["usage"]
    assert {tool["name"]: (tool["calls"], tool["failed"]) for tool in run["tools"]} == {
        "grep": (2, 0),
        "broken": (2, 2),
    }
    (score,) = run["scores"]
    assert (score["name"], score["count"], score["last_value"], score["min_value"], score["max_value"]) == (
        "accuracy",
        2,
        0.6,
        0.5,
        0.6,
    )
    assert run["events"] == {"note": 2}
    assert [artifact["path"] for artifact in run["artifacts"]] == [
        "M1/artifacts/c0_data.json",
        "M1/artifacts/c1_data.json",
    ]
    assert [(e["kind"], e["error_type"], e["count"], e["last_message"]) for e in run["errors"]] == [
        ("tool", "ValueError", 2, "no such thing")
    ]
    assert run["open"] == []
    assert run["damage"] == []


def test_an_error_is_told_once_where_it_arose(spanfold: Spanfold, runs: Path) -> None:
    run = spanfold("run", "show", "runs/fail", "--json").document

    assert run["status"] == "failed"
    assert run["error"]["error_type"] == "RuntimeError"
    # It went through agent, stage and run; only the agent is where it arose.
    assert [(e["kind"], e["stage"], e["error_type"]) for e in run["errors"] if e["error_type"] == "RuntimeError"] == [
        ("agent", "M2", "RuntimeError")
    ]


@pytest.mark.case("C-037")
def test_a_killed_run_shows_what_was_started_and_is_not_touched(spanfold: Spanfold, runs: Path) -> None:
    before = fingerprint(runs)

    answer = spanfold("run", "show", "runs/kill")
    run = spanfold("run", "show", "runs/kill", "--json").document

    assert fingerprint(runs) == before
    assert run["status"] == "interrupted"
    assert [(w["kind"], w["writer"]) for w in run["open"]] == [
        (kind, "dead") for kind in ("run", "stage", "agent", "model_call")
    ]
    ages = [work["age_seconds"] for work in run["open"]]
    assert ages == sorted(ages, reverse=True)
    assert ages[0] > 0, "the run was open until its last record"
    assert run["stages"][-1] | {"start": "", "depth": 0} == {
        **dict.fromkeys(
            ("ended", "failed", "interrupted", "model_calls", "agents", "tools", "scores", "artifacts", "events"), 0
        ),
        "stage": "inner work",
        "cycle": 7,
        "open": 1,
        "seconds": 0.0,
        "share": None,
        "start": "",
        "depth": 0,
    }
    assert re.search(r"inner work +7 +interrupted", answer.out)
    assert "`spanfold run recover runs/kill` finishes this run." in answer.err


def test_a_running_run_is_running_and_its_open_work_has_an_age(
    spanfold: Spanfold, live: subprocess.Popen[bytes]
) -> None:
    run = spanfold("run", "show", "live", "--json").document

    assert (run["status"], run["writer"], run["seconds"]) == ("running", "alive", None)
    assert {work["writer"] for work in run["open"]} == {"alive"}
    assert [file["pid"] for file in run["files"]] == [live.pid]

    finish(live)
    assert spanfold("run", "show", "live", "--json").document["status"] == "completed"


def test_a_moved_run_without_documents_tells_the_same(spanfold: Spanfold, runs: Path, tmp_path: Path) -> None:
    before = spanfold("run", "show", "runs/ok", "--json").document
    shutil.move(runs / "ok", tmp_path / "moved away")
    for name in ("run.json", "timings.jsonl", "langfuse_trace.json"):
        (tmp_path / "moved away" / name).unlink()

    after = spanfold("run", "show", "moved away", "--json").document

    varying = {"run_dir", "silent_seconds"}
    assert {k: v for k, v in after.items() if k not in varying} == {k: v for k, v in before.items() if k not in varying}


def test_processes_that_joined_a_run_are_part_of_it(spanfold: Spanfold, tmp_path: Path) -> None:
    child = "import spanfold\nwith spanfold.model_call('child-model') as c: c.usage(input_tokens=5)"
    program = (
        "import spanfold, subprocess, sys\n"
        "with spanfold.run('parent', dir='runs/parent'), spanfold.stage('M2', cycle=3), spanfold.agent('worker'):\n"
        f"    for _ in range(2): subprocess.run([sys.executable, '-c', {child!r}], env=spanfold.child_env(), check=True)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60)

    run = spanfold("run", "show", "parent", "--json").document

    assert len(run["files"]) == 3
    assert [(m["name"], m["calls"], m["usage"]) for m in run["models"]] == [("child-model", 2, {"input_tokens": 10})]
    assert [(s["stage"], s["cycle"], s["model_calls"], s["agents"]) for s in run["stages"]] == [("M2", 3, 2, 1)]


def test_damage_is_told_with_its_place(spanfold: Spanfold, runs: Path) -> None:
    (journal,) = (runs / "ok" / "journal").glob("*.otlp.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    at = sum(map(len, lines[:5]))
    journal.write_bytes(b"".join(lines[:5]) + b"\0" * 4096 + b"".join(lines[5:]))

    run = spanfold("run", "show", "runs/ok", "--json").document

    assert [(d["offset"], d["length"], d["kind"]) for d in run["damage"]] == [(at, 4096, "malformed")]
    assert run["records"] == len(lines)
    assert f"bytes {at} to {at + 4096}" in spanfold("run", "show", "runs/ok").out


def test_a_journal_changed_after_its_seal_is_not_called_sealed(spanfold: Spanfold, runs: Path) -> None:
    assert spanfold("run", "show", "runs/ok", "--json").document["is_as_sealed"] is True
    (journal,) = (runs / "ok" / "journal").glob("*.otlp.jsonl")
    journal.write_bytes(journal.read_bytes().replace(b'"spanfold.cycle"', b'"spanfold.cycls"', 1))

    out = spanfold("run", "show", "runs/ok").out

    assert "not as it was sealed" in out
    assert "spanfold run verify runs/ok" in out


@pytest.mark.parametrize("name", ["runs/ok", "ok", "latest"])
def test_a_run_is_named_by_its_directory_its_name_or_as_the_latest(spanfold: Spanfold, runs: Path, name: str) -> None:
    answer = spanfold("run", "show", name, "--json")

    assert answer.document["run_dir"] == ("runs/evil" if name == "latest" else "runs/ok")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("nowhere", "found nothing there"),
        ("file", "found a file there"),
        ("empty", "found none"),
        ("latest", "expected runs, found none"),
    ],
)
def test_what_is_no_run_is_not_found_in_one_line(spanfold: Spanfold, tmp_path: Path, name: str, found: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()

    answer = spanfold("run", "show", name)

    assert answer.code == Exit.NOT_FOUND
    assert answer.out == ""
    assert found in answer.err
    assert len(answer.err.splitlines()) == 1


def test_a_journal_behind_a_link_is_refused(spanfold: Spanfold, runs: Path) -> None:
    os.rename(runs / "ok" / "journal", runs / "journal")
    (runs / "ok" / "journal").symlink_to(runs / "journal")

    answer = spanfold("run", "show", "runs/ok")

    assert answer.code == Exit.FAILED
    assert "link" in answer.err


def test_a_long_loop_is_printed_in_bounded_space_and_whole_as_json(spanfold: Spanfold, tmp_path: Path) -> None:
    program = (
        "import spanfold\n"
        "with spanfold.run('long', dir='runs/long'):\n"
        "    for cycle in range(200):\n"
        "        with spanfold.stage('M1', cycle=cycle): pass\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60)

    answer = spanfold("run", "show", "long")

    assert "… 170 more" in answer.out
    assert len(answer.lines) < 60
    assert len(spanfold("run", "show", "long", "--json").document["stages"]) == 200


PARTS = """
import spanfold

with spanfold.run("parts", dir="parts"):
    for cycle in range(2):
        with spanfold.stage("M1", cycle=cycle):
            spanfold.score("accuracy", 0.5 + cycle / 10)
    with spanfold.stage("M5", cycle=-1):
        spanfold.artifact("shape", object())
        spanfold.artifact("data", [1, 2])
with spanfold.run("one", dir="one"):
    spanfold.score("accuracy", 0.5)
"""


@pytest.fixture
def parts(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PARTS], cwd=tmp_path, capture_output=True, timeout=120, check=True)


def rows(out: str, heading: str) -> list[list[str]]:
    """Return the cells of a table, its header first."""
    lines = out.split(f"\n{heading}", 1)[1].split("\n\n")[0].splitlines()[1:]
    return [re.split("  +", line.strip()) for line in lines]


@pytest.mark.usefixtures("parts")
def test_minus_one_is_no_cycle(spanfold: Spanfold) -> None:
    assert rows(spanfold("run", "show", "parts").out, "Stages")[-1][:2] == ["M5", "ok"]
    assert "M5, cycle" not in spanfold("run", "tail", "parts", "--from-start").out
    assert spanfold("run", "show", "parts", "--json").document["stages"][-1]["cycle"] == -1


@pytest.mark.usefixtures("parts")
def test_of_several_values_of_a_score_the_last_is_called_so(spanfold: Spanfold, runs: Path) -> None:
    assert rows(spanfold("run", "show", "parts").out, "Scores") == [
        ["score", "stage", "last cycle", "last value", "range", "n"],
        ["accuracy", "M1", "1", "0.6", "0.5 – 0.6", "2"],
    ]
    assert "last comment" in spanfold("run", "show", "ok").out
    assert rows(spanfold("run", "show", "one").out, "Scores") == [["score", "value", "n"], ["accuracy", "0.5", "1"]]


@pytest.mark.usefixtures("parts")
def test_what_was_not_kept_is_no_artifact_and_has_its_reason_below(spanfold: Spanfold) -> None:
    out = spanfold("run", "show", "parts").out

    assert out.count("Artifacts (1, 13 B, 1 not kept)\n") == 1
    assert "1 artifact, 1 artifact not kept" in out
    assert rows(out, "Artifacts")[:3] == [
        ["artifact", "kind", "size"],
        ["shape", "not kept", "–"],
        ["M5/artifacts/c-1_data.json", "json", "13 B"],
    ]
    assert "\n  ! not kept: shape: a builtins.object has no file form" in out


def test_a_run_of_timings_and_traced_functions_shows_them(spanfold: Spanfold, tmp_path: Path) -> None:
    program = """
import spanfold

@spanfold.traced
def square(n):
    if n == 3:
        raise ValueError(n)
    return n * n

with spanfold.run("timed", dir="runs/timed") as run:
    for n in range(4):
        with spanfold.timed("distinct"):
            pass
        try:
            square(n)
        except ValueError:
            pass
    for n in range(12):
        with spanfold.timed(f"other {n}"):
            pass
    spanfold.artifact("art", {"a": 1})
    run.set(pairs=[{"a": 1}])
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)

    shown, document = spanfold("run", "show", "timed"), spanfold("run", "show", "timed", "--json").document

    timed = {work["name"]: work for work in document["timed"]}
    assert (timed["distinct"]["kind"], timed["distinct"]["count"], timed["distinct"]["failed"]) == ("timing", 4, 0)
    assert (timed["square"]["kind"], timed["square"]["count"], timed["square"]["failed"]) == ("span", 4, 1)
    seconds = [work["seconds"] for work in document["timed"]]
    assert seconds == sorted(seconds, reverse=True)
    at = shown.lines.index("Timings and traced functions (20)")
    assert shown.lines[at + 1].split() == ["name", "kind", "count", "total", "failed"]
    assert shown.lines[at + 12] == "  and 4 other names with less time"
    assert "artifacts = art (artifacts/art.json)" in shown.out
    assert 'pairs = {"a": 1}' in shown.out
    assert "{'" not in shown.out


def test_a_folder_that_lost_its_journal_is_told_so(spanfold: Spanfold, runs: Path) -> None:
    shutil.rmtree(runs / "ok" / "journal")

    answer = spanfold("run", "show", "ok")

    assert answer.code == Exit.NOT_FOUND
    assert "beside run.json" in answer.err
    assert "Give the directory that holds run.json" not in answer.err


def test_recovering_a_killed_run_does_not_change_what_share_of_it_its_stages_had(
    spanfold: Spanfold, runs: Path
) -> None:
    def told() -> list[float]:
        stages = spanfold("run", "show", "kill", "--json").document["stages"]
        return [work["share"] for work in stages if work["stage"] == "M1"]

    open_run = told()
    spanfold("run", "recover", "kill")

    assert len(open_run) == 2
    assert 0 < sum(open_run) < 1
    assert told() == pytest.approx(open_run, rel=0.01)


AFTERWARDS = """
import sys, threading, spanfold
from concurrent.futures import ThreadPoolExecutor

def work(began, ended):
    with spanfold.stage("M1"), spanfold.timed("slow"):
        began.set()
        ended.wait(60)
    with spanfold.stage("M2"):
        pass

ended = threading.Event()
with spanfold.run("r", dir=sys.argv[1]) as run:
    spanfold.score("x", None)
    spanfold.score("y", None)
    pool = ThreadPoolExecutor(2)
    for _ in range(2):
        began = threading.Event()
        spanfold.traced_executor(pool).submit(work, began, ended)
        began.wait(60)
ended.set()
pool.shutdown()
"""


def test_what_was_lost_and_what_was_left_open_while_a_run_was_recorded_is_shown(
    spanfold: Spanfold, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AFTERWARDS, "late"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    run = spanfold("run", "show", "late", "--json").document
    shown = " ".join(spanfold("run", "show", "late").out.split())

    assert run["losses"] == {"scores that are no number, boolean or text": 2}
    assert run["left_open"] == 4
    assert "lost scores that are no number, boolean or text (2 times) while it was recorded" in shown
    assert "The first of each kind is in the log of the program." in shown
    assert "left open at the end of the run: 4." in shown
    (told,) = [line for line in done.stderr.splitlines() if "after the end of this run" in line]
    assert told.startswith(f"{tmp_path / 'late'}: ")
    assert "inside of `with spanfold.run(...)`" in told


def test_a_run_that_lost_nothing_and_left_nothing_open_says_nothing_of_it(spanfold: Spanfold, runs: Path) -> None:
    run = spanfold("run", "show", "runs/ok", "--json").document

    assert (run["losses"], run["left_open"], run["lost_records"]) == ({}, 0, 0)
    assert "!" not in spanfold("run", "show", "runs/ok").out


WITHOUT_WITH = """
import spanfold
run = spanfold.run("r", dir="left")
spanfold.stage("M1")
spanfold.model_call("gpt-x")
"""


def test_a_run_and_its_work_started_without_with_are_told_as_what_they_are(spanfold: Spanfold, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_WITH], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    run = spanfold("run", "show", "left", "--json").document
    shown = " ".join(spanfold("run", "show", "left").out.split())

    assert done.stderr.startswith(f"{tmp_path / 'left'}: the program ended while this run was open")
    assert (run["status"], run["is_sealed"], run["error"]) == ("interrupted", True, {"outcome": "abandoned"})
    assert "ended with the program, which left it open" in shown
    assert "error" not in shown
    assert [work["kind"] for work in run["open"]] == ["stage", "model_call"]
    assert "The run has ended. These were started without `with` and never ended" in shown
    (listed,) = [line for line in spanfold("run", "list", ".").out.splitlines() if line.startswith("left")]
    assert "interrupted" in listed
    assert "recovered" not in listed


@pytest.mark.parametrize("damage", ["emptied", "changed"])
def test_a_run_that_cannot_be_recovered_is_pointed_to_verify(spanfold: Spanfold, runs: Path, damage: str) -> None:
    run = "ok" if damage == "emptied" else "kill"
    (journal,) = (runs / run / "journal").glob("*.jsonl")
    journal.write_bytes(b"" if damage == "emptied" else journal.read_bytes().replace(b"held out", b"held 0ut", 1))

    for words in (("show", run), ("tail", run)):
        answer = spanfold("run", *words)
        assert answer.code == Exit.DONE
        assert f"`spanfold run verify runs/{run}` names what is changed or gone." in answer.err
        assert "run recover" not in answer.err
    assert spanfold("run", "recover", run).code == spanfold("run", "verify", run).code == Exit.CORRUPT
