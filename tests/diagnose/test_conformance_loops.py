"""The loops of evalrx 0.1.2 run offline with our logger, and its readers accept everything we wrote."""

import json
import shutil
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from bench.diagnose import measured
from spanfold.diagnose import RunLogger
from spanfold.fold import check_documents
from spanfold.journal import verify_journal
from tests.diagnose.script import STAGES, documents, events, play

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from evalrx.analysis.dashboard import load_loop_story
    from evalrx.eval_agent.label_quarantine import quarantine_run_dir
    from evalrx.eval_agent.log_schema import load_schema
    from evalrx.eval_agent.run_context import RunContext
    from evalrx.eval_agent.run_logger_v2 import RunLoggerV2
    from evalrx.reporting.dynamic import build_report_data, load_published_report, publish_report, report_is_current
    from evalrx.reporting.html_report import extract_run_data
    from evalrx.reporting.run_events import read_v2_events
    from evalrx.reporting.server import find_run_root

    from tests.diagnose.loops import LOOPS, cases

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


def run_loop(work: Path, name: str, logger: Callable[..., Any] = RunLogger) -> tuple[Path, Any]:
    run_dir = work / "run"
    log = logger(run_dir, observability_mode="offline")
    LOOPS[name](log)
    return run_dir, log


def refused(found: list[dict[str, Any]]) -> list[str]:
    """Return what the published schema refuses."""
    validator = Draft202012Validator(load_schema(), format_checker=Draft202012Validator.FORMAT_CHECKER)
    return [f"{event['event']}: {error.message[:200]}" for event in found for error in validator.iter_errors(event)]


@pytest.mark.contract("DL-010", "DL-119", "DL-120", "DL-021", "DL-190")
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_of_evalrx_runs_with_our_logger_and_tells_what_it_told_its_own(name: str, tmp_path: Path) -> None:
    seed, seed_log = run_loop(tmp_path / "seed", name, RunLoggerV2)
    seed_log.close()
    ours, log = run_loop(tmp_path / "ours", name)
    on_return = events(ours)  # readers look as soon as the loop returns
    log.close()

    assert log.losses == {}
    told = [Counter((e["stage"], e["event"], e.get("role")) for e in events(run)) for run in (seed, ours)]
    assert told[0] == told[1]
    assert on_return == events(ours)
    found = read_v2_events(ours)
    assert [e["event_seq"] for e in found] == list(range(1, len(found) + 1))
    assert refused(found) == []


@pytest.mark.contract("DL-121", "DL-122", "DL-123")
def test_the_report_is_made_before_close_from_every_event(tmp_path: Path) -> None:
    run_dir, log = run_loop(tmp_path, "fixed")
    last = max(e["event_seq"] for e in events(run_dir))

    publish_report(run_dir, run_logger=log)

    _, envelope = load_published_report(run_dir)
    published = documents(run_dir)["run.json"]["report_published"]
    assert [row["source_event_seq"] for row in published] == [last]
    assert report_is_current(run_dir)
    log.close()
    assert report_is_current(run_dir)
    told = json.dumps([build_report_data(run_dir), extract_run_data(run_dir), load_loop_story(run_dir)], default=str)
    for shown in ("answer_extraction_audit", "It says yes whatever it is asked.", "yes_bias", "case-1"):
        assert shown in told
    assert envelope["source_event_seq"] == last


@pytest.mark.contract("DL-119", "DL-121", "DL-077", "DL-124")
def test_readers_of_evalrx_take_everything_the_script_makes_also_from_a_moved_and_zipped_run(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    play(RunLogger(work / "run", observability_mode="offline"), work)
    moved = tmp_path / "elsewhere" / "moved"
    shutil.copytree(work / "run", moved)
    shutil.rmtree(work)

    assert refused(read_v2_events(moved)) == []
    told = json.dumps([build_report_data(moved), extract_run_data(moved), load_loop_story(moved)], default=str)
    for shown in ("sharpness", "It ignores the image.", "it is blind", "perm", "patch"):
        assert shown in told
    for event in events(moved):
        for path in (
            *event.get("media_paths", ()),
            *event.get("artifact_paths", {}).values(),
            *(p for p in event.get("figures", ()) if p.startswith("M2/artifacts/plot")),
        ):
            assert (moved / path).is_file()
    assert verify_journal(moved).sealed
    assert not check_documents(moved)
    with zipfile.ZipFile(tmp_path / "run.zip", "w") as archive:
        for path in moved.rglob("*"):
            archive.write(path, path.relative_to(moved))
    with zipfile.ZipFile(tmp_path / "run.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
    assert events(tmp_path / "unpacked") == events(moved)
    assert find_run_root(tmp_path / "unpacked") == tmp_path / "unpacked"


@pytest.mark.contract("DL-011", "DL-012", "DL-046")
def test_a_run_context_finalises_with_our_logger_in_its_place(tmp_path: Path) -> None:
    context = RunContext(tmp_path / "run")
    context._logger = log = RunLogger(tmp_path / "run", observability_mode="offline", context=context)
    with context:
        assert context.logger is log
        LOOPS["fixed"](context.logger)

    manifest = documents(tmp_path / "run")["run.json"]["manifest"]
    assert {"run.json", "M1/log.json", "langfuse_trace.json"} <= set(manifest["files"])
    assert manifest["files"] == sorted(manifest["files"], key=lambda path: path.split("/"))
    facts = manifest["file_facts"]["M1/log.json"]
    assert facts["size_bytes"] == (tmp_path / "run" / "M1" / "log.json").stat().st_size
    assert verify_journal(tmp_path / "run").sealed


@pytest.mark.contract("DL-127")
def test_model_calls_cost_a_small_part_of_what_they_cost_the_seed() -> None:
    # The seed's cost grows with the square: ten times at 500 calls are more than twenty at 2,100, which would take minutes.
    seed, ours = measured("seed", 500), measured("ours", 500)

    assert seed["cpu_s"] > 10 * ours["cpu_s"]


@pytest.mark.contract("DL-125", "DL-018")
def test_a_label_quarantine_costs_no_event_and_no_file_of_others(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    log = RunLogger(run_dir, observability_mode="offline")
    log.log_run_start({"model": "m"})
    log.log_cases(cases(4), split="explore")
    log.log_analysis(0, _analysis())
    (run_dir / "report").mkdir()
    (run_dir / "report" / "report_data.json").write_text("{}", encoding="utf-8")

    with quarantine_run_dir(run_dir, rewrite_logs=log.managed_json_paths):
        assert not (run_dir / "run.json").exists()
        log.log_model_exchange("M5", role="fix_judge", operation="generate", inputs="q", output="a")
        log.log_tool_codegen(module="fix_pipeline", name="t", need="n", source="llm", ok=True)
        during = json.loads((run_dir / "M5" / "log.json").read_text(encoding="utf-8"))
        assert len(during["model_calls"]) == len(during["tool_codegen"]) == 1
    log.log_stage_skipped("M4", "nothing")
    log.close()

    told = Counter(e["event"] for e in events(run_dir))
    assert told == Counter(run_start=1, case_record=4, analysis=1, model_call=1, tool_codegen=1, stage_skipped=1)
    assert (run_dir / "report" / "report_data.json").read_text(encoding="utf-8") == "{}"
    assert verify_journal(run_dir).sealed
    assert not check_documents(run_dir)
    assert {stage for stage in STAGES if (run_dir / stage / "log.json").is_file()} == set(STAGES)


def _analysis() -> Any:
    from tests.diagnose.script import analysis

    return analysis(Path("."), llm_prompt="", llm_raw="")
