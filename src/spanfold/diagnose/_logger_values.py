"""Read the objects of a loop, whatever they are, and make plain data of them.

Everything here is pure and raises nothing because of what it reads: an
attribute that is missing or fails counts as missing.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any, Final, cast

from spanfold.journal import is_plain, to_tree

_SCALARS: Final = frozenset({str, int, bool, type(None)})
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
MAX_DESCRIPTION: Final = 2_000
"""Characters kept of what an unknown object says of itself."""
_VALIDATION_POOL: Final = (
    "One case of the validation pool, shown as an example. The verdict rests on all cases of the pool."
)
_ONE_CASE: Final = "What one recorded case shows. The result of the analyzer rests on all cases that were measured."


# -- plain data


def tree(value: Any) -> tuple[Any, str | None]:
    """Return a value as JSON data, and a note of what had to be changed; plain data as it is."""
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]  # of anything
    if kind in _SCALARS or (kind is float and isfinite(value)) or is_plain([value]):
        return value, None
    return to_tree(value, opaque=described)


def pure(value: Any) -> Any:
    """Return a value as JSON data (DL 7.7): a dataclass as its fields, an object with `to_dict` as what that returns."""
    if type(value) in _SCALARS:
        return value
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name, None) for field in fields(value)}
    elif not isinstance(value, dict | list | tuple):
        converted = called(value, "to_dict")
        value = value if converted is None else converted
    return tree(value)[0]


def type_name(value: object) -> str:
    """Return module and name of an object's type."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def described(value: object) -> str:
    """Return type and bounded text of an object without data of its own, without addresses in memory."""
    kind, name = type(value), type_name(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        return f"<{name}>"
    try:
        text = _ADDRESS.sub("", str.__str__(str(value)))
    except Exception:
        return f"<{name}>"
    if len(text) > MAX_DESCRIPTION:
        text = f"{text[:MAX_DESCRIPTION]}...[{len(text)} characters]"
    return f"<{name}: {text}>"


def copied(value: Any) -> Any:
    """Return a copy of a container, so that changing it later changes nothing; other values as they are."""
    return tree(value)[0] if type(value) not in _SCALARS else value


# -- attributes of objects


def attr(source: object, name: str, default: Any = None) -> Any:
    """Return an attribute, or the default when it is missing or cannot be read."""
    try:
        return getattr(source, name, default)
    except Exception:
        return default


def item_or_attr(source: object, name: str) -> Any:
    """Return an item of a mapping, or an attribute of another object; None when there is none."""
    if isinstance(source, Mapping):
        return cast("Mapping[Any, Any]", source).get(name)
    return attr(source, name)


def mapping(value: object) -> Mapping[str, Any] | None:
    """Return a mapping as one; None for anything else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


def as_path(value: object) -> str | None:
    """Return a text or path as text; None for anything else."""
    if isinstance(value, str):
        return value
    return os.fsdecode(cast("os.PathLike[str]", value)) if isinstance(value, os.PathLike) else None


def called(source: object, name: str) -> Any:
    """Return what a method without arguments returns; None when there is none or it fails."""
    method = attr(source, name)
    if not callable(method):
        return None
    try:
        return method()
    except Exception:
        return None


def listed(value: Any) -> list[Any]:
    """Return a list of what is iterable, and an empty one for everything else."""
    if isinstance(value, list):
        return cast("list[Any]", value)
    if value is None or isinstance(value, str | bytes):
        return []
    try:
        return list(value)
    except Exception:
        return []


def sized(value: Any) -> int:
    """Return the number of items of something, 0 when it has none."""
    try:
        return len(value)
    except Exception:
        return len(listed(value))


def text(value: Any) -> str:
    """Return a value as text, without addresses in memory; an object that has none as its type."""
    if type(value) is str:
        return value
    try:
        return _ADDRESS.sub("", str.__str__(str(value)))
    except Exception:
        return described(value)


def rounded(value: Any, digits: int) -> Any:
    """Return a duration rounded; what is no number as it is."""
    try:
        return round(value, digits)
    except Exception:
        return value


def seconds(value: Any) -> float | None:
    """Return a duration in seconds as a float that can be counted with, None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number < 1e9 else None


def status_of(source: object) -> str | None:
    """Return the value of an object's `status`, which is a member of an enum, a text or missing (DL 8.4)."""
    status = item_or_attr(source, "status")
    if status is None:
        return None
    value = attr(status, "value", status)
    return value if value is None or type(value) is str else text(value)


def whole(value: Any) -> Any:
    """Return a cycle or count as a plain int where it is one, of NumPy too; anything else as it is."""
    if type(value) is int or isinstance(value, bool) or value is None:
        return value
    try:
        return value.__index__()
    except Exception:
        return value


# -- hypotheses and cases (DL 8)


def hypothesis_id(hypothesis: object) -> str:
    """Return the id of a hypothesis, the same wherever it is logged (DL 8.4)."""
    given = item_or_attr(hypothesis, "id")
    given = text(given).strip() if given is not None else ""
    if given:
        return given
    statement = text(item_or_attr(hypothesis, "statement") or "").strip()
    if not statement:
        return "unknown"
    digest = hashlib.sha1(statement.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
    return f"h-{digest[:12]}"


def iter_cases(cases: Any) -> list[Any]:
    """Return the cases of a list, or of an object that has `cases` (DL 8.1)."""
    inner = attr(cases, "cases")
    return listed(cases if inner is None else inner)


def case_id(case: object) -> str:
    """Return the id of a case, empty when it has none; a dict may name it `id` or `case_id`."""
    given = attr(case, "id")
    if given is None and (found := mapping(case)) is not None:
        given = found.get("id") or found.get("case_id")
    return text(given) if given is not None and given != "" else ""


def case_data(case: object) -> Any:
    """Return a case as a dict (DL 7.2)."""
    data = called(case, "to_dict")
    if data is None and (found := mapping(case)) is not None:
        data = dict(found)
    return {"id": case_id(case), "value": text(case)} if data is None else data


def case_snapshot(case: object) -> dict[str, Any]:
    """Return what readers are shown of a case (DL 8.2)."""
    data = called(case, "to_dict")
    found = dict(mapping(case if data is None else data) or {"id": case_id(case)})
    inputs = found.get("inputs")
    prompt = cast("dict[str, Any]", inputs).get("prompt") if isinstance(inputs, dict) else None
    return {
        "id": text(found.get("id") or found.get("case_id") or ""),
        "input": prompt or found.get("prompt") or found.get("instruction") or "",
        "baseline_output": found["observed"] if "observed" in found else found.get("output"),
        "expected": found.get("expected"),
        "outcome": found.get("label") or found.get("status") or "unknown",
    }


def probe_examples(results: Mapping[str, Any], cases: Any) -> list[dict[str, Any]]:
    """Return at most one measured case of each result, and two in all, failing ones first (DL 8.3)."""
    by_id = {snapshot["id"]: snapshot for snapshot in map(case_snapshot, iter_cases(cases)) if snapshot["id"]}
    found: list[dict[str, Any]] = []
    used: set[str] = set()
    for name, result in results.items():
        findings = attr(result, "findings")
        rows = cast("dict[str, Any]", findings).get("per_case") if isinstance(findings, dict) else None
        row = _first_row(rows, by_id, used)
        if row is None:
            continue
        used.add(row[0])
        found.append(_example(name, by_id[row[0]], row[1]))
        if len(found) == 2:
            break
    return found


def _first_row(rows: Any, by_id: Mapping[str, Any], used: set[str]) -> tuple[str, dict[str, Any]] | None:
    if not isinstance(rows, list):
        return None
    known = [cast("dict[Any, Any]", row) for row in cast("list[Any]", rows) if isinstance(row, dict)]
    known.sort(key=lambda row: by_id.get(_row_id(row), {}).get("outcome") != "fail")
    for row in known:
        name = _row_id(row)
        scalars = {
            text(key).replace("_", " "): value
            for key, value in row.items()
            if key not in ("sample_id", "case_id") and isinstance(value, str | int | float | bool)
        }
        if name in by_id and name not in used and scalars:
            return name, scalars
    return None


def _row_id(row: Mapping[Any, Any]) -> str:
    given = row.get("sample_id")
    return text(given if given is not None else row.get("case_id", ""))


def _example(name: str, snapshot: Mapping[str, Any], check: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": snapshot["id"],
        "kind": "case_measurement",
        "case_id": snapshot["id"],
        "probe_title": name.replace("_", " ").title(),
        **{key: snapshot[key] for key in ("input", "baseline_output", "expected", "outcome")},
        "check_result": check,
        "plain_reading": _ONE_CASE,
        "evidence_scope": "one recorded case within M1",
    }


def validation_example(cases: Any) -> list[dict[str, Any]]:
    """Return one case of the validation pool, a failing one if there is one (DL 8.3)."""
    snapshots = [case_snapshot(case) for case in iter_cases(cases)]
    chosen = next((snapshot for snapshot in snapshots if snapshot["outcome"] == "fail"), None)
    if chosen is None and snapshots:
        chosen = snapshots[0]
    if chosen is None:
        return []
    return [
        {
            "id": chosen["id"],
            "kind": "validation_case",
            "case_id": chosen["id"],
            **{key: chosen[key] for key in ("input", "baseline_output", "expected", "outcome")},
            "plain_reading": _VALIDATION_POOL,
            "evidence_scope": "one case in the independent validation pool",
        }
    ]


def first(values: Iterable[Any], wanted: Callable[[Any], bool]) -> Any:
    """Return the first value that is wanted, None when none is."""
    return next((value for value in values if wanted(value)), None)
