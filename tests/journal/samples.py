"""Journals written byte by byte, apart from the code under test, so that a bug cannot hide on both sides."""

import hashlib
import json
from pathlib import Path
from typing import Any

TRACE = "0af7651916cd43dd8448eb211c80319c"
SCHEMA = "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"
OWNER = "20260301T120000Z-4242-0a1b2c3d"
CHILD = "20260301T120001Z-4243-4e5f6071"
START = 1_772_366_400_000_000_000
SECOND = 1_000_000_000


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def attribute(key: str, value: Any) -> dict[str, Any]:
    kinds: dict[type, str] = {str: "stringValue", bool: "boolValue", float: "doubleValue"}
    if type(value) is int:
        return {"key": key, "value": {"intValue": str(value)}}
    if type(value) is list:
        return {"key": key, "value": {"arrayValue": {"values": [attribute("", v)["value"] for v in value]}}}
    return {"key": key, "value": {kinds[type(value)]: value}}


def span(
    span_id: str,
    parent: str = "",
    *,
    name: str = "work",
    start: int = START,
    end: int = START + SECOND,
    trace_id: str = TRACE,
    kind: int = 1,
    error: str = "",
    **attributes: Any,
) -> dict[str, Any]:
    """Return one span as the recorder writes it; `__` in an attribute's name stands for a dot."""
    return {
        "traceId": trace_id,
        "spanId": span_id,
        **({"parentSpanId": parent} if parent else {}),
        "flags": 1,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
        "attributes": [attribute(k.replace("__", "."), v) for k, v in attributes.items()],
        **({"status": {"code": 2, "message": error}} if error else {}),
    }


def event(
    name: str, span_id: str = "", *, time: int = START, trace_id: str = TRACE, severity: int = 9, **attributes: Any
) -> dict[str, Any]:
    """Return one log record as the recorder writes it; `__` in an attribute's name stands for a dot."""
    return {
        "timeUnixNano": str(time),
        "observedTimeUnixNano": str(time),
        "severityNumber": severity,
        "eventName": name,
        "attributes": [attribute(k.replace("__", "."), v) for k, v in attributes.items()],
        "flags": 1,
        "traceId": trace_id,
        "spanId": span_id,
    }


def started(
    span_id: str, parent: str = "", *, kind: str, name: str, time: int = START, **attributes: Any
) -> dict[str, Any]:
    """Return the event that announces a span."""
    found: dict[str, Any] = {"spanfold__span_name": name, "spanfold__kind": kind}
    if parent:
        found["spanfold__parent_span_id"] = parent
    return event("spanfold.span.started", span_id, time=time, **found, **attributes)


def line(record: dict[str, Any], seq: int = 0, prev: str = "", *, resource: dict[str, Any] | None = None) -> bytes:
    """Return one journal line; without a sequence number it is what another OTLP writer would write."""
    chain = [attribute("spanfold.journal.seq", seq), attribute("spanfold.journal.prev", prev)] if seq else []
    scope = {"name": "spanfold", "version": "0.1.0", "attributes": chain}
    attributes = [attribute(k, v) for k, v in (resource or {"service.name": "sample", "process.pid": 4242}).items()]
    outer, scoped, items = (
        ("resourceSpans", "scopeSpans", "spans") if "name" in record else ("resourceLogs", "scopeLogs", "logRecords")
    )
    inner = {"scope": scope, items: [record], **({"schemaUrl": SCHEMA} if "name" in record else {})}
    return compact({outer: [{"resource": {"attributes": attributes}, scoped: [inner]}]}).encode() + b"\n"


class File:
    """The file of one writer, chained."""

    def __init__(self, folder: Path, writer: str = OWNER, **resource: Any) -> None:
        self.path = folder / f"{writer}.otlp.jsonl"
        self.seq = 0
        self.head = hashlib.sha256(f"spanfold.journal/1 {writer}".encode()).hexdigest()
        self.size = 0
        self.resource = resource or None
        folder.mkdir(parents=True, exist_ok=True)
        self.path.touch()

    def add(self, *records: dict[str, Any]) -> None:
        with self.path.open("ab") as file:
            for record in records:
                self.seq += 1
                data = line(record, self.seq, self.head, resource=self.resource)
                file.write(data)
                self.head = hashlib.sha256(data).hexdigest()
                self.size += len(data)

    def position(self) -> dict[str, Any]:
        return {"head": self.head, "seq": self.seq, "size": self.size}

    def end_run(
        self, span_id: str, *others: "File", name: str = "sample", time: int = START + 9 * SECOND, **attributes: Any
    ) -> None:
        """Write the root span, with the head over all files, and the seal."""
        files = [self, *others]
        text = "".join(f"{f.path.name} {f.seq} {f.head}\n" for f in sorted(files, key=lambda f: f.path.name))
        self.add(
            span(
                span_id,
                name=name,
                end=time,
                spanfold__kind="run",
                spanfold__run__id=name,
                **attributes,
                spanfold__seal__head=hashlib.sha256(text.encode()).hexdigest(),
                spanfold__seal__seq=sum(f.seq for f in files),
            )
        )
        self.seal(*others, time=time)

    def seal(self, *others: "File", time: int = START + 9 * SECOND) -> None:
        heads = {f.path.name: f.position() for f in sorted([self, *others], key=lambda f: f.path.name)}
        self.add(
            event(
                "spanfold.journal.sealed",
                time=time,
                trace_id="",
                severity=13,
                spanfold__heads=compact(heads),
                spanfold__json_fields=["spanfold.heads"],
            )
        )


def small_run(run_dir: Path) -> list[File]:
    """Write a run of one stage in which a child process wrote a file of its own, sealed."""
    owner = File(run_dir / "journal")
    owner.add(
        started("00000000000000a1", kind="run", name="sample", python_version="3.11.4"),
        started(
            "00000000000000a2", "00000000000000a1", kind="stage", name="M2", spanfold__stage="M2", spanfold__cycle=0
        ),
        span("00000000000000a3", "00000000000000a2", name="load", spanfold__kind="timing", spanfold__stage="M2"),
        event("note", "00000000000000a2", time=START + SECOND, spanfold__stage="M2", spanfold__text="größe \u2028 \n"),
    )
    child = File(run_dir / "journal", CHILD)
    child.add(
        span("00000000000000b1", "00000000000000a2", name="part", spanfold__kind="timing"),
        span("00000000000000b2", "00000000000000a2", name="part", end=START + 2 * SECOND, spanfold__kind="timing"),
    )
    owner.add(
        span(
            "00000000000000a2",
            "00000000000000a1",
            name="M2",
            end=START + 3 * SECOND,
            spanfold__kind="stage",
            spanfold__stage="M2",
        )
    )
    owner.end_run("00000000000000a1", child)
    return [owner, child]
