"""Read a record once for all families: what it stands for, its fields, and where it belongs.

Spans of other instrumentors become model calls, tool calls or agents here:
their older and foreign attribute names are replaced by the ones spanfold
writes (`names.GENAI_OLDER`), so that families know one spelling only.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import orjson

from spanfold import names
from spanfold.journal import STRUCTURAL, content, field_name, load
from spanfold.model import Record, Span
from spanfold.moments import duration, ts6, utc

STARTED: Final = "started"
SCORE: Final = "score"
EVENT: Final = "event"
LOST: Final = "lost"
SEALED: Final = "sealed"
RECOVERED: Final = "recovered"

_EVENT_KINDS: Final = {
    names.EVENT_STARTED: STARTED,
    names.EVENT_SCORE: SCORE,
    names.EVENT_LOST: LOST,
    names.EVENT_SEALED: SEALED,
    names.EVENT_RECOVERED: RECOVERED,
}

_OPERATIONS: Final = {
    **dict.fromkeys(names.INFERENCE_OPERATIONS, "model_call"),
    "execute_tool": "tool",
    "invoke_agent": "agent",
}
# How OpenInference and OpenLLMetry say what a span is, where they do not name a GenAI operation.
_FOREIGN_KINDS: Final = {
    "openinference.span.kind": {"LLM": "model_call", "EMBEDDING": "model_call", "TOOL": "tool", "AGENT": "agent"},
    "traceloop.span.kind": {"tool": "tool", "agent": "agent"},
}

SHOWN: Final[frozenset[str]] = frozenset(
    {
        names.GENAI_OPERATION,
        names.GENAI_PROVIDER,
        names.GENAI_MODEL,
        names.GENAI_SERVED_MODEL,
        names.GENAI_RESPONSE_ID,
        names.GENAI_FINISH_REASONS,
        names.GENAI_AGENT,
        names.GENAI_TOOL,
        names.GENAI_TOOL_CALL_ID,
        names.GENAI_TOOL_ARGUMENTS,
        names.GENAI_TOOL_RESULT,
        names.GENAI_INPUT,
        names.GENAI_OUTPUT,
        names.SCORE_NAME,
        names.SCORE_VALUE,
        names.SCORE_LABEL,
        names.SCORE_COMMENT,
        names.ERROR_TYPE,
        *names.USAGE_KEYS.values(),
    }
)
"""Attributes of the conventions that records show under names of their own."""

_OTHER: Final = object()
_HIDDEN: Final = object()
_UNKNOWN: Final[Any] = object()
_SHARED: Final = ((names.GENAI_INPUT, names.INPUT_FORM), (names.GENAI_OUTPUT, names.OUTPUT_FORM))
_MAX_SHAPES: Final = 512
_MAX_SHAPE_TEXT: Final = 4096
_shapes: dict[tuple[str, ...], list[tuple[str, Any]]] = {}
"""Keys of a record -> those that are shown as they are, with the field each carries."""


class Entry:
    """One record, read once. Values that several families need are made once and shared: do not change them."""

    __slots__ = (
        "_input",
        "_json_keys",
        "_output",
        "_usage",
        "attributes",
        "cycle",
        "end",
        "fields",
        "is_foreign",
        "kind",
        "others",
        "record",
        "seconds",
        "span",
        "stage",
        "start",
        "ts",
        "wrapped",
    )

    def __init__(self, record: Record) -> None:
        self.record: Final = record
        self.span: Final = record if type(record) is Span else None
        """The record when it is a span."""
        self.attributes: Mapping[str, Any] = record.attributes
        """Its attributes, those of foreign spans under the names spanfold writes."""
        self.is_foreign = False
        """A span of another instrumentor."""
        self.wrapped = False
        """A model call inside another recorded one: the same call, recorded twice. Set by `Totals`."""
        self.start: str | None = None
        """Start of a span (EP 3.2); None for an event."""
        self.end: str | None = None
        """End of a span (EP 3.2); None for an event."""
        self.seconds = 0.0
        """Duration of a span (EP 3.3)."""
        moment = utc(record.time_ns)
        self.ts: str | None = moment and moment + "+00:00"
        """When the record was made (DL 4.3)."""
        if self.span is None:
            self.kind: str = _EVENT_KINDS.get(record.name, EVENT)
            """A `names.Kind` or empty for spans; one of the constants of this module for events."""
        else:
            self.start, self.end = ts6(self.span.start_ns), moment and moment + "Z"
            self.seconds = duration(self.span.start_ns, self.span.end_ns)
            kind = record.attributes.get(names.KIND)
            if type(kind) is str:
                self.kind = kind
            else:
                self.is_foreign = True
                self.attributes = _renamed(record.attributes)
                self.kind = _foreign_kind(self.attributes)
        self._json_keys = _json_keys(self.attributes)
        self._input = self._output = _UNKNOWN
        self._usage: dict[str, int | float] | None = None
        self.fields: dict[str, Any] = {}
        """The fields as they were given, in order."""
        self.others: dict[str, Any] = {}
        """Attributes that are neither ours nor in `SHOWN`."""
        self._sort_attributes()
        stage = record.attributes.get(names.STAGE)
        self.stage: str | None = stage if type(stage) is str else None
        """Name of the innermost enclosing stage, as given."""
        cycle = self.fields.get("cycle")
        self.cycle: int | None = cycle if type(cycle) is int else None

    def _sort_attributes(self) -> None:
        # Records of one kind have the same keys, so what each key is need not be asked again.
        keys = tuple(self.attributes)
        shown = _shapes.get(keys)
        if shown is None:
            shown = _new_shape(keys)
        for key, role in shown:
            value = self.attributes[key]
            if key in self._json_keys:
                value = loaded(value)
            if role is _OTHER:
                self.others[key] = value
            else:
                self.fields[role] = value

    def value(self, key: str) -> Any:
        """Return one attribute, JSON text turned back into its value; None when absent."""
        value = self.attributes.get(key)
        return loaded(value) if key in self._json_keys and value is not None else value

    def parsed(self, key: str) -> Any:
        """Return one attribute; of a foreign span also JSON text, which the conventions use for structured values."""
        value = self.value(key)
        return _parsed(value) if self.is_foreign else value

    @property
    def has_input(self) -> bool:
        """Whether the record holds an input."""
        return names.GENAI_INPUT in self.attributes or names.INPUT in self.attributes

    @property
    def has_output(self) -> bool:
        """Whether the record holds an output."""
        return names.GENAI_OUTPUT in self.attributes or names.OUTPUT in self.attributes

    @property
    def input(self) -> Any:
        """The input in the form its caller passed; None when there is none."""
        if self._input is _UNKNOWN:
            self._input = self._content(output=False)
        return self._input

    @property
    def output(self) -> Any:
        """The output in the form its caller passed; None when there is none."""
        if self._output is _UNKNOWN:
            self._output = self._content(output=True)
        return self._output

    def _content(self, *, output: bool) -> Any:
        shared, form = _SHARED[output]
        if self.is_foreign:
            return _parsed(self.attributes.get(shared))
        try:
            if self.attributes.get(form) == "text":
                # The common case at a third of the cost: a text holds no integer that needs an exact parser.
                return orjson.loads(self.attributes[shared])[0]["parts"][0]["content"]
            return content(self.record, output=output)
        except (ValueError, LookupError, TypeError, AttributeError):
            return self.attributes.get(shared)  # not in the form it claims to have: show what stands there

    @property
    def usage(self) -> dict[str, int | float]:
        """The token counts that were given, under the names of `usage(...)`."""
        if self._usage is None:
            attributes = self.attributes
            self._usage = {
                name: attributes[key]
                for name, key in names.USAGE_KEYS.items()
                if key in attributes and _is_count(attributes[key])
            }
        return self._usage


def _is_count(value: Any) -> bool:
    return type(value) is int or (type(value) is float and abs(value) < 1e300)


def _new_shape(keys: tuple[str, ...]) -> list[tuple[str, Any]]:
    roles = ((key, _role(key)) for key in keys)
    shown = [(key, role) for key, role in roles if role is not _HIDDEN]
    if len(_shapes) >= _MAX_SHAPES:
        _shapes.clear()
    if sum(map(len, keys)) <= _MAX_SHAPE_TEXT:
        _shapes[keys] = shown
    return shown


def _role(key: str) -> Any:
    """Return the field an attribute key carries, or whether it is another attribute or one shown elsewhere."""
    field = field_name(key)
    if field is not None:
        return field
    return _HIDDEN if key in STRUCTURAL or key in SHOWN else _OTHER


def _json_keys(attributes: Mapping[str, Any]) -> frozenset[str]:
    keys = attributes.get(names.JSON_FIELDS)
    if not isinstance(keys, (list, tuple)):
        return frozenset()
    return frozenset(k for k in cast("Iterable[Any]", keys) if type(k) is str)


def loaded(value: Any) -> Any:
    """Return the value of JSON text, or what stands there when it is none."""
    if not isinstance(value, str):
        return value
    try:
        return load(value)
    except ValueError:
        return value


def _parsed(value: Any) -> Any:
    if type(value) is not str or value[:1] not in ("[", "{"):
        return value
    try:
        return orjson.loads(value)
    except ValueError:
        return value


def _renamed(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attributes of a foreign span with older and foreign names replaced by those spanfold writes."""
    found: dict[str, Any] = {}
    for key, value in attributes.items():
        newer = names.GENAI_OLDER.get(key)
        if newer is None:
            found[key] = value
        elif newer not in attributes:
            found.setdefault(newer, value)
    return found


def _foreign_kind(attributes: Mapping[str, Any]) -> str:
    operation = attributes.get(names.GENAI_OPERATION)
    if type(operation) is str and operation in _OPERATIONS:
        return _OPERATIONS[operation]
    for key, kinds in _FOREIGN_KINDS.items():
        kind = attributes.get(key)
        if type(kind) is str:
            return kinds.get(kind, "")
    # Before there were operation names, a span with provider and model was a model call.
    if operation is None and names.GENAI_PROVIDER in attributes and names.GENAI_MODEL in attributes:
        return "model_call"
    return ""
