"""The slow side of the gate: redact an encoded record string by string.

Runs only on records in which the gate's automaton saw something, or whose
keys name secrets. Works on the OTLP JSON tree, so it is the same for spans,
log records and the spans of other instrumentors, and a rule never sees
serialised JSON: nested JSON text is parsed, redacted as structure, and
written again.
"""

import base64
import binascii
import re
from typing import Any, Final, Protocol, cast

import orjson

from spanfold import names
from spanfold.journal._decode import any_value
from spanfold.journal._values import dump, load
from spanfold.redact import free_key

WITHHELD = "(REDACTED-engine-failure)"

_OURS: Final = frozenset(
    value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)
) | frozenset(("service.name", "service.instance.id", "process.pid", *names.USAGE_KEYS.values()))
"""Keys, event and scope names that this program wrote itself: withholding them would hide nothing and break the record."""
_OWN_VALUES: Final = frozenset(
    {
        *(names.KIND, names.OUTCOME, names.CONTENT, names.INPUT_FORM, names.OUTPUT_FORM),
        *(names.SPAN_PARENT, names.RECORDED_PARENT, names.SEAL_HEAD, "service.instance.id"),
    }
)
"""Keys whose values are ours too, as long as they look like it."""
_OWN_VALUE: Final = re.compile(r"[a-z_]{1,16}|[0-9a-f]{16}|[0-9a-f]{64}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


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
    for key in ("name", "eventName", "traceState"):
        if key in record:
            record[key] = scrub_name(record[key], gate)
    status = record.get("status")
    if status and status.get("message"):
        status["message"] = gate.scrub_text(status["message"])
    _scrub_attributes(record, gate)
    for part in (*record.get("events", ()), *record.get("links", ())):
        if "name" in part:
            part["name"] = scrub_name(part["name"], gate)
        _scrub_attributes(part, gate)
    return orjson.dumps(record)


def scrub_attributes(pairs: list[dict[str, Any]], gate: Gate) -> list[dict[str, Any]]:
    """Return an OTLP attribute list with every secret replaced."""
    holder = {"attributes": pairs}
    _scrub_attributes(holder, gate)
    return holder["attributes"]


def scrub_name(name: str, gate: Gate) -> str:
    """Return the name of a span, event, scope or attribute redacted; names of ours are left alone."""
    if name in _OURS:
        return name
    if name.startswith(names.PREFIX):
        return names.PREFIX + gate.scrub_text(name[len(names.PREFIX) :])
    return gate.scrub_text(name)


def scrub_bytes(data: bytes, gate: Gate) -> bytes | str:
    """Return bytes as they are; when they hold a secret, as text or in base64, what is left of the text."""
    coded = base64.b64encode(data).decode("ascii")
    text = data.decode("utf-8", "replace")
    clean = gate.scrub_text(text)
    if clean != text:
        return clean
    return data if gate.scrub_text(coded) == coded else WITHHELD


def _scrub_attributes(part: dict[str, Any], gate: Gate) -> None:
    pairs: list[dict[str, Any]] = part.get("attributes") or []
    json_keys: frozenset[str] = frozenset()
    for pair in pairs:
        if pair["key"] == names.JSON_FIELDS:
            json_keys = frozenset(key for key in any_value(pair["value"]) if type(key) is str)
    numbers: dict[str, int] = {}
    renamed: dict[str, str] = {}
    taken = {pair["key"] for pair in pairs}
    for pair in pairs:
        key: str = pair["key"]
        value: dict[str, Any] = pair["value"]
        if key in (names.JSON_FIELDS, names.NOTES) or _is_our_own(key, value):
            continue
        if gate.is_sensitive_name(key):
            _scrub_sensitive(value, key in json_keys, gate)
        elif key in json_keys:
            value["stringValue"] = dump(scrub_tree(load(value["stringValue"]), gate))
        else:
            _scrub_any(value, gate)
        clean = scrub_name(key, gate)
        if clean != key:
            renamed[key] = pair["key"] = clean = free_key(clean, taken, numbers)  # none hides another
            taken.add(clean)
    if renamed:
        _rename_references(pairs, renamed)


def _is_our_own(key: str, value: dict[str, Any]) -> bool:
    return key in _OWN_VALUES and _OWN_VALUE.fullmatch(value.get("stringValue", "")) is not None


def scrub_tree(tree: Any, gate: Gate) -> Any:
    """Return a JSON tree redacted, what it carries as bytes (docs/formats/values.md) too."""
    holder = [tree]
    waiting: list[Any] = [holder]
    while waiting:
        container = waiting.pop()
        items = cast("Any", container.items() if isinstance(container, dict) else enumerate(container))
        for key, item in list(items):
            if isinstance(item, dict) and item.keys() == {"$bytes"} and isinstance(item["$bytes"], str):
                container[key] = _scrub_coded(item, gate)
            elif isinstance(item, (dict, list)):
                waiting.append(item)
    return gate.scrub_value(holder[0])


def _scrub_coded(item: Any, gate: Gate) -> Any:
    try:
        data = base64.b64decode(item["$bytes"], validate=True)
    except (binascii.Error, ValueError):
        return item
    clean = scrub_bytes(data, gate)
    return clean if isinstance(clean, str) else item


def _scrub_sensitive(value: dict[str, Any], is_json: bool, gate: Gate) -> None:
    """Replace the value of a key that names a secret; booleans and null say nothing and stay."""
    tree = load(value["stringValue"]) if is_json else value.get("bytesValue", any_value(value))
    clean = gate.scrub_value({"secret": tree})["secret"]
    if is_json:
        value["stringValue"] = dump(clean)
    elif clean != tree:
        value.clear()
        value["stringValue"] = clean if isinstance(clean, str) else dump(clean)


def _scrub_any(value: dict[str, Any], gate: Gate) -> None:
    if "stringValue" in value:
        value["stringValue"] = gate.scrub_text(value["stringValue"])
    elif "bytesValue" in value:
        clean = scrub_bytes(base64.b64decode(value["bytesValue"]), gate)
        if isinstance(clean, str):
            value.clear()
            value["stringValue"] = clean
    elif "arrayValue" in value:
        for item in value["arrayValue"].get("values", ()):
            _scrub_any(item, gate)
    elif "kvlistValue" in value:
        for pair in value["kvlistValue"].get("values", ()):
            pair["key"] = gate.scrub_text(pair["key"])
            _scrub_any(pair["value"], gate)


def _rename_references(pairs: list[dict[str, Any]], renamed: dict[str, str]) -> None:
    """Make the lists that name attribute keys follow keys that were redacted themselves."""
    for pair in pairs:
        if pair["key"] == names.JSON_FIELDS:
            for item in pair["value"]["arrayValue"]["values"]:
                item["stringValue"] = renamed.get(item["stringValue"], item["stringValue"])
        elif pair["key"] == names.NOTES:
            notes = orjson.loads(pair["value"]["stringValue"])
            pair["value"]["stringValue"] = orjson.dumps({renamed.get(k, k): v for k, v in notes.items()}).decode()
