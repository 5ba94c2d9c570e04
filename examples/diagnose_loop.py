"""A diagnose loop that was written for another logger: only the line that imports the logger was changed.

python examples/diagnose_loop.py
"""

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

# It was: from evalrx.eval_agent.run_logger_v2 import RunLoggerV2
from spanfold.diagnose import RunLogger as RunLoggerV2

CASES = [{"id": f"case-{n}", "prompt": f"{n} * {n}", "expected": str(n * n)} for n in range(8, 14)]


def model(prompt: str) -> str:
    """Stand for any model: this one forgets to carry."""
    left, right = map(int, prompt.split(" * "))
    return str(left * right if left < 10 else left * right % 100)


@dataclass
class Found:
    findings: dict[str, Any]
    artifacts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Report:
    severity: str
    findings: list[str]
    narrative: str
    conclusion: str


def main() -> None:
    with RunLoggerV2("runs/diagnose", narrate=True) as log:
        log.log_run_start({"loop": "squares", "model": "calculator", "n_cases": len(CASES)})
        log.log_cases(CASES, split="explore")
        begun, rows = perf_counter(), []
        for number, case in enumerate(CASES, start=1):
            start, answer = perf_counter(), model(case["prompt"])
            log.log_model_call(
                cycle=0, analyzer="exact", call_index=number, method="generate", inputs=case["prompt"], kwargs={},
                output=answer, duration_sec=perf_counter() - start, error=None, case_id=case["id"],
            )  # fmt: skip
            rows.append({"sample_id": case["id"], "right": answer == case["expected"]})
        wrong = [row["sample_id"] for row in rows if not row["right"]]
        log.log_probe(0, {"exact": Found({"per_case": rows})}, cases=CASES, duration_sec=perf_counter() - begun)
        told = Report("high", [f"{len(wrong)} wrong"], "Only two digits come back.", "It drops the third digit.")
        log.log_analysis(0, told, duration_sec=0.01)
        log.log_stage_skipped("M5", "no_accepted_hypothesis")
    print(f"recorded in {log.run_dir}, {sum(log.losses.values())} losses")


if __name__ == "__main__":
    main()
