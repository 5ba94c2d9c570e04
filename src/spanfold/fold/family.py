"""What a family of documents is: a pure reducer from records to pieces of documents.

A family sees every record of a run in order and says which bytes to append to
which part of which document. It has no clock, no disk and no environment, so
that the same journal always gives the same bytes (P3). What it remembers is
plain data that `state()` returns and `restore()` takes back, and grows with
what is open, not with what has happened.

Two forms of document exist:

- a **document** is one JSON value, replaced as a whole. Its lists ("buckets")
  are spooled as bytes while they grow; everything else is made by `compose`
  whenever the document is written.
- a **log** is a file of lines that only grows.

To add a family: implement `Family`, and list it in `reduction.FAMILIES`.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from spanfold.fold.entry import Entry


class Urgency(IntEnum):
    """How soon a change must be in its document."""

    LAST = 0
    """Only when the run is folded to its end: for documents that no reader looks for earlier."""
    LATER = 1
    """May wait for the lag bound: records that come at a high rate."""
    SOON = 2
    """In place when `catch_up` returns while the document is small; in a large one as `LATER`."""
    NOW = 3
    """In place when `catch_up` returns."""


class Bucket(NamedTuple):
    """Stands in a composed document for the spooled bytes of one of its lists."""

    name: str
    skip: int = 0
    """Bytes to leave out at the start: the comma before the first item."""


Composition = Iterable[bytes | Bucket]


class Output(Protocol):
    """Where a family puts what it made. Documents are paths in the run directory, joined by `/`."""

    def append(self, document: str, bucket: str, data: bytes, urgency: Urgency) -> None:
        """Add bytes to a list of a document; both are made with the first call."""
        ...

    def line(self, log: str, data: bytes) -> None:
        """Add a line, newline included, to a log."""
        ...

    def touch(self, document: str, urgency: Urgency) -> None:
        """Say that what `compose` returns for a document has changed, or that the document shall exist."""
        ...


class Family(Protocol):
    """One family of documents."""

    name: str
    """Identifies the family in checkpoints."""

    def begin(self, out: Output) -> None:
        """Name the documents that exist before the first record."""
        ...

    def fold(self, entry: Entry, out: Output) -> None:
        """Take in one record."""
        ...

    def finish(self, out: Output) -> None:
        """Name the documents that are written only when the run is folded to its end."""
        ...

    def compose(self, document: str, buckets: Sequence[str]) -> Composition | None:
        """Return the pieces of a document of this family, in order; None when it is not one of them.

        Args:
            document: Its path.
            buckets: Its lists that have at least one item, in the order of their first items.
        """
        ...

    def state(self) -> Mapping[str, Any]:
        """Return what the family remembers, as JSON data."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        ...
