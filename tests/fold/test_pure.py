"""P3: documents are a function of the journal, however the fold was stopped, killed, started and disturbed."""

import gc
import itertools
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanfold import names
from spanfold.fold import Engine, check_documents, fold_run
from tests.fold.journals import JournalFile, documents, json_text, set_fields

# Thousands of files are flushed to the device in these tests; on a disk that is all the time they take.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
STAGES = ("M1", "m2_stats", "load", "../x", "Ünïcode", "", None)


class Step(NamedTuple):
    """Something that happens to a run: a line in one of its files, or something to its fold."""

    action: str
    file: int = 0
    number: int = 1
    time: float = 0
    stage: str | None = None
    fields: Any = None


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
fields = st.dictionaries(
    st.sampled_from(("a", "model", "name", "stage", "phase", "cycle", "fields", "é")), values, max_size=3
)
LINES = (
    *("run_started", "run_ended", "stage", "model_call", "agent", "tool", "timing", "score", "event"),
    *("started", "foreign", "exception", "lost", "sealed", "recovered", "garbage", "torn", "twice"),
)
lines = st.builds(
    Step,
    action=st.sampled_from(LINES),
    file=st.integers(0, 2),
    number=st.integers(1, 12),
    time=st.integers(0, 30).map(float),
    stage=st.sampled_from(STAGES),
    fields=fields,
)
disturbances = st.builds(
    Step,
    action=st.sampled_from(
        ("catch_up", "force", "part", "tick", "release", "kill", "close", "delete", "spool", "longer", "wreck")
    ),
    number=st.integers(0, 100),
    fields=st.none(),
)
steps = st.lists(lines | disturbances, max_size=40)


def write(journal: JournalFile, step: Step) -> None:
    stage = {} if step.stage is None else {names.STAGE: step.stage}
    given_fields = {**stage, **set_fields(step.fields or {})}
    at = {"start": step.time, "end": step.time + step.number}
    match step.action:
        case "run_started":
            journal.run_started(at=step.time, **{k: v for k, v in (step.fields or {}).items() if k != "name"})
        case "run_ended":
            journal.run_ended(end=step.time, status_code=step.number % 3)
        case "model_call":
            journal.model_call(step.number, stage=step.stage, attributes=given_fields, parent=step.number + 1, **at)
        case "stage" | "agent" | "tool" | "timing":
            journal.span(step.action, step.stage or "s", step.number, attributes=given_fields, **at)
        case "foreign":
            call = {"gen_ai.system": "x", "gen_ai.request.model": "m", "gen_ai.usage.prompt_tokens": step.number}
            journal.span(
                None, "chat", step.number, attributes={**call, **stage}, scope="litellm", parent=step.number + 1, **at
            )
        case "score":
            attributes = {**given_fields, names.SCORE_NAME: "s", names.SCORE_VALUE: step.time}
            journal.event(names.EVENT_SCORE, at=step.time, span=step.number, attributes=attributes)
        case "started":
            kind = ("stage", "model_call", "agent")[step.number % 3]
            journal.started(kind, "n", step.number, at=step.time, stage=step.stage)
        case "lost" | "recovered" | "sealed":
            name = {"lost": names.EVENT_LOST, "recovered": names.EVENT_RECOVERED, "sealed": names.EVENT_SEALED}[
                step.action
            ]
            journal.event(name, at=step.time, attributes={"spanfold.heads": json_text({"a": 1}), **given_fields})
        case "garbage":
            journal.put(b'{"resourceSpans":[' + b"\0" * step.number + b"\n")
        case "torn":
            journal.put(journal.stage("M2", step.number, write=False)[: 50 * step.number].replace(b"\n", b""))
            journal.put(b"\n")
        case "twice":
            line = journal.stage("M2", step.number, write=False)
            journal.put(line + line)
        case _:
            journal.event(step.action, at=step.time, span=step.number, attributes=given_fields)


def play(folder: Path, script: list[Step]) -> None:
    """Write a journal while engines come and go, and compare what they leave with a fold from nothing."""
    run_dir = folder / "run"
    files = [JournalFile(run_dir / "journal", f"20260131T090507Z-{n}-00000000") for n in range(3)]
    fold_dir = run_dir / "journal" / ".fold"
    milliseconds = itertools.count()

    def start() -> Engine:
        return Engine(run_dir, pending_bytes=700, checkpoint_bytes=1500, clock=lambda: next(milliseconds) / 1000)

    engine = start()
    files[0].event("first")
    for step in script:
        match step.action:
            case "catch_up" | "force":
                engine.catch_up(force=step.action == "force")
            case "part":
                engine.catch_up(force=step.number % 2 == 0, within_s=step.number / 5000)
            case "tick":
                engine.tick()
            case "release" | "close":
                getattr(engine, step.action)()
                engine = start()
            case "kill":
                del engine
                gc.collect()
                engine = start()
            case "delete":
                for name in sorted(documents(run_dir))[step.number % 5 :: 5]:
                    (run_dir / name).unlink()
            case "spool":  # somebody tidies up
                for path in sorted(fold_dir.glob("part-*"))[step.number % 3 :: 3]:
                    path.unlink()
            case "longer":  # killed after it had appended and before the checkpoint
                del engine
                gc.collect()
                for path in fold_dir.glob("part-*"):
                    path.write_bytes(path.read_bytes() + b"x" * step.number)
                engine = start()
            case "wreck":
                del engine
                gc.collect()
                for path in fold_dir.glob("checkpoint.json"):
                    path.write_bytes(path.read_bytes()[: step.number * 3])
                engine = start()
            case _:
                write(files[step.file], step)
    engine.close()
    closed = documents(run_dir)
    for name in closed:
        (run_dir / name).unlink()
    fold_run(run_dir, into=folder / "other")

    assert closed == documents(folder / "other")
    shutil.copytree(run_dir / "journal", folder / "again" / "journal")
    fold_run(folder / "again", force=True)
    assert closed == documents(folder / "again")
    assert check_documents(folder / "again") == []
    for name, text in closed.items():
        if name.endswith(".json"):
            assert_layout(text)
    assert_sequence(closed)


def assert_layout(text: bytes) -> None:
    value = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    # Floats are written in two valid ways, so compare the layout, not their digits.
    again = json.dumps(value, indent=2, ensure_ascii=False).encode()
    if b"e+" not in again and b"e-" not in again and b"e" not in text.translate(None, b"abcdfghijklmnopqrstuvwxyz"):
        assert text == again
    assert len(text.splitlines()) >= 1


def assert_sequence(found: dict[str, bytes]) -> None:
    numbers: list[int] = []
    for name, text in found.items():
        if not name.endswith(("run.json", "log.json")):
            continue
        value = json.loads(text)
        numbers += [r["event_seq"] for v in value.values() if isinstance(v, list) for r in v]
        numbers += [value["run_start"]["event_seq"]] if value.get("run_start") else []
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


@pytest.mark.slow
@given(steps)
def test_a_fold_of_one_process_that_was_disturbed_leaves_the_bytes_of_a_fold_from_nothing(script: list[Step]) -> None:
    # With one file nothing is folded again at the end: what was folded step by step must be right by itself.
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        play(Path(folder), [step._replace(file=0) for step in script])


@pytest.mark.slow
@given(steps)
def test_a_fold_that_was_stopped_killed_and_disturbed_leaves_the_bytes_of_a_fold_from_nothing(
    script: list[Step],
) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        play(Path(folder), script)


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 2**32), st.booleans())
def test_so_does_one_of_a_long_run(seed: int, several: bool) -> None:
    source = random.Random(seed)
    script = [
        Step(
            source.choice(
                LINES
                if source.random() < 0.9
                else ("catch_up", "part", "part", "tick", "release", "kill", "longer", "delete")
            ),
            source.choice((0, 0, 0, 1, 2)) if several else 0,
            source.randrange(1, 1000),
            float(position),
            source.choice(STAGES),
            {"a": position},
        )
        for position in range(400)
    ]
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        play(Path(folder), script)


@pytest.mark.slow
@given(st.lists(lines, max_size=15))
def test_folding_over_documents_that_are_there_changes_nothing(script: list[Step]) -> None:
    def fold(folder: Path) -> dict[str, bytes]:
        fold_run(folder, force=True)
        return documents(folder)

    _with_journal(script, lambda folder: _equal(fold(folder), fold(folder)))


@pytest.mark.slow
@given(st.lists(lines, min_size=1, max_size=15))
def test_the_name_and_place_of_the_run_directory_are_in_no_document(script: list[Step]) -> None:
    def fold(folder: Path) -> None:
        fold_run(folder, force=True)
        one = documents(folder)
        moved = folder.rename(folder.with_name("elsewhere"))
        fold_run(moved, force=True)
        _equal(one, documents(moved))

    _with_journal(script, fold)


def _with_journal(script: list[Step], check: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        run_dir = Path(folder) / "run"
        files = [JournalFile(run_dir / "journal", f"20260131T090507Z-{n}-00000000") for n in range(3)]
        files[0].event("first")
        for step in script:
            write(files[step.file], step)
        check(run_dir)


def _equal(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    assert one == other
