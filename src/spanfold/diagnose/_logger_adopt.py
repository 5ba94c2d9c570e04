"""Go on with a run directory that another logger wrote: its records become part of the journal, as they are (DL 17, A-08)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from spanfold.diagnose._logger_run import LoopRun
from spanfold.errors import SpanfoldError
from spanfold.fs import SafeRoot
from spanfold.journal import load
from spanfold.routing import RUN_DOCUMENT, STAGES

TRACE: Final = "langfuse_trace.json"
BATCH: Final = 2_000
"""Records told together; more in one value would be taken for a suspicious one, and cut."""


class Adopted(NamedTuple):
    """One value of a document that another logger wrote."""

    document: str
    bucket: str
    record: Any
    is_item: bool
    """Whether it is an item of a list, and not a value of the document itself."""


def foreign_documents(folder: Path) -> list[Adopted]:
    """Return what the documents of a run directory without a journal hold, by sequence number."""
    found = list(_values(folder))
    return sorted(found, key=lambda adopted: _seq(adopted.record))


def _seq(record: Any) -> int:
    seq = cast("dict[str, Any]", record).get("event_seq") if isinstance(record, dict) else None
    return seq if type(seq) is int else 0


def _values(folder: Path) -> Iterator[Adopted]:
    for path in (RUN_DOCUMENT, *(f"{stage}/log.json" for stage in STAGES), TRACE):
        try:
            document: Any = load(SafeRoot(folder).read_bytes(path))
        except (OSError, SpanfoldError, ValueError):
            continue
        if not isinstance(document, dict):
            continue
        for bucket, value in cast("dict[str, Any]", document).items():
            if isinstance(value, list):
                for record in cast("list[Any]", value):
                    yield Adopted(path, bucket, record, is_item=True)
            elif bucket != "trace_id":
                yield Adopted(path, bucket, value, is_item=False)


def adopt(run: LoopRun, found: list[Adopted]) -> None:
    """Record what was found, as one line of the journal where it is not very much: all of it is there, or nothing."""
    for first in range(0, len(found), BATCH):
        batch = [adopted._asdict() for adopted in found[first : first + BATCH]]
        run.tell("adopted", {"diagnose.records": batch})
