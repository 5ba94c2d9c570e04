"""A fold that is killed at any instant is gone on from, and a full disk costs only the wait."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from spanfold import names
from spanfold.fold import Engine, check_documents, fold_run
from tests.fold.journals import JournalFile, documents, set_fields

FOLD = """
import sys
from pathlib import Path
from spanfold.fold import Engine
engine = Engine(Path(sys.argv[1]), pending_bytes=2000, checkpoint_bytes=6000)
print("folding", flush=True)
for line in sys.stdin:
    engine.catch_up(force=line == "force\\n", within_s=0.001 if line == "part\\n" else None)
    print("done", flush=True)
engine.close()
"""


def start(run_dir: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", FOLD, str(run_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "folding\n"
    return child


def ask(child: subprocess.Popen[str], word: str) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{word}\n")
    child.stdin.flush()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_fold_killed_at_any_instant_is_gone_on_from_to_the_same_bytes(
    run_dir: Path, journal: JournalFile, seed: int
) -> None:
    source = random.Random(seed)
    journal.run_started()
    number = 100
    for _ in range(5):
        child = start(run_dir)
        for _ in range(source.randrange(1, 6)):
            for _ in range(source.randrange(1, 60)):
                number += 1
                stage = source.choice(("M1", "M2", "load", None))
                if number % 7:
                    journal.model_call(number, stage=stage, start=number, end=number + 1, prompt="p" * number)
                else:
                    journal.event("e", at=number + 1, attributes={names.STAGE: stage or "M3"})
            ask(child, source.choice(("force", "go", "part", "part")))
        time.sleep(source.random() * 0.05)
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=60)
        for name, text in documents(run_dir).items():
            if name.endswith(".json") and not Path(name).name.startswith("."):
                orjson.loads(text)  # every document on disk is whole at every instant
    journal.run_ended(end=number + 2)
    Engine(run_dir, pending_bytes=2000).close()
    fold_run(run_dir, into=run_dir.parent / "other")

    found = {name: text for name, text in documents(run_dir).items() if not Path(name).name.startswith(".")}
    assert found == documents(run_dir.parent / "other")
    assert check_documents(run_dir) == []


def test_a_killed_fold_does_not_read_the_whole_journal_again(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    for number in range(100):
        journal.model_call(100 + number)
    child = start(run_dir)
    ask(child, "force")
    assert child.stdout is not None
    assert child.stdout.readline() == "done\n"
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=60)
    # What was read before the kill cannot be read any more.
    size = journal.path.stat().st_size
    begin = orjson.loads((run_dir / "journal" / ".fold" / "checkpoint.json").read_bytes())["source"]["files"]
    offset = begin[journal.path.name][0]
    with journal.path.open("r+b") as file:
        file.write(b"x" * (offset - 1))
    engine = Engine(run_dir)
    engine.catch_up(force=True)

    assert size / 2 < offset <= size
    assert engine.result().records == 101


# -- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this machine does not let us mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.case("C-051")
def test_a_full_disk_costs_documents_only_the_wait(run_dir: Path, journal: JournalFile, small_disk: Path) -> None:
    journal.run_started()
    out = small_disk / "out"
    engine = Engine(run_dir, into=out, guarded=True, pending_bytes=20_000, checkpoint_bytes=50_000)
    journal.model_call(2)
    engine.catch_up(force=True)
    before = documents(out)
    ballast = small_disk / "ballast"
    _fill(ballast)
    for number in range(100):
        journal.model_call(10 + number, prompt="p" * 1000, end=number)
        engine.catch_up(force=number % 3 == 0)
    full = documents(out)
    problems = engine.problems
    waiting = engine._drafts.pending_bytes
    ballast.unlink()
    engine.tick()
    engine.catch_up(force=True)
    after = orjson.loads((out / "M2" / "log.json").read_bytes())
    journal.run_ended()
    engine.close()
    fold_run(run_dir)

    assert problems > 0
    assert "No space left" in engine.problem
    assert waiting < 40_000, "what cannot be spooled is not taken in"
    assert {name: text for name, text in full.items() if name != "timings.jsonl"} == {
        name: text for name, text in before.items() if name != "timings.jsonl"
    }, "the old documents are intact, and nothing else is left"
    assert full["timings.jsonl"].startswith(before["timings.jsonl"])
    assert full["timings.jsonl"].endswith(b"\n")
    assert len(after["model_calls"]) == 101
    assert documents(out) == documents(run_dir)


@pytest.mark.case("C-051")
def test_a_full_disk_is_an_error_to_whoever_asked_for_a_fold(
    run_dir: Path, journal: JournalFile, small_disk: Path
) -> None:
    journal.run_started()
    for number in range(100):
        journal.stage("M2", 10 + number, attributes=set_fields({"text": "x" * 30_000}))

    with pytest.raises(OSError, match="No space left"):
        fold_run(run_dir, into=small_disk / "out")
    documents_left = documents(small_disk / "out")
    assert not [name for name in documents_left if name.endswith(".tmp")]


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass
