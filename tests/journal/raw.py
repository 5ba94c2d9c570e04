"""Read journal files with nothing but json and hashlib, so that a bug cannot hide on both sides."""

import hashlib
import json
from pathlib import Path
from typing import Any, NoReturn


def _no_constant(text: str) -> NoReturn:
    raise AssertionError(f"{text} is no JSON")


def _value(value: dict[str, Any]) -> Any:
    ((kind, found),) = value.items()
    if kind == "intValue":
        return int(found)
    if kind == "arrayValue":
        return [_value(v) for v in found.get("values", [])]
    return found


def _attributes(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    found = {p["key"]: _value(p["value"]) for p in pairs}
    assert len(found) == len(pairs), "a key stands twice"
    return found


def whole_lines(path: Path) -> tuple[list[bytes], bytes]:
    """Return the lines of a file that end in a newline, and what stands behind the last one."""
    *lines, tail = path.read_bytes().split(b"\n")
    return [line + b"\n" for line in lines], tail


def records(path: Path, *, may_be_torn: bool = False) -> list[dict[str, Any]]:
    """Return the spans and log records of one file; every line must be whole and follow from the one before."""
    lines, tail = whole_lines(path)
    assert may_be_torn or not tail, f"{path.name} ends in a torn line of {len(tail)} bytes"
    head = hashlib.sha256(f"spanfold.journal/1 {path.name.removesuffix('.otlp.jsonl')}".encode()).hexdigest()
    found: list[dict[str, Any]] = []
    for seq, line in enumerate(lines, 1):
        request = json.loads(line, parse_constant=_no_constant)
        ((group,),) = request.values()
        (scoped,) = group["scopeSpans" if "scopeSpans" in group else "scopeLogs"]
        chain = _attributes(scoped["scope"]["attributes"])
        assert chain == {"spanfold.journal.seq": seq, "spanfold.journal.prev": head}, f"{path.name}, line {seq}"
        head = hashlib.sha256(line).hexdigest()
        (record,) = scoped["spans" if "spans" in scoped else "logRecords"]
        record["attributes"] = _attributes(record["attributes"])
        record["resource"] = _attributes(group["resource"]["attributes"])
        record["scope"] = scoped["scope"]["name"]
        found.append(record)
    return found


def files(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "journal").glob("*.otlp.jsonl"))


def journal(run_dir: Path, *, may_be_torn: bool = False) -> list[dict[str, Any]]:
    """Return the records of all files of a run, each file checked."""
    return [record for path in files(run_dir) for record in records(path, may_be_torn=may_be_torn)]


def spans(run_dir: Path, *, may_be_torn: bool = False) -> list[dict[str, Any]]:
    return [r for r in journal(run_dir, may_be_torn=may_be_torn) if "startTimeUnixNano" in r]


def events(run_dir: Path, name: str | None = None, *, may_be_torn: bool = False) -> list[dict[str, Any]]:
    found = [r for r in journal(run_dir, may_be_torn=may_be_torn) if "eventName" in r]
    return [r for r in found if name in (None, r["eventName"])]


def names(found: list[dict[str, Any]]) -> list[str]:
    return [r["name"] for r in found]


def seal(path: Path) -> dict[str, Any]:
    """Return the heads that the sealing line of a file states; it must be the last line and right about its own file."""
    lines, _ = whole_lines(path)
    (sealed,) = [r for r in records(path) if r.get("eventName") == "spanfold.journal.sealed"]
    assert sealed is not None
    assert b"spanfold.journal.sealed" in lines[-1]
    heads = json.loads(sealed["attributes"]["spanfold.heads"])
    assert heads[path.name] == {
        "seq": len(lines) - 1,
        "head": hashlib.sha256(lines[-2]).hexdigest(),
        "size": sum(map(len, lines[:-1])),
    }
    return heads
