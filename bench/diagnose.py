"""The diagnose-loop logger beside the one it stands in for: the same model calls, in the same run (DL-126, DL-127).

A call has a prompt of 2 KB and an answer of 1 KB. Each logger runs in a process
of its own; *caller* is the time inside of the calls, *all* is until everything
is in its documents and closed. The other logger's time grows with the square of
the number of calls, so it is measured up to a size and its square is told.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMPARED = 3_000
QUICK = 600
SIZES = (1_000, 5_000, 20_000)
PROMPT, ANSWER = "word and text " * 146, "an answer it is " * 64


def _child(logger: str, folder: str, n: int) -> None:
    if logger == "seed":
        from evalrx.eval_agent.run_logger_v2 import RunLoggerV2 as Logger
    else:
        from spanfold.diagnose import RunLogger as Logger  # type: ignore[assignment]
    log = Logger(Path(folder) / "run", observability_mode="offline")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu, begun = time.process_time(), time.perf_counter()
    took: list[float] = []
    for number in range(n):
        start = time.perf_counter()
        log.log_model_call(
            cycle=0,
            analyzer=f"analyzer_{number % 8}",
            call_index=number // 8 + 1,
            method="generate",
            inputs=f"{PROMPT}{number}",
            kwargs={"temperature": "0"},
            output=ANSWER,
            duration_sec=0.5,
            error=None,
            case_id=f"case-{number}",
        )
        took.append(time.perf_counter() - start)
    caller = time.perf_counter() - begun
    log.close()
    tenth = max(1, n // 10)
    print(
        json.dumps(
            {
                "calls": n,
                "caller_s": caller,
                "all_s": time.perf_counter() - begun,
                "cpu_s": time.process_time() - cpu,
                "first_tenth_s": sum(took[:tenth]),
                "last_tenth_s": sum(took[-tenth:]),
                "median_us": sorted(took)[n // 2] * 1e6,
                "grown_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before,
            }
        )
    )


def measured(logger: str, n: int) -> dict[str, Any]:
    """Return what so many calls took one logger, in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "bench.diagnose", logger, scratch, str(n)]
        environment = {"SPANFOLD_STATE_DIR": f"{scratch}/state"}
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Return what each logger took, the ratio, and how ours grows."""
    n = QUICK if quick else COMPARED
    ours, seed = measured("ours", n), measured("seed", n)
    sizes = SIZES[:2] if quick else SIZES
    return {
        "ours": ours,
        "seed": seed,
        "times_faster": seed["all_s"] / ours["all_s"],
        "times_less_cpu": seed["cpu_s"] / ours["cpu_s"],
        "growth": [measured("ours", size) for size in sizes],
    }


def render(result: dict[str, Any]) -> str:
    """Return the table."""
    lines = [
        "diagnose-loop logger, model calls of 2 KB with answers of 1 KB",
        f"{'':>8}{'calls':>8}{'caller s':>10}{'all s':>9}{'CPU s':>9}{'median us':>11}{'last/first tenth':>18}{'grown MB':>10}",
    ]
    for name, row in (("seed", result["seed"]), ("ours", result["ours"]), *(("", row) for row in result["growth"])):
        lines.append(
            f"{name:>8}{row['calls']:8,}{row['caller_s']:10.2f}{row['all_s']:9.2f}{row['cpu_s']:9.2f}"
            f"{row['median_us']:11.0f}{row['last_tenth_s'] / row['first_tenth_s']:18.2f}{row['grown_kb'] / 1024:10.1f}"
        )
    lines.append(f"{result['times_faster']:.0f} times faster, {result['times_less_cpu']:.0f} times less processor time")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run one logger in this process; called by `measure`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("logger", choices=("ours", "seed"))
    parser.add_argument("folder")
    parser.add_argument("calls", type=int)
    given = parser.parse_args()
    _child(given.logger, given.folder, given.calls)


if __name__ == "__main__":
    main()
