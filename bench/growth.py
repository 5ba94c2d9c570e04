"""How time and memory grow with the length of a run: of the journal alone, and with documents folded meanwhile.

A run of n model calls in stages of 100, for n from 1,000 up. The exponent is
the slope of log(CPU time) over log(n), least squares; 1 is linear. Memory is
the growth of the peak resident size per event between the smallest and the
largest run, each measured in a process of its own.

The sizes up to 30,000 are measured three times, between the larger ones, and
their medians are taken: a machine whose speed changes in the course of
minutes bends the slope otherwise. The faster automaton for secrets, which a
process builds after its first megabytes, is built at the start of each, so
that its size stands in all rows.
"""

import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
REPEATED = 30_000
"""Up to this size a run is measured three times."""
QUICK = (1_000, 3_000, 10_000)
TEXT = "word and text " * 18


def _child(folder: str, n: int, what: str) -> None:
    import spanfold
    from spanfold.instrument import state

    spanfold.configure(otlp=False, langfuse=False)
    with tempfile.TemporaryDirectory() as scratch, spanfold.run("warm", dir=Path(scratch) / "run"):
        redactor: Any = cast("Any", state.gate)._redactor
        redactor.accelerate()
    if what == "journal":
        state.connector = None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun, wall = time.process_time(), time.perf_counter()
    with spanfold.run("growth", dir=folder):
        for first in range(0, n, 100):
            with spanfold.stage("M1", cycle=first // 1_000):
                for _ in range(min(100, n - first)):
                    with spanfold.model_call("some-model", provider="openai", input=TEXT) as call:
                        call.output(TEXT)
    print(
        json.dumps(
            {
                "events": n,
                "cpu_s": time.process_time() - begun,
                "wall_s": time.perf_counter() - wall,
                "grown_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before,
                "peak_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                "run_bytes": sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file()),
            }
        )
    )


def _row(n: int, what: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [sys.executable, "-m", "bench.growth", str(Path(scratch) / "run"), str(n), what],
            check=True,
            capture_output=True,
            text=True,
        )
    return json.loads(done.stdout)  # type: ignore[no-any-return]  # as _child printed it


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Return time and memory per size, the exponent, and memory growth per event, of both."""
    return {what: _measured(what, quick=quick) for what in ("journal", "documents")}


def _measured(what: str, *, quick: bool) -> dict[str, Any]:
    sizes = QUICK if quick else SIZES
    small, large = [n for n in sizes if n <= REPEATED], [n for n in sizes if n > REPEATED]
    found: dict[int, list[dict[str, Any]]] = {n: [] for n in sizes}
    for number in range(3):
        for n in [*small, *large[number : number + 1]]:
            found[n].append(_row(n, what))
    rows = [{name: statistics.median(row[name] for row in found[n]) for name in found[n][0]} for n in sizes]
    xs, ys = [math.log(r["events"]) for r in rows[1:]], [math.log(r["cpu_s"]) for r in rows[1:]]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mean_x) ** 2 for x in xs)
    first, last = rows[0], rows[-1]
    return {
        "rows": rows,
        "exponent": slope,
        "memory_kb_per_event": (last["peak_kb"] - first["peak_kb"]) / (last["events"] - first["events"]),
    }


def render(result: dict[str, Any]) -> str:
    """Return the tables."""
    return "\n".join(_table(what, found) for what, found in result.items())


def _table(what: str, result: dict[str, Any]) -> str:
    lines = [
        f"growth, model calls of 0.5 KB, {'the journal alone' if what == 'journal' else 'with documents'}",
        f"{'events':>9}{'CPU s':>9}{'µs/event':>10}{'peak MB':>9}{'run MB':>9}",
    ]
    lines += [
        f"{r['events']:9,}{r['cpu_s']:9.2f}{r['cpu_s'] / r['events'] * 1e6:10.1f}{r['peak_kb'] / 1024:9.0f}{r['run_bytes'] / 1e6:9.1f}"
        for r in result["rows"]
    ]
    lines.append(f"exponent {result['exponent']:.3f}, memory {result['memory_kb_per_event']:.3f} KB per event\n")
    return "\n".join(lines)


if __name__ == "__main__":
    _child(sys.argv[1], int(sys.argv[2]), sys.argv[3])
