"""Tell a later session of a run from a file that somebody put beside a sealed journal.

A diagnose loop goes on in a directory that was used (decision 0009): behind the
seal of the earlier session there is then a file of a new writer, which no seal
covers before its session ends. It begins with the start of a run that names the
trace it goes on with; one with a trace id of its own names the same directory,
at a time after the seal. Its chain is vouched for by nothing yet, as that of any
run without a seal.
"""

from collections.abc import Iterable, Set
from pathlib import Path
from typing import Final

from spanfold import names
from spanfold.journal._reader import Tail
from spanfold.model import Record

__all__ = ["later_session"]

_OF_A_LOOP: Final = "diagnose"
"""Value of `spanfold.layout` of the only recorder that goes on behind a seal."""
_BLOCK: Final = 1 << 14
_SECOND: Final = len("20260131T175226Z")
"""How much of a file's name says in which second it began."""


def later_session(files: Iterable[Path], sealed: Set[str], sealed_ns: int) -> frozenset[str]:
    """Return the names of the files that were written by a session which goes on behind the newest seal.

    Args:
        files: Those that a seal covers or stands in, and those whose chain holds from its beginning.
        sealed: Names of the files that a seal covers or stands in.
        sealed_ns: Time of the newest seal.

    Returns:
        The file of the session itself, and those of its child processes; empty when there is none.
    """
    paths = sorted(files)
    if not sealed or all(path.name in sealed for path in paths):
        return frozenset()
    first = {path.name: record for path in paths if (record := _first_record(path)) is not None}
    before = [record for name, record in first.items() if name in sealed and _is_start(record)]
    behind = {name: record for name, record in first.items() if name not in sealed}
    begun = {
        name: record
        for name, record in behind.items()
        if _is_start(record) and any(_goes_on(record, earlier, sealed_ns) for earlier in before)
    }
    if not begun:
        return frozenset()
    traces = {record.trace_id for record in begun.values()}
    # A child writes after its session began, and the name of a file begins with the second in which it was.
    return frozenset(
        name for name, record in behind.items() if record.trace_id in traces and name[:_SECOND] >= min(begun)[:_SECOND]
    )


def _first_record(path: Path) -> Record | None:
    return next(Tail(path, block_bytes=_BLOCK).read(), None)


def _is_start(record: Record) -> bool:
    told = record.attributes
    is_run = record.name == names.EVENT_STARTED and told.get(names.KIND) == "run"
    return is_run and told.get(names.LAYOUT) == _OF_A_LOOP


def _goes_on(record: Record, earlier: Record, sealed_ns: int) -> bool:
    folder = record.attributes.get(names.RUN_DIR)
    is_same_folder = folder is not None and folder == earlier.attributes.get(names.RUN_DIR)
    return record.trace_id == earlier.trace_id or (is_same_folder and record.time_ns >= sealed_ns)
