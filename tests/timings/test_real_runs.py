"""What the recorder writes is what this room reads."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import spanfold
from spanfold.timings import RUN_PATH, compare, read_timings, stage_paths, summarise
from spanfold.timings.clock import NS_PER_SECOND
from spanfold.timings.tree import TimingTree


def record(run_dir: Path, **fields: object) -> Path:
    """Run a small loop for real: stages, parallel model calls, a failing tool."""
    spanfold.configure(otlp=False, langfuse=False)
    with spanfold.run("digits", dir=run_dir, **fields):
        with spanfold.timed("load", phase="setup"):
            time.sleep(0.005)
        with spanfold.stage("M2", cycle=0):
            pool = spanfold.traced_executor(ThreadPoolExecutor(4))
            list(pool.map(call, range(4)))
            with pytest.raises(RuntimeError), spanfold.tool("grep", arguments={}):
                raise RuntimeError("no such file")
            pool.shutdown()
    spanfold.shutdown()
    return run_dir


def call(number: int) -> None:
    with spanfold.model_call("some-model", provider="openai", operation="chat", input=[]) as made:
        time.sleep(0.01 * (number + 1))
        made.output("done")


def test_a_recorded_run_is_read_whole_and_by_the_paths_of_its_stages(tmp_path: Path) -> None:
    read = read_timings(record(tmp_path / "001") / "timings.jsonl")

    assert (read.skipped, read.flags, read.diagnostics) == ({}, {}, ())
    assert {path: len(rows) for path, rows in stage_paths(read.rows).items()} == {
        RUN_PATH: 1,
        "load": 1,
        "m2": 1,
        "m2/model_call": 4,
        "m2/tool": 1,
    }
    summary = summarise(read)
    assert (summary.orphans, summary.stages["tool"].failed) == (0, 1)
    assert summary.overlap_seconds is not None
    assert summary.overlap_seconds > 0.02  # the calls ran in parallel


def test_the_self_time_stored_in_a_row_is_the_one_derived_from_the_rows(tmp_path: Path) -> None:
    """A row holds microseconds, so each child may be off by one at either end."""
    read = read_timings(record(tmp_path / "001") / "timings.jsonl")
    tree = TimingTree(read.rows)

    for index, (row, derived) in enumerate(zip(read.rows, tree.self_ns(), strict=True)):
        assert derived is not None
        assert row.self_seconds == pytest.approx(derived / NS_PER_SECOND, abs=2e-6 * (1 + len(tree.children[index])))


def test_two_recorded_runs_tell_all_facts_that_matter(tmp_path: Path) -> None:
    a = record(tmp_path / "a", config={"batch": 8}, data="digits")
    b = record(tmp_path / "b", config={"batch": 16}, data="digits")
    result = compare(a, b)

    assert set(result.unknown_facts) <= {"commit"}  # a checkout without git has none
    settings = [caution.message for caution in result.cautions if caution.code == "settings_differ"]
    assert settings == ["Not all runs have the same settings: batch."]
    assert not {caution.code for caution in result.cautions} & {
        "host_differs",
        "model_differs",
        "python_version_differs",
    }
