"""Turn result objects into plain JSON values, fields in the order they are declared."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol, cast


class _Result(Protocol):
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


def plain(result: _Result) -> dict[str, object]:
    """Return a frozen result as nested dicts and lists."""
    return {field.name: _plain(getattr(result, field.name)) for field in dataclasses.fields(result)}


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in cast("Iterable[object]", value)]
    return value
