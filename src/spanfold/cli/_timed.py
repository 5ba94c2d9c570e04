"""Add up the timings and the traced functions of a run, by name. The other kinds of work have sections of their own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spanfold import names
from spanfold.journal import read_journal
from spanfold.model import Span

_TOLD_ELSEWHERE: Final = frozenset({"run", "stage", "model_call", "agent", "tool"})


@dataclass(slots=True)
class TimedWork:
    """The spans of one kind and name that have ended."""

    kind: str
    """`timing` of `timed()`, `span` of a traced function, or another kind."""
    name: str
    count: int = 0
    failed: int = 0
    seconds: float = 0.0
    """Durations added up: more than the clock when they ran in parallel or inside each other."""


def timed_work(run_dir: Path) -> list[TimedWork]:
    """Return the timed work of a run, what took longest first.

    Raises:
        JournalMissing: There is no journal.
    """
    found: dict[tuple[str, str], TimedWork] = {}
    for record in read_journal(run_dir).records:
        kind = record.attributes.get(names.KIND)
        if not isinstance(record, Span) or type(kind) is not str or kind in _TOLD_ELSEWHERE:
            continue
        work = found.setdefault((kind, record.name), TimedWork(kind, record.name))
        work.count += 1
        work.failed += record.status_code == 2
        work.seconds = round(work.seconds + max(0, record.end_ns - record.start_ns) / 1e9, 6)
    return sorted(found.values(), key=lambda work: (-work.seconds, work.name))
