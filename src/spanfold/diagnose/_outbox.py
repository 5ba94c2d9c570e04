"""A journal for a diagnose run that has documents only, whoever wrote them.

It is made beside the documents, in `.spanfold/backfill`: one span for each event,
with the times, parents and fields of the documents, in the form the recorder
itself writes. Ids follow from trace id and sequence number, so making it again
adds only what is missing. The documents are read and never touched. Why it is a
journal: docs/decisions/0010-documents-become-a-journal.md.
"""

import hashlib
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spanfold import names
from spanfold.diagnose._documents import Documents, Event, epoch_ns, find_documents, number, read_documents
from spanfold.diagnose._envelope import artifact_refs, event_id, service_trace_id
from spanfold.errors import JournalError, JournalMissing
from spanfold.fs import FileLock, SafeRoot
from spanfold.instrument import state, version
from spanfold.journal import (
    AttributeValue,
    Journal,
    JsonText,
    combined_head,
    encode_messages,
    field_key,
    file_heads,
    journal_files,
    read_journal,
    store,
)
from spanfold.model import Span
from spanfold.moments import utc
from spanfold.routing import STAGES

OUTBOX: Final = ".spanfold/backfill"
"""Folder below the documents of a run that has no journal: a run directory with a journal made of them."""
LAYOUT: Final = "diagnose"
_ENVELOPE: Final = frozenset({"event", "schema_version", "trace_id", "event_seq", "stage", "span_id", "ts"})
_OURS: Final = frozenset({"otel_span_id", "otel_parent_span_id", "notes"})
_CALL: Final = frozenset({"inputs", "output", "seq"})
_TARGET_MODEL: Final = "target_model"
_CHAT: Final = frozenset({"generate", "chat"})


@dataclass(frozen=True, slots=True)
class OutboxOfRun:
    """A run directory whose journal holds every event of some documents."""

    run_dir: Path
    roots: int
    """Spans in it that stand for no event and are waiting as long as anything of the first file is."""
    later: int
    """Spans in files that were added when the documents had grown."""

    def events_in(self, waiting: int) -> int:
        """Return how many of the spans that wait are events; the root is the last span of its file."""
        return waiting - self.roots if waiting > self.later else waiting


def outbox_of(run_dir: str | Path, *, into: Path | None = None) -> OutboxOfRun:
    """Return a run directory with a journal of the events of a run, written first when there is none.

    Args:
        run_dir: The directory with documents.
        into: Where to write it; default beside the documents.

    Raises:
        FileNotFoundError: There is no run.
        LockedError: Another process writes it.
        JournalError, OSError: It cannot be written.
    """
    return write_outbox(read_documents(run_dir), into=into)


def write_outbox(documents: Documents, *, into: Path | None = None) -> OutboxOfRun:
    """Return the outbox of documents: their own journal, or one made of them, brought up to date."""
    if _has_journal(documents.run_dir):
        return OutboxOfRun(documents.run_dir, 0, 0)
    run_dir = into or documents.run_dir.resolve() / OUTBOX
    if into is None:
        SafeRoot(documents.run_dir.resolve()).ensure_dir(OUTBOX)
    root = SafeRoot(run_dir, create=True)
    root.ensure_dir("journal")
    with FileLock(root, "lock"):
        writing = _Writing(documents, run_dir)
        writing.write()
        return OutboxOfRun(run_dir, 1, writing.later())


def existing_outbox(run_dir: str | Path) -> Path | None:
    """Return the outbox that was written beside documents before; None when there is none.

    Raises:
        FileNotFoundError: There is no run.
    """
    outbox = find_documents(run_dir) / OUTBOX
    return outbox if _has_journal(outbox) else None


def _has_journal(run_dir: Path) -> bool:
    try:
        return bool(journal_files(run_dir))
    except (JournalMissing, OSError):
        return False


def needs_outbox(run_dir: str | Path) -> bool:
    """Whether a directory has documents of a diagnose loop and no journal."""
    try:
        return not _has_journal(find_documents(run_dir))
    except FileNotFoundError:
        return False


class _Writing:
    """Writes the events that are not in the journal yet."""

    def __init__(self, documents: Documents, run_dir: Path) -> None:
        self._documents = documents
        self._folder = run_dir / "journal"
        self._trace = service_trace_id(documents.trace_id).encode()
        self._root_id = _span_id(documents.trace_id, 0, "run", 0)
        self._ids = _ids(documents)
        self._content = state.ready().content
        self._there = self._known()
        times = [ns for event in documents.events if (ns := epoch_ns(event.get("ts"))) is not None]
        self._end_ns = max(times, default=0)
        self._start_ns = min((ns - _took_ns(e) for e in documents.events if (ns := epoch_ns(e.get("ts")))), default=0)

    def _known(self) -> dict[str, str]:
        """Return span id -> journal file of what is in the journal."""
        if not _has_journal(self._folder.parent):
            return {}
        records = read_journal(self._folder.parent).records
        return {r.span_id: r.position.path.name for r in records if isinstance(r, Span) and r.position is not None}

    def later(self) -> int:
        """Count the spans in other files than that of the root."""
        known = self._known()
        first = known.get(self._root_id.decode())
        return sum(file != first for file in known.values())

    def write(self) -> None:
        """Write what is missing, and the seal over all.

        Raises:
            JournalError: The disk does not take it.
        """
        missing = [index for index, span_id in enumerate(self._ids) if span_id.decode() not in self._there]
        is_new = self._root_id.decode() not in self._there
        if not missing and not is_new:
            return
        assert state.gate is not None
        journal = Journal(
            self._folder,
            gate=state.gate,
            resource=lambda: {"service.name": names.SCOPE, "process.pid": os.getpid()},
            durable=True,
            scope_version=version(),
        )
        if is_new:
            self._announce(journal)
            self._values(journal)
        parents = _parents(self._documents)
        last_ns = self._start_ns
        for index in missing:
            last_ns = epoch_ns(self._documents.events[index].get("ts")) or last_ns
            self._event(journal, index, parents.get(index), last_ns)
        if is_new:
            self._end(journal)
        mine = journal.position.file
        others = {name: head for name, head in file_heads(self._folder).items() if name != mine}
        is_sealed = journal.seal(others)
        journal.close()
        if not is_sealed or journal.stats.lost:
            raise JournalError(
                f"{self._folder}: expected to write {len(missing)} events, found that the disk refuses them "
                f"({journal.stats.problem}). The documents are as they were; make room and run it again."
            )

    def _root(self) -> dict[str, AttributeValue]:
        return {
            names.KIND: "run",
            names.RUN_ID: LAYOUT,
            names.RUN_DIR: self._documents.run_dir.name,
            names.LAYOUT: LAYOUT,
            names.DL_TRACE_ID: self._documents.trace_id,
            field_key(f"{names.DL_FIELD}backfilled"): True,
        }

    def _announce(self, journal: Journal) -> None:
        told: dict[str, AttributeValue] = {
            **self._root(),
            names.SPAN_NAME: LAYOUT,
            names.OPEN_START: self._start_ns,
        }
        body, passes = journal.encoder.event(
            trace_id=self._trace,
            span_id=self._root_id,
            name=names.EVENT_STARTED,
            time_ns=self._start_ns,
            attributes=told,
        )
        journal.event(body, passes)

    def _values(self, journal: Journal) -> None:
        """Write what run.json holds that is no event."""
        for key in ("manifest", "runtime_snapshot"):
            # `manifest` is null until there is one; `runtime_snapshot` may be null when there is one (DL 3.1).
            if key not in self._documents.run or (key == "manifest" and self._documents.run[key] is None):
                continue
            stored, _ = store(self._documents.run[key])
            body, passes = journal.encoder.event(
                trace_id=self._trace,
                span_id=self._root_id,
                name=f"{LAYOUT}.{key}",
                time_ns=self._start_ns,
                attributes={names.DL_EVENT: key, field_key(f"{names.DL_FIELD}value"): stored},
            )
            journal.event(body, passes)

    def _event(self, journal: Journal, index: int, above: int | None, end_ns: int) -> None:
        event = self._documents.events[index]
        error = event.get("error")
        body, passes = journal.encoder.span(
            trace_id=self._trace,
            span_id=self._ids[index],
            parent_span_id=self._root_id if above is None else self._ids[above],
            name=_span_name(event),
            otel_kind=3 if event["event"] == "model_call" else 1,
            start_ns=end_ns - _took_ns(event),
            end_ns=end_ns,
            attributes=self._attributes(event, end_ns),
            status_code=2 if error else 0,
            status_message=str(error) if error else "",
        )
        journal.span(body, passes)

    def _attributes(self, event: Event, end_ns: int) -> dict[str, AttributeValue]:
        kind = "model_call" if event["event"] == "model_call" else "stage" if event["stage"] in STAGES else "span"
        made: dict[str, AttributeValue] = {names.KIND: kind, names.DL_EVENT: str(event["event"])}
        if event["stage"] in STAGES:
            made[names.STAGE] = str(event["stage"])
        if kind == "model_call":
            made.update(_model_attributes(event))
        moment = utc(end_ns)
        left_out = set(_ENVELOPE | _OURS if "otel_span_id" in event else _ENVELOPE)
        if event.get("ts") != (moment and f"{moment}+00:00"):
            left_out.discard("ts")  # it cannot be made of the time of the record again
        if kind == "model_call":
            left_out |= _CALL
        made.update({field_key(key): store(value)[0] for key, value in event.items() if key not in left_out})
        facts = {
            "event_id": event_id(self._documents.trace_id, event["event_seq"], str(event["event"])),
            "event_seq": event["event_seq"],
            "label": event.get("span_id"),
            "artifact_refs": artifact_refs(event, self._documents.run_dir),
        }
        made.update({field_key(f"{names.DL_FIELD}{key}"): store(value)[0] for key, value in facts.items() if value})
        return self._as_allowed(made)

    def _as_allowed(self, made: dict[str, AttributeValue]) -> dict[str, AttributeValue]:
        """Return attributes under the policy for message content that is in force now."""
        if self._content == "none":
            return {key: value for key, value in made.items() if not names.is_content(key)}
        return {**made, names.CONTENT: "local"} if self._content == "local" else made

    def _end(self, journal: Journal) -> None:
        heads = {**file_heads(self._folder), **journal.heads()}
        body, passes = journal.encoder.span(
            trace_id=self._trace,
            span_id=self._root_id,
            parent_span_id=b"",
            name=LAYOUT,
            otel_kind=1,
            start_ns=self._start_ns,
            end_ns=max(self._end_ns, self._start_ns),
            attributes={
                **self._root(),
                names.SEAL_HEAD: combined_head({name: (int(h["seq"]), str(h["head"])) for name, h in heads.items()}),
                names.SEAL_SEQ: sum(int(head["seq"]) for head in heads.values()),
            },
        )
        journal.span(body, passes)


def _span_id(trace_id: str, event_seq: int, event: str, occurrence: int) -> bytes:
    again = f":{occurrence}" if occurrence else ""
    found = hashlib.sha256(f"{trace_id}:{event_seq}:{event}{again}".encode("utf-8", "replace")).hexdigest()
    return found[:16].encode()


def _ids(documents: Documents) -> list[bytes]:
    """Return the span id of each event; of events that share number and name, which two loggers can make, one each."""
    seen: Counter[tuple[int, str]] = Counter()
    found: list[bytes] = []
    for event in documents.events:
        key = event["event_seq"], str(event["event"])
        found.append(_span_id(documents.trace_id, *key, seen[key]))
        seen[key] += 1
    return found


def _took_ns(event: Event) -> int:
    took = number(event.get("duration_sec"))
    return round(took * 1e9) if took is not None and 0 <= took < 1e9 else 0


def _span_name(event: Event) -> str:
    if event["event"] == "model_call":
        return f"{_operation(event)} {event.get('role') or _TARGET_MODEL}"
    return f"{event['stage'] if event['stage'] in STAGES else 'run'} {event['event']}"


def _operation(event: Event) -> str:
    method = str(event.get("operation") or event.get("method") or "chat")
    return "chat" if method in _CHAT else method


def _model_attributes(event: Event) -> dict[str, AttributeValue]:
    """Return who was asked, what, and the answer, in the forms the conventions have for them."""
    made: dict[str, AttributeValue] = {
        names.GENAI_OPERATION: _operation(event),
        names.GENAI_MODEL: str(event.get("role") or _TARGET_MODEL),
    }
    for key, role, shared, form, own in (
        ("inputs", "user", names.GENAI_INPUT, names.INPUT_FORM, names.INPUT),
        ("output", "assistant", names.GENAI_OUTPUT, names.OUTPUT_FORM, names.OUTPUT),
    ):
        value = event.get(key)
        messages = encode_messages(value, role)
        if messages is not None:
            made[shared], made[form] = messages
        else:
            stored, _ = store(value)
            made[own] = stored if value is not None else JsonText("null")
    return made


def _parents(documents: Documents) -> dict[int, int]:
    """Return which event each model call belongs to, both by their place among the events.

    Calls of an analyzer come before the probe that tells of them, questions to
    a judge after the event that tells of those (DL 4.4, 7.9).
    """
    found: dict[int, int] = {}
    waiting: dict[str, list[int]] = {}
    latest: dict[str, int] = {}
    for index, event in enumerate(documents.events):
        stage = str(event["stage"])
        if stage not in STAGES:
            continue
        if event["event"] != "model_call":
            latest[stage] = index
            if event["event"] == "probe":
                found.update(dict.fromkeys(waiting.pop(stage, []), index))
        elif "role" in event and stage in latest:
            found[index] = latest[stage]
        else:
            waiting.setdefault(stage, []).append(index)
    return found
