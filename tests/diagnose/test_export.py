"""The trace of a run made from its documents alone, and all of it sent at once."""

import json
from pathlib import Path
from typing import Any

import pytest
from evalrx.observability import export_to_langfuse_bundle

from spanfold.diagnose import export_langfuse_bundle, sync_to_langfuse
from spanfold.testing import LoopbackOtlpReceiver, Reply
from tests.langfuse import to

TIMES = ("start_time", "end_time")


def comparable(bundle: dict[str, Any]) -> dict[str, Any]:
    """Return a bundle without what one of the two does not have: times are ours, headlines and empty inputs the seed's."""
    spans = [
        {
            **{key: value for key, value in span.items() if key not in TIMES and value is not None},
            "metadata": {
                key: value
                for key, value in span["metadata"].items()
                if key != "headlines" and not (key == "stage" and "parent_id" in span)
            },
        }
        for span in bundle["spans"]
    ]
    return {**bundle, "spans": spans}


@pytest.mark.contract("DL-106")
def test_a_bundle_has_the_parts_of_the_seeds(seed_run: Path) -> None:
    ours, seed = export_langfuse_bundle(seed_run), export_to_langfuse_bundle(seed_run)

    assert comparable(ours) == comparable(seed)
    assert ours["trace"]["id"] == json.loads((seed_run / "run.json").read_text())["trace_id"]


@pytest.mark.contract("DL-106")
def test_the_search_before_m1_has_a_span_when_it_ran(seed_run: Path) -> None:
    document = json.loads((seed_run / "M1/log.json").read_text())
    trace_id = document["probe"][0]["trace_id"]
    document["probe_search"] = [
        {
            "ts": "2026-01-31T09:05:07.000000+00:00",
            "event": "probe_search",
            "event_seq": 99,
            "stage": "M1",
            "trace_id": trace_id,
        }
    ]
    (seed_run / "M1/log.json").write_text(json.dumps(document))

    assert comparable(export_langfuse_bundle(seed_run)) == comparable(export_to_langfuse_bundle(seed_run))


@pytest.mark.contract("DL-106")
def test_spans_have_the_times_of_their_stages(seed_run: Path) -> None:
    probe = json.loads((seed_run / "M1/log.json").read_text())["probe"][-1]

    span = next(span for span in export_langfuse_bundle(seed_run)["spans"] if span["id"].endswith("_m1"))

    assert span["end_time"] - span["start_time"] == pytest.approx(probe["duration_sec"])


@pytest.mark.contract("DL-106")
@pytest.mark.parametrize("damage", ["no bundle", "no trace id", "damaged bundle"])
def test_the_trace_id_is_that_of_the_run(seed_run: Path, damage: str) -> None:
    (seed_run / "langfuse_trace.json").unlink()
    run = json.loads((seed_run / "run.json").read_text())
    expected = run["trace_id"]
    if damage == "damaged bundle":
        (seed_run / "langfuse_trace.json").write_text('{"trace": ["')
    elif damage == "no trace id":
        (seed_run / "langfuse_trace.json").write_text(json.dumps({"trace": {"id": "given"}}))
        expected = "given"

    assert export_langfuse_bundle(seed_run)["trace"]["id"] == expected


@pytest.mark.contract("DL-165")
def test_a_bundle_that_says_more_is_replaced_only_when_told(seed_run: Path) -> None:
    live = seed_run / "langfuse_trace.json"
    before = live.read_bytes()

    with pytest.raises(FileExistsError, match="overwrite=True"):
        export_langfuse_bundle(seed_run, live)
    assert live.read_bytes() == before

    made = export_langfuse_bundle(seed_run, live, overwrite=True)
    assert json.loads(live.read_text()) == made
    assert export_langfuse_bundle(seed_run, live) == made  # one of its own kind
    assert list(seed_run.glob(".*.tmp*")) == []


def test_a_bundle_goes_where_it_is_told_and_is_strict_json(seed_run: Path, tmp_path: Path) -> None:
    document = json.loads((seed_run / "M2/log.json").read_text())
    document["analysis"][0]["stats_results"][0]["p_value"] = float("nan")
    document["analysis"][0]["conclusion"] = "größer \ud800"
    (seed_run / "M2/log.json").write_text(json.dumps(document))

    export_langfuse_bundle(seed_run, tmp_path / "new/bundle.json")

    text = (tmp_path / "new/bundle.json").read_text(encoding="utf-8")
    assert "NaN" not in text
    assert "größer" in text
    json.loads(text)


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        export_langfuse_bundle(tmp_path)


@pytest.mark.contract("DL-107")
def test_a_sync_is_true_only_when_everything_is_there(
    seed_run: Path, tmp_path: Path, langfuse: LoopbackOtlpReceiver
) -> None:
    keys_only = {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk"}
    langfuse.reply = Reply(status=503, stores=False)

    assert not sync_to_langfuse(tmp_path / "missing", environ=to(langfuse))
    assert not sync_to_langfuse(seed_run, environ=keys_only)
    assert not sync_to_langfuse(seed_run, environ=to(langfuse), timeout_s=0.3)
    langfuse.reply = Reply()
    assert sync_to_langfuse(seed_run, environ=to(langfuse))
    count = len(langfuse.spans)
    assert sync_to_langfuse(seed_run, environ=to(langfuse))
    assert len(langfuse.spans) == count > 0
