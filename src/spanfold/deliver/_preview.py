"""Say what a destination would be sent of a run, and change nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spanfold import names
from spanfold.deliver._acks import Acknowledgements
from spanfold.deliver._destination import Destination
from spanfold.deliver._past import outbox_of
from spanfold.model import Span


@dataclass(frozen=True, slots=True)
class Waiting:
    """One record that a destination has neither acknowledged nor refused."""

    name: str
    kind: str
    """Of a span: a `names.Kind`, or empty for one of another instrumentor. Of an event: `event`."""
    stage: str
    """Name of the innermost stage around it; empty for none."""
    trace_id: str
    span_id: str
    size_bytes: int
    """In a request."""


def waiting_records(run_dir: Path, destination: Destination) -> Iterator[Waiting]:
    """Yield every record of a run that `deliver_run` would send now, in its order.

    Reads the journal and the acknowledgements. Nothing is sent, claimed or written.
    """
    outbox = outbox_of(run_dir, destination)
    outbox.acks = _LookedAt(outbox.journal_dir, destination)
    while items := outbox.fill():
        for item in items:
            record = item.record
            is_span = isinstance(record, Span)
            yield Waiting(
                record.name,
                str(record.attributes.get(names.KIND, "")) if is_span else "event",
                str(record.attributes.get(names.STAGE, "")),
                record.trace_id,
                record.span_id,
                item.size,
            )
        outbox.pending = []


class _LookedAt(Acknowledgements):
    """The acknowledgements of a destination, for somebody who only looks."""

    def settle(self, offsets: Mapping[str, int], *, sent: int, refused: int) -> None:
        """Go on behind these offsets."""
        self.offsets.update(offsets)

    def refuse(self, line: Mapping[str, Any]) -> None:
        """Pass over a record that cannot be sent."""
