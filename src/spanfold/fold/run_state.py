"""What all families of one run share: who the run is, what is open, the counter of records, the totals."""

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from spanfold import names
from spanfold.fold._encoding import encode
from spanfold.fold.entry import LOST, RECOVERED, SEALED, STARTED, Entry, loaded
from spanfold.fold.totals import Totals
from spanfold.journal import Start
from spanfold.model import Span
from spanfold.moments import seconds, ts6

Status = Literal["running", "completed", "failed", "interrupted"]

HOST_FACTS: Final = ("host", "pid", "python_version", "spanfold_version", "argv", "git_commit")
"""Fields of the root span that say where and with what the run was made."""
_DEPTH: Final = 2
"""Where the values of `run` and `open` stand in run.json."""


class RunState:
    """The facts of one run, as far as its journal was read."""

    def __init__(self) -> None:
        self.trace_id: str | None = None
        """Trace of the root span; until that is known, of the first record that has one."""
        self.root_id = ""
        """Span id of the root, empty until it is known."""
        self.name: str | None = None
        self.folder: str | None = None
        """Folder name of the run directory, as the recorder wrote it down."""
        self.layout = ""
        """`diagnose` when the diagnose-loop recorder wrote the journal, empty otherwise."""
        self.document_trace_id: str | None = None
        """Trace id of the documents of that layout."""
        self.seq = 0
        """`event_seq` of the last stamped record."""
        self.status: Status = "running"
        self.seconds: float | None = None
        """Duration of the run; None until its root span ended."""
        self.start_ns: int | None = None
        self.totals = Totals()
        self.open: dict[str, bytes] = {}
        """Span id -> what run.json shows of a span that was started and has not ended."""
        self.open_kinds: dict[str, str] = {}
        """Span id -> kind, of the same spans."""
        self.start_fields: list[str] = []
        """Names of the fields the root span started with."""
        self._facts: dict[str, bytes] = {}
        self._endings: dict[str, bytes] = {}
        self._lost = 0
        self._losses: dict[str, Any] = {}
        self._recovered: bytes | None = None
        self._seal: bytes | None = None

    def next_seq(self) -> int:
        """Return the sequence number of the next record of a document (DL 4.1)."""
        self.seq += 1
        return self.seq

    def observe(self, entry: Entry) -> None:
        """Take in a record, before the families see it."""
        record = entry.record
        if self.trace_id is None and record.trace_id:
            self.trace_id = record.trace_id
        if entry.span is not None:
            self._ended(entry, entry.span)
        elif entry.kind == STARTED:
            self._started(entry)
        elif entry.kind == LOST:
            count = entry.fields.get("count")
            self._lost += count if type(count) is int else 1
        elif entry.kind == SEALED:
            self._sealed(entry)
        elif entry.kind == RECOVERED:
            self._recovered = encode({"at": ts6(record.time_ns), **entry.fields}, _DEPTH)
            self.status = "interrupted"

    @property
    def is_diagnose(self) -> bool:
        """Whether the diagnose-loop recorder wrote the journal, so that run.json and M1 to M5 are as its contract says."""
        return self.layout == "diagnose"

    @property
    def is_sealed(self) -> bool:
        """Whether the journal was sealed."""
        return self._seal is not None

    def is_root(self, entry: Entry) -> bool:
        """Whether a record is the start or the end of the run itself."""
        return bool(self.root_id) and entry.record.span_id == self.root_id

    # -- records

    def started_briefly(self, start: Start) -> None:
        """Take in the start of a span that ends before anybody is shown what is open."""
        if start.span_id:
            self.open_kinds[start.span_id] = start.kind

    def _started(self, entry: Entry) -> None:
        record, attributes = entry.record, entry.attributes
        kind = attributes.get(names.KIND)
        start = attributes.get(names.OPEN_START)
        start_ns = start if type(start) is int else record.time_ns
        name = attributes.get(names.SPAN_NAME)
        if not record.span_id:
            return
        self.open_kinds[record.span_id] = kind if type(kind) is str else ""
        self.open[record.span_id] = encode(
            {"kind": kind, "name": name, "stage": entry.stage, "cycle": entry.cycle, "start": ts6(start_ns)}, _DEPTH
        )
        # A run that starts behind a seal goes on with this one: the recorder opened a used directory.
        is_late = attributes.get(names.DL_LATE) is True and bool(self.root_id)
        if kind == "run" and (not self.root_id or self._seal is not None) and not is_late:
            self._found_root(entry, name if type(name) is str else None, start_ns)

    def _found_root(self, entry: Entry, name: str | None, start_ns: int) -> None:
        record = entry.record
        given = entry.attributes.get(names.RUN_ID)
        folder = entry.attributes.get(names.RUN_DIR)
        parent = record.parent_span_id if isinstance(record, Span) else entry.attributes.get(names.SPAN_PARENT)
        self.trace_id, self.root_id = record.trace_id, record.span_id
        self.name = given if type(given) is str else name
        self.folder = folder if type(folder) is str else None
        self.start_ns = start_ns
        self.status, self.seconds, self._seal, self._recovered, self._endings = "running", None, None, None, {}
        if type(layout := entry.attributes.get(names.LAYOUT)) is str:
            self.layout = layout
        if type(trace_id := entry.attributes.get(names.DL_TRACE_ID)) is str:
            self.document_trace_id = trace_id
        self.start_fields = list(entry.fields)
        found: dict[str, Any] = {
            "start": ts6(start_ns),
            **{fact: entry.fields[fact] for fact in HOST_FACTS if fact in entry.fields},
            "otel_trace_id": record.trace_id,
            "otel_span_id": record.span_id,
            "otel_parent_span_id": parent or None,
        }
        self._facts = {key: encode(value, _DEPTH) for key, value in found.items()}

    def _ended(self, entry: Entry, span: Span) -> None:
        self.totals.ended(entry, self.open_kinds)
        self.open.pop(span.span_id, None)
        self.open_kinds.pop(span.span_id, None)
        if entry.kind == "run" and not self.root_id:  # the started event was lost
            self._found_root(entry, span.name, span.start_ns)
        if span.span_id == self.root_id:
            self._root_ended(entry, span)

    def _root_ended(self, entry: Entry, span: Span) -> None:
        self.seconds = entry.seconds
        if self._recovered is None:
            # The program left the run to its own end: nobody said that the work was done. Loggers of a loop always may.
            left = entry.attributes.get(names.OUTCOME) == "abandoned" and not self.is_diagnose
            self.status = "failed" if span.status_code == 2 else "interrupted" if left else "completed"
        later = {k: v for k, v in entry.fields.items() if k not in self.start_fields and k != names.RUN_LOSSES}
        told = entry.fields.get(names.RUN_LOSSES)
        self._losses = cast("dict[str, Any]", told) if type(told) is dict else {}
        found: dict[str, Any] = {
            "end": entry.end,
            "seconds": self.seconds,
            "self_seconds": seconds(entry.attributes.get(names.SELF_NS)),
            **ending(entry, span),
            **({"fields": later} if later else {}),
        }
        self._endings = {key: encode(value, _DEPTH) for key, value in found.items()}

    def _sealed(self, entry: Entry) -> None:
        heads = loaded(entry.fields.get("heads"))
        files = cast("dict[str, Any]", heads) if type(heads) is dict else {}
        position = entry.record.position
        own = files.get(position.path.name) if position else None
        own = cast("dict[str, Any]", own) if type(own) is dict else {}
        self._seal = encode({"head": own.get("head"), "seq": own.get("seq"), "files": files}, _DEPTH)

    # -- what run.json shows

    def shown(self) -> dict[str, bytes]:
        """Return the values of `run` in run.json, encoded, in order."""
        null = b"null"
        facts, endings = dict(self._facts), dict(self._endings)
        shown = {
            "schema": encode(names.RUN_SCHEMA),
            "name": encode(self.name),
            "status": encode(self.status),
            "start": facts.pop("start", null),
            "end": endings.pop("end", null),
            "seconds": endings.pop("seconds", null),
            "self_seconds": endings.pop("self_seconds", null),
            **facts,
            **endings,
            "totals": encode(self.totals.shown(), _DEPTH),
        }
        losses = {**({"journal_records": self._lost} if self._lost else {}), **self._losses}
        if losses:
            shown["losses"] = encode(losses, _DEPTH)
        if self._recovered is not None:
            shown["recovered"] = self._recovered
        if self._seal is not None:
            shown["seal"] = self._seal
        return shown

    # -- checkpoint

    def state(self) -> dict[str, Any]:
        """Return everything remembered, as JSON data."""
        return {
            "trace_id": self.trace_id,
            "root_id": self.root_id,
            "name": self.name,
            "folder": self.folder,
            "layout": [self.layout, self.document_trace_id],
            "seq": self.seq,
            "status": self.status,
            "seconds": self.seconds,
            "start_ns": self.start_ns,
            "totals": self.totals.state(),
            "open": {key: [self.open_kinds[key], text.decode()] for key, text in self.open.items()},
            "start_fields": self.start_fields,
            "facts": {key: text.decode() for key, text in self._facts.items()},
            "endings": {key: text.decode() for key, text in self._endings.items()},
            "lost": self._lost,
            "losses": self._losses,
            "recovered": self._recovered and self._recovered.decode(),
            "seal": self._seal and self._seal.decode(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        for key in ("trace_id", "root_id", "name", "folder", "seq", "status", "seconds", "start_ns"):
            setattr(self, key, state[key])
        self.layout, self.document_trace_id = state["layout"]
        self.totals.restore(state["totals"])
        self.open = {key: text.encode() for key, (_, text) in state["open"].items()}
        self.open_kinds = {key: kind for key, (kind, _) in state["open"].items()}
        self.start_fields = list(state["start_fields"])
        self._facts = {key: text.encode() for key, text in state["facts"].items()}
        self._endings = {key: text.encode() for key, text in state["endings"].items()}
        self._lost, self._losses = state["lost"], dict(state["losses"])
        self._recovered = state["recovered"] and state["recovered"].encode()
        self._seal = state["seal"] and state["seal"].encode()


def ending(entry: Entry, span: Span) -> dict[str, Any]:
    """Return how a span ended, as far as it did not end plainly, in the order records show it."""
    found: dict[str, Any] = {}
    attributes = entry.attributes
    if names.ERROR_TYPE in attributes:
        found["error_type"] = entry.value(names.ERROR_TYPE)
    if span.status_message:
        found["status_message"] = span.status_message
    if names.OUTCOME in attributes:
        found["outcome"] = attributes[names.OUTCOME]
        if names.EXIT_CODE in attributes:
            found["exit_code"] = attributes[names.EXIT_CODE]
    if names.ITEMS in attributes:
        found["yielded_items"] = attributes[names.ITEMS]
    if names.NOTES in attributes:
        found["notes"] = loaded(attributes[names.NOTES])
    return found
