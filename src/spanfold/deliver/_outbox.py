"""The journal as an outbox: what one destination has not acknowledged of one run.

Spans are taken from the journal files in their order, with the events that
stand before them in the same file. How far a destination has come is one
offset per file in `<journal>/.deliver/<name>-<8 hex of the address>.ack.jsonl`: everything
before it was acknowledged or refused for good. What was refused is named, with
the reason, in `<name>-<8 hex>.refused.jsonl`.

Between an answer and its line in the acknowledgement file a crash can hit; the
batch is then sent again with the same ids (at-least-once, docs/delivery.md).
"""

import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from spanfold import names
from spanfold.deliver._destination import Destination
from spanfold.deliver._encode import cut, message, shown
from spanfold.deliver._langfuse import observation_attributes, trace_attributes
from spanfold.errors import JournalMissing, SpanfoldError
from spanfold.fs import SafeRoot
from spanfold.journal import Tail, fields, journal_files
from spanfold.model import Event, Span

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

FOLDER: Final = ".deliver"
MAX_SPANS: Final = 512
"""Spans of one request."""
MAX_EVENTS: Final = 20_000
"""Events kept for spans that have not ended; the oldest are left out of their span then, and stay in the journal."""
ENVELOPE_BYTES: Final = 16 * 1024
"""Room in a request for resource and scope."""
SMALLEST_BYTES: Final = 16 * 1024
"""A span is not cut below this: a peer that refuses less refuses something else."""
INTERNAL_EVENTS: Final = frozenset({names.EVENT_STARTED, names.EVENT_SEALED, names.EVENT_LOST, names.EVENT_RECOVERED})
"""Events about the journal itself: of no interest to a destination."""


@dataclass(slots=True)
class Item:
    """One span to be sent."""

    span: Span
    events: tuple[Event, ...]
    message: "SpanMessage"
    size: int


@dataclass(slots=True)
class Batch:
    """What goes into one request, and how far each file is when it has arrived."""

    items: list[Item]
    offsets: dict[str, int]
    sent: int = 0
    refused: int = 0


class Outbox:
    """What one destination has not acknowledged of one run."""

    def __init__(self, run_dir: Path, destination: Destination, journal_dir: Path | None = None) -> None:
        self.run_dir = run_dir
        self.destination = destination
        self.is_closed = False
        """Whether the run has ended: nothing new will come."""
        self.sent = 0
        self.refused = 0
        self._journal_dir = journal_dir or run_dir / "journal"
        self._acked = self._load()
        self._tails: dict[str, Tail] = {}
        self._events: OrderedDict[str, list[Event]] = OrderedDict()
        self._n_events = 0
        self._trace: dict[str, Any] = {}
        self._reading: Iterator[tuple[str, int, Span]] | None = None
        """Where reading stopped: starting anew for every span would list the folder and read a block each time."""
        self._carried: tuple[str, int, Item] | None = None
        self.batch: Batch | None = None
        """What is being sent; kept until it is acknowledged."""

    # -- reading

    def fill(self) -> Batch | None:
        """Return the batch to send next, None when nothing waits."""
        batch = self.batch
        if batch is None:
            # Kept from its first span on: what was read is not read again, also when reading fails further on.
            batch = self.batch = Batch([], {})
        elif batch.items:
            return batch
        size = ENVELOPE_BYTES
        while len(batch.items) < MAX_SPANS:
            taken = self._next(batch)
            if taken is None:
                break
            file, end, item = taken
            if batch.items and size + item.size > self.destination.limit_bytes:
                self._carried = taken
                break
            batch.items.append(item)
            batch.offsets[file] = end
            size += item.size
        if batch.items:
            return batch
        self.acknowledge()
        return None

    def _next(self, batch: Batch) -> tuple[str, int, Item] | None:
        if self._carried is not None:
            taken, self._carried = self._carried, None
            return taken
        reading, self._reading = self._reading or self._spans(), None
        for file, end, span in reading:
            self._reading = reading
            try:
                return file, end, self._item(span, self._events_of(span))
            except (ValueError, TypeError) as error:  # a time or flag that OTLP's numbers cannot hold
                batch.offsets[file] = end
                self.set_aside(span, f"{type(error).__name__} while encoding it")
        return None

    def _spans(self) -> Iterator[tuple[str, int, Span]]:
        """Yield one unacknowledged span at a time, events taken in on the way."""
        try:
            files = journal_files(self._journal_dir)
        except (JournalMissing, OSError):
            return
        for path in files:
            tail = self._tails.get(path.name)
            if tail is None:
                tail = self._tails[path.name] = Tail(path)
            acked = self._acked.get(path.name, 0)
            for record in tail.read():
                position = record.position
                if position is None:
                    continue
                if isinstance(record, Event):
                    self._take_event(record)
                elif position.offset >= acked:
                    yield path.name, position.offset + position.length, record
                else:
                    self._events_of(record)  # arrived with it

    def _take_event(self, event: Event) -> None:
        if event.name == names.EVENT_STARTED and event.attributes.get(names.KIND) == "run":
            self._trace = trace_attributes(
                fields(event), str(event.attributes.get(names.RUN_ID, "")), self.destination.environ
            )
        if event.name in INTERNAL_EVENTS or not event.span_id:
            return
        self._events.setdefault(event.span_id, []).append(event)
        self._n_events += 1
        while self._n_events > MAX_EVENTS:
            _, dropped = self._events.popitem(last=False)
            self._n_events -= len(dropped)

    def _events_of(self, span: Span) -> tuple[Event, ...]:
        events = self._events.pop(span.span_id, ())
        self._n_events -= len(events)
        return tuple(events)

    def _item(self, span: Span, events: tuple[Event, ...]) -> Item:
        made = message(span, self._attributes(span), events)
        item = Item(span, events, made, made.ByteSize() + 8)
        if item.size + ENVELOPE_BYTES > self.destination.limit_bytes:
            self.shorten(item)
        return item

    def _attributes(self, span: Span) -> dict[str, Any]:
        attributes = shown(span)
        if self.destination.name == "langfuse":
            attributes.update(observation_attributes(span, attributes))
            attributes.update(self._trace)
        return attributes

    def shorten(self, item: Item) -> bool:
        """Cut an item's attributes to half its size or the limit; the whole values stay in the journal.

        Returns:
            False when there is nothing left to cut: the span is small, or large by other things than texts.
        """
        before = item.size
        room = min(self.destination.limit_bytes - ENVELOPE_BYTES, before) // 2
        if room < SMALLEST_BYTES:
            return False
        item.message = message(item.span, cut(self._attributes(item.span), room), item.events[:MAX_SPANS])
        item.size = item.message.ByteSize() + 8
        return item.size < before

    def waiting(self) -> int:
        """Count the spans that are in the journal and neither acknowledged nor refused."""
        count = len(self.batch.items) if self.batch is not None else 0
        count += self._carried is not None
        try:
            files = journal_files(self._journal_dir)
        except (JournalMissing, OSError):
            return count
        for path in files:
            tail = self._tails.get(path.name)
            offset = tail.offset if tail is not None else self._acked.get(path.name, 0)
            count += _count_spans(path, offset)
        return count

    # -- acknowledging

    def acknowledge(self) -> None:
        """Note that every item of the batch has arrived or was refused for good."""
        batch, self.batch = self.batch, None
        if batch is None or not batch.offsets:
            return
        self._acked.update(batch.offsets)
        self.sent += batch.sent
        self.refused += batch.refused
        lines = b"".join(
            orjson.dumps(
                {
                    "file": file,
                    "offset": offset,
                    "sent": batch.sent,
                    "refused": batch.refused,
                    "time_ns": time.time_ns(),
                }
            )
            + b"\n"
            for file, offset in batch.offsets.items()
        )
        self._append(f"{self.destination.key}.ack.jsonl", lines)

    def set_aside(self, span: Span | None, reason: str, *, size_bytes: int | None = None, count: int = 1) -> None:
        """Note a span of the batch that was refused for good; None when the destination did not say which."""
        assert self.batch is not None
        self.batch.refused += count
        line = {
            "trace_id": span.trace_id if span else None,
            "span_id": span.span_id if span else None,
            "name": span.name if span else None,
            "size_bytes": size_bytes,
            "spans": count,
            "reason": reason,
            "time_ns": time.time_ns(),
        }
        self._append(f"{self.destination.key}.refused.jsonl", orjson.dumps(line) + b"\n")

    def _append(self, name: str, data: bytes) -> None:
        root = SafeRoot(self._journal_dir)
        root.ensure_dir(FOLDER)
        with root.open_append(f"{FOLDER}/{name}", mend_tail=True) as handle:
            handle.append(data)

    def _load(self) -> dict[str, int]:
        acked: dict[str, int] = {}
        try:
            content = SafeRoot(self._journal_dir).read_bytes(f"{FOLDER}/{self.destination.key}.ack.jsonl")
        except (OSError, SpanfoldError):
            return acked
        for line in content.split(b"\n"):
            try:
                entry = orjson.loads(line)
                acked[entry["file"]] = max(acked.get(entry["file"], 0), int(entry["offset"]))
            except (ValueError, KeyError, TypeError):
                continue  # torn by a crash: its batch is sent again
        return acked


def _count_spans(path: Path, offset: int) -> int:
    try:
        return sum(line.data.startswith(b'{"resourceSpans"') for line in Tail(path, offset).lines())
    except (OSError, SpanfoldError):
        return 0
