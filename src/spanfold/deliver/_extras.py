"""Scores and media of a run for Langfuse's REST interface, with ids that are the same each time they are sent.

The server overwrites a score of the same id, name and day, and knows media by
their SHA-256: sending either again changes nothing. They are acknowledged apart
from the spans they belong to, and may arrive before them.

A score of a span that Langfuse has refused would hang on nothing; it is sent
to the trace instead, and once more if it had been sent before the refusal.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Final

from spanfold import names
from spanfold.deliver._acks import FOLDER, REFUSED, is_event, read_lines
from spanfold.deliver._cut import cut_text, cut_tree
from spanfold.deliver._destination import Destination, langfuse_spans
from spanfold.deliver._langfuse import environment_of, trace_attributes
from spanfold.deliver._media import media_of
from spanfold.deliver._outbox import Item, Outbox
from spanfold.errors import JournalMissing, SpanfoldError
from spanfold.fs import SafeRoot
from spanfold.journal import NotOtlp, Tail, decode_line, dump, fields, journal_files, value_of
from spanfold.model import Event, Position, Record

MAX_SCORE_BYTES: Final = 200_000
"""Of a comment, and of the further fields of a score; the server takes 1 MB for all."""
MAX_MEDIA_BYTES: Final = 64 * 1024 * 1024
"""Larger files stay here: one is held in memory while it is sent."""


class EventOutbox(Outbox):
    """Events of one name; other lines of the journal are not even decoded."""

    event_name: ClassVar[str]

    def _begin(self) -> None:
        super()._begin()
        self._read_to: dict[str, int] = {}
        self.environment = "default"

    def _records(self) -> Iterator[Record]:
        try:
            files = journal_files(self.journal_dir)
        except (JournalMissing, OSError):
            return
        for path in files:
            tail = Tail(path, self._read_to.get(path.name, 0))
            if tail.size() == tail.offset:
                continue
            for line in tail.lines():
                self._read_to[path.name] = line.offset + line.length
                if is_event(self.event_name, line.data) or is_event(names.EVENT_STARTED, line.data):
                    try:
                        yield from decode_line(line.data, path, line.offset)
                    except NotOtlp:
                        continue  # `run verify` says what is wrong with it

    def take(self, record: Record, position: Position) -> Item | None:
        """Return the item of an event of the name."""
        if not isinstance(record, Event):
            return None
        if record.name == names.EVENT_STARTED and record.attributes.get(names.KIND) == "run":
            found = trace_attributes(fields(record), "", self.destination.environ)
            self.environment = environment_of(found.get("langfuse.environment"))
        if record.name != self.event_name or self.is_acked(position):
            return None
        return self.item(record, position)

    def item(self, event: Event, position: Position) -> Item | None:
        """Return the item of an event that is not acknowledged; None when it needs no sending."""
        raise NotImplementedError

    def shorten(self, item: Item) -> bool:
        """Do nothing: there is nothing to cut."""
        return False

    def describe(self, item: Item) -> Mapping[str, Any]:
        """Return what names a score or a file."""
        record = item.record
        return {"trace_id": record.trace_id, "span_id": record.span_id, "name": item.content["name"]}


class ScoreOutbox(EventOutbox):
    """The scores of a run that Langfuse has not acknowledged."""

    event_name = names.EVENT_SCORE

    def __init__(self, run_dir: Path, destination: Destination, journal_dir: Path | None = None) -> None:
        self._refusals = langfuse_spans(destination).key + REFUSED
        super().__init__(run_dir, destination, journal_dir)

    def _begin(self) -> None:
        super()._begin()
        self._refused_spans: set[str] = set()
        self._refusals_size = 0

    def fill(self) -> list[Item]:
        """Return what goes into the next request; first of all scores whose span was refused after they were sent."""
        if not self.pending:
            self._look_for_refusals()
        return super().fill()

    def _look_for_refusals(self) -> None:
        path = self.journal_dir / FOLDER / self._refusals
        try:
            size = path.stat().st_size
        except OSError:
            return
        if size == self._refusals_size:
            return
        self._refusals_size = size
        seen = self.acks.offsets.get(self._refusals, 0)
        self._refused_spans |= _span_ids(self.journal_dir, self._refusals, 0)
        late = _span_ids(self.journal_dir, self._refusals, seen)
        if late:
            self.pending += self._sent_for(late)
        self._passed[self._refusals] = size

    def _sent_for(self, span_ids: set[str]) -> Iterator[Item]:
        for path in journal_files(self.journal_dir):
            end = self.acks.offsets.get(path.name, 0)
            for line in Tail(path).lines():
                if line.offset >= end:
                    break
                if not is_event(self.event_name, line.data):
                    continue
                for record in decode_line(line.data, path, line.offset):
                    if isinstance(record, Event) and record.name == self.event_name and record.span_id in span_ids:
                        yield self._made(record, Position(path, line.offset, line.length, 0), file="")

    def item(self, event: Event, position: Position) -> Item | None:
        """Return the item of a score."""
        return self._made(event, position, file=position.path.name)

    def _made(self, event: Event, position: Position, *, file: str) -> Item:
        content = score_of(event, self.environment)
        if event.span_id in self._refused_spans:
            del content["observationId"]
            content["metadata"] = {**content.get("metadata", {}), "spanfold.refused_span_id": event.span_id}
        return Item(event, content, len(dump(content).encode()) + 1, file, position.offset + position.length)


class MediaOutbox(EventOutbox):
    """The media among the artifacts of a run that Langfuse has not acknowledged."""

    event_name = names.EVENT_ARTIFACT
    max_records = 1

    def item(self, event: Event, position: Position) -> Item | None:
        """Return the item of an artifact, if it is of a kind that Langfuse shows and may leave the machine."""
        found = None if event.attributes.get(names.CONTENT) == "local" else media_of(fields(event))
        if found is None:
            self.passed(position)
            return None
        content = {**found, "root": self.run_dir, "traceId": event.trace_id, "observationId": event.span_id}
        try:
            size = SafeRoot(self.run_dir).stat(found["path"]).st_size
        except (OSError, SpanfoldError):
            size = 0  # the sender says that it is gone
        if size > MAX_MEDIA_BYTES:
            line = {"trace_id": event.trace_id, "span_id": event.span_id, "name": found["name"], "size_bytes": size}
            self.refuse_unsent(position, line, f"a file of more than {MAX_MEDIA_BYTES} bytes")
            return None
        return Item(event, content, size, position.path.name, position.offset + position.length)


def score_of(event: Event, environment: str) -> dict[str, Any]:
    """Return the body of a score for Langfuse's REST interface.

    Id and time are those of the record, so that it is the same score each time it is sent.
    """
    seq = event.position.seq if event.position is not None else 0
    name = str(value_of(event, names.SCORE_NAME) or "score")
    label = value_of(event, names.SCORE_LABEL)
    identity = f"{event.trace_id}:{event.span_id}:{name}:{event.time_ns}:{seq}"
    comment = value_of(event, names.SCORE_COMMENT)
    value, kind = _valued(value_of(event, names.SCORE_VALUE) if label is None else label)
    told = {field: value for field, value in fields(event).items() if field != "cycle"} | _place(event)
    score: dict[str, Any] = {
        "id": sha256(identity.encode()).hexdigest()[:32],
        "traceId": event.trace_id,
        "observationId": event.span_id,
        "name": name,
        "value": value,
        "dataType": kind,
        "environment": environment,
        "timestamp": _iso(event.time_ns),
    }
    if comment is not None:
        score["comment"] = cut_text(comment if isinstance(comment, str) else dump(comment), MAX_SCORE_BYTES)
    if told:
        score["metadata"] = cut_tree(told, MAX_SCORE_BYTES)
    return score


def _place(event: Event) -> dict[str, Any]:
    """Return the stage and cycle of an event, as far as it has them."""
    found = {"stage": event.attributes.get(names.STAGE), "cycle": event.attributes.get(names.CYCLE)}
    return {name: value for name, value in found.items() if value is not None}


def _valued(value: Any) -> tuple[float | str, str]:
    if isinstance(value, bool):
        return int(value), "BOOLEAN"
    if isinstance(value, (int, float)):
        return value, "NUMERIC"
    return str(value), "CATEGORICAL"


def _iso(time_ns: int) -> str:
    return (
        datetime.fromtimestamp(time_ns // 1_000_000 / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def _span_ids(journal_dir: Path, name: str, offset: int) -> set[str]:
    return {line["span_id"] for line in read_lines(journal_dir, name, offset) if type(line.get("span_id")) is str}
