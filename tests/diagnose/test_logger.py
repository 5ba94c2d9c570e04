"""The surface of the logger, where its files are, and what its records hold beyond what the seed's do."""

import inspect
import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
import warnings
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import spanfold
from spanfold.diagnose import RunLogger
from spanfold.fold import check_documents
from spanfold.journal import open_journals, read_journal, verify_journal
from spanfold.model import Span
from spanfold.testing import LoopbackOtlpReceiver
from tests.diagnose.script import (
    Case,
    Inputs,
    Result,
    analysis,
    diagnosis,
    documents,
    events,
    experiment,
    hypothesis,
    intervention,
    play,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from evalrx.eval_agent.log_schema import load_schema
    from evalrx.eval_agent.run_logger_v2 import RunLoggerV2

ENVELOPE = {
    "event": str,
    "schema_version": int,
    "trace_id": str,
    "event_seq": int,
    "stage": str,
    "span_id": str,
    "ts": str,
}


@pytest.fixture
def log(tmp_path: Path) -> RunLogger:
    return RunLogger(tmp_path / "run", observability_mode="offline")


def call(log: RunLogger, index: int = 1, *, analyzer: str = "a", cycle: int = 0, **more: Any) -> None:
    given = {"method": "generate", "inputs": "q", "kwargs": {}, "output": "a", "duration_sec": 0.25, "error": None}
    log.log_model_call(cycle=cycle, analyzer=analyzer, call_index=index, **{**given, **more})


def files(run_dir: Path) -> set[str]:
    return {path.relative_to(run_dir).as_posix() for path in run_dir.rglob("*") if path.is_file()}


def spans(run_dir: Path) -> dict[str, Span]:
    return {record.span_id: record for record in read_journal(run_dir).records if isinstance(record, Span)}


# -- surface


@pytest.mark.contract("DL-001", "DL-008")
def test_every_public_method_has_the_signature_of_the_seed() -> None:
    public = [name for name, method in inspect.getmembers(RunLoggerV2, inspect.isfunction) if not name.startswith("_")]

    def shape(cls: type, name: str) -> list[tuple[str, Any, Any]]:
        parameters = inspect.signature(getattr(cls, name)).parameters.values()
        return [(p.name, p.kind, p.default) for p in parameters]

    assert len(public) >= 22
    for name in ["__init__", *public]:
        assert shape(RunLogger, name) == shape(RunLoggerV2, name), name


@pytest.mark.contract("DL-002", "DL-136")
def test_without_a_directory_each_run_gets_a_new_one_named_after_the_second() -> None:
    logs = [RunLogger(observability_mode="offline") for _ in range(3)]
    for log in logs:
        log.close()

    names = [str(log.run_dir) for log in logs]
    assert len(set(names)) == 3
    assert all(re.fullmatch(r"runs_v2/\d{8}_\d{6}(_\d+)?", name) for name in names)
    datetime.strptime(names[0][8:23] + "+0000", "%Y%m%d_%H%M%S%z")
    assert all((Path(name) / "run.json").is_file() for name in names)


@pytest.mark.contract("DL-003", "DL-091", "DL-174")
@pytest.mark.parametrize(
    "given", [None, "4bf92f35-77b3-4da6-a3ce-929d0e0e4736", "../../etc/x", "plain text", "ü" * 300]
)
def test_a_trace_id_is_kept_as_it_was_given_and_never_becomes_a_path(tmp_path: Path, given: str | None) -> None:
    log = RunLogger(tmp_path / "run", trace_id=given, observability_mode="offline")
    log.log_stage_skipped("M4", "r")
    log.close()

    assert log.trace_id == (given or str(uuid.UUID(log.trace_id)))
    assert {event["trace_id"] for event in events(tmp_path / "run")} == {log.trace_id}
    bundle = json.loads((tmp_path / "run" / "langfuse_trace.json").read_text(encoding="utf-8"))
    assert bundle["trace"]["id"] == log.trace_id
    assert re.fullmatch("[0-9a-f]{32}", log.tracer.service_trace_id)
    if given is None or given.startswith("4bf9"):
        assert log.tracer.service_trace_id == log.trace_id.replace("-", "")
    assert sorted(os.listdir(tmp_path)) == ["run"]


@pytest.mark.contract("DL-004", "DL-005", "DL-006", "DL-007", "DL-009")
def test_the_instance_has_what_callers_read(tmp_path: Path) -> None:
    context, relative = object(), Path("relative") / "run"
    with pytest.raises(ZeroDivisionError), RunLogger(relative, context=context, observability_mode="offline") as log:
        assert log
        assert log.run_dir == relative
        assert log.run_json_path == relative / "run.json"
        assert log.managed_json_paths == (log.run_json_path, *(relative / f"M{n}" / "log.json" for n in range(1, 6)))
        assert (log.inline_text_artifacts, log.preserve_full_model_io, log.verbose) == (True, True, False)
        assert log._context is context
        assert log.current_cycle == -1
        log.log_model_exchange("M1", role="r", operation="o", inputs="")
        log.current_cycle = 7
        log.log_tool_codegen(module="m2", name="n", need="", source="", ok=True)
        assert log.log_probe(0, {}) == []
        assert log.log_run_start({}) is None
        assert log.save_artifact_json("a.json", {}) == os.path.join("artifacts", "a.json")
        raise ZeroDivisionError
    found = documents(relative)
    assert [found[f"M{n}/log.json"][key][0]["cycle"] for n, key in ((1, "model_calls"), (2, "tool_codegen"))] == [-1, 7]
    assert verify_journal(relative).sealed


# -- layout


@pytest.mark.contract("DL-013", "DL-014", "DL-015", "DL-016", "DL-019", "DL-047")
def test_documents_appear_when_their_first_event_does_and_all_are_there_at_the_end(log: RunLogger) -> None:
    run_dir = log.run_dir
    assert files(run_dir) == {"run.json"}
    first = documents(run_dir)["run.json"]
    assert list(first.items()) == [
        ("trace_id", log.trace_id),
        ("run_start", None),
        ("cases", []),
        ("report_published", []),
        ("diagnose_reports", []),
        ("manifest", None),
        ("loop_end", []),
        ("agent_decisions", []),
        ("agent_tool_calls", []),
        ("unrouted", []),
    ]
    assert os.stat(run_dir).st_mode & 0o777 == 0o700
    log.log_stage_skipped("M3", "r")
    assert {f for f in files(run_dir) if f.startswith("M")} == {"M3/log.json"}
    log.close()
    assert [documents(run_dir)[f"M{n}/log.json"] for n in (1, 2, 4, 5)] == [{}, {}, {}, {}]
    assert not [f for f in files(run_dir) if f.endswith(".result.json")]
    assert "runtime_snapshot" not in documents(run_dir)["run.json"]
    log.log_runtime_snapshot(run_dir / "missing")
    assert documents(run_dir)["run.json"]["runtime_snapshot"] is None


@pytest.mark.slow
@pytest.mark.contract("DL-021", "DL-022", "DL-027", "DL-155")
def test_every_record_has_its_envelope_and_the_ids_of_a_real_span(tmp_path: Path) -> None:
    play(RunLogger(tmp_path / "run", observability_mode="offline"), tmp_path)

    found, known = events(tmp_path / "run"), spans(tmp_path / "run")
    for event in found:
        assert {key: type(event[key]) for key in ENVELOPE} == ENVELOPE
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", event["ts"])
        assert event["otel_span_id"] in known
    spanned = [e for e in found if "otel_parent_span_id" in e]
    assert len({e["otel_span_id"] for e in spanned}) == len(spanned) > 20
    assert all(known[e["otel_span_id"]].parent_span_id == e["otel_parent_span_id"] for e in spanned)


@pytest.mark.contract("DL-154", "DL-157", "DL-096", "DL-097", "DL-158")
def test_spans_have_the_times_and_parents_of_the_work(log: RunLogger) -> None:
    begun = time.time_ns()
    for index in range(60):
        call(log, index + 1, analyzer="often")
    call(log, analyzer="helper")
    call(log, analyzer="bad", error="ValueError('x')")
    call(log, analyzer="other cycle", cycle=1)
    log.log_probe(0, {"often": Result({}, {})}, duration_sec=2.5, failed_analyzers={"bad": "ValueError"})
    log.log_experiment(5, hypothesis(), SimpleNamespace(status=None, fixed=True, experiment=experiment(Path("none"))))
    log.close()

    known = spans(log.run_dir)
    named: dict[tuple[str, Any], Span] = {(s.name, s.attributes.get("spanfold.cycle")): s for s in known.values()}
    probe = named["M1 probe", 0]
    assert (probe.end_ns - probe.start_ns) / 1e9 == 2.5
    assert abs(probe.end_ns - time.time_ns()) < 60e9
    assert probe.end_ns >= begun
    for analyzer in ("often", "helper", "bad"):
        assert named[f"probe {analyzer}", 0].parent_span_id == probe.span_id
    assert named["probe other cycle", 1].parent_span_id == named["M1", 1].span_id
    calls = [s for s in known.values() if s.attributes.get("spanfold.analyzer") == "often"]
    assert len(calls) == 60
    assert {s.parent_span_id for s in calls} == {named["probe often", 0].span_id}
    assert {(s.end_ns - s.start_ns) / 1e9 for s in calls} == {0.25}
    bundle = json.loads((log.run_dir / "langfuse_trace.json").read_text(encoding="utf-8"))
    shown = {span["name"]: span for span in bundle["spans"]}
    assert shown["Probe: often"]["output"]["n_model_calls"] == 60
    assert len([g for g in bundle["generations"] if g["name"].startswith("often")]) == 50
    assert shown["Probe: helper"]["status"] == "completed"
    assert shown["Probe: bad (failed)"]["status"] == "failed"
    assert documents(log.run_dir)["M1/log.json"]["probe"][0]["n_model_calls"] == 63
    assert documents(log.run_dir)["M5/log.json"]["model_calls"][0]["cycle"] == 5


# -- records


@pytest.mark.contract("DL-037", "DL-038", "DL-184")
def test_a_run_start_names_the_commit_of_the_directory_it_is_pointed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repo"
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(repository), *identity, "commit", "-q", "--allow-empty", "-m", "m"], check=True)
    head = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    log = RunLogger(tmp_path / "run", observability_mode="offline")
    commits = []
    for variables in ({}, {"EVALRX_GIT_COMMIT": "given"}, {"SPANFOLD_CODE_DIR": str(repository)}):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        log.log_run_start({"python_version": "mine"})
        commits.append(documents(log.run_dir)["run.json"]["run_start"].get("git_commit"))

    assert commits == [None, "given", head]
    start = documents(log.run_dir)["run.json"]["run_start"]
    assert (start["python_version"], start["evalrx_version"]) == ("mine", "0.1.2")
    log.close()


@pytest.mark.contract("DL-040", "DL-041", "DL-042", "DL-159")
def test_cases_are_recorded_once_as_plain_data_dicts_too(log: RunLogger) -> None:
    class Odd:
        id = "odd"

        def __str__(self) -> str:
            return "an odd case"

    log.log_cases(
        [{"id": "a", "x": {1, 2}}, {"case_id": "b"}, {"x": 1}, Odd(), Case("c", Inputs("q"))], split="explore"
    )
    log.log_cases([{"id": "a"}, Case("c", Inputs("q"))], split="val")
    log.close()

    cases = documents(log.run_dir)["run.json"]["cases"]
    assert [(c["case_id"], c["split"]) for c in cases] == [(name, "explore") for name in ("a", "b", "odd", "c")]
    assert cases[0]["case"] == {"id": "a", "x": [1, 2]}
    assert cases[2]["case"] == {"id": "odd", "value": "an odd case"}
    assert "cycle" not in cases[0]


@pytest.mark.contract("DL-043", "DL-087", "DL-088", "DL-141", "DL-172")
def test_media_of_a_case_is_copied_once_in_slot_order_and_what_is_refused_is_named(
    log: RunLogger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").write_bytes(b"image")
    (tmp_path / "v.mp4").write_bytes(b"video")
    (tmp_path / "secret.txt").write_text("host file", encoding="utf-8")
    (log.run_dir / "inside.wav").write_bytes(b"inside")
    Path("inside.wav").write_bytes(b"working directory")
    inputs = Inputs("q", image=tmp_path / "a.png", audio="inside.wav", video=str(tmp_path / "v.mp4"))
    log.log_cases([Case("1", inputs), Case("2", Inputs("q", image="https://example.org/a.png", audio=3))])
    log.log_cases([Case("3", Inputs("q", image=str(tmp_path / "secret.txt"), video=tmp_path / "missing.mp4"))])
    monkeypatch.setenv("SPANFOLD_MEDIA_ROOTS", str(tmp_path / "data"))
    log.log_cases([Case("4", Inputs("q", image=tmp_path / "a.png"))])
    monkeypatch.delenv("SPANFOLD_MEDIA_ROOTS")
    monkeypatch.setenv("SPANFOLD_MEDIA_BYTES", "3")
    log.log_cases([Case("5", Inputs("q", image=tmp_path / "v.mp4"))])
    monkeypatch.delenv("SPANFOLD_MEDIA_BYTES")
    first = next((log.run_dir / "media").glob("*_a.png"))
    first.write_bytes(b"cut")
    log.log_cases([Case("6", Inputs("q", image=tmp_path / "a.png"))])
    log.close()

    one, two, three, four, five, six = documents(log.run_dir)["run.json"]["cases"]
    assert [path.partition("_")[2] for path in one["media_paths"]] == ["a.png", "inside.wav", "v.mp4"]
    assert (log.run_dir / one["media_paths"][1]).read_bytes() == b"inside"
    assert two["media_paths"] == []
    assert "media_refused" not in two
    assert [(c["media_paths"], [r["slot"] for r in c["media_refused"]]) for c in (three, four, five)] == [
        ([], ["image"])
    ] * 3
    assert six["media_paths"] == one["media_paths"][:1]
    assert first.read_bytes() == b"image"
    assert len(files(log.run_dir / "media")) == 3


@pytest.mark.contract("DL-052", "DL-180")
def test_what_models_are_asked_and_say_is_never_cut(log: RunLogger) -> None:
    long = "x" * 300_000
    call(log, inputs=long, output=long)
    log.log_model_exchange("M5", role="r", operation="o", inputs=[long], output=long)
    log.close()

    found = documents(log.run_dir)
    assert found["M1/log.json"]["model_calls"][0]["output"] == long
    assert found["M5/log.json"]["model_calls"][0]["inputs"] == [long]


@pytest.mark.slow
@pytest.mark.contract(
    "DL-148", "DL-149", "DL-150", "DL-151", "DL-142", "DL-173", "DL-178", "DL-057", "DL-078", "DL-077"
)
def test_arrays_keep_their_type_get_safe_names_of_their_own_and_what_is_no_array_is_named(log: RunLogger) -> None:
    class Tensor:
        def __init__(self, array: Any) -> None:
            self._array = array

        def detach(self) -> "Tensor":
            return self

        def cpu(self) -> "Tensor":
            return self

        def numpy(self) -> Any:
            return self._array

    def artifacts(shift: int) -> dict[str, Any]:
        return {
            "ints": Tensor(np.arange(3) + shift),
            "doubles": np.array([0.1, 0.2]) + shift,
            "stack": [Tensor(np.ones(2)), Tensor(np.zeros(2))],
            "../../escape:me": np.ones(2) * shift,
            "spatial": np.eye(2) * (1 + shift),
            "objects": np.array([{}, None], dtype=object),
            "ragged": [np.ones(2), np.ones(3)],
            "scalar": 3,
        }

    findings = {"f": np.float64(0.5), "i": np.int64(3), "b": np.bool_(True), "nan": float("nan")}
    first = log.log_probe(-1, {"generated:x": Result(findings, artifacts(0), overlay=True)})
    second = log.log_probe(-1, {"generated:x": Result(findings, artifacts(1))})
    log.close()

    one, two = documents(log.run_dir)["M1/log.json"]["probe"]
    assert one["findings"]["generated:x"] == {"f": 0.5, "i": 3, "b": True, "nan": None}
    assert "nonfinite" in one["notes"]["findings"]
    loaded = {key: np.load(log.run_dir / path, allow_pickle=False) for key, path in one["artifact_paths"].items()}
    assert loaded["generated:x/ints"].dtype == np.int64
    assert loaded["generated:x/doubles"].dtype == np.float64
    assert loaded["generated:x/stack"].shape == (2, 2)
    assert set(two["artifact_paths"].values()).isdisjoint(
        set(one["artifact_paths"].values()) - {one["artifact_paths"]["generated:x/stack"]}
    )
    assert np.load(log.run_dir / one["artifact_paths"]["generated:x/ints"])[0] == 0
    assert set(one["artifacts_not_stored"]) == {"generated:x/objects", "generated:x/scalar"}
    assert all(entry["type"] and entry["reason"] for entry in one["artifacts_not_stored"].values())
    assert one["artifacts"]["generated:x/ragged"] == [[1.0, 1.0], [1.0, 1.0, 1.0]]
    for path in files(log.run_dir):
        assert not re.search(r'[:<>"|?*\\]', path)
    assert first[0].name.endswith("_overlay.png")
    assert [path.suffix for path in (*first[1:], *second)] == [".png"] * (len(first) - 1 + len(second))
    assert all(path.is_file() for path in (*first, *second))
    assert len(second) == 1
    assert not set(first[1:]) & set(second)


@pytest.mark.contract("DL-077")
def test_an_array_whose_name_ends_like_a_file_has_the_name_of_the_contract_all_the_same(log: RunLogger) -> None:
    log.log_probe(0, {"x": Result({}, {"weights.npy": np.arange(3)})})
    log.close()

    (probe,) = documents(log.run_dir)["M1/log.json"]["probe"]
    assert probe["artifact_paths"] == {"x/weights.npy": "M1/artifacts/c0_x_weights.npy.npy"}


@pytest.mark.contract("DL-153", "DL-166", "DL-187")
def test_a_result_that_fails_in_every_part_still_leaves_the_probe_and_its_calls(log: RunLogger) -> None:
    class Failing:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    call(log)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log.log_probe(0, {"bad": Failing(), "good": Result({"x": 1}, {})}, cases=[Failing()])
        log.log_analysis(0, Failing())
        log.log_surgery(0, Failing(), Failing())
        log.log_fix(Failing())
        log.log_loop_end(Failing())
    log.close()

    found = documents(log.run_dir)
    assert found["M1/log.json"]["probe"][0]["findings"] == {"bad": None, "good": {"x": 1}}
    assert found["M1/log.json"]["probe"][0]["n_model_calls"] == 1
    assert len(found["M2/log.json"]["analysis"]) == len(found["M5/log.json"]["surgery"]) == 1
    assert len(found["M5/log.json"]["fix"]) == len(found["run.json"]["loop_end"]) == 1
    assert sum(log.problems.values()) > 5
    assert log.losses == dict(log.problems)


@pytest.mark.contract("DL-161", "DL-036", "DL-031")
def test_an_event_without_a_stage_keeps_its_name_and_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = RunLogger(tmp_path / "run", verbose=True, observability_mode="offline")
    for tag in ("team5", "llm3", "m12", "gemma2", ""):
        with pytest.warns(UserWarning, match="model_calls"):
            log.log_model_exchange(tag, role="r", operation="o", inputs="q")
    for tag, stage in (("m1_probe", "M1"), ("M4_SURGERY", "M4"), ("codegen_m2_stats", "M2"), (" Fix ", "M5")):
        log.log_stage_skipped(tag, stage)
    with pytest.raises(TypeError):
        log.log_stage_skipped(3, "r")  # type: ignore[arg-type]
    log.close()

    found = documents(tmp_path / "run")
    assert [row["tag"] for row in found["run.json"]["unrouted"]] == ["team5", "llm3", "m12", "gemma2", ""]
    assert {row["original_event"] for row in found["run.json"]["unrouted"]} == {"model_call"}
    assert [found[f"{s}/log.json"]["stage_skipped"][0]["reason_code"] for s in ("M1", "M4", "M2", "M5")] == [
        *("M1", "M4", "M2", "M5")
    ]
    assert capsys.readouterr().out.count("[run] unrouted cycle=-1") == 5


# -- console


@pytest.mark.contract("DL-108", "DL-111")
def test_plain_lines_name_stage_bucket_and_cycle_and_a_narrator_replaces_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tell(name: str, **how: bool) -> list[str]:
        log = RunLogger(tmp_path / name, observability_mode="offline", **how)
        log.log_run_start({"model": "m"})
        call(log)
        log.log_model_exchange("M5", role="r", operation="o", inputs="")
        log.log_cases([{"id": "a"}])
        log.log_stage_skipped("M4", "r")
        log.log_agent_tool(1, tool="t", ok=True)
        log.log_diagnosis(-1, SimpleNamespace(model_name=None, hypotheses=[], raw_judge_output=None))
        log.close()
        return capsys.readouterr().out.splitlines()

    assert tell("silent") == []
    assert tell("plain", verbose=True) == [
        "[run] run_start",
        "[M1] model_call cycle=0",
        "[M5] model_calls cycle=-1",
        "[run] cases",
        "[M4] stage_skipped cycle=-1",
        "[run] agent_tool_calls",
        "[M3] diagnosis cycle=-1",
    ]
    told = tell("narrated", narrate=True, verbose=True)
    assert [row.split()[0] for row in told] == ["RUN", "M3"]


@pytest.mark.contract("DL-185", "DL-133")
def test_a_broken_standard_output_stops_nothing_and_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    broken = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stdout", broken)
    log = RunLogger(tmp_path / "run", verbose=True, observability_mode="offline")
    log.log_stage_skipped("M4", "r")
    log.close()
    monkeypatch.undo()

    assert len(documents(tmp_path / "run")["M4/log.json"]["stage_skipped"]) == 1
    assert log.losses == {"console lines": 1}
    with pytest.raises(BrokenPipeError):
        broken.close()


# -- files


@pytest.mark.contract("DL-076", "DL-173", "DL-140")
@pytest.mark.parametrize("stem", ["../out.json", "/tmp/out.json", "a/../../out.json", "", "a\0b", ".."])
def test_an_artifact_never_leaves_the_run(log: RunLogger, stem: str, tmp_path: Path) -> None:
    before = files(tmp_path)
    with pytest.warns(UserWarning, match="artifact"):
        assert log.save_artifact_json(stem, {}) is None
    assert files(tmp_path) == before
    assert log.problems.total() == 1
    log.close()


@pytest.mark.contract("DL-144")
def test_a_change_of_the_working_directory_changes_nothing(tmp_path: Path) -> None:
    log = RunLogger("run", observability_mode="offline")
    start = Path.cwd()
    log.log_stage_skipped("M4", "before")
    os.chdir(tmp_path)
    log.log_stage_skipped("M4", "after")
    log.close()

    assert os.listdir(tmp_path) == []
    assert len(documents(start / "run")["M4/log.json"]["stage_skipped"]) == 2


@pytest.mark.contract("DL-167", "DL-046")
def test_a_manifest_tells_size_and_hash_of_each_file_that_does_not_hide_its_name(log: RunLogger) -> None:
    (log.run_dir / ".hidden").write_text("x", encoding="utf-8")
    (log.run_dir / ".folder").mkdir()
    (log.run_dir / ".folder" / "shown").write_text("abc", encoding="utf-8")
    log.close()
    log.log_manifest(run_id="r", config={"k": 1})
    log.log_manifest(run_id="again", config={})

    manifest = documents(log.run_dir)["run.json"]["manifest"]
    assert (manifest["run_id"], manifest["config"]) == ("again", {})
    assert ".folder/shown" in manifest["files"]
    assert ".hidden" not in manifest["files"]
    assert "event_seq" not in manifest
    assert manifest["file_facts"][".folder/shown"] == {
        "size_bytes": 3,
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    }
    assert verify_journal(log.run_dir).sealed
    assert open_journals() == []


@pytest.mark.contract("DL-176", "DL-042")
def test_a_secret_is_nowhere_on_disk(tmp_path: Path) -> None:
    secret = "sk-" + "ant-api03-" + "A1b2C3d4E5f6G7h8" * 5 + "AA"
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "config.py").write_text(f"KEY = '{secret}'\n", encoding="utf-8")
    run_dir = tmp_path / "run"
    os.environ["SPANFOLD_STATE_DIR"] = str(run_dir / ".." / "state")
    log = RunLogger(run_dir, observability_mode="offline")
    log.log_run_start({"judge": secret})
    call(log, inputs=f"use {secret}", kwargs={"api_key": secret}, output=secret, error=f"Error('{secret}')")
    log.log_cases([{"id": "a", "note": secret}])
    log.log_probe(0, {secret: Result({"x": secret}, {secret: np.ones(2), "d": {secret: 1}})})
    log.log_explore(0, None, out_dir=workspace)
    log.log_analysis(0, analysis(run_dir, narrative=secret, llm_prompt=secret))
    log.save_artifact_json("a.json", {"x": secret})
    log.close()
    log.log_manifest(run_id=secret, config={"k": secret})

    for path in (p for base in (run_dir, tmp_path / "state") for p in base.rglob("*") if p.is_file()):
        assert secret.encode() not in path.read_bytes(), path
        assert secret not in path.name


@pytest.mark.contract("DL-179")
def test_run_json_with_its_answers_does_not_come_back_before_a_quarantine_ends(log: RunLogger) -> None:
    log.log_cases([{"id": "a", "expected": "the answer"}])
    log.log_stage_skipped("M2", "r")
    with log.quarantine():
        for path in log.managed_json_paths:
            path.unlink(missing_ok=True)
        log.log_agent_tool(1, tool="t", ok=True)
        log.log_stage_skipped("M5", "r")
        time.sleep(0.6)  # longer than the background thread waits
        assert files(log.run_dir) - {"timings.jsonl"} == {"M5/log.json"}
    found = documents(log.run_dir)["run.json"]
    assert found["cases"][0]["case"]["expected"] == "the answer"
    assert len(found["agent_tool_calls"]) == 1
    log.close()
    assert len(documents(log.run_dir)["M2/log.json"]["stage_skipped"]) == 1
    assert not check_documents(log.run_dir)


# -- freshness, memory


@pytest.mark.slow
@pytest.mark.contract("DL-014", "DL-122")
def test_every_event_is_in_its_document_when_its_call_returns_and_calls_and_cases_within_a_second(
    log: RunLogger,
) -> None:
    call(log, 1)
    log.log_cases([{"id": "a"}])
    deadline = time.monotonic() + 20  # a guard; a second is promised on a machine that is free
    while time.monotonic() < deadline:
        found = documents(log.run_dir)
        if "M1/log.json" in found and found["run.json"]["cases"]:
            break
        time.sleep(0.02)
    assert found["M1/log.json"]["model_calls"]
    for number in range(20):
        call(log, number)
        log.log_agent_tool(number, tool="t", ok=True)
        found = documents(log.run_dir)
        assert len(found["run.json"]["agent_tool_calls"]) == number + 1
        assert len(found["M1/log.json"]["model_calls"]) == number + 2
    log.close()


@pytest.mark.contract("DL-030", "DL-170")
def test_validation_names_what_the_schema_refuses_and_writes_it_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunLogger(tmp_path / "off", observability_mode="offline") as off:
        off.log_agent_tool(1, tool=5, ok="yes")  # type: ignore[arg-type]
    monkeypatch.setenv("EVALRX_VALIDATE_LOG", "0")
    log = RunLogger(tmp_path / "run", observability_mode="offline")
    with pytest.warns(UserWarning, match=r"agent_tool event .*tool \(type\)"):
        log.log_agent_tool(2, tool=5, ok=True)  # type: ignore[arg-type]
    log.log_agent_tool(3, tool="t", ok=True)
    log.log_analysis(0, analysis(log.run_dir))
    log.log_surgery(0, hypothesis(), intervention({"m4_test_name": 1}))
    log.close()

    assert [row["tool"] for row in documents(log.run_dir)["run.json"]["agent_tool_calls"]] == [5, "t"]
    assert (off.problems.total(), log.problems.total()) == (0, 1)


@pytest.mark.slow
@pytest.mark.contract("DL-188", "DL-030")
def test_it_imports_and_logs_without_numpy_matplotlib_jsonschema_and_langfuse(tmp_path: Path) -> None:
    program = """
import sys
for name in ("numpy", "matplotlib", "jsonschema", "langfuse", "evalrx", "yaml"):
    sys.modules[name] = None
import os; os.environ["EVALRX_VALIDATE_LOG"] = "1"
from spanfold.diagnose import RunLogger
with RunLogger(sys.argv[1], observability_mode="offline") as log:
    log.log_run_start({"model": 3})
    log.log_agent_tool(1, tool=5, ok=True)
    log.log_probe(0, {})
print(log.losses)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (0, "{}\n"), done.stderr
    assert documents(tmp_path / "run")["run.json"]["run_start"]["model"] == 3


@pytest.mark.contract("DL-189")
def test_a_host_with_its_own_provider_and_strict_limits_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry import trace

    before = trace.get_tracer_provider()
    for name, value in {
        "OTEL_TRACES_SAMPLER": "always_off",
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "1",
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "5",
        "OTEL_SDK_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    with RunLogger(tmp_path / "run", observability_mode="offline") as log:
        call(log, inputs="longer than five characters")

    assert trace.get_tracer_provider() is before
    assert documents(tmp_path / "run")["M1/log.json"]["model_calls"][0]["inputs"] == "longer than five characters"


def test_what_a_program_traces_itself_is_part_of_the_run_and_stands_beside_the_documents_of_the_loop(
    log: RunLogger,
) -> None:
    with spanfold.stage("M1", cycle=0), spanfold.model_call("m", input="q") as made:
        made.output("a")
    spanfold.event("noted", x=1)
    log.close()

    assert documents(log.run_dir)["M1/log.json"] == {}
    beside = json.loads((log.run_dir / "traced" / "M1" / "log.json").read_text(encoding="utf-8"))
    assert [len(beside[key]) for key in ("model_calls", "stage")] == [1, 1]
    assert not check_documents(log.run_dir)


@pytest.mark.slow
@pytest.mark.contract("DL-012", "DL-104")
def test_everything_can_be_logged_after_close_and_is_sealed_again(tmp_path: Path) -> None:
    log = RunLogger(tmp_path / "run", observability_mode="offline")
    log.close()
    play(log, tmp_path)
    for number in range(30):
        log.log_agent_tool(number, tool="t", ok=True)
    log.close()
    log.close()

    found = events(tmp_path / "run")
    assert [e["event_seq"] for e in found] == list(range(1, len(found) + 1))
    assert len(documents(tmp_path / "run")["run.json"]["agent_tool_calls"]) == 32
    assert verify_journal(tmp_path / "run").sealed
    assert not check_documents(tmp_path / "run")
    assert threading.active_count() < 20


@pytest.mark.slow
@pytest.mark.parametrize("content", ["none", "local", "all"])
def test_message_content_is_kept_and_sent_as_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    asked = "what-was-asked"
    with LoopbackOtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("SPANFOLD_CONTENT", content)
        spanfold.configure()
        log = RunLogger(tmp_path / "run")
        call(log, inputs=asked, output=asked)
        log.log_cases([{"id": "a", "prompt": asked}])
        log.log_model_exchange("M5", role="r", operation="generate", inputs={"x": asked}, output=[asked])
        log.log_analysis(0, analysis(tmp_path, llm_prompt=asked, llm_raw=asked))
        log.log_diagnosis(0, diagnosis(raw_judge_output=asked, critic_prompt=asked))
        log.close()
        assert spanfold.flush(20).waiting == 0
        sent = repr([(span.name, dict(span.attributes), span.events) for span in receiver.spans])
    monkeypatch.undo()
    spanfold.configure()

    assert asked not in (tmp_path / "run" / "timings.jsonl").read_text(encoding="utf-8")
    kept = any(asked.encode() in path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert (kept, asked in sent) == {"none": (False, False), "local": (True, False), "all": (True, True)}[content]
    assert "M2 analysis" in sent
    validator = Draft202012Validator(load_schema())
    assert [error for event in events(tmp_path / "run") for error in validator.iter_errors(event)] == []


def test_a_result_that_waits_for_another_thread_of_the_loop_is_not_kept_waiting_by_the_lock(log: RunLogger) -> None:
    class Slow(Result):
        def to_dict(self) -> dict[str, Any]:
            worker = threading.Thread(target=lambda: call(log))
            worker.start()
            worker.join(30)
            assert not worker.is_alive()
            return {"x": 1}

    log.log_probe(0, {"slow": Slow({}, {})})
    log.close()

    assert log.losses == {}
    assert len(documents(log.run_dir)["M1/log.json"]["model_calls"]) == 1
