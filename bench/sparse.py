"""What one call costs a loop that makes it and then waits, as most loops do, beside the OpenTelemetry SDK in the same run.

Wall time of a block of a few lines, with a pause of 50 ms before each: an
ordinary loop never uses up the tenth of its time that documents may take
(docs/decisions/0005-freshness-has-a-budget.md), so an event, a score and the
end of a stage have their document on disk when they return. A model call or
an empty span waits for the background thread.

A round is one run for each row, rows interleaved; the median of a round's
blocks is taken, and of these the median over rounds. The SDK has a batch
processor and an exporter that encodes and discards.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import spanfold
from bench.overhead import ANSWER, PROMPT, Discard

PAUSE_S = 0.05


def _span() -> None:
    with spanfold.timed("work"):
        pass


def _span_with_call() -> None:
    with spanfold.timed("work"), spanfold.model_call("some-model", provider="openai", input=PROMPT) as call:
        call.output(ANSWER)


def _span_with_event() -> None:
    with spanfold.timed("work"):
        spanfold.event("chosen", option="b")


def _span_with_score() -> None:
    with spanfold.timed("work"):
        spanfold.score("accuracy", 0.93)


def _stage() -> None:
    with spanfold.stage("M2", cycle=0):
        pass


def _medians(rows: dict[str, Callable[[], None]], n: int) -> dict[str, float]:
    """Return the median of n blocks of each row, in microseconds; spanfold's stand in stage M1 of a run of their own."""
    found: dict[str, float] = {}
    for name, block in rows.items():
        took: list[float] = []
        with (
            tempfile.TemporaryDirectory() as scratch,
            spanfold.run("sparse", dir=Path(scratch) / "run"),
            spanfold.stage("M1", cycle=0),
        ):
            for _ in range(n):
                time.sleep(PAUSE_S)
                begun = time.perf_counter()
                block()
                took.append(time.perf_counter() - begun)
        found[name] = statistics.median(took) * 1e6
    return found


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Return the median of each row in microseconds."""
    n, rounds = (5, 3) if quick else (20, 9)
    spanfold.configure(otlp=False, langfuse=False, provider="own")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Discard()))
    tracer = provider.get_tracer("bench")

    def sdk_span() -> None:
        with tracer.start_as_current_span("work"):
            pass

    def sdk_span_with_event() -> None:
        with tracer.start_as_current_span("work") as span:
            span.add_event("chosen", {"option": "b"})

    rows = {
        "SDK: a span": sdk_span,
        "SDK: a span with an event": sdk_span_with_event,
        "timed": _span,
        "timed with a model call": _span_with_call,
        "timed with an event": _span_with_event,
        "timed with a score": _span_with_score,
        "stage": _stage,
    }
    # The first round warms caches.
    found = [_medians(rows, n) for _ in range(rounds + 1)][1:]
    provider.shutdown()
    return {
        "rounds": rounds,
        "blocks_per_round": n,
        "pause_s": PAUSE_S,
        "median_us": {name: statistics.median(medians[name] for medians in found) for name in rows},
    }


def render(result: dict[str, Any]) -> str:
    """Return the table."""
    size = f"medians of {result['rounds']} interleaved rounds of {result['blocks_per_round']} blocks"
    lines = [f"one block every {result['pause_s'] * 1000:.0f} ms, wall microseconds, {size}"]
    lines += [f"{name:28}{median:9.0f}" for name, median in result["median_us"].items()]
    return "\n".join([*lines, ""])
