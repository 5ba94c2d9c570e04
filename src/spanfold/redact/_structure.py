"""Redaction of nested data and of argument lists, where names and values stand apart from each other.

In a text a secret's end must be guessed from quotes and separators; here the value is its own object. So a value under
a sensitive key is masked whatever it looks like, and an option decides about the argument behind it.
"""

import dataclasses
import datetime
import enum
import json
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, Final, cast

from spanfold.redact._assignments import kind_of
from spanfold.redact._commands import takes_password, takes_user
from spanfold.redact._headers import SCHEMES
from spanfold.redact._names import TOKEN_START, is_plain_value, is_sensitive_name, token

RedactText = Callable[[str], str]

MAX_DEPTH: Final = 64
MAX_NODES: Final = 100_000

_HEADER_OPTIONS: Final = frozenset({"-H", "--header", "--proxy-header"})
_USER_OPTIONS: Final = frozenset({"-u", "--user", "--proxy-user"})
_PASSWORD_OPTIONS: Final = frozenset({"-p", "-a"})
_NAME_KEYS: Final = ("name", "key", "Name", "Key")
_VALUE_KEYS: Final = ("value", "Value")
_SHORT_INTEGER: Final = 99_999
_LONGEST_INTEGER_BITS: Final = 10_000
"""Python refuses to write longer integers in decimal."""


# --- nested data ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class _Task:
    """One value to copy into its place."""

    target: Any
    slot: Any
    value: object
    depth: int
    kind: str | None
    """The kind by which texts and numbers are masked; None: they are read as texts."""


def redact_tree(
    value: object, redact: RedactText, *, max_depth: int | None = MAX_DEPTH, max_nodes: int | None = MAX_NODES
) -> Any:
    """Return a redacted JSON copy of `value`; neither depth nor size of the data uses up the stack.

    Args:
        value: Anything; what JSON has no form for is turned into what comes nearest.
        redact: Called with every text leaf and every key.
        max_depth: Levels that are copied; None copies all.
        max_nodes: Values that are copied; None copies all.
    """
    root: list[Any] = [None]
    stack: list[_Task | int] = [_Task(root, 0, value, 0, None)]
    path: set[int] = set()
    nodes = 0
    while stack:
        task = stack.pop()
        if isinstance(task, int):
            path.discard(task)  # all children of that container are done
            continue
        nodes += 1
        children = None
        if max_nodes is not None and nodes > max_nodes:
            task.target[task.slot] = "[OMITTED:nodes]"
            continue
        try:
            children = _open_container(task, redact)
        except Exception:
            task.target[task.slot] = _unserialisable(task.value)
            continue
        if children is None:
            task.target[task.slot] = _leaf(task.value, task.kind, redact)
        elif id(task.value) in path:
            task.target[task.slot] = "[OMITTED:cycle]"
        elif max_depth is not None and task.depth >= max_depth:
            task.target[task.slot] = "[OMITTED:depth]"
        else:
            path.add(id(task.value))
            stack.append(id(task.value))
            stack.extend(reversed(children))
    return root[0]


def _open_container(task: _Task, redact: RedactText) -> list[_Task] | None:
    """Put an empty copy of a container in its place and return its children, or None for a leaf."""
    value = task.value
    if isinstance(value, str | bytes | bytearray | int | float | enum.Enum) or value is None:
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        copy: dict[str, Any] = {}
        task.target[task.slot] = copy
        return list(_mapping_children(cast("Mapping[Any, Any]", value), copy, task, redact))
    if isinstance(value, AbstractSet):
        value = sorted(cast("AbstractSet[Any]", value), key=_type_and_text)
    if isinstance(value, list | tuple):
        values = cast("list[Any] | tuple[Any, ...]", value)
        items: list[Any] = [None] * len(values)
        task.target[task.slot] = items
        return list(_list_children(values, items, task, redact))
    return None


def _type_and_text(item: object) -> tuple[str, str]:
    """Order the members of a set, whatever they are."""
    return type(item).__name__, str(item)


def _mapping_children(
    mapping: Mapping[Any, Any], copy: dict[str, Any], task: _Task, redact: RedactText
) -> Iterator[_Task]:
    named = _kind_of_named_value(mapping)
    numbers: dict[str, int] = {}
    for key, value in mapping.items():
        name = "None" if key is None else _as_text(key)
        kind = task.kind
        if kind is None and is_sensitive_name(name):
            kind = kind_of(name)
        elif kind is None and named is not None and name in _VALUE_KEYS:
            kind = named
        slot = free_key(redact(name), copy, numbers)
        copy[slot] = None
        yield _Task(copy, slot, value, task.depth + 1, kind)


def _kind_of_named_value(mapping: Mapping[Any, Any]) -> str | None:
    """Return the kind of the value in `{"name": "API_KEY", "value": ...}`."""
    for key in _NAME_KEYS:
        name = mapping.get(key)
        if isinstance(name, str) and is_sensitive_name(name):
            return kind_of(name)
    return None


def _list_children(
    values: list[Any] | tuple[Any, ...], copy: list[Any], task: _Task, redact: RedactText
) -> Iterator[_Task]:
    kinds = [task.kind] * len(values)
    if task.kind is None and _is_header_pair(values):
        kinds[1] = "header"
    elif task.kind is None and _looks_like_argv(values):
        values = redact_argv(values, redact)
    for index, value in enumerate(values):
        yield _Task(copy, index, value, task.depth + 1, kinds[index])


def _is_header_pair(values: list[Any] | tuple[Any, ...]) -> bool:
    if len(values) != 2 or not isinstance(values[0], str | bytes):
        return False
    name = _as_text(values[0])
    return is_sensitive_name(name) and kind_of(name) == "header"


def _looks_like_argv(values: list[Any] | tuple[Any, ...]) -> bool:
    return any(isinstance(value, str) and value.startswith("-") for value in values) and all(
        isinstance(value, str) for value in values
    )


def free_key(key: str, taken: Container[str], numbers: dict[str, int]) -> str:
    """Return `key`, or a numbered variant of it when another key already became the same text.

    Args:
        taken: The keys there are; none is ever taken out.
        numbers: The last number each key was given, or as many keys of one text would take steps in the square of it.
    """
    if key not in taken:
        return key
    number = numbers.get(key, 1) + 1
    while f"{key}#{number}" in taken:
        number += 1
    numbers[key] = number
    return f"{key}#{number}"


def _leaf(value: object, kind: str | None, redact: RedactText) -> Any:
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = int(value)
        if kind is not None and abs(number) > _SHORT_INTEGER:
            return token(kind)
        return number if number.bit_length() <= _LONGEST_INTEGER_BITS else hex(number)
    if isinstance(value, float):
        number_text = repr(float(value))
        if kind is not None and not is_plain_value(number_text):
            return token(kind)
        return float(value) if math.isfinite(value) else _json_name(float(value))
    text = _as_text(value)
    if kind is not None:
        return redact(text) if is_plain_value(text) else token(kind)
    return redact(text)


def _json_name(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def as_text(value: object) -> str:
    """Return the text of a value: None gives none, bytes are decoded, anything else is asked for it.

    Raises:
        Exception: Whatever the value's own `__str__` raises.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str.__str__(str(value))


def _as_text(value: object) -> str:
    try:
        return as_text(value)
    except Exception:
        return _unserialisable(value)


def _unserialisable(value: object) -> str:
    return f"[UNSERIALISABLE:{type(value).__name__}]"


# --- argument lists ---------------------------------------------------------------------------------------------------


def redact_argv(argv: Iterable[object], redact: RedactText) -> list[str]:
    """Return a new list of the same length and order; see `Redactor.redact_argv`."""
    items = [_as_text(item) for item in argv]
    redacted: list[str] = []
    # The part of the command line before the item, as far as it matters: which programs it names.
    command = ""
    option = ""
    for item in items:
        value = None if item.startswith("-") or not item else _option_value(option, item, command, redact)
        redacted.append(_argument(item, command, redact) if value is None else value)
        option = item
        command = f"{command[-512:]} {item[:128]}"
    return redacted


def _option_value(option: str, value: str, command: str, redact: RedactText) -> str | None:
    """Return what becomes of the argument behind `option`, or None when the option says nothing about it."""
    if not option.startswith("-") or "=" in option:
        return None
    name = option.lstrip("-")
    if len(name) > 1 and is_sensitive_name(name):
        return _masked(value, _option_kind(name))
    if option in _HEADER_OPTIONS:
        return _header_line(value, redact)
    if (option in _USER_OPTIONS and takes_user(option, command)) or option in ("--user", "--proxy-user"):
        return _user(value, redact)
    if option in _PASSWORD_OPTIONS and takes_password(option, command):
        return _masked(value, "assignment")
    if option in ("-d", "-F", "--json", "--form") or option.startswith("--data"):
        return _body(value, redact)
    return None


def _argument(item: str, command: str, redact: RedactText) -> str:
    """Redact one argument that no option before it has claimed."""
    assignment = _assignment().match(item)
    if assignment is not None:
        if is_sensitive_name(assignment["name"]):
            return assignment[1] + _masked(assignment[3], _option_kind(assignment["name"]))
        inner = _assignment().match(assignment[3])
        if assignment[1].startswith("-") and inner is not None:  # --env=NAME=value
            return redact(assignment[1]) + _argument(assignment[3], command, redact)
    if item.startswith("-H") and ":" in item:
        return "-H" + _header_line(item[2:], redact)
    takes = takes_password("-p", command, attached=True) or _attached_password().match(item) is not None
    if item.startswith("-p") and len(item) > 2 and takes:
        return "-p" + _masked(item[2:], "assignment")
    return redact(item)


@lru_cache(maxsize=1)
def _assignment() -> re.Pattern[str]:
    return re.compile(r"((?:--?)?(?P<name>[A-Za-z_][\w.-]*+)=)(.*)", re.ASCII | re.DOTALL)


@lru_cache(maxsize=1)
def _attached_password() -> re.Pattern[str]:
    # Whatever the program: letters and digits mixed are neither a port nor a word such as `-pthread`.
    return re.compile(r"-p(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9!@#$%^&*+_~-]{8,}\Z")


def _option_kind(name: str) -> str:
    # `--api-key` is spelled like a header and is none.
    kind = kind_of(name)
    return "assignment" if kind == "header" else kind


def _masked(value: str, kind: str) -> str:
    return value if is_plain_value(value) or value.startswith("$") else token(kind)


def _header_line(line: str, redact: RedactText) -> str:
    name, colon, value = line.partition(":")
    if not colon or not is_sensitive_name(name):
        return redact(line)
    blanks = value[: len(value) - len(value.lstrip())]
    value = value.strip()
    scheme, blank, rest = value.partition(" ")
    if blank and scheme.lower() in SCHEMES:
        blanks, value = f"{blanks}{scheme} ", rest.lstrip()
    return f"{name}:{blanks}{_masked(value, 'header')}"


def _user(value: str, redact: RedactText) -> str:
    user, colon, password = value.partition(":")
    if not colon or "://" in value or '"' in user or password.startswith(TOKEN_START):
        return redact(value)
    return f"{redact(user)}:{_masked(password, 'assignment')}"


def _body(value: str, redact: RedactText) -> str:
    """Redact the body of a request: as structure when it is JSON, else as text."""
    try:
        document: object = json.loads(value)
        if not isinstance(document, dict | list):
            return redact(value)
        copy = redact_tree(cast("object", document), redact, max_depth=None, max_nodes=None)
        return redact(value) if copy == document else json.dumps(copy, ensure_ascii=False)
    except (ValueError, RecursionError):
        return redact(value)
