"""Run directories written byte by byte, so that a bug in the reader cannot hide in the writer."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

BEGIN = datetime(2026, 9, 30, 12, 0, 0, tzinfo=UTC)


def stamp(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def row(stage: str, start: float | None = 0.0, seconds: float = 1.0, **fields: object) -> dict[str, object]:
    """One row of EP 4.3 with every field, each replaceable by name (`pass_` stands for `pass`)."""
    row: dict[str, object] = {
        "schema": "spanfold.timing/1",
        "run_id": "digits",
        "cell_id": "001",
        "stage": stage,
        "phase": None,
        "pass": fields.pop("pass_", None),
        "parent": None,
        "depth": 0,
        "start": None if start is None else stamp(start),
        "end": None if start is None else stamp(start + seconds),
        "seconds": round(seconds, 6),
        "ok": True,
        "measured": True,
        "attributes": {},
        "container": False,
        "source": "timer",
        "error": None,
        "trace_id": "0" * 31 + "1",
        "span_id": None,
        "parent_span_id": None,
    }
    return row | fields


def write_rows(path: Path, rows: Iterable[dict[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@dataclass
class RunWriter:
    """Builds the rows of a native run: ids, parents and depths follow from the nesting of `span` calls.

    As a recorder writes them: the run has a row of its own, and its stages have its span id but not its name as parent.
    """

    name: str = "digits"
    rows: list[dict[str, object]] = field(default_factory=list)

    def span(
        self, stage: str, start: float, seconds: float, inside: dict[str, object] | None = None, **fields: object
    ) -> dict[str, object]:
        above = None if inside is None or inside["stage"] == "run" else inside
        made = row(
            stage,
            start,
            seconds,
            run_id=self.name,
            span_id=f"{len(self.rows) + 1:016x}",
            parent_span_id=inside and inside["span_id"],
            parent=above and above["stage"],
            depth=int(str(above["depth"])) + 1 if above else 0,
            **fields,
        )
        self.rows.append(made)
        return made

    def run(self, seconds: float, **fields: object) -> dict[str, object]:
        return self.span("run", 0, seconds, container=True, **kind("run", name=self.name), **fields)

    def write(self, run_dir: Path, run: dict[str, object] | None = None) -> Path:
        """Write the directory, children before parents as a recorder does; returns it."""
        write_rows(run_dir / "timings.jsonl", sorted(self.rows, key=lambda row: str(row["end"])))
        if run is not None:
            (run_dir / "run.json").write_text(json.dumps({"trace_id": "0" * 32, "run": run}), encoding="utf-8")
        return run_dir


def kind(kind: str, **more: object) -> dict[str, object]:
    return {"attributes": {"kind": kind, **more}}


def loop_run(
    run_dir: Path,
    *,
    seed: int,
    calls: int = 4,
    slow: float = 1.0,
    noise: float = 0.05,
    run: dict[str, object] | None = None,
    model: str = "m",
) -> Path:
    """A diagnose loop of two stages with model calls under the second, `slow` times as long as usual."""
    random, made = Random(seed), RunWriter(run_dir.name)

    def took(mean: float) -> float:
        return mean * random.lognormvariate(0, noise)

    load, probe = took(0.4), took(2.0)
    lengths = [took(0.5 * slow) for _ in range(calls)]
    judge = sum(lengths) + took(0.3)
    top = made.run(load + probe + judge)
    made.span("load", 0, load, top, **kind("timing"), phase="setup")
    made.span("m1", load, probe, top, **kind("stage", name="M1"))
    second = made.span("m2", load + probe, judge, top, **kind("stage", name="M2"))
    at = load + probe + 0.1
    for length in lengths:
        made.span("model_call", at, length, second, **kind("model_call", model=model))
        at += length
    return made.write(run_dir, run)
