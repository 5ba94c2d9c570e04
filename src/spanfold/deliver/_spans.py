"""The spans of a run as messages, with the events recorded inside of them."""

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from spanfold import names
from spanfold.deliver._cut import cut
from spanfold.deliver._destination import Destination
from spanfold.deliver._encode import message, shown
from spanfold.deliver._langfuse import observation_attributes, trace_attributes
from spanfold.deliver._outbox import ENVELOPE_BYTES, Item, Outbox
from spanfold.fs import SafeRoot
from spanfold.journal import decode_line, fields
from spanfold.model import Event, Position, Record, Span

MAX_EVENTS: Final = 200_000
"""Events noted for spans that have not ended; those of the span that has waited longest are left out of it then."""
HELD_BYTES: Final = 8 * 1024 * 1024
"""Bytes of such events kept in memory; of the others only the place is, and they are read again."""
MAX_SPAN_EVENTS: Final = 10_000
"""Events sent with one span; more than that no page shows. The journal has all."""
SMALLEST_BYTES: Final = 16 * 1024
"""A span is not cut below this: a peer that refuses less refuses something else."""
INTERNAL_EVENTS: Final = frozenset({names.EVENT_STARTED, names.EVENT_SEALED, names.EVENT_LOST, names.EVENT_RECOVERED})
"""Events about the journal itself: of no interest to a destination."""


class SpanOutbox(Outbox):
    """The spans of a run that a collector or Langfuse has not acknowledged."""

    def __init__(self, run_dir: Path, destination: Destination, journal_dir: Path | None = None) -> None:
        self._trace: dict[str, Any] = {}
        super().__init__(run_dir, destination, journal_dir)

    def _begin(self) -> None:
        super()._begin()
        self._events = _Events()

    def take(self, record: Record, position: Position) -> Item | None:
        """Return the item of a span; events wait for the end of theirs."""
        if isinstance(record, Event):
            self._take_event(record, position)
            return None
        events, dropped = self._events.of(record.span_id)
        if self.is_acked(position):
            return None  # its events arrived with it
        try:
            return self._item(record, position, events, dropped)
        except (ValueError, TypeError) as error:  # a time or flag that OTLP's numbers cannot hold
            self.refuse_unsent(position, _named(record), f"{type(error).__name__} while encoding it")
            return None

    def _take_event(self, event: Event, position: Position) -> None:
        if event.name == names.EVENT_STARTED and event.attributes.get(names.KIND) == "run":
            name = str(event.attributes.get(names.RUN_ID, ""))
            self._trace = trace_attributes(fields(event), name, self.destination.environ)
        if event.name not in INTERNAL_EVENTS and event.span_id:
            self._events.add(event, position)

    def _item(self, span: Span, position: Position, events: list[Event], dropped: int) -> Item:
        whole = shown(span, events, dropped)
        if self.destination.name == "langfuse":
            whole.attributes.update(
                observation_attributes(span, whole.attributes, with_media=self.destination.has_media)
            )
            whole.attributes.update(self._trace)
        made = message(span, whole)
        item = Item(span, made, len(made) + 8, position.path.name, position.offset + position.length, whole)
        if item.size + ENVELOPE_BYTES > self.destination.fill_bytes:
            self.shorten(item)
        return item

    def shorten(self, item: Item) -> bool:
        """Cut the values of an item to half its size or the limit, inside their structure.

        The whole values stay in the journal.

        Returns:
            False when there is nothing left to cut: the span is small, or large by other things than values.
        """
        span, before = item.record, item.size
        assert isinstance(span, Span)
        room = min(self.destination.fill_bytes - ENVELOPE_BYTES, before) // 2
        if room < SMALLEST_BYTES:
            return False
        item.content = message(span, cut(item.source, room))
        item.size = len(item.content) + 8
        return item.size < before

    def describe(self, item: Item) -> Mapping[str, Any]:
        """Return what names a span."""
        return {**_named(item.record), "size_bytes": item.size}


def _named(record: Record) -> dict[str, Any]:
    return {"trace_id": record.trace_id, "span_id": record.span_id, "name": record.name}


class _Events:
    """The events of spans that have not ended, in bounded memory."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, list[Event | Position]] = OrderedDict()
        self._dropped: OrderedDict[str, int] = OrderedDict()
        self._count = 0
        self._held_bytes = 0

    def add(self, event: Event, position: Position) -> None:
        """Note an event for the end of its span."""
        is_held = self._held_bytes + position.length <= HELD_BYTES
        self._found.setdefault(event.span_id, []).append(event if is_held else position)
        self._count += 1
        self._held_bytes += position.length if is_held else 0
        while self._count > MAX_EVENTS:
            span_id, dropped = self._found.popitem(last=False)
            self._forget(dropped)
            self._dropped[span_id] = self._dropped.pop(span_id, 0) + len(dropped)
            if len(self._dropped) > MAX_EVENTS:
                self._dropped.popitem(last=False)

    def of(self, span_id: str) -> tuple[list[Event], int]:
        """Take the events of a span that has ended, and the number of those that are left out."""
        noted = self._found.pop(span_id, [])
        self._forget(noted)
        events = [_read_again(n, span_id) if isinstance(n, Position) else n for n in noted[:MAX_SPAN_EVENTS]]
        whole = [event for event in events if event is not None]
        return whole, self._dropped.pop(span_id, 0) + len(noted) - len(whole)

    def _forget(self, noted: list[Event | Position]) -> None:
        self._count -= len(noted)
        for one in noted:
            if isinstance(one, Event) and one.position is not None:
                self._held_bytes -= one.position.length


def _read_again(position: Position, span_id: str) -> Event | None:
    with SafeRoot(position.path.parent).open_read(position.path.name) as file:
        file.seek(position.offset)
        data = file.read(position.length)
    for record in decode_line(data, position.path, position.offset):
        if isinstance(record, Event) and record.span_id == span_id:
            return record
    return None
