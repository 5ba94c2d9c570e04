"""The same script of calls through the logger of evalrx 0.1.2 and through ours."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from spanfold.diagnose import RunLogger
from tests.diagnose.script import STAGES, documents, normal, play, play_edges

pytest.importorskip("evalrx", reason="a test dependency: pip install evalrx==0.1.2")
from evalrx.eval_agent.run_logger_v2 import RunLoggerV2

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Play both scripts once through each logger; return the folder of each, with the runs in `run` and `edges`."""
    made: dict[str, Path] = {}
    patch = pytest.MonkeyPatch()
    for name, logger in (("seed", RunLoggerV2), ("ours", RunLogger)):
        work = made[name] = tmp_path_factory.mktemp(name).resolve()
        patch.setenv("SPANFOLD_STATE_DIR", str(work / "state"))
        play(logger(work / "run", observability_mode="offline"), work)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            play_edges(logger(work / "edges", observability_mode="offline"), work)
        WARNED[name] = [str(w.message) for w in told if issubclass(w.category, (UserWarning, RuntimeWarning))]
    patch.undo()
    return made


WARNED: dict[str, list[str]] = {}


# What is ours alone, or allowed to differ: each entry is one sentence of docs/decisions/0009-diagnose-loop-choices.md.
ADDITIVE = {
    "file_facts",
    "artifacts_not_stored",
    "exact",
    "run_starts",
    "original_event",
}
WORDING = {"plain_reading"}


def comparable(value: Any, work: Path) -> Any:
    def kept(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {
                key: "<wording>" if key in WORDING else kept(item) for key, item in tree.items() if key not in ADDITIVE
            }
        return [kept(item) for item in tree] if isinstance(tree, list) else tree

    return kept(normal(value, work))


@pytest.mark.contract(
    *("DL-190", "DL-017", "DL-020", "DL-022", "DL-023", "DL-024", "DL-026", "DL-028", "DL-029", "DL-033", "DL-034"),
    *("DL-035", "DL-037", "DL-044", "DL-045", "DL-048", "DL-049", "DL-050", "DL-051", "DL-053", "DL-054", "DL-055"),
    *("DL-056", "DL-059", "DL-060", "DL-061", "DL-062", "DL-063", "DL-064", "DL-065", "DL-066", "DL-067", "DL-068"),
    *("DL-069", "DL-070", "DL-071", "DL-072", "DL-073", "DL-074", "DL-075"),
)
@pytest.mark.parametrize("run", ["run", "edges"])
@pytest.mark.parametrize("path", ["run.json", *(f"{stage}/log.json" for stage in STAGES)])
def test_a_document_is_that_of_the_seed_key_for_key_and_in_the_same_order(
    runs: dict[str, Path], path: str, run: str
) -> None:
    found = {name: comparable(documents(work / run)[path], work) for name, work in runs.items()}
    if path == "run.json" and run == "run":  # we keep a journal and rows of timings beside
        for document in found.values():
            document["manifest"].pop("files")

    assert json.dumps(found["ours"], indent=1) == json.dumps(found["seed"], indent=1)


@pytest.mark.contract("DL-092", "DL-093", "DL-094", "DL-095", "DL-098", "DL-099")
def test_the_trace_has_the_spans_generations_and_scores_of_the_seed(runs: dict[str, Path]) -> None:
    found = {name: _trace(work) for name, work in runs.items()}
    ours, seed = found["ours"], found["seed"]

    assert list(ours) == list(seed)
    assert ours["trace"] == seed["trace"]
    for part in ("spans", "generations", "scores"):
        assert _sorted(ours[part]) == _sorted(seed[part])
    assert ours["events"] == seed["events"] == []


def _trace(work: Path) -> dict[str, Any]:
    """Return the bundle with parents by name, without times, ids and the wording of notes."""
    bundle = json.loads((work / "run" / "langfuse_trace.json").read_text(encoding="utf-8"))
    named = {span["id"]: span["name"] for span in bundle["spans"]}
    for span in bundle["spans"]:
        assert span["end_time"] - span["start_time"] == pytest.approx(span["duration_sec"], abs=1e-4)
        assert span["trace_id"] == bundle["trace"]["id"]
        span["parent_id"] = named.get(span["parent_id"])
        span["metadata"].pop("note", None)
        # A helper without a result has not failed (W-23, A-13).
        if span["name"] in ("Probe: helper", "Probe: helper (failed)"):
            span["name"], span["status"] = "Probe: helper", "completed"
        figures = span["metadata"].get("artifacts", {}).get("figures", [])
        # Ours are relative to the run directory, so that it can be moved.
        figures[:] = [figure.replace(f"{work}/run/", "") for figure in figures]
    for row in (*bundle["generations"], *bundle["scores"]):
        row["span_id"] = named[row["span_id"]].removesuffix(" (failed)")
    for row in (*bundle["spans"], *bundle["generations"], *bundle["scores"]):
        for key in ("id", "start_time", "end_time", "timestamp", "trace_id"):
            row.pop(key, None)
    for span in bundle["spans"]:
        del span["duration_sec"]
    bundle["trace"].pop("duration_sec")
    # The seed tells the envelope of the run start too, which is a record of the document.
    for key in ("event", "schema_version", "event_seq", "stage", "span_id"):
        bundle["trace"]["metadata"].pop(key, None)
    result: dict[str, Any] = normal(bundle, work)
    result["trace"].pop("id")
    return result


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort by what is shown: ours stand in the order of their ends."""
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True, default=str))


@pytest.mark.contract("DL-032", "DL-058")
def test_we_warn_where_the_seed_warns_and_name_bucket_and_tag(runs: dict[str, Path]) -> None:
    def tagged(messages: list[str]) -> list[str]:
        keys = ("model_calls", "stage_skipped", "tool_codegen", "tool_registry")
        return sorted(key for message in messages for key in keys if key in message and "'" in message)

    assert tagged(WARNED["ours"]) == ["model_calls", "stage_skipped", "tool_codegen", "tool_registry"]
    assert tagged(WARNED["seed"]) == tagged(WARNED["ours"])
    assert sum("broken" in message for message in WARNED["ours"]) == sum("broken" in m for m in WARNED["seed"]) == 2
    assert [m for m in WARNED["ours"] if "'nowhere'" in m]
