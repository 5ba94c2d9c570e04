"""How many records a second the journal takes, beside the official OTLP JSON file exporter in the same run.

Events of about 3.7 KB. spanfold: encode, gate, chain, one line and one write
per record. Peer: the SDK's own spans, exported 512 at a time. Wall time,
interleaved rounds, medians.
"""

import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter

from bench.overhead import ANSWER, PROMPT
from spanfold.journal import EMPTY, Journal
from spanfold.redact import Gate, Redactor

PLACE: dict[str, Any] = {"spanfold.kind": "model_call", "spanfold.stage": "M1"}
ATTRIBUTES: dict[str, Any] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "some-model",
    "gen_ai.usage.input_tokens": 512,
    "gen_ai.usage.output_tokens": 128,
    "gen_ai.input.messages": PROMPT[:1_600],
    "gen_ai.output.messages": ANSWER[:860],
}


def _warm_gate() -> Gate:
    """Return a gate with the faster automaton, which a process gets after its first megabytes where it is installed."""
    redactor = Redactor()
    redactor.accelerate()
    return Gate(redactor, True)


def _spanfold(folder: Path, n: int, gate: Gate) -> tuple[float, int]:
    journal = Journal(folder, gate=gate, resource=lambda: {"service.name": "bench"})
    encoder = journal.encoder
    begun = time.perf_counter()
    place = encoder.place("chat some-model", 3, PLACE)
    for i in range(n):
        fragment = encoder.fragment(ATTRIBUTES)
        body = encoder.own_span(
            place,
            b"0af7651916cd43dd8448eb211c80319c",
            b"%016x" % (i + 1),
            b"b7ad6b7169203331",
            1_700_000_000_000_000_000 + i,
            1_700_000_000_100_000_000 + i,
            100_000_000,
            EMPTY,
            fragment,
            0,
            "",
            None,
        )
        journal.span(body, place.is_clean and fragment.is_clean)
    took = time.perf_counter() - begun
    size = journal.position.size
    journal.close()
    return took, size


def _peer(path: Path, n: int) -> float:
    provider = TracerProvider()
    tracer = provider.get_tracer("bench")
    spans: list[Any] = []
    for _ in range(512):
        span = tracer.start_span("chat some-model", attributes={**PLACE, **ATTRIBUTES})
        span.end()
        spans.append(span)
    exporter: SpanExporter = FileSpanExporter(str(path))
    begun = time.perf_counter()
    for _ in range(n // 512):
        exporter.export(spans)
    took = time.perf_counter() - begun
    exporter.shutdown()
    return took * n / (n // 512 * 512)


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Return events per second of both, and the ratio."""
    n, rounds = (5_120, 3) if quick else (20_480, 7)
    ours, peers, size = [], [], 0
    gate = _warm_gate()
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        for number in range(rounds + 1):
            took, size = _spanfold(base / f"j{number}", n, gate)
            peer = _peer(base / f"p{number}.jsonl", n)
            if number:
                ours.append(n / took)
                peers.append(n / peer)
            shutil.rmtree(base / f"j{number}")
            (base / f"p{number}.jsonl").unlink()
    return {
        "rounds": rounds,
        "events": n,
        "event_bytes": size // n,
        "spanfold_events_per_s": statistics.median(ours),
        "otlp_json_file_events_per_s": statistics.median(peers),
        "ratio": statistics.median(o / p for o, p in zip(ours, peers, strict=True)),
    }


def render(result: dict[str, Any]) -> str:
    """Return the table."""
    return (
        f"journal, {result['events']} events of {result['event_bytes']} bytes, medians of {result['rounds']} interleaved rounds\n"
        f"spanfold                    {result['spanfold_events_per_s']:10,.0f} events/s\n"
        f"official OTLP JSON file     {result['otlp_json_file_events_per_s']:10,.0f} events/s\n"
        f"ratio                       {result['ratio']:10.2f}\n"
    )
