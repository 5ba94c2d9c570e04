"""What a traced call costs, beside the OpenTelemetry SDK in the same run.

Workload: stage > agent > model call, nine to thirteen attributes each, a 2 KB
prompt and a 1 KB completion, the same facts in all rows. `caller` is CPU time of the calling thread, `all` that of the
whole process until everything is flushed, both per span, in microseconds.

Rows: the bare SDK (batch processor, an exporter that encodes to protobuf and
discards), the SDK with the official OTLP JSON file exporter, spanfold with
journal, hash chain, started events and redaction, the same without the C core
(in a process of its own, since a process has one core), and with documents
folded while the program runs. Rounds of all rows are interleaved, medians are
reported, ratios are to the bare SDK. One more row says what a decorated
function costs where nothing is recorded.
"""

import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import spanfold
from spanfold.instrument import IS_NATIVE, state

PROMPT = "Review this change and say what could go wrong with it, in one line. " * 30
ANSWER = "The second branch never runs, because the first one returns. " * 17
SPANS_PER_LOOP = 3


class Discard(SpanExporter):
    """Encodes as an exporter must, and sends nothing."""

    def export(self, spans: Any) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


def spanfold_loop(n: int) -> None:
    """Record the workload with spanfold."""
    for i in range(n):
        with (
            spanfold.stage(
                "M1", cycle=i % 3, severity="high", ratio=1.5, n_cases=128, signal="margin", seed=7, dataset="digits"
            ),
            spanfold.agent("reviewer", model="m", task="review", attempt=1, budget_tokens=4096),
            spanfold.model_call("some-model", provider="openai", input=PROMPT, temperature=0.5, max_tokens=512) as call,
        ):
            call.output(ANSWER)
            call.usage(input_tokens=512, output_tokens=128)
            call.served_model("some-model-2026-10")


def sdk_loop(tracer: Any, n: int) -> None:
    """Record the same facts with the OpenTelemetry SDK."""
    for i in range(n):
        where = {"stage": "M1", "cycle": i % 3}
        stage = {
            **where,
            "kind": "stage",
            "severity": "high",
            "ratio": 1.5,
            "n_cases": 128,
            "signal": "margin",
            "seed": 7,
            "dataset": "digits",
        }
        agent = {
            **where,
            "kind": "agent",
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "reviewer",
            "gen_ai.request.model": "m",
            "task": "review",
            "attempt": 1,
            "budget_tokens": 4096,
        }
        call = {
            **where,
            "kind": "model_call",
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "some-model",
            "gen_ai.provider.name": "openai",
            "gen_ai.input.messages": PROMPT,
            "temperature": 0.5,
            "max_tokens": 512,
        }
        with (
            tracer.start_as_current_span("M1", attributes=stage),
            tracer.start_as_current_span("invoke_agent reviewer", attributes=agent),
            tracer.start_as_current_span("chat some-model", attributes=call) as span,
        ):
            span.set_attribute("gen_ai.output.messages", ANSWER)
            span.set_attribute("gen_ai.usage.input_tokens", 512)
            span.set_attribute("gen_ai.usage.output_tokens", 128)
            span.set_attribute("gen_ai.response.model", "some-model-2026-10")


class Cost(NamedTuple):
    """Microseconds of CPU per span."""

    caller: float
    all: float


def _timed(work: Callable[[], None], flush: Callable[[], Any], spans: int) -> Cost:
    gc.collect()
    process, thread = time.process_time(), time.thread_time()
    work()
    caller = time.thread_time() - thread
    flush()
    return Cost(caller / spans * 1e6, (time.process_time() - process) / spans * 1e6)


def _sdk_round(exporter: SpanExporter, n: int) -> Cost:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=4 * n))
    tracer = provider.get_tracer("bench")
    cost = _timed(lambda: sdk_loop(tracer, n), provider.force_flush, n * SPANS_PER_LOOP)
    provider.shutdown()
    return cost


def _spanfold_round(folder: Path, n: int, *, documents: bool) -> Cost:
    connector = state.connector
    state.connector = connector if documents else None
    try:
        with spanfold.run("bench", dir=folder):
            return _timed(lambda: spanfold_loop(n), spanfold.flush, n * SPANS_PER_LOOP)
    finally:
        state.connector = connector


def _python_round(folder: Path, n: int) -> Cost:
    """Return what it costs without the C core, once the caches are warm."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.overhead", str(folder), str(n)],
        env={**os.environ, "SPANFOLD_NATIVE": "0"},
        check=True,
        capture_output=True,
        text=True,
    )
    return Cost(*json.loads(done.stdout))


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Return medians per row and their ratios to the bare SDK."""
    n, rounds = (300, 3) if quick else (700, 9)
    names = ("sdk", "sdk_json_file", "spanfold", "spanfold_without_core", "spanfold_with_documents")
    rows: dict[str, list[Cost]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        for number in range(rounds + 1):
            costs = {
                "sdk": _sdk_round(Discard(), n),
                "spanfold": _spanfold_round(base / "journal", n, documents=False),
                "spanfold_without_core": _python_round(base / "python", n),
                "sdk_json_file": _sdk_round(FileSpanExporter(str(base / "spans.jsonl")), n),
                "spanfold_with_documents": _spanfold_round(base / "documents", n, documents=True),
            }
            if number:  # the first round warms caches
                for name, cost in costs.items():
                    rows[name].append(cost)
            for leftover in base.iterdir():
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    medians = {name: Cost(*(statistics.median(v) for v in zip(*costs, strict=True))) for name, costs in rows.items()}
    return {
        "rounds": rounds,
        "spans_per_round": n * SPANS_PER_LOOP,
        "core": "C" if IS_NATIVE else "Python",
        "rows": {
            name: {
                "caller_us": cost.caller,
                "all_us": cost.all,
                "caller_ratio": statistics.median(
                    c.caller / s.caller for c, s in zip(rows[name], rows["sdk"], strict=True)
                ),
                "all_ratio": statistics.median(c.all / s.all for c, s in zip(rows[name], rows["sdk"], strict=True)),
            }
            for name, cost in medians.items()
        },
        "outside_a_run_us": _outside_us(),
    }


def _outside_us() -> float:
    def plain(x: int) -> int:
        return x

    decorated = spanfold.traced(plain)
    number = 100_000
    with_us = min(timeit.repeat(lambda: decorated(1), number=number, repeat=5))
    without_us = min(timeit.repeat(lambda: plain(1), number=number, repeat=5))
    return (with_us - without_us) / number * 1e6


def render(result: dict[str, Any]) -> str:
    """Return the table."""
    lines = [
        f"overhead per span, CPU microseconds, medians of {result['rounds']} interleaved rounds of {result['spans_per_round']} spans, core: {result['core']}",
        f"{'':28}{'caller':>9}{'all':>9}{'caller/SDK':>12}{'all/SDK':>9}",
    ]
    for name, row in result["rows"].items():
        lines.append(
            f"{name:28}{row['caller_us']:9.1f}{row['all_us']:9.1f}{row['caller_ratio']:12.2f}{row['all_ratio']:9.2f}"
        )
    lines.append(f"a decorated function outside a run: {result['outside_a_run_us']:.2f} µs more than undecorated\n")
    return "\n".join(lines)


if __name__ == "__main__":
    for _warm in range(5):  # the faster automaton is built during one of the first
        cost = _spanfold_round(Path(sys.argv[1]) / str(_warm), int(sys.argv[2]), documents=False)
    print(json.dumps(cost))
