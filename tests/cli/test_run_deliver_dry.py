"""`run deliver --to` and `--dry-run`: what would be sent is what is sent, and looking changes nothing."""

import json
from pathlib import Path

import pytest

from spanfold.cli._exits import Exit
from spanfold.testing import LoopbackOtlpReceiver
from tests.cli.conftest import Spanfold
from tests.langfuse import to

pytestmark = pytest.mark.slow


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def documents(folder: Path) -> None:
    """Write the documents of a diagnose loop that has no journal."""
    (folder / "M5").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"trace_id": "ab" * 16, "run_start": None}))
    skipped = {"ts": "2026-01-31T09:05:07.000123+00:00", "stage": "M5", "cycle": -1, "reason_code": "r", "detail": ""}
    envelope = {"event": "stage_skipped", "trace_id": "ab" * 16, "event_seq": 1, "span_id": "m5.skipped"}
    (folder / "M5/log.json").write_text(json.dumps({"stage_skipped": [{**skipped, **envelope}]}))


def test_a_dry_run_shows_what_is_sent_afterwards_and_changes_nothing(
    spanfold: Spanfold, runs: Path, langfuse: LoopbackOtlpReceiver
) -> None:
    before = tree(runs / "ok")

    planned = spanfold("run", "deliver", "ok", "--to", "langfuse", "--dry-run", "--json", **to(langfuse))
    assert langfuse.requests == []
    assert tree(runs / "ok") == before
    done = spanfold("run", "deliver", "ok", "--to", "langfuse", "--json", **to(langfuse))

    spans = planned.document["destinations"][0]
    sent = done.document["destinations"][0]
    assert planned.code == Exit.DONE
    assert spans["waiting"] == sum(group["count"] for group in spans["records"]) == sent["sent"] == len(langfuse.spans)
    found = {(group["name"], group["kind"]): group["count"] for group in spans["records"]}
    for name, kind in found:
        assert found[name, kind] == sum(
            (span.name, span.attributes.get("spanfold.kind")) == (name, kind) for span in langfuse.spans
        )
    again = spanfold("run", "deliver", "ok", "--to", "langfuse", "--dry-run", "--json", **to(langfuse))
    assert again.document["destinations"][0]["waiting"] == 0


@pytest.mark.parametrize(
    ("to", "variable"), [("langfuse", "LANGFUSE_BASE_URL"), ("otlp", "OTEL_EXPORTER_OTLP_ENDPOINT")]
)
def test_a_dry_run_to_a_named_destination_needs_no_address_and_says_that_sending_does(
    spanfold: Spanfold, runs: Path, to: str, variable: str
) -> None:
    shown = spanfold("run", "deliver", "ok", "--to", to, "--dry-run")

    assert shown.code == Exit.DONE
    assert f"{to} (no address is configured): " in shown.out
    assert "chat gpt-x" in shown.out
    assert shown.err.startswith("Nothing was sent. To send it, name a ")
    assert variable in shown.err
    assert spanfold("run", "deliver", "ok", "--to", to).code == Exit.USAGE
    configured = spanfold(
        "run", "deliver", "ok", "--to", "otlp", "--dry-run", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1"
    )
    assert configured.err == "Nothing was sent. Without --dry-run the same command sends it.\n"


def test_only_the_named_destination_is_sent_to(spanfold: Spanfold, runs: Path, langfuse: LoopbackOtlpReceiver) -> None:
    where = {**to(langfuse), "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}

    answer = spanfold("run", "deliver", "ok", "--to", "langfuse", "--json", **where)
    missing = spanfold("run", "deliver", "ok", "--to", "otlp", "--json", **to(langfuse))

    assert langfuse.spans
    assert {row["destination"].partition("-")[0] for row in answer.document["destinations"]} == {"langfuse"}
    assert missing.code == Exit.USAGE


def test_a_directory_with_documents_only_is_delivered_and_its_documents_stay(
    spanfold: Spanfold, runs: Path, langfuse: LoopbackOtlpReceiver
) -> None:
    folder = runs / "foreign"
    documents(folder)
    before = tree(folder)

    planned = spanfold("run", "deliver", str(folder), "--to", "langfuse", "--dry-run", "--json")
    assert tree(folder) == before
    done = spanfold("run", "deliver", str(folder), "--to", "langfuse", "--json", **to(langfuse))
    again = spanfold("run", "deliver", str(folder), "--to", "langfuse", "--json", **to(langfuse))

    assert [group["name"] for group in planned.document["destinations"][0]["records"]] == [
        "M5 stage_skipped",
        "diagnose",
    ]
    assert (done.code, done.document["destinations"][0]["sent"]) == (Exit.DONE, 2)
    assert again.document["destinations"][0]["sent"] == 0
    assert {path: data for path, data in tree(folder).items() if not path.startswith(".spanfold/")} == before
    assert (
        spanfold("run", "deliver", str(folder), "--to", "langfuse", "--dry-run", "--json", **to(langfuse)).document[
            "destinations"
        ][0]["waiting"]
        == 0
    )


def test_a_directory_with_neither_is_refused(spanfold: Spanfold, runs: Path) -> None:
    (runs / "empty").mkdir()

    for options in (("--dry-run", "--to", "otlp"), ()):
        answer = spanfold(
            "run", "deliver", str(runs / "empty"), *options, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1"
        )
        assert answer.code == Exit.NOT_FOUND
        assert "journal" in answer.err
