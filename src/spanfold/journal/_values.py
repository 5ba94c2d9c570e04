"""Turn any Python value into a JSON value, in bounded time, without running the host's code.

The common case, a tree of exact built-in types, is checked by type only and
goes to the C encoder untouched. Everything else is walked by `_Walk`, which
reads objects through `object.__getattribute__` and the built-in types' own
methods, so no `__str__`, `__repr__`, `__iter__`, property or descriptor of the
host runs. The form of each type is listed in docs/formats/values.md.

What had to be changed is reported as a note, never hidden:

- `nonfinite`  NaN or an infinity became null
- `surrogates` a lone surrogate became U+FFFD
- `keys`       a key that was not text was written as text
- `cycle`      a container inside itself became `<cycle>`
- `cut`        nesting over `MAX_DEPTH` or more than `MAX_NODES` values
- `opaque`     an object without data of its own became `<module.Type>`
"""

import base64
import datetime
import decimal
import enum
import fractions
import json
import math
import os
import sys
import types
import uuid
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, cast

import orjson

MAX_DEPTH: Final = 100
"""Containers nested deeper are cut: strict JSON parsers elsewhere stop at 100 to 10,000."""
MAX_NODES: Final = 200_000
"""Values visited in one call before the rest is cut. A tree of exact built-in types is not limited by it."""
MAX_PLAIN_CONTAINERS: Final = 100_000
"""Containers looked at before a tree of built-in types is treated as suspicious (shared children grow as 2^n)."""
SMALL_ARRAY: Final = 1_000
"""Arrays up to this many elements are written whole, larger ones as shape and dtype."""

_SCALARS: Final[frozenset[type]] = frozenset({str, bool, int, float, type(None)})
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
    kind = type(value)
    if kind is str or kind is bool:
        return cast("str | bool", value), None
    if kind is int:
        return (value, None) if -_INT64 <= value < _INT64 else (JsonText(_int_text(value)), None)
    if kind is float:
        return (value, None) if math.isfinite(value) else (JsonText("null"), "nonfinite")
    if value is None:
        return JsonText("null"), None
    text, note = to_json(value)
    return JsonText(text), note


def to_json(value: Any) -> tuple[str, str | None]:
    """Return compact strict JSON text of any value, and a note of what was changed."""
    if _is_plain(value):
        try:
            return orjson.dumps(value).decode(), None
        except (TypeError, ValueError, RecursionError):
            pass  # an integer over 64 bits or a lone surrogate: the walk repairs it
    tree, note = to_tree(value)
    return dump(tree), note


def to_tree(value: Any, *, max_nodes: int = MAX_NODES, max_text: int | None = None) -> tuple[Any, str | None]:
    """Return `value` as a fresh tree of dict, list, str, int, float, bool and None, and a note.

    Args:
        value: Anything.
        max_nodes: Values visited before the rest is cut.
        max_text: Characters kept of each text; longer ones end in a marker with their length.
    """
    walk = _Walk(max_nodes, max_text)
    try:
        tree = walk.visit(value, 0)
    except RecursionError:  # the host itself is near its recursion limit
        return f"<{_type_name(value)}>", "cut"
    return tree, ",".join(sorted(walk.notes)) or None


def dump(tree: Any) -> str:
    """Return compact JSON text of a tree `to_tree` made."""
    try:
        return orjson.dumps(tree).decode()
    except TypeError:  # an integer over 64 bits
        return json.dumps(tree, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def load(text: str | bytes) -> Any:
    """Parse JSON text exactly, integers over 64 bits included (orjson would make them floats)."""
    tree = orjson.loads(text)
    if _has_long_number(text):
        return json.loads(text)
    return tree


def _has_long_number(text: str | bytes) -> bool:
    raw = text.encode() if isinstance(text, str) else text
    # Fewer than 19 digits in the whole text is the common case and costs one C call.
    digits = raw.translate(None, _NOT_DIGITS)
    return len(digits) >= 19 and any(len(run) >= 19 for run in raw.translate(_TO_SPACE).split())


_NOT_DIGITS: Final = bytes(b for b in range(256) if not 48 <= b <= 57)
_TO_SPACE: Final = bytes(b if 48 <= b <= 57 else 32 for b in range(256))


def _is_plain(value: Any) -> bool:
    """Whether `value` is a tree of exact built-in types that the C encoder writes as we would.

    Iterative, and bounded for cycles and for children shared so often that
    the tree is exponentially larger than the objects.
    """
    level: list[Any] = [value]
    seen = 0
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                if any(k is not str for k in set(map(type, item))):
                    return False
                values: Any = item.values()
            elif kind is list or kind is tuple:
                values = item
            elif kind is float:
                if not math.isfinite(item):
                    return False
                continue
            elif kind in _SCALARS:
                continue
            else:
                return False
            seen += 1
            if seen > MAX_PLAIN_CONTAINERS:
                return False
            kinds = set(map(type, values))
            if kinds <= _SCALARS:
                if float in kinds and not all(math.isfinite(v) for v in values if type(v) is float):
                    return False
                continue
            below.extend(v for v in values if type(v) is not str)
        if not below:
            return True
        level = below
    return False


def _type_name(value: Any) -> str:
    kind: type = type(value)
    module = type.__getattribute__(kind, "__module__")
    name = type.__getattribute__(kind, "__qualname__")
    return name if module == "builtins" or not isinstance(module, str) else f"{module}.{name}"


def clean_text(text: str) -> tuple[str, bool]:
    """Return `text` with lone surrogates replaced by U+FFFD, and whether there were any."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # surrogatepass + replace joins a valid pair split by a C API, and replaces what stays alone.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), True
    return text, False


def _int_text(value: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError:  # over sys.get_int_max_str_digits(): decimal would take quadratic time
        return json.dumps({"$int": hex(value)})


class _Walk:
    """One bounded walk over a value."""

    def __init__(self, max_nodes: int, max_text: int | None) -> None:
        self.left = max_nodes
        self.max_text = max_text
        self.notes: set[str] = set()
        self.path: set[int] = set()

    def visit(self, value: Any, depth: int) -> Any:
        self.left -= 1
        kind = type(value)
        if kind is str:
            return self.text(value)
        if kind is bool or value is None:
            return value
        if kind is int:
            return self.integer(value)
        if kind is float:
            return self.number(value)
        if depth > MAX_DEPTH:
            self.notes.add("cut")
            return f"<{_type_name(value)}: nested deeper than {MAX_DEPTH}>"
        if id(value) in self.path:
            self.notes.add("cycle")
            return "<cycle>"
        self.path.add(id(value))
        try:
            return self.other(value, depth)
        finally:
            self.path.discard(id(value))

    def other(self, value: Any, depth: int) -> Any:
        if isinstance(value, enum.Enum):
            return self.visit(object.__getattribute__(value, "_value_"), depth + 1)
        if isinstance(value, dict):
            return self.mapping(dict.items(cast("dict[Any, Any]", value)), dict.__len__(value), depth)
        if isinstance(value, tuple):
            return self.tuple_(cast("tuple[Any, ...]", value), depth)
        if isinstance(value, list):
            return self.sequence(list.__iter__(cast("list[Any]", value)), list.__len__(value), depth)
        if isinstance(value, (set, frozenset)):
            return self.unordered(cast("set[Any]", value), depth)
        if isinstance(value, str):
            return self.text(str.__str__(value))
        if isinstance(value, bool):
            return value is True
        if isinstance(value, int):
            return self.integer(int.__add__(value, 0))
        if isinstance(value, float):
            return self.number(float.__add__(value, 0.0))
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self.binary(cast("bytes", value))
        return self.known(value, depth)

    def known(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in (datetime.datetime, datetime.date, datetime.time):
            return value.isoformat()
        if kind is datetime.timedelta:
            return value.total_seconds()
        if kind in (decimal.Decimal, uuid.UUID, fractions.Fraction):
            return kind.__str__(value)
        if kind in _PATHS:
            return self.text(os.fspath(value))
        if kind is complex:
            return {"$complex": [self.number(value.real), self.number(value.imag)]}
        if isinstance(value, BaseException):
            return f"<{_type_name(value)}>"
        module = type.__getattribute__(kind, "__module__")
        if module == "numpy" and "numpy" in sys.modules:
            return self.numpy(value, depth)
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
            name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
            return f"<{_type_name(value)} {name}>" if type(name) is str else f"<{_type_name(value)}>"
        return self.object_(value, depth)

    # -- leaves

    def text(self, value: str) -> str:
        if self.max_text is not None and len(value) > self.max_text:
            self.notes.add("cut")
            value = f"{value[: self.max_text]}...[{len(value)} characters]"
        cleaned, changed = clean_text(value)
        if changed:
            self.notes.add("surrogates")
        return cleaned

    def integer(self, value: int) -> Any:
        if -_INT64 <= value < _INT64 or value.bit_length() <= 14_000:
            return value
        return {"$int": hex(value)}

    def number(self, value: float) -> float | None:
        if math.isfinite(value):
            return value
        self.notes.add("nonfinite")
        return None

    def binary(self, value: bytes | bytearray | memoryview) -> dict[str, Any]:
        raw = bytes(value)
        if self.max_text is not None and len(raw) > self.max_text:
            self.notes.add("cut")
            return {"$bytes": None, "size_bytes": len(raw)}
        return {"$bytes": base64.b64encode(raw).decode("ascii")}

    # -- containers

    def sequence(self, items: Iterator[Any], length: int, depth: int) -> list[Any]:
        out: list[Any] = []
        for item in items:
            if self.left <= 0:
                self.notes.add("cut")
                out.append(f"<{length - len(out)} more>")
                break
            out.append(self.visit(item, depth + 1))
        return out

    def tuple_(self, value: tuple[Any, ...], depth: int) -> Any:
        fields = type(value).__dict__.get("_fields")
        if type(fields) is tuple and len(fields) == tuple.__len__(value):
            return self.mapping(zip(fields, tuple.__iter__(value), strict=True), len(fields), depth)
        return self.sequence(tuple.__iter__(value), tuple.__len__(value), depth)

    def unordered(self, value: set[Any] | frozenset[Any], depth: int) -> list[Any]:
        base = set if isinstance(value, set) else frozenset
        room = max(self.left, 0)
        items = [self.visit(v, depth + 1) for v in islice(base.__iter__(value), room)]
        # Sorted by their JSON text: a set has no order of its own, and two runs should agree.
        items.sort(key=dump)
        if len(items) < base.__len__(value):
            self.notes.add("cut")
            items.append(f"<{base.__len__(value) - len(items)} more>")
        return items

    def mapping(self, pairs: Iterable[tuple[Any, Any]], length: int, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in pairs:
            if self.left <= 0:
                self.notes.add("cut")
                out[self.free(out, "<more>")] = length - len(out)
                break
            out[self.free(out, self.key(key))] = self.visit(item, depth + 1)
        return out

    def key(self, key: Any) -> str:
        if type(key) is str:
            return self.text(key)
        self.notes.add("keys")
        if isinstance(key, enum.Enum):
            key = object.__getattribute__(key, "_value_")
        tree = self.visit(key, MAX_DEPTH - 3)
        return tree if isinstance(tree, str) else dump(tree)

    @staticmethod
    def free(out: dict[str, Any], name: str) -> str:
        """Return `name`, or a variant of it when another key already became the same text."""
        if name not in out:
            return name
        number = 2
        while f"{name}#{number}" in out:
            number += 1
        return f"{name}#{number}"

    # -- objects

    def numpy(self, value: Any, depth: int) -> Any:
        import numpy

        if isinstance(value, numpy.generic):
            item = value.item()
            return f"<{_type_name(value)}>" if item is value else self.visit(item, depth + 1)
        if not isinstance(value, numpy.ndarray):
            return f"<{_type_name(value)}>"
        if value.size <= SMALL_ARRAY and value.dtype.kind in "biufSU":
            return self.visit(value.tolist(), depth + 1)
        self.notes.add("cut")
        return {"$array": {"shape": list(value.shape), "dtype": value.dtype.str}}

    def object_(self, value: Any, depth: int) -> Any:
        """Read the data of a dataclass, attrs class, pydantic-like model or plain object, or name its type."""
        kind = type(value)
        if kind.__name__ in ("SecretStr", "SecretBytes", "Secret"):
            return "**********"
        shape = getattr_static_mapping(kind, "__array_interface__", value)
        if shape is not None:
            self.notes.add("cut")
            return shape
        declared = _declared_fields(kind)
        if declared is None:
            self.notes.add("opaque")
            return f"<{_type_name(value)}>"
        data = _instance_data(value)
        pairs = [(name, data[name] if name in data else _slot(value, name)) for name in declared]
        return self.mapping(((n, v) for n, v in pairs if v is not _ABSENT), len(pairs), depth)


_ABSENT: Final = object()
_PATHS: Final[frozenset[type]] = frozenset(
    {getattr(sys.modules["pathlib"], n) for n in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path")}
    if "pathlib" in sys.modules
    else ()
)


def getattr_static_mapping(kind: type, name: str, value: Any) -> dict[str, Any] | None:
    """Return shape and dtype of a tensor or frame, recognised by its module, without touching its data."""
    module = type.__getattribute__(kind, "__module__")
    root = module.partition(".")[0] if isinstance(module, str) else ""
    if root not in ("torch", "jax", "jaxlib", "tensorflow", "pandas", "polars", "cupy", "mlx", "pyarrow"):
        return None
    try:
        shape = [int(n) for n in value.shape]
        dtype = str(getattr(value, "dtype", ""))
    except Exception:  # noqa: BLE001 - these libraries' own code, and it may fail on an odd device
        return None
    return {"$array": {"type": _type_name(value), "shape": shape, "dtype": dtype}}


def _declared_fields(kind: type) -> list[str] | None:
    """Names of the data fields a class declares; None when it declares none."""
    for marker in ("__dataclass_fields__", "model_fields", "__pydantic_fields__", "__fields__"):
        for base in kind.__mro__:
            fields = base.__dict__.get(marker)
            if isinstance(fields, dict):
                return [name for name in cast("dict[Any, Any]", fields) if type(name) is str]
    for base in kind.__mro__:
        attrs = base.__dict__.get("__attrs_attrs__")
        if isinstance(attrs, tuple):
            names = (getattr(a, "name", None) for a in cast("tuple[Any, ...]", attrs))
            return [name for name in names if type(name) is str]
    return None


def _instance_data(value: Any) -> dict[Any, Any]:
    try:
        data = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return cast("dict[Any, Any]", data) if type(data) is dict else {}


def _slot(value: Any, name: str) -> Any:
    """Read a slot through its C descriptor; a property of the host is never called."""
    for base in type(value).__mro__:
        member = base.__dict__.get(name)
        if isinstance(member, types.MemberDescriptorType):
            try:
                return member.__get__(value, type(value))
            except AttributeError:
                return _ABSENT
    return _ABSENT
