"""What a journal and what a destination say of the same spans, both read with nothing but json, in one form."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

INTERNAL = {
    "spanfold.span.started",
    "spanfold.journal.sealed",
    "spanfold.journal.lost",
    "spanfold.run.recovered",
}
"""Events about the journal itself, which no destination is sent."""


def value(found: Mapping[str, Any]) -> Any:
    """Return an OTLP value with its kind, so that 1, 1.0, "1" and true differ."""
    if not found:
        return None
    ((kind, held),) = found.items()
    if kind == "arrayValue":
        return [value(v) for v in held.get("values", [])]
    if kind == "kvlistValue":
        return attributes(held.get("values", []))
    if kind == "intValue":
        return ("int", int(held))
    if kind == "doubleValue":
        return ("double", repr(float(held)))
    return (kind.removesuffix("Value"), held)


def attributes(pairs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found = {p["key"]: value(p.get("value", {})) for p in pairs}
    assert len(found) == len(list(pairs)), "a key stands twice"
    return found


def span(found: Mapping[str, Any], group: Mapping[str, Any], scoped: Mapping[str, Any]) -> dict[str, Any]:
    status = found.get("status", {})
    return {
        "trace": found["traceId"],
        "id": found["spanId"],
        "parent": found.get("parentSpanId", ""),
        "name": found["name"],
        "kind": found.get("kind", 0),
        "start": int(found["startTimeUnixNano"]),
        "end": int(found["endTimeUnixNano"]),
        "status": (status.get("code", 0), status.get("message", "")),
        # Jaeger adds what it thinks of a span that it was asked for before its parent was there.
        "attributes": attributes([p for p in found.get("attributes", []) if not p["key"].startswith("@jaeger@")]),
        "events": sorted(
            ([int(e["timeUnixNano"]), e["name"], attributes(e.get("attributes", []))] for e in found.get("events", [])),
            key=repr,
        ),
        "links": [[k["traceId"], k["spanId"], attributes(k.get("attributes", []))] for k in found.get("links", [])],
        "resource": attributes(group.get("resource", {}).get("attributes", [])),
        "scope": (scoped["scope"]["name"], scoped["scope"].get("version", "")),
    }


def spans(resource_spans: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the spans of an export request, or of an answer in that form."""
    return [
        span(found, group, scoped)
        for group in resource_spans
        for scoped in group["scopeSpans"]
        for found in scoped["spans"]
    ]


def exported(path: Path) -> list[dict[str, Any]]:
    """Return the spans in a file of the collector's file exporter."""
    if not path.exists():
        return []
    return [s for line in path.read_bytes().splitlines() for s in spans(json.loads(line)["resourceSpans"])]


def journaled(run_dir: Path) -> dict[str, dict[str, Any]]:
    """Return the spans of a run by id, each with the events that the journal holds of it."""
    found: dict[str, dict[str, Any]] = {}
    events: dict[str, list[Any]] = {}
    for path in sorted((run_dir / "journal").glob("*.otlp.jsonl")):
        for line in path.read_bytes().splitlines():
            request = json.loads(line)
            for one in spans(request.get("resourceSpans", [])):
                assert found.setdefault(one["id"], one) is one
            for group in request.get("resourceLogs", []):
                for record in group["scopeLogs"][0]["logRecords"]:
                    if record["eventName"] not in INTERNAL and "spanId" in record:
                        # What an event only repeats of its span is left out of it.
                        own = {
                            k: v
                            for k, v in attributes(record["attributes"]).items()
                            if k not in ("spanfold.stage", "spanfold.cycle")
                        }
                        events.setdefault(record["spanId"], []).append(
                            [int(record["timeUnixNano"]), record["eventName"], own]
                        )
    for span_id, own in events.items():
        if span_id in found:
            found[span_id]["events"] = sorted(found[span_id]["events"] + own, key=repr)
    return found
