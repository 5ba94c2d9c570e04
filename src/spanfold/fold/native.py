"""Documents of a native run: `run.json`, `M<n>/log.json`, `stages/<name>/log.json` (docs/formats/run-directory.md).

The layout is that of diagnose loops (DL sections 3 to 5). A record is its
fields first, then the DL envelope, then times, OpenTelemetry ids and status.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from spanfold import names
from spanfold.fold._encoding import encode, item
from spanfold.fold.composing import joined_list, joined_object
from spanfold.fold.entry import EVENT, LOST, RECOVERED, SCORE, SEALED, STARTED, Entry, loaded
from spanfold.fold.family import Composition, Output, Urgency
from spanfold.fold.run_state import RunState, ending
from spanfold.model import Event
from spanfold.moments import ts6
from spanfold.routing import OTHER_STAGES, RUN, RUN_DOCUMENT, RUN_LABEL, Place, place

NATIVE_BUCKETS: Final = {
    "stage": "stage",
    "model_call": "model_calls",
    "agent": "agent",
    "tool": "tool",
    SCORE: "score",
    EVENT: "event",
}
"""Kind of record -> list it goes to."""

RUN_BUCKETS: Final = ("cases", "report_published", "diagnose_reports")
LATER_RUN_BUCKETS: Final = ("loop_end", "agent_decisions", "agent_tool_calls", "unrouted")
"""Lists `run.json` has from the start (DL 3.1), before and after `manifest`."""

BESIDE: Final = "traced/"
"""Begins the documents of what a program recorded by itself while a diagnose-loop logger was open."""

URGENCIES: Final[Mapping[str, Urgency]] = {
    "model_call": Urgency.LATER,
    "agent": Urgency.SOON,
    "tool": Urgency.SOON,
    SCORE: Urgency.SOON,
    EVENT: Urgency.SOON,
    "timing": Urgency.LATER,
    "span": Urgency.LATER,
}
"""Kind of record -> how soon its document shows it; `Urgency.NOW` for every other kind."""

_FACTS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "model_call": (
        ("model", names.GENAI_MODEL),
        ("provider", names.GENAI_PROVIDER),
        ("operation", names.GENAI_OPERATION),
        ("served_model", names.GENAI_SERVED_MODEL),
        ("response_id", names.GENAI_RESPONSE_ID),
        ("finish_reasons", names.GENAI_FINISH_REASONS),
    ),
    "agent": (("agent", names.GENAI_AGENT), ("model", names.GENAI_MODEL), ("provider", names.GENAI_PROVIDER)),
    "tool": (("tool", names.GENAI_TOOL),),
    "stage": (),
    SCORE: (
        ("name", names.SCORE_NAME),
        ("value", names.SCORE_VALUE),
        ("label", names.SCORE_LABEL),
        ("comment", names.SCORE_COMMENT),
    ),
    EVENT: (),
}
_STATUS: Final = ("unset", "ok", "error")
_INFO: Final = 9
_LATER_KEYS: Final = frozenset(
    {
        "fields",
        *("event", "schema_version", "trace_id", "event_seq", "stage", "span_id", "ts"),
        *("start", "end", "seconds", "otel_trace_id", "otel_span_id", "otel_parent_span_id", "status", "otel_severity"),
        *("error_type", "status_message", "outcome", "exit_code", "yielded_items", "notes", "otel_attributes"),
    }
)
_OWN_KEYS: Final = {
    "model_call": frozenset({*(k for k, _ in _FACTS["model_call"]), "input", "output", "usage"}),
    "agent": frozenset({*(k for k, _ in _FACTS["agent"]), "input", "output", "usage"}),
    "tool": frozenset({"tool", "arguments", "result", "call_id"}),
    "stage": frozenset({"name", "input", "output"}),
    SCORE: frozenset(k for k, _ in _FACTS[SCORE]),
    EVENT: frozenset({"name", "body"}),
}
_RESERVED: Final = {kind: own | _LATER_KEYS for kind, own in _OWN_KEYS.items()}
"""Kind -> names a field of the record may not have; such a field is kept under `fields`."""
_FOREIGN_KEYS: Final = frozenset({"scope", "wrapped"})
_MAX_PLACES: Final = 4096


def urgency(kind: str) -> Urgency:
    """Return how soon the documents show a record.

    Args:
        kind: A `names.Kind` for a span, `score` or `event` for an event.
    """
    return URGENCIES.get(kind, Urgency.NOW)


class NativeFamily:
    """Folds spans and events into the documents of their stage."""

    name = "native"

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._run_start: bytes | None = None
        self._stage_names: dict[str, str] = {}
        """Document -> stage name as it was given, for stages other than M1 to M5."""
        self._places: dict[str | None, Place] = {}

    def begin(self, out: Output) -> None:
        """Let run.json exist from the start."""
        out.touch(RUN_DOCUMENT, Urgency.NOW)

    def fold(self, entry: Entry, out: Output) -> None:
        """Add the record to its document, and show in run.json what started and ended."""
        if self._run.is_diagnose:
            self._fold_beside(entry, out)
            return
        kind = entry.kind
        if self._run_start is None and self._run.is_root(entry):
            self._run_start = self._start_record(entry)
        if kind == STARTED:
            started = entry.attributes.get(names.KIND)
            out.touch(RUN_DOCUMENT, urgency(started) if type(started) is str else Urgency.NOW)
            return
        bucket = NATIVE_BUCKETS.get(kind)
        if bucket is not None:
            self._add(entry, bucket, out)
        if kind in names.OPEN_KINDS or kind in (LOST, SEALED, RECOVERED):
            out.touch(RUN_DOCUMENT, urgency(kind))

    def finish(self, out: Output) -> None:
        """Do nothing: these documents are always up to date."""

    def _fold_beside(self, entry: Entry, out: Output) -> None:
        """Keep what the program itself recorded in a diagnose-loop run: its documents hold events of their contract only."""
        bucket = NATIVE_BUCKETS.get(entry.kind)
        if bucket is not None and names.DL_EVENT not in entry.attributes:
            self._add(entry, bucket, out, above=BESIDE)

    def _start_record(self, entry: Entry) -> bytes:
        start = {**_with_fields({}, entry.fields, _LATER_KEYS), **self._envelope(entry, "run_start", RUN)}
        start["start"] = ts6(self._run.start_ns if self._run.start_ns is not None else entry.record.time_ns)
        return encode({**start, **_identity(entry)}, 1)

    def _add(self, entry: Entry, bucket: str, out: Output, *, above: str = "") -> None:
        where = self._places.get(entry.stage) or self._new_place(entry.stage)
        document = above + (where.document if where.document != RUN_DOCUMENT or not above else "log.json")
        if where.document.startswith(OTHER_STAGES):
            self._stage_names.setdefault(document, where.label)
        reserved = _RESERVED[entry.kind] | _FOREIGN_KEYS if entry.is_foreign else _RESERVED[entry.kind]
        record = _with_fields(_own(entry), entry.fields, reserved)
        if entry.is_foreign:
            record["scope"] = entry.record.scope.name
            if entry.wrapped:
                record["wrapped"] = True
        record.update(self._envelope(entry, entry.kind, where))
        if entry.span is not None:
            record["start"] = entry.start
            record["end"] = entry.end
            record["seconds"] = entry.seconds
        record.update(_identity(entry))
        if entry.others:
            record["otel_attributes"] = entry.others
        out.append(document, bucket, item(record), urgency(entry.kind))

    def _new_place(self, stage: str | None) -> Place:
        if len(self._places) >= _MAX_PLACES:
            self._places.clear()
        found = self._places[stage] = place(stage)
        return found

    def _envelope(self, entry: Entry, event: str, where: Place) -> dict[str, Any]:
        """Return the keys every record has (DL 4.1)."""
        seq = self._run.next_seq()
        stage = where.label.lower()
        if event == "run_start":
            label = event
        elif event == "stage" and where.label != RUN_LABEL:
            label = f"c{-1 if entry.cycle is None else entry.cycle}.{stage}"
        else:
            label = f"{stage}.{event}.{seq}"
        return {
            "event": event,
            "schema_version": names.DL_SCHEMA_VERSION,
            "trace_id": self._run.trace_id,
            "event_seq": seq,
            "stage": where.label,
            "span_id": label,
            "ts": entry.ts,
        }

    # -- documents

    def compose(self, document: str, buckets: Sequence[str]) -> Composition | None:
        """Return run.json or the document of a stage."""
        if document == RUN_DOCUMENT:
            return joined_object(self._run_keys(buckets))
        if document.endswith("/log.json"):
            return joined_object(self._stage_keys(document, buckets))
        return None

    def _run_keys(self, buckets: Sequence[str]) -> Iterator[tuple[str, Composition]]:
        run = self._run
        fixed = (*RUN_BUCKETS, *LATER_RUN_BUCKETS)
        yield "trace_id", (encode(run.trace_id),)
        yield "run_start", (self._run_start or b"null",)
        for bucket in RUN_BUCKETS:
            yield bucket, joined_list(bucket, buckets)
        yield "manifest", (b"null",)
        for bucket in (*LATER_RUN_BUCKETS, *(b for b in buckets if b not in fixed)):
            yield bucket, joined_list(bucket, buckets)
        yield "run", joined_object(((key, (value,)) for key, value in run.shown().items()), 1)
        yield "open", joined_object(((key, (value,)) for key, value in run.open.items()), 1)

    def _stage_keys(self, document: str, buckets: Sequence[str]) -> Iterator[tuple[str, Composition]]:
        if document in self._stage_names:
            yield "name", (encode(self._stage_names[document]),)
        for bucket in buckets:
            yield bucket, joined_list(bucket, buckets)

    # -- checkpoint

    def state(self) -> Mapping[str, Any]:
        """Return what the family remembers, as JSON data."""
        return {"run_start": self._run_start and self._run_start.decode(), "stage_names": self._stage_names}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._run_start = state["run_start"] and state["run_start"].encode()
        self._stage_names = dict(state["stage_names"])


def _own(entry: Entry) -> dict[str, Any]:
    """Return the keys a record of this kind begins with; what was not given is absent."""
    kind, attributes = entry.kind, entry.attributes
    found: dict[str, Any] = {key: entry.value(name) for key, name in _FACTS[kind] if name in attributes}
    if kind == EVENT:
        return _own_of_event(entry)
    if kind == "stage":
        found["name"] = entry.record.name
    if kind == "tool":
        return _own_of_tool(entry, found)
    if entry.has_input:
        found["input"] = entry.input
    if entry.has_output:
        found["output"] = entry.output
    if entry.usage and kind != "stage":
        found["usage"] = entry.usage
    return found


def _own_of_tool(entry: Entry, found: dict[str, Any]) -> dict[str, Any]:
    if names.GENAI_TOOL_ARGUMENTS in entry.attributes:
        found["arguments"] = entry.parsed(names.GENAI_TOOL_ARGUMENTS)
    elif entry.has_input:
        found["arguments"] = entry.input
    if names.GENAI_TOOL_RESULT in entry.attributes:
        found["result"] = entry.parsed(names.GENAI_TOOL_RESULT)
    elif entry.has_output:
        found["result"] = entry.output
    if names.GENAI_TOOL_CALL_ID in entry.attributes:
        found["call_id"] = entry.value(names.GENAI_TOOL_CALL_ID)
    return found


def _own_of_event(entry: Entry) -> dict[str, Any]:
    record = entry.record
    found: dict[str, Any] = {"name": record.name}
    if isinstance(record, Event) and record.body:
        found["body"] = record.body
    return found


def _with_fields(own: dict[str, Any], fields: Mapping[str, Any], reserved: frozenset[str]) -> dict[str, Any]:
    """Add the fields to a record; those whose name it needs itself go under `fields`."""
    if reserved.isdisjoint(fields):
        own.update(fields)
        return own
    own.update({key: value for key, value in fields.items() if key not in reserved})
    own["fields"] = {key: value for key, value in fields.items() if key in reserved}
    return own


def _identity(entry: Entry) -> dict[str, Any]:
    """Return the OpenTelemetry ids and the status of a record."""
    record, span = entry.record, entry.span
    found: dict[str, Any] = {"otel_trace_id": record.trace_id or None, "otel_span_id": record.span_id or None}
    if span is None:
        if isinstance(record, Event) and record.severity != _INFO:
            found["otel_severity"] = record.severity
        if names.NOTES in entry.attributes:
            found["notes"] = loaded(entry.attributes[names.NOTES])
        return found
    found["otel_parent_span_id"] = span.parent_span_id or None
    found["status"] = _STATUS[span.status_code] if span.status_code in (0, 1, 2) else "unset"
    found.update(ending(entry, span))
    return found
