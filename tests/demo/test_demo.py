"""The whole demo, once, in a process of its own; and what its run directories say afterwards, read by hand."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from spanfold.demo import run_demo
from spanfold.fold import fold_run, show_run, verify_run

STAGES = ("M1", "M2", "M3", "M4", "M5")
PROGRAM = """
import dataclasses, json, sys
from pathlib import Path
from spanfold.demo import run_demo
lines = []
result = run_demo(Path(sys.argv[1]), cases=int(sys.argv[2]) or None, narrate=lines.append)
json.dump({"result": dataclasses.asdict(result), "lines": lines}, sys.stdout, default=str)
"""


def start(folder: Path, cases: int = 0) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(folder), str(cases)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    process = start(tmp_path_factory.mktemp("demo"))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    # A warning of ours (something lost, something not drawn) would be here.
    assert err == ""
    return json.loads(out)


@pytest.fixture(scope="module")
def result(demo):
    return demo["result"]


def document(run_dir: str, name: str) -> dict:
    return json.loads((Path(run_dir) / name).read_text(encoding="utf-8"))


def journal(run_dir: str) -> dict[str, list[dict]]:
    """Return spans and log records of every journal file, attributes as a plain dict of their raw values."""
    found = defaultdict(list)
    for path in sorted(Path(run_dir).glob("journal/*.otlp.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            for kind, scope, records in (
                ("resourceSpans", "scopeSpans", "spans"),
                ("resourceLogs", "scopeLogs", "logRecords"),
            ):
                for resource in json.loads(line).get(kind, []):
                    for record in (r for s in resource[scope] for r in s[records]):
                        pairs = {a["key"]: next(iter(a["value"].values())) for a in record["attributes"]}
                        found[records].append({**record, "attributes": pairs, "file": path.name})
    return found


def model_calls(run_dir: str, stage: str, cycle: int) -> list[dict]:
    return [call for call in document(run_dir, f"{stage}/log.json")["model_calls"] if call["cycle"] == cycle]


@pytest.mark.slow
def test_the_demo_finds_failures_and_a_repair_that_holds_on_held_out_cases(result):
    assert result["failures"] > 5
    assert {h["status"] for h in result["hypotheses"]} >= {"verified"}
    assert result["repair"]
    assert result["reviewer_agrees"]
    assert result["confirmed"] == (result["mcnemar_p"] < 0.05 and result["n_fixed"] > result["n_broken"])
    gain = (result["accuracy_after"] - result["accuracy_before"]) * result["held_out"]
    assert gain == pytest.approx(result["n_fixed"] - result["n_broken"])


@pytest.mark.slow
def test_running_it_again_in_another_way_gives_the_same_verdict(result):
    assert result["same_verdict"]
    assert Path(result["run_dir"]).name == "001"
    assert Path(result["second_run_dir"]).name == "002"


@pytest.mark.slow
def test_the_accuracy_it_claims_follows_from_the_predictions_it_recorded(result):
    truth = load_digits().target
    right = defaultdict(list)
    for call in model_calls(result["run_dir"], "M5", -1):
        for case, digit in zip(call["input"]["cases"], call["output"]["digits"], strict=True):
            right[call["model"]].append(truth[int(case.removeprefix("digit-"))] == digit)

    first, last = right["sklearn-logistic-regression"], right[f"sklearn-logistic-regression+{result['repair']}"]
    assert len(first) == len(last) == result["held_out"]
    assert np.mean(first) == pytest.approx(result["accuracy_before"])
    assert np.mean(last) == pytest.approx(result["accuracy_after"])


@pytest.mark.slow
def test_each_stage_has_its_records_in_its_own_document(result):
    run_dir = result["run_dir"]
    stages = {name: document(run_dir, f"{name}/log.json")["stage"] for name in STAGES}
    cycles = {name: [record["cycle"] for record in records] for name, records in stages.items()}

    assert cycles["M1"] == cycles["M2"] == cycles["M3"] == cycles["M4"] == [0, 1]
    assert cycles["M5"] == [0, 1, -1]
    first, held_out = stages["M1"][0], stages["M5"][-1]
    assert len(first["failed_cases"]) == first["n_failures"] == result["failures"]
    assert sum(first["errors_per_class"].values()) == result["failures"]
    assert (held_out["n_fixed"], held_out["n_broken"]) == (result["n_fixed"], result["n_broken"])
    assert held_out["confirmed"] == result["confirmed"]
    told = [h for record in stages["M4"] for h in record["hypotheses"]]
    assert told == result["hypotheses"]


@pytest.mark.slow
def test_failures_are_drawn_and_kept_as_arrays(result):
    artifacts = Path(result["run_dir"]) / "M1" / "artifacts"

    for name in ("confusion_map", "entropy_scores", "failed_digits_map", "failure_saliency_map", "saliency_diff"):
        for cycle in (0, 1):
            assert (artifacts / f"c{cycle}_{name}.png").read_bytes().startswith(b"\x89PNG")
            assert np.load(artifacts / f"c{cycle}_{name}.npy", allow_pickle=False).size > 0
    assert np.load(artifacts / "c0_confusion_map.npy").sum() == result["failures"]


@pytest.mark.slow
def test_the_reviewer_is_another_process_whose_span_is_below_the_agent_that_started_it(result):
    spans = journal(result["run_dir"])["spans"]
    [agent] = [s for s in spans if s["name"] == "invoke_agent reviewer"]
    [review] = [s for s in spans if s["name"] == "review"]

    assert {s["traceId"] for s in spans} == {result["trace_id"]}
    assert review["parentSpanId"] == agent["spanId"]
    assert review["file"] != agent["file"]
    assert json.loads(review["attributes"]["spanfold.output"])["agrees"] is True


@pytest.mark.slow
def test_both_runs_time_the_same_pieces_of_work(result):
    counts = []
    for run_dir in (result["run_dir"], result["second_run_dir"]):
        rows = [json.loads(line) for line in (Path(run_dir) / "timings.jsonl").read_text(encoding="utf-8").splitlines()]
        names = [row["stage"] for row in rows]
        counts.append({name: names.count(name) for name in set(names)})

    assert counts[0] == counts[1]
    assert {"load", "fit", "predict", "saliency", "signals", "trial"} <= counts[0].keys()
    # Enough of them for a comparison to say something.
    assert counts[0]["saliency"] >= 20


@pytest.mark.slow
def test_what_it_left_is_intact_and_follows_from_its_journal(result):
    for run_dir in (result["run_dir"], result["second_run_dir"]):
        verdict = verify_run(Path(run_dir))
        assert verdict.state == "intact", verdict
        assert verdict.n_artifacts >= 10


@pytest.mark.slow
def test_no_pixel_is_in_a_model_call(result):
    for call in model_calls(result["run_dir"], "M1", 0):
        assert all(re.fullmatch(r"digit-\d{4}", case) for case in call["input"]["cases"])
        assert call["provider"] == "scikit-learn"


@pytest.mark.slow
def test_too_few_failures_to_learn_from_end_the_loop_without_a_repair(tmp_path):
    lines = []
    result = run_demo(tmp_path, cases=20, narrate=lines.append)

    assert result.repair is None
    assert not result.confirmed
    assert result.hypotheses == ()
    assert result.accuracy_after == result.accuracy_before
    assert result.reviewer_agrees
    assert lines[-2].endswith("not confirmed")
    assert document(str(result.run_dir), "run.json")["run_start"]["settings"]["n_cases"] == 20


@pytest.mark.slow
def test_a_second_demo_in_the_same_directory_takes_the_next_numbers(tmp_path):
    (tmp_path / "007").mkdir()
    (tmp_path / "notes.txt").touch()
    result = run_demo(tmp_path, cases=20, narrate=lambda line: None)

    assert (result.run_dir, result.second_run_dir) == (tmp_path / "008", tmp_path / "009")


@pytest.mark.slow
def test_recording_switched_off_changes_nothing_but_the_record(tmp_path, monkeypatch):
    recorded = run_demo(tmp_path / "on", cases=60, narrate=lambda line: None)
    monkeypatch.setenv("SPANFOLD_DISABLED", "true")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "off"), "60"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    unrecorded = json.loads(done.stdout)["result"]

    where = {"run_dir", "second_run_dir", "trace_id"}
    plain = json.loads(json.dumps(dataclasses.asdict(recorded), default=str))
    assert {k: v for k, v in unrecorded.items() if k not in where} == {k: v for k, v in plain.items() if k not in where}
    assert not (tmp_path / "off").exists()


@pytest.mark.slow
def test_a_demo_killed_in_the_middle_leaves_what_was_done_and_says_what_was_open(tmp_path):
    process = start(tmp_path)
    log = tmp_path / "001" / "M2" / "log.json"
    deadline = time.monotonic() + 120
    # A score is in the document before the stage around it has ended.
    while not (log.exists() and '"stage": [' in log.read_text("utf-8")) and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert log.exists()

    stages = document(str(tmp_path / "001"), "M1/log.json")["stage"]
    assert stages[0]["n_failures"] == len(stages[0]["failed_cases"]) > 5
    seen = show_run(tmp_path / "001")
    assert seen.status == "interrupted"
    assert seen.open[0].name == "digits"
    assert {work.writer for work in seen.open} == {"dead"}
    # The documents come back from the journal alone, with everything that had ended.
    log.unlink()
    fold_run(tmp_path / "001")
    assert document(str(tmp_path / "001"), "M2/log.json")["stage"][0]["cycle"] == 0
    assert document(str(tmp_path / "001"), "M1/log.json")["stage"][0] == stages[0]
