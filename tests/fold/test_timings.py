"""Rows of timings.jsonl: one for each ended span, in the field order of EP 4.3."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from spanfold import names
from spanfold.fold import Engine, fold_run
from tests.fold.journals import ROOT, SECOND, TRACE, JournalFile, set_fields, span_id


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (run_dir / "timings.jsonl").read_bytes().splitlines()]


@pytest.mark.contract("EP-027")
def test_a_row_has_the_fields_of_the_contract_in_order(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.span(
        "timing",
        "Load data",
        5,
        start=1,
        end=3.25,
        parent=1,
        attributes={
            names.STAGE: "M2",
            names.CYCLE: 4,
            names.DEPTH: 1,
            names.PARENT: "m2",
            names.SELF_NS: SECOND,
            names.ERROR_TYPE: "KeyError",
            **set_fields({"phase": "setup", "rows": 7, "list": [1], "text": "x" * 501, "flag": True}),
        },
        status_code=2,
    )
    journal.run_ended()
    fold_run(run_dir)

    row, root = rows(run_dir)

    assert list(row.items()) == [
        ("schema", "spanfold.timing/1"),
        ("run_id", "digits"),
        ("cell_id", "digits"),
        ("stage", "load_data"),
        ("phase", "setup"),
        ("pass", None),
        ("parent", "m2"),
        ("depth", 1),
        ("start", "2026-01-31T09:05:08.000123Z"),
        ("end", "2026-01-31T09:05:10.250123Z"),
        ("seconds", 2.25),
        ("ok", False),
        ("measured", True),
        (
            "attributes",
            {
                "kind": "timing",
                "name": "Load data",
                "stage": "M2",
                "cycle": 4,
                "rows": 7,
                "text": "x" * 499 + "…",
                "flag": True,
            },
        ),
        ("container", False),
        ("source", "timer"),
        ("error", "KeyError"),
        ("trace_id", TRACE),
        ("span_id", span_id(5)),
        ("parent_span_id", span_id(1)),
        ("self_seconds", 1.0),
    ]
    assert (root["stage"], root["container"], root["parent_span_id"], root["span_id"]) == ("run", True, None, ROOT)


def test_a_model_call_is_timed_with_its_model_and_tokens_and_without_its_content(
    run_dir: Path, journal: JournalFile
) -> None:
    journal.model_call(2, prompt="a secret thought", answer="another")
    fold_run(run_dir)

    (row,) = rows(run_dir)

    assert row["stage"] == "model_call"
    assert row["attributes"] == {
        "kind": "model_call",
        "name": "chat some-model",
        "stage": "M2",
        "model": "some-model",
        "provider": "openai",
        "operation": "chat",
        "input_tokens": 12,
        "output_tokens": 3,
    }


def test_a_row_holds_at_most_64_attributes(run_dir: Path, journal: JournalFile) -> None:
    journal.span("timing", "t", 2, attributes=set_fields({f"f{n}": n for n in range(200)}))
    fold_run(run_dir)

    assert len(rows(run_dir)[0]["attributes"]) == 64


def test_the_folder_name_the_recorder_wrote_down_is_the_cell(run_dir: Path, journal: JournalFile) -> None:
    journal.event(
        names.EVENT_STARTED,
        attributes={names.SPAN_NAME: "digits", names.KIND: "run", names.RUN_ID: "digits", names.RUN_DIR: "001"},
    )
    journal.span("timing", "t", 2)
    fold_run(run_dir)

    assert (rows(run_dir)[0]["run_id"], rows(run_dir)[0]["cell_id"]) == ("digits", "001")


def test_a_foreign_span_hangs_on_its_nearest_recorded_ancestor(run_dir: Path, journal: JournalFile) -> None:
    attributes = {names.GENAI_OPERATION: "chat", names.RECORDED_PARENT: span_id(7)}
    journal.span(None, "chat m", 2, parent=9, attributes=attributes, scope="litellm")
    fold_run(run_dir)

    assert rows(run_dir)[0]["parent_span_id"] == span_id(7)


def test_rows_are_appended_and_never_rewritten_while_the_file_is_ours(run_dir: Path, journal: JournalFile) -> None:
    engine = Engine(run_dir)
    journal.span("timing", "a", 2)
    engine.catch_up(force=False)
    inode = (run_dir / "timings.jsonl").stat().st_ino
    for number in range(3, 50):
        journal.span("timing", "b", number)
        engine.catch_up(force=False)

    assert len(rows(run_dir)) == 48
    assert (run_dir / "timings.jsonl").stat().st_ino == inode


@pytest.mark.parametrize("change", ["remove", "cut", "extend", "link", "second name"])
def test_a_log_that_is_not_as_we_left_it_is_made_whole_again(run_dir: Path, journal: JournalFile, change: str) -> None:
    log, other = run_dir / "timings.jsonl", run_dir / "other"
    engine = Engine(run_dir)
    journal.span("timing", "a", 2)
    engine.catch_up(force=False)
    if change == "remove":
        log.unlink()
    elif change == "cut":
        log.write_bytes(log.read_bytes()[:-5])
    elif change == "extend":
        log.write_bytes(log.read_bytes() + b"{}\n")
    elif change == "link":
        log.rename(other)
        log.symlink_to(other)
    else:
        other.hardlink_to(log)
    journal.span("timing", "b", 3)
    engine.catch_up(force=False)

    assert [row["attributes"]["name"] for row in rows(run_dir)] == ["a", "b"]
    assert not log.is_symlink()
    if other.exists():
        assert other.read_bytes().count(b"\n") == 1


@pytest.mark.case("C-035")
@pytest.mark.slow
def test_ten_thousand_timed_children_of_a_stage_cost_no_more_than_their_rows(
    run_dir: Path, journal: JournalFile
) -> None:
    engine = Engine(run_dir)
    journal.run_started()
    journal.started("stage", "M2", 1, stage="M2")
    engine.catch_up(force=False)
    lines = [
        journal.span("timing", "t", 100 + n, parent=1, start=n, end=n + 1, attributes={names.STAGE: "M2"}, write=False)
        for n in range(10_000)
    ]
    for begin in range(0, len(lines), 50):
        journal.put(b"".join(lines[begin : begin + 50]))
        engine.catch_up(force=False)
    journal.stage("M2", 1)
    engine.catch_up(force=False)

    size = (run_dir / "timings.jsonl").stat().st_size
    assert len(rows(run_dir)) == 10_001
    assert engine.bytes_written < size + 20_000
