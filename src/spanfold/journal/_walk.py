"""Walk any Python value into a JSON tree without running the host's code. See `_values`, the door to this."""

import base64
import datetime
import decimal
import enum
import fractions
import json
import math
import pathlib
import sys
import types
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, cast

import orjson

from spanfold.redact import free_key

MAX_DEPTH: Final = 100
"""Containers nested deeper are cut: strict JSON parsers elsewhere stop at 100 to 10,000."""
MAX_NODES: Final = 200_000
"""Values visited in one call before the rest is cut. A tree of exact built-in types is not limited by it."""
MAX_INT_BITS: Final = 2_126
"""Longer integers are written in hexadecimal: 640 decimal digits are what every Python setting still converts."""
SMALL_ARRAY: Final = 1_000
"""Arrays up to this many elements are written whole, larger ones as shape and dtype."""


def dump(tree: Any) -> str:
    """Return compact JSON text of a tree `to_tree` made."""
    try:
        return orjson.dumps(tree).decode()
    except TypeError:  # an integer over 64 bits
        return json.dumps(tree, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def clean_text(text: str) -> tuple[str, bool]:
    """Return `text` with lone surrogates replaced by U+FFFD, and whether there were any."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # surrogatepass + replace joins a valid pair split by a C API, and replaces what stays alone.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), True
    return text, False


# Built-ins that are called on values of any type, subclasses included, with types that say so.
_dict: Final = cast("Any", dict)
_list: Final = cast("Any", list)
_tuple: Final = cast("Any", tuple)
_type: Final = cast("Callable[[Any], type[Any]]", type)
_is: Final = cast("Callable[[type[Any], Any], bool]", issubclass)
# Attributes of classes are read through the descriptors of `type`: a metaclass of the host may have its own.
_class_dict: Final[Callable[[type], Mapping[str, Any]]] = type.__dict__["__dict__"].__get__
_class_mro: Final[Callable[[type], tuple[type, ...]]] = type.__dict__["__mro__"].__get__
_class_module: Final[Callable[[type], Any]] = type.__dict__["__module__"].__get__
_class_qualname: Final[Callable[[type], str]] = type.__dict__["__qualname__"].__get__


def type_name(value: Any) -> str:
    """Return module and name of a value's class."""
    return _class_name(_type(value))


def _class_name(kind: type[Any]) -> str:
    name, module = _class_qualname(kind), _module(kind)
    return f"{module}.{name}" if module and module != "builtins" else name


def _module(kind: type[Any]) -> str:
    try:
        module = _class_module(kind)
    except AttributeError:
        return ""
    return module if type(module) is str else ""


def integer(value: int) -> Any:
    """Return an integer, or a very long one in hexadecimal: decimal would take quadratic time."""
    return value if value.bit_length() <= MAX_INT_BITS else {"$int": hex(value)}


class Walk:
    """One bounded walk over a value."""

    def __init__(
        self,
        max_nodes: int,
        max_text: int | None,
        max_chars: int | None = None,
        opaque: "Callable[[Any], str] | None" = None,
    ) -> None:
        self.left = max_nodes
        self.describe = opaque
        self.max_text = max_text
        self.room = max_chars
        self.notes: set[str] = set()
        self.path: set[int] = set()

    def visit(self, value: Any, depth: int) -> Any:
        self.left -= 1
        kind = _type(value)
        if kind is str:
            return self.text(value)
        if kind is bool or value is None:
            return value
        if kind is int:
            return integer(value)
        if kind is float:
            return self.number(value)
        if depth > MAX_DEPTH:
            self.notes.add("cut")
            return f"<{type_name(value)}: nested deeper than {MAX_DEPTH}>"
        if id(value) in self.path:
            self.notes.add("cycle")
            return "<cycle>"
        self.path.add(id(value))
        try:
            return self.other(value, depth)
        finally:
            self.path.discard(id(value))

    def other(self, value: Any, depth: int) -> Any:
        # issubclass, not isinstance: the latter asks a stranger's `__class__`.
        kind = _type(value)
        if _is(kind, enum.Enum):
            return self.visit(object.__getattribute__(value, "_value_"), depth + 1)
        if _is(kind, dict):
            return self.mapping(_dict.items(value), _dict.__len__(value), depth)
        if _is(kind, tuple):
            return self.tuple_(value, depth)
        if _is(kind, list):
            return self.sequence(_list.__iter__(value), _list.__len__(value), depth)
        if _is(kind, (set, frozenset)):
            return self.unordered(value, set if _is(kind, set) else frozenset, depth)
        if _is(kind, str):
            return self.text(str.__str__(value))
        if _is(kind, int):
            return integer(int.__add__(value, 0))
        if _is(kind, float):
            return self.number(float.__add__(value, 0.0))
        for base in (bytes, bytearray):
            if _is(kind, base):
                return self.binary(bytes(base.__getitem__(value, slice(None))))
        if kind is memoryview:
            return self.binary(value.tobytes())
        return self.known(value, kind, depth)

    def known(self, value: Any, kind: type[Any], depth: int) -> Any:
        if _is(kind, (datetime.date, datetime.time)):
            return self.moment(value, kind)
        if _is(kind, datetime.timedelta):
            return datetime.timedelta.total_seconds(value)
        if id(kind) in _TEXTUAL:
            try:
                return self.text(str(value))
            except ValueError:  # of a fraction: Python writes no integer of so many digits
                self.notes.add("opaque")
                return f"<{_class_name(kind)}>"
        if kind is complex:
            return {"$complex": [self.number(value.real), self.number(value.imag)]}
        if _is(kind, BaseException):
            return f"<{_class_name(kind)}>"
        if _module(kind) == "numpy" and "numpy" in sys.modules:
            return self.numpy(value, depth)
        if _is(kind, type):
            return f"<type {_class_name(value)}>"
        if id(kind) in _NAMED:
            name = value.__name__ if kind is types.ModuleType else value.__qualname__
            return f"<{_class_name(kind)} {name}>" if type(name) is str else f"<{_class_name(kind)}>"
        return self.object_(value, kind, depth)

    def moment(self, value: Any, kind: type[Any]) -> str:
        """Return ISO 8601 of a date, time or datetime: a naive one stays naive, none is shifted."""
        if not _is(kind, (datetime.datetime, datetime.time)):
            return datetime.date.isoformat(value)
        base: Any = datetime.datetime if _is(kind, datetime.datetime) else datetime.time
        zone = base.tzinfo.__get__(value)
        if zone is not None and _module(_type(zone)).partition(".")[0] not in _ZONES:
            self.notes.add("zone")  # only code of the host knows its offset
            parts = _DATE_PARTS + _TIME_PARTS if base is datetime.datetime else _TIME_PARTS
            value = base(*(getattr(base, part).__get__(value) for part in parts))
        return str(base.isoformat(value))

    # -- leaves

    def text(self, value: str) -> str:
        limit = self.max_text
        if self.room is not None:
            limit = self.room if limit is None else min(limit, self.room)
            self.room = max(0, self.room - len(value))
        if limit is not None and len(value) > limit:
            self.notes.add("cut")
            value = f"{value[:limit]}...[{len(value)} characters]"
        cleaned, changed = clean_text(value)
        if changed:
            self.notes.add("surrogates")
        return cleaned

    def number(self, value: float) -> float | None:
        if math.isfinite(value):
            return value
        self.notes.add("nonfinite")
        return None

    def binary(self, raw: bytes) -> dict[str, Any]:
        limit = self.max_text if self.room is None else min(self.max_text or self.room, self.room)
        if limit is not None and len(raw) > limit:
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
        names: Any = next(
            (f for c in _class_mro(type(value)) if (f := _class_dict(c).get("_fields")) is not None), None
        )
        if _type(names) is tuple and len(names) == _tuple.__len__(value):
            return self.mapping(zip(names, _tuple.__iter__(value), strict=True), len(names), depth)
        return self.sequence(_tuple.__iter__(value), _tuple.__len__(value), depth)

    def unordered(self, value: Any, base: Any, depth: int) -> list[Any]:
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
        numbers: dict[str, int] = {}
        for key, item in pairs:
            if self.left <= 0:
                self.notes.add("cut")
                out[free_key("<more>", out, numbers)] = length - len(out)
                break
            out[free_key(self.key(key), out, numbers)] = self.visit(item, depth + 1)
        return out

    def key(self, key: Any) -> str:
        if type(key) is str:
            return self.text(key)
        self.notes.add("keys")
        if _is(_type(key), enum.Enum):
            key = object.__getattribute__(key, "_value_")
        tree = self.visit(key, MAX_DEPTH - 3)
        return tree if isinstance(tree, str) else dump(tree)

    # -- objects

    def numpy(self, value: Any, depth: int) -> Any:
        numpy: Any = sys.modules["numpy"]
        if isinstance(value, numpy.generic):
            item = value.item()
            return f"<{type_name(value)}>" if item is value else self.visit(item, depth + 1)
        if not isinstance(value, numpy.ndarray):
            return f"<{type_name(value)}>"
        if value.size <= SMALL_ARRAY and value.dtype.kind in "biufSU":
            return self.visit(value.tolist(), depth + 1)
        self.notes.add("cut")
        return {"$array": {"shape": list(value.shape), "dtype": value.dtype.str}}

    def object_(self, value: Any, kind: type[Any], depth: int) -> Any:
        """Read the data of a dataclass, attrs class or pydantic-like model, or name the type."""
        if _class_qualname(kind).rpartition(".")[2] in ("SecretStr", "SecretBytes", "Secret"):
            return "**********"
        shape = _array_shape(value, kind)
        if shape is not None:
            self.notes.add("cut")
            return shape
        declared = _declared_fields(kind)
        if declared is None:
            self.notes.add("opaque")
            return f"<{_class_name(kind)}>" if self.describe is None else self.text(self.describe(value))
        data = _instance_data(value, kind)
        pairs = [(name, data[name] if name in data else _slot(value, kind, name)) for name in declared]
        return self.mapping(((n, v) for n, v in pairs if v is not _ABSENT), len(pairs), depth)


_ABSENT: Final = object()
# By id: a metaclass of the host may have an `__eq__` or `__hash__` of its own.
_TEXTUAL: Final = frozenset(
    map(
        id,
        (
            decimal.Decimal,
            fractions.Fraction,
            uuid.UUID,
            pathlib.PurePosixPath,
            pathlib.PureWindowsPath,
            type(pathlib.Path()),
        ),
    )
)
"""Types of the standard library that are written as their text."""
_NAMED: Final = frozenset(map(id, (types.FunctionType, types.BuiltinFunctionType, types.ModuleType)))
"""Types that have a name to show."""
_DATE_PARTS: Final = ("year", "month", "day")
_TIME_PARTS: Final = ("hour", "minute", "second", "microsecond")
_ZONES: Final = frozenset({"datetime", "zoneinfo", "pytz", "dateutil"})
"""Modules whose time zones may be asked for their offset."""
_ARRAYS: Final = frozenset({"torch", "jax", "jaxlib", "tensorflow", "pandas", "polars", "cupy", "mlx", "pyarrow"})


def _array_shape(value: Any, kind: type[Any]) -> dict[str, Any] | None:
    """Return shape and dtype of a tensor or frame, recognised by its module, without touching its data."""
    if _module(kind).partition(".")[0] not in _ARRAYS:
        return None
    try:
        shape = [int(n) for n in value.shape]
        dtype = str(getattr(value, "dtype", ""))
    except Exception:  # these libraries' own code, and it may fail on an odd device
        return None
    return {"$array": {"type": _class_name(kind), "shape": shape, "dtype": dtype}}


def _declared_fields(kind: type[Any]) -> list[str] | None:
    """Names of the data fields a class declares; None when it declares none."""
    for marker in ("__dataclass_fields__", "__pydantic_fields__", "model_fields", "__fields__"):
        for base in _class_mro(kind):
            fields: Any = _class_dict(base).get(marker)
            if type(fields) is dict:
                return [name for name in _dict.keys(fields) if type(name) is str]
    for base in _class_mro(kind):
        attrs: Any = _class_dict(base).get("__attrs_attrs__")
        if attrs is not None and _is(_type(attrs), tuple):
            names: list[Any] = [getattr(a, "name", None) for a in attrs]
            return [name for name in names if type(name) is str]
    return None


def _instance_data(value: Any, kind: type[Any]) -> dict[Any, Any]:
    for base in _class_mro(kind):
        member: Any = _class_dict(base).get("__dict__")
        if type(member) is types.GetSetDescriptorType:
            data: Any = member.__get__(value, kind)
            return {**data} if type(data) is dict else {}
    return {}


def _slot(value: Any, kind: type[Any], name: str) -> Any:
    """Read a slot through its C descriptor; a property of the host is never called."""
    for base in _class_mro(kind):
        member: Any = _class_dict(base).get(name)
        if type(member) is types.MemberDescriptorType:
            try:
                return member.__get__(value, kind)
            except AttributeError:
                return _ABSENT
    return _ABSENT
