"""How fast records leave, and how long a peer that is dead holds a program up.

Needs the collector of `make services`, which gets everything over OTLP/HTTP and drops it.

- rate: a journal of model calls of about 3.7 KB, sent by `deliver_run`, which reads, decodes, encodes and sends; beside it
  the official BatchSpanProcessor and OTLP/HTTP exporter, which have the same spans in memory. Wall and CPU time of this
  process, interleaved rounds, medians.
- replay: a journal of 100,000 small spans, by `deliver_run` and by the collector's own reader of such files.
- exit: from the end of the work to the end of the process, 20 spans, for a peer that refuses and one that never answers.
"""

import json
import logging
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import spanfold
from bench.overhead import ANSWER, PROMPT
from spanfold.deliver import Destination, deliver_run, destinations
from spanfold.journal import read_journal
from spanfold.model import Span
from spanfold.settings import resolve
from tests.services.journals import write_journal
from tests.services.programs import Collector, until

DROP = "exporters:\n  debug:\nservice:\n  pipelines:\n    traces:\n      exporters: [debug]\n"
"""Instead of the exporters of a configuration: everything is taken and nothing kept."""


def _destination(collector: Collector) -> Destination:
    (found,) = destinations(resolve(), {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint})
    return found


def _forget(run_dir: Path) -> None:
    shutil.rmtree(run_dir / "journal" / ".deliver", ignore_errors=True)


def _timed(work: Callable[[], None]) -> tuple[float, float]:
    """Return wall and CPU seconds of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def _rate(folder: Path, collector: Collector, n: int, rounds: int) -> dict[str, Any]:
    spanfold.configure(otlp=False, langfuse=False)
    with spanfold.run("delivery", dir=folder / "run") as run:
        for _ in range(n):
            with spanfold.model_call("some-model", provider="openai", input=PROMPT) as call:
                call.output(ANSWER)
                call.usage(input_tokens=512, output_tokens=128)
    spanfold.shutdown()
    records = [record for record in read_journal(run.dir).records if isinstance(record, Span)]
    tracer = TracerProvider().get_tracer("bench")
    spans: list[Any] = []
    for record in records:
        span = tracer.start_span(record.name, attributes=dict(record.attributes))
        span.end()
        spans.append(span)
    to = _destination(collector)

    def ours() -> None:
        _forget(run.dir)
        result = deliver_run(run.dir, to, timeout_s=300)
        assert (result.sent, result.waiting) == (len(records), 0), result

    def official() -> None:
        processor = BatchSpanProcessor(OTLPSpanExporter(f"{collector.endpoint}/v1/traces"), max_queue_size=len(spans))
        for span in spans:
            processor.on_end(span)
        processor.force_flush()
        processor.shutdown()

    found: dict[str, list[tuple[float, float]]] = {"ours": [], "official": []}
    for number in range(rounds + 1):
        one, two = _timed(ours), _timed(official)
        if number:
            found["ours"].append(one)
            found["official"].append(two)
    size = sum(path.stat().st_size for path in (run.dir / "journal").glob("*.otlp.jsonl"))
    return {
        "spans": len(records),
        "span_bytes": size // len(records),
        "rounds": rounds,
        **{f"{who}_spans_per_s": len(records) / statistics.median(w for w, _ in took) for who, took in found.items()},
        **{f"{who}_cpu_us": statistics.median(c for _, c in took) / len(records) * 1e6 for who, took in found.items()},
    }


_REPLAY = """
import json, re, sys, time
from pathlib import Path
from spanfold.deliver import deliver_run, destinations
from spanfold.settings import resolve
(to,) = destinations(resolve(), {"OTEL_EXPORTER_OTLP_ENDPOINT": sys.argv[2]})
def peak_kb():
    return int(re.search("VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before, wall, cpu = peak_kb(), time.perf_counter(), time.process_time()
result = deliver_run(Path(sys.argv[1]), to, timeout_s=600)
print(json.dumps({
    "sent": result.sent, "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu,
    "grown_mb": (peak_kb() - before) / 1024,
}))
"""


def _replay(folder: Path, collector: Collector, n: int) -> dict[str, Any]:
    write_journal(folder / "many", [200] * n)
    done = subprocess.run(
        [sys.executable, "-c", _REPLAY, str(folder / "many"), collector.endpoint],
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)
    assert found["sent"] == n, found
    before = collector.metric("otelcol_receiver_accepted_spans")
    reader = Collector(
        folder / "reader",
        "replay.yaml",
        environ={
            "REPLAY_FILES": f"{folder}/many/journal/*.otlp.jsonl",
            "REPLAY_OTLP": f"127.0.0.1:{collector.grpc_port}",
        },
    )
    begun = time.perf_counter()
    with reader:
        until(lambda: collector.metric("otelcol_receiver_accepted_spans") - before >= n, "all was read", 300)
    return {"spans": n, **found, "collector_wall_s": time.perf_counter() - begun}


_OURS = """
import time, spanfold
with spanfold.run("exit", dir="run"):
    for i in range(19):
        with spanfold.stage("M1", cycle=i):
            pass
print(time.time())
"""
_OFFICIAL = """
import time
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
for i in range(20):
    provider.get_tracer("exit").start_span("M1").end()
print(time.time())
"""


def _exit(folder: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    with socket.socket() as silent, socket.socket() as refusing:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        refusing.bind(("127.0.0.1", 0))  # and nobody listens
        for peer, sock in {"refuses": refusing, "never answers": silent}.items():
            for who, program in {"ours": _OURS, "official": _OFFICIAL}.items():
                place = folder / f"{who} {peer}"
                place.mkdir()
                done = subprocess.run(
                    [sys.executable, "-c", program],
                    cwd=place,
                    env={"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{sock.getsockname()[1]}"},
                    check=True,
                    capture_output=True,
                    text=True,
                )
                found[f"{who}, peer {peer}"] = time.time() - float(done.stdout)
    return found


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Return rates, costs and waits."""
    n, rounds = (2_048, 3) if quick else (10_240, 5)
    logging.getLogger("spanfold").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with Collector(folder / "collector", "local.yaml", replace=DROP) as collector:
            return {
                "rate": _rate(folder, collector, n, rounds),
                "replay": _replay(folder, collector, 10_000 if quick else 100_000),
                "exit_s": _exit(folder),
            }


def render(result: dict[str, Any]) -> str:
    """Return the tables."""
    rate, replay = result["rate"], result["replay"]
    return "\n".join(
        [
            f"delivery, {rate['spans']:,} spans of {rate['span_bytes']:,} bytes, {rate['rounds']} interleaved rounds",
            f"{'':24}{'spans/s':>10}{'CPU µs/span':>13}",
            f"{'spanfold, from journal':24}{rate['ours_spans_per_s']:10,.0f}{rate['ours_cpu_us']:13.1f}",
            f"{'official, from memory':24}{rate['official_spans_per_s']:10,.0f}{rate['official_cpu_us']:13.1f}",
            "",
            f"replay of a journal of {replay['spans']:,} spans",
            f"{'spanfold':24}{replay['wall_s']:8.1f} s{replay['cpu_s']:8.1f} s CPU{replay['grown_mb']:8.0f} MB more memory",
            f"{'replay.yaml':24}{replay['collector_wall_s']:8.1f} s",
            "",
            "seconds from the end of the work to the end of the process, nothing delivered",
            *(f"{case:36}{took:6.1f}" for case, took in result["exit_s"].items()),
            "",
        ]
    )
