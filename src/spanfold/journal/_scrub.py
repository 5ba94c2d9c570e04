"""The slow side of the gate: redact an encoded record string by string.

Runs only on records in which the gate's automaton saw something, or whose
keys name secrets. Works on the OTLP JSON tree, so it is the same for spans,
log records and the spans of other instrumentors, and a rule never sees
serialised JSON: nested JSON text is parsed, redacted as structure, and
written again.
"""

from collections.abc import Callable
from typing import Any, Protocol

import orjson

from spanfold import names
from spanfold.journal._decode import any_value
from spanfold.journal._values import dump, load

WITHHELD = "(REDACTED-engine-failure)"


class Gate(Protocol):
    """What the journal asks of the redaction gate (`spanfold.redact.Gate`)."""

    def is_clean(self, line: bytes) -> bool:
        """Whether no rule can match in this encoded record; False when in doubt."""
        ...

    def scrub_text(self, text: str) -> str:
        """Return `text` with every secret replaced; never raises."""
        ...

    def scrub_value(self, value: Any) -> Any:
        """Return a JSON tree with every secret replaced, in keys and leaves; never raises."""
        ...

    def is_sensitive_name(self, name: str) -> bool:
        """Whether a value under this name is secret whatever it looks like."""
        ...


def scrub_body(body: bytes, gate: Gate) -> bytes:
    """Return the OTLP JSON of one span or log record with every secret replaced."""
    record = orjson.loads(body)
    text = gate.scrub_text
    for key in ("name", "eventName", "traceState"):
        if key in record:
            record[key] = text(record[key])
    status = record.get("status")
    if status and status.get("message"):
        status["message"] = text(status["message"])
    _scrub_attributes(record, gate)
    for part in (*record.get("events", ()), *record.get("links", ())):
        if "name" in part:
            part["name"] = text(part["name"])
        _scrub_attributes(part, gate)
    return orjson.dumps(record)


def scrub_attributes(pairs: list[dict[str, Any]], gate: Gate) -> list[dict[str, Any]]:
    """Return an OTLP attribute list with every secret replaced."""
    holder = {"attributes": pairs}
    _scrub_attributes(holder, gate)
    return holder["attributes"]


def _scrub_attributes(part: dict[str, Any], gate: Gate) -> None:
    pairs: list[dict[str, Any]] = part.get("attributes") or []
    no_keys: list[Any] = []
    json_keys: list[Any] = next((any_value(p["value"]) for p in pairs if p["key"] == names.JSON_FIELDS), no_keys)
    renamed: dict[str, str] = {}
    for pair in pairs:
        key: str = pair["key"]
        value: dict[str, Any] = pair["value"]
        if key in (names.JSON_FIELDS, names.NOTES):
            continue
        if gate.is_sensitive_name(key):
            _scrub_sensitive(value, key in json_keys, gate)
        elif key in json_keys:
            value["stringValue"] = dump(gate.scrub_value(load(value["stringValue"])))
        else:
            _scrub_any(value, gate.scrub_text)
        clean = gate.scrub_text(key)
        if clean != key:
            renamed[key] = pair["key"] = clean
    if renamed:
        _rename_references(pairs, renamed)


def _scrub_sensitive(value: dict[str, Any], is_json: bool, gate: Gate) -> None:
    """Replace the value of a key that names a secret; booleans and null say nothing and stay."""
    tree = load(value["stringValue"]) if is_json else any_value(value)
    clean = gate.scrub_value({"secret": tree})["secret"]
    if is_json:
        value["stringValue"] = dump(clean)
    elif clean != tree:
        value.clear()
        value["stringValue"] = clean if isinstance(clean, str) else dump(clean)


def _scrub_any(value: dict[str, Any], text: Callable[[str], str]) -> None:
    if "stringValue" in value:
        value["stringValue"] = text(value["stringValue"])
    elif "arrayValue" in value:
        for item in value["arrayValue"].get("values", ()):
            _scrub_any(item, text)
    elif "kvlistValue" in value:
        for pair in value["kvlistValue"].get("values", ()):
            pair["key"] = text(pair["key"])
            _scrub_any(pair["value"], text)


def _rename_references(pairs: list[dict[str, Any]], renamed: dict[str, str]) -> None:
    """Make the lists that name attribute keys follow keys that were redacted themselves."""
    for pair in pairs:
        if pair["key"] == names.JSON_FIELDS:
            for item in pair["value"]["arrayValue"]["values"]:
                item["stringValue"] = renamed.get(item["stringValue"], item["stringValue"])
        elif pair["key"] == names.NOTES:
            notes = orjson.loads(pair["value"]["stringValue"])
            pair["value"]["stringValue"] = orjson.dumps({renamed.get(k, k): v for k, v in notes.items()}).decode()
