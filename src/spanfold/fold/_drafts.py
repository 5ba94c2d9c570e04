"""Documents as they grow: bytes waiting in memory, how many are spooled, and which document is due.

Only bytes that were not spooled yet are held, so memory does not grow with the
length of a run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spanfold.fold.family import Urgency

LOG_PART = ""
"""Name of the only part of a log."""


@dataclass(slots=True)
class Part:
    """One list of a document, or a log: bytes that are only ever added to."""

    number: int
    """Names its spool file; from 1."""
    stored: int = 0
    """Bytes in the spool file."""
    pending: bytearray = field(default_factory=bytearray)
    """Bytes behind them, in memory."""

    @property
    def length(self) -> int:
        """All its bytes."""
        return self.stored + len(self.pending)


@dataclass(slots=True)
class Draft:
    """One document, as far as it was folded."""

    path: str
    is_log: bool
    parts: dict[str, Part] = field(default_factory=dict[str, Part])
    """By name, in the order of their first bytes."""
    is_last: bool = False
    """Whether it is written only at the end."""
    urgency: Urgency | None = None
    """How soon what changed must be written; None when the file is up to date."""
    changed_at: float = 0.0
    """When the first change that is not written was seen."""
    written: int | None = None
    """Size of the file we wrote last; None when the file must be written whole."""
    write_s: float = 0.0
    """How long that took."""

    @property
    def size(self) -> int:
        """Bytes of all its parts."""
        return sum(part.length for part in self.parts.values())


class Drafts:
    """All documents of a run; what families write to.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.documents: dict[str, Draft] = {}
        self.due: dict[str, Draft] = {}
        """Documents whose file is behind."""
        self.pending_bytes = 0
        """Bytes held in memory by all parts."""
        self.since = 0.0
        """Since when what is folded now has waited in the journal; 0 when that is not known."""
        self._clock = clock
        self._unspooled: dict[int, Part] = {}
        self._last_number = 0

    # -- what families call

    def append(self, document: str, bucket: str, data: bytes, urgency: Urgency) -> None:
        """Add bytes to a list of a document."""
        draft = self.documents.get(document) or self._new(document, is_log=False)
        self._add(draft, bucket, data)
        if urgency is not Urgency.LAST:
            self._mark(draft, urgency)
        elif draft.urgency is None and draft.written is None:
            draft.is_last = True

    def line(self, log: str, data: bytes) -> None:
        """Add a line to a log. Appending is cheap, so logs never wait."""
        draft = self.documents.get(log) or self._new(log, is_log=True)
        self._add(draft, LOG_PART, data)
        self._mark(draft, Urgency.NOW)

    def touch(self, document: str, urgency: Urgency) -> None:
        """Note that a document has changed otherwise."""
        self._mark(self.documents.get(document) or self._new(document, is_log=False), urgency)

    def _new(self, path: str, *, is_log: bool) -> Draft:
        draft = self.documents[path] = Draft(path, is_log)
        return draft

    def _add(self, draft: Draft, name: str, data: bytes) -> None:
        part = draft.parts.get(name)
        if part is None:
            self._last_number += 1
            part = draft.parts[name] = Part(self._last_number)
        part.pending += data
        self._unspooled[part.number] = part
        self.pending_bytes += len(data)

    def _mark(self, draft: Draft, urgency: Urgency) -> None:
        if draft.urgency is None:
            draft.urgency = urgency
            draft.changed_at = self.since or self._clock()
            self.due[draft.path] = draft
        elif urgency > draft.urgency:
            draft.urgency = urgency

    # -- what the engine calls

    def spool(self, write: Callable[[Part], None]) -> None:
        """Hand over what is in memory, part by part; what was not taken stays.

        Args:
            write: Takes the pending bytes of a part, or raises and takes none.
        """
        while self._unspooled:
            number, part = next(iter(self._unspooled.items()))
            write(part)
            self.pending_bytes -= len(part.pending)
            part.stored += len(part.pending)
            part.pending.clear()
            del self._unspooled[number]

    def done(self, draft: Draft, *, size: int, write_s: float) -> None:
        """Note that the file of a document is up to date."""
        draft.urgency = None
        draft.written, draft.write_s = size, write_s
        self.due.pop(draft.path, None)

    def rewrite_all(self) -> None:
        """Have every document written whole, as if nothing were known of its file."""
        for draft in self.documents.values():
            draft.written = None
            if not draft.is_last:
                self._mark(draft, Urgency.NOW)

    # -- checkpoint

    def state(self) -> list[Any]:
        """Return the documents and the lengths of their spooled parts, as JSON data; only when all are spooled."""
        return [
            [
                draft.path,
                draft.is_log,
                draft.is_last,
                [[name, part.number, part.stored] for name, part in draft.parts.items()],
            ]
            for draft in self.documents.values()
        ]

    def restore(self, state: list[Any]) -> None:
        """Go on from what `state` returned; every document is due."""
        for path, is_log, is_last, parts in state:
            draft = self._new(path, is_log=is_log)
            draft.is_last = is_last
            draft.parts = {name: Part(number, stored) for name, number, stored in parts}
            self._last_number = max([self._last_number, *(part.number for part in draft.parts.values())])
        self.rewrite_all()

    def parts(self) -> Mapping[int, Part]:
        """Return every part by its number."""
        return {part.number: part for draft in self.documents.values() for part in draft.parts.values()}
