"""Turn any Python value into a JSON value, in bounded time, without running the host's code.

The common case, a tree of exact built-in types, is checked by type only and
goes to the C encoder untouched. Everything else is walked by `Walk`, which reads
objects through the built-in types' own methods and descriptors, so no `__str__`,
`__repr__`, `__iter__`, `__getattribute__` or property of the host runs. The form of each type is listed in docs/formats/values.md.

What had to be changed is reported as a note, never hidden:

- `nonfinite`  NaN or an infinity became null
- `surrogates` a lone surrogate became U+FFFD
- `keys`       a key that was not text was written as text
- `cycle`      a container inside itself became `<cycle>`
- `cut`        nesting over `MAX_DEPTH` or more than `MAX_NODES` values
- `opaque`     an object without data of its own became `<module.Type>`
- `zone`       a time zone only the host can compute was left out
"""

import json
from collections.abc import Callable
from math import isfinite
from typing import Any, Final, cast

import orjson

from spanfold.journal._walk import MAX_DEPTH, MAX_INT_BITS, MAX_NODES, Walk, clean_text, dump, integer

__all__ = [
    "MAX_DEPTH",
    "MAX_INT_BITS",
    "MAX_NODES",
    "JsonText",
    "Stored",
    "clean_text",
    "dump",
    "is_plain",
    "load",
    "store",
    "to_json",
    "to_tree",
]

MAX_PLAIN_CONTAINERS: Final = 100_000
"""Containers looked at before a tree of built-in types is treated as suspicious (shared children grow as 2^n)."""
MAX_PLAIN_VALUES: Final = 5_000_000
"""Values in those containers before it is: one long list may stand in a short one a thousand times."""
_INT64: Final = 1 << 63


class JsonText(str):
    """JSON text of a value for which OTLP has no scalar type."""

    __slots__ = ()


Stored = str | bool | int | float | JsonText


def store(value: Any) -> tuple[Stored, str | None]:
    """Return `value` in the form an attribute holds it, and a note of what was changed.

    Text, booleans, 64-bit integers and finite floats stay what they are;
    everything else becomes `JsonText`. Mutable input is copied: changing it
    later changes nothing here.
    """
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]  # the type of anything
    if kind is str or kind is bool:
        return value, None
    if kind is int:
        return (value, None) if -_INT64 <= value < _INT64 else (JsonText(dump(integer(value))), None)
    if kind is float:
        return (value, None) if isfinite(value) else (JsonText("null"), "nonfinite")
    if value is None:
        return JsonText("null"), None
    text, note = to_json(value)
    return JsonText(text), note


def to_json(value: Any, *, opaque: Callable[[Any], str] | None = None) -> tuple[str, str | None]:
    """Return compact strict JSON text of any value, and a note of what was changed.

    Args:
        value: Anything.
        opaque: Describes an object without data of its own; by default only its type is named. It may run the object's
            code, which nothing else here does.
    """
    if is_plain(value):
        try:
            return orjson.dumps(value).decode(), None
        except (TypeError, ValueError, RecursionError):
            pass  # an integer over 64 bits or a lone surrogate: the walk repairs it
    tree, note = to_tree(value, opaque=opaque)
    return dump(tree), note


def to_tree(
    value: Any,
    *,
    max_nodes: int = MAX_NODES,
    max_text: int | None = None,
    max_chars: int | None = None,
    opaque: Callable[[Any], str] | None = None,
) -> tuple[Any, str | None]:
    """Return `value` as a fresh tree of dict, list, str, int, float, bool and None, and a note.

    Args:
        value: Anything.
        max_nodes: Values visited before the rest is cut.
        max_text: Characters kept of each text; longer ones end in a marker with their length.
        max_chars: Characters kept of all texts together.
        opaque: As for `to_json`.
    """
    try:
        walk = Walk(max_nodes, max_text, max_chars, opaque)
        tree = walk.visit(value, 0)
    except RecursionError:  # the host itself is near its recursion limit: no room for another call
        return "<cut: recursion limit>", "cut"
    return tree, ",".join(sorted(walk.notes)) or None


def load(text: str | bytes) -> Any:
    """Parse JSON text exactly, integers over 64 bits included (orjson would make them floats, or refuse them)."""
    return json.loads(text) if _has_long_number(text) else orjson.loads(text)


def _has_long_number(text: str | bytes) -> bool:
    raw = text.encode() if isinstance(text, str) else text
    # Fewer than 19 digits in the whole text is the common case and costs one C call.
    digits = raw.translate(None, _NOT_DIGITS)
    return len(digits) >= 19 and any(len(run) >= 19 for run in raw.translate(_TO_SPACE).split())


_NOT_DIGITS: Final = bytes(b for b in range(256) if not 48 <= b <= 57)
_TO_SPACE: Final = bytes(b if 48 <= b <= 57 else 32 for b in range(256))


_type: Final = cast("Callable[[Any], Any]", type)


def is_plain(value: Any) -> bool:
    """Whether `value` is a tree of exact built-in types that the C encoder writes as we would.

    Iterative, and bounded for cycles and for children shared so often that
    the tree is exponentially larger than the objects. Types are compared by
    identity: a metaclass of the host may have an `__eq__` or `__hash__`.
    """
    level: list[Any] = [[value]]
    containers = items = 0
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for container in level:
            containers += 1
            items += len(container)
            if containers > MAX_PLAIN_CONTAINERS or items > MAX_PLAIN_VALUES:
                return False
            values = container
            kind = _type(container)
            if kind is dict:
                for key in container:
                    if type(key) is not str:
                        return False
                values = container.values()
            for item in values:
                kind = _type(item)
                if kind is str or kind is int or kind is bool or item is None:
                    continue
                if kind is float:
                    if not isfinite(item):
                        return False
                elif kind is dict or kind is list or kind is tuple:
                    below.append(item)
                else:
                    return False
        if not below:
            return True
        level = below
    return False
