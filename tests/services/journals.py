"""Journals of any size, written by hand in a second."""

import hashlib
import random
from pathlib import Path

WRITER = "20260301T120000Z-4242-0a1b2c3d"
START_NS = 1_772_366_400_000_000_000


def write_journal(
    run_dir: Path, sizes: list[int], *, trace_of: int = 1_000, traces: int = 0, apart_ns: int = 1
) -> None:
    """Write a run of one span for each size: that many characters of text as its `spanfold.text`.

    Args:
        run_dir: The run directory, made here.
        sizes: Characters of text of each span.
        trace_of: How many spans follow each other in one trace.
        traces: The first half of all trace ids; another for each journal that one Jaeger gets.
        apart_ns: From the start of one span to that of the next.
    """
    noise = random.Random(1)  # text that does not compress, the same every time
    folder = run_dir / "journal"
    folder.mkdir(parents=True)
    head = hashlib.sha256(f"spanfold.journal/1 {WRITER}".encode()).hexdigest()
    with (folder / f"{WRITER}.otlp.jsonl").open("wb") as file:
        for number, size in enumerate(sizes, 1):
            text = f"{number} {noise.randbytes(size // 2 + 1).hex()}"[:size]
            line = (
                '{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"many"}}]},'
                '"scopeSpans":[{"scope":{"name":"spanfold","version":"0.1.0","attributes":['
                f'{{"key":"spanfold.journal.seq","value":{{"intValue":"{number}"}}}},'
                f'{{"key":"spanfold.journal.prev","value":{{"stringValue":"{head}"}}}}]}},"spans":[{{'
                f'"traceId":"{traces:016x}{number // trace_of + 1:016x}","spanId":"{number:016x}","name":"timed","kind":1,'
                f'"startTimeUnixNano":"{START_NS + number * apart_ns}","endTimeUnixNano":"{START_NS + number * apart_ns + 1_000}",'
                '"attributes":[{"key":"spanfold.kind","value":{"stringValue":"timing"}},'
                f'{{"key":"spanfold.number","value":{{"intValue":"{number}"}}}},'
                f'{{"key":"spanfold.text","value":{{"stringValue":"{text}"}}}}],"flags":1}}]}}]}}]}}\n'
            ).encode()
            head = hashlib.sha256(line).hexdigest()
            file.write(line)
