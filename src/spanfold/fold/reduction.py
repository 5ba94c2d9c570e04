"""Fold records with all families: the whole fold except files and time."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from spanfold.errors import FoldError
from spanfold.fold.diagnose import DiagnoseFamily
from spanfold.fold.diagnose_trace import DiagnoseTraceFamily
from spanfold.fold.entry import Entry
from spanfold.fold.family import Bucket, Family, Output
from spanfold.fold.native import NativeFamily
from spanfold.fold.run_state import RunState
from spanfold.fold.timings import TimingsFamily
from spanfold.fold.trace_bundle import TraceBundleFamily
from spanfold.journal import Start
from spanfold.model import Record

FAMILIES: Final = (DiagnoseFamily, DiagnoseTraceFamily, NativeFamily, TimingsFamily, TraceBundleFamily)
"""Every family, in the order in which they see a record and are asked for a document."""


class Reduction:
    """The state of a fold: from records to pieces of documents.

    Args:
        out: Where the families put what they make.
    """

    def __init__(self, out: Output) -> None:
        self.run = RunState()
        self.families: tuple[Family, ...] = tuple(family(self.run) for family in FAMILIES)
        self.records = 0
        """Records folded."""
        self._out = out

    def begin(self) -> None:
        """Name the documents that exist before the first record."""
        for family in self.families:
            family.begin(self._out)

    def fold(self, record: Record | Start) -> None:
        """Take in the next record.

        Raises:
            FoldError: A family cannot take it. The fold can go on with the next one.
        """
        self.records += 1
        if isinstance(record, Start):
            self.run.started_briefly(record)
            return
        try:
            entry = Entry(record)
            self.run.observe(entry)
            for family in self.families:
                family.fold(entry, self._out)
        except (MemoryError, RecursionError):
            raise  # of the moment, not of the record: another try may succeed
        except Exception as error:
            at = record.position
            where = f"{at.path}, byte {at.offset}" if at else "a record"
            raise FoldError(
                f"{where}: expected a record that fits its documents, found one that raises {type(error).__name__}. "
                "The journal is intact; please report this."
            ) from error

    def finish(self) -> None:
        """Name the documents that are written at the end."""
        for family in self.families:
            family.finish(self._out)

    def compose(self, document: str, buckets: Sequence[str]) -> Iterable[bytes | Bucket]:
        """Return the pieces of a document, in order."""
        for family in self.families:
            pieces = family.compose(document, buckets)
            if pieces is not None:
                return pieces
        raise LookupError(document)

    def state(self) -> dict[str, Any]:
        """Return everything remembered, as JSON data."""
        return {
            "records": self.records,
            "run": self.run.state(),
            "families": {family.name: family.state() for family in self.families},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.records = state["records"]
        self.run.restore(state["run"])
        for family in self.families:
            family.restore(state["families"][family.name])
