"""Follow a run from another process, moment by moment.

Every file of the journal is read as it grows, new ones included. What is read
at once is put in order of time; a moment that another process wrote late comes
late. Nothing is written.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from spanfold import names
from spanfold.errors import JournalMissing
from spanfold.fold.diagnose_overview import NARRATED, narrated
from spanfold.fold.entry import EVENT, LOST, RECOVERED, SCORE, SEALED, STARTED, Entry, loaded
from spanfold.fold.presence import Writers
from spanfold.fold.run_state import HOST_FACTS
from spanfold.journal import Tail, journal_files
from spanfold.model import Event, Record

POLL_S: Final = 0.2

MomentType = Literal["started", "ended", "event", "score", "artifact", "lost", "recovered", "sealed", "interrupted"]


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened in a run."""

    type: MomentType
    """`started` and `ended` are of spans; `lost`: records could not be written; `recovered`: the run was finished after
    its process died; `sealed`: the run is over; `interrupted`: its processes died, and there will be no more."""
    time_ns: int
    """Wall clock."""
    kind: str = ""
    """Of a span, as `spanfold.names.Kind`; empty for one of another instrumentor that is no known kind of call."""
    name: str = ""
    stage: str | None = None
    cycle: int | None = None
    depth: int = 0
    """Number of recorded spans around it, below the run."""
    seconds: float | None = None
    """Duration of a span that ended."""
    failed: bool = False
    error_type: str | None = None
    message: str = ""
    """Status message of a span that failed, or the text of an exception."""
    facts: dict[str, Any] | None = None
    """Model, provider, agent, tool, usage of a span; value, label, comment of a score; path of an artifact; fields."""
    trace_id: str = ""
    span_id: str = ""
    file: str = ""
    """Journal file it stands in."""


def tail_run(
    run_dir: Path,
    *,
    stop: Callable[[], bool],
    last: int | None = None,
    wanted: Callable[[Moment], bool] = lambda moment: True,
    poll_s: float = POLL_S,
) -> Iterator[Moment]:
    """Yield what happened and what happens in a run, until it is over.

    It is over when it was sealed, when no process of it lives any more (the
    last moment then is `interrupted`), or when `stop` says so.

    Args:
        run_dir: The run directory.
        stop: Asked after each look at the journal that found nothing new.
        last: Of what is there already, only the last so many; None for all.
        wanted: Which moments to yield and to count.
        poll_s: Seconds between two looks.

    Raises:
        JournalMissing: There is no journal.
        UnsafeEntryError: The journal folder or a file of it is a link.
    """
    if not journal_files(run_dir):
        raise JournalMissing(run_dir)
    follower = _Follower(run_dir)
    writers = Writers(run_dir)
    yield from deque((m for m in follower.moments() if wanted(m)), maxlen=last)
    while not follower.is_sealed:
        if not follower.found and not follower.is_written(writers):
            moment = Moment("interrupted", follower.last_ns)
            if wanted(moment):
                yield moment
            return
        if not follower.found:
            if stop():
                return
            time.sleep(poll_s)
        # Before the journal is read: what a process that is dead by now had to say is then read.
        writers = Writers(run_dir)
        yield from filter(wanted, follower.moments())


class _Follower:
    """Where each file was read up to."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.tails: dict[str, Tail] = {}
        self.is_sealed = False
        self.found = False
        """Whether the last look found anything."""
        self.last_ns = 0
        self.host: str | None = None
        """Machine of the run, once it is known."""
        self._sealed: set[str] = set()
        """Files that a seal covers, and nobody writes any more."""

    def is_written(self, writers: Writers) -> bool:
        """Whether somebody may still write."""
        return any(writers.presence(name, self.host) != "dead" for name in self.tails.keys() - self._sealed)

    def moments(self) -> Iterator[Moment]:
        """Yield what is new, in order of time within blocks of bounded size."""
        self.found = False
        for path in journal_files(self._run_dir):
            known = self.tails.get(path.name)
            if (
                known is None or known.path != path
            ):  # the journal of a diagnose loop goes into the run directory at its end
                self.tails[path.name] = Tail(path, known.offset if known else 0)
        more = True
        while more:
            records: list[Record] = []
            more = False
            for tail in self.tails.values():
                with contextlib.suppress(FileNotFoundError):  # it has just moved: the next look finds it
                    records.extend(tail.read(_BLOCK_BYTES))
                    more = more or tail.size() > tail.offset
            more = more and bool(records)
            for record in sorted(records, key=lambda record: record.time_ns):
                self.found = True
                yield self._moment(record)

    def _moment(self, record: Record) -> Moment:
        entry = Entry(record)
        self.last_ns = max(self.last_ns, record.time_ns)
        if entry.kind == SEALED:
            self.is_sealed = True
            heads = loaded(entry.fields.get("heads"))
            self._sealed.update(cast("dict[str, Any]", heads) if type(heads) is dict else ())
        elif entry.kind == STARTED and entry.attributes.get(names.KIND) == "run":
            self.is_sealed = False  # a later session of a diagnose loop goes on behind the seal
        if self.host is None and entry.attributes.get(names.KIND) == "run":
            host = entry.fields.get("host")
            self.host = host if type(host) is str else None
        return moment(entry)


_BLOCK_BYTES: Final = 4 << 20
_EVENT_TYPES: Final[dict[str, MomentType]] = {
    STARTED: "started",
    SCORE: "score",
    EVENT: "event",
    LOST: "lost",
    SEALED: "sealed",
    RECOVERED: "recovered",
}
_FACTS: Final = (
    ("model", names.GENAI_MODEL),
    ("provider", names.GENAI_PROVIDER),
    ("operation", names.GENAI_OPERATION),
    ("agent", names.GENAI_AGENT),
    ("tool", names.GENAI_TOOL),
    ("outcome", names.OUTCOME),
    ("value", names.SCORE_VALUE),
    ("label", names.SCORE_LABEL),
    ("comment", names.SCORE_COMMENT),
)


def moment(entry: Entry) -> Moment:
    """Return a record as a moment. Message content is left out."""
    record, attributes = entry.record, entry.attributes
    span = entry.span
    kind, name = entry.kind, record.name
    type_: MomentType = "ended" if span is not None else _EVENT_TYPES.get(kind, "event")
    message = span.status_message if span is not None else ""
    if type_ == "started":
        kind, name = str(attributes.get(names.KIND) or ""), str(attributes.get(names.SPAN_NAME) or "")
    elif span is None:
        kind = ""
        if name == names.EVENT_ARTIFACT:
            type_ = "artifact"
            name = str(entry.fields.get("artifact") or "")
        elif type_ == "score":
            name = str(entry.value(names.SCORE_NAME) or "")
        elif name == names.EVENT_EXCEPTION:
            message = str(attributes.get(names.EXCEPTION_MESSAGE) or "")
    depth = attributes.get(names.DEPTH)
    error_type = attributes.get(names.ERROR_TYPE, attributes.get(names.EXCEPTION_TYPE))
    return Moment(
        type=type_,
        time_ns=record.time_ns,
        kind=kind,
        name=name,
        stage=entry.stage,
        cycle=entry.cycle,
        depth=depth if type(depth) is int else 0,
        seconds=entry.seconds if span is not None else None,
        failed=span is not None and span.status_code == 2,
        error_type=error_type if type(error_type) is str else None,
        message=message,
        facts=_facts(entry),
        trace_id=record.trace_id,
        span_id=record.span_id,
        file=record.position.path.name if record.position else "",
    )


def _facts(entry: Entry) -> dict[str, Any]:
    found = {key: entry.value(attribute) for key, attribute in _FACTS if attribute in entry.attributes}
    if entry.usage:
        found["usage"] = entry.usage
    if isinstance(entry.record, Event) and entry.kind in (EVENT, LOST, RECOVERED):
        found["fields"] = {key: value for key, value in entry.fields.items() if key not in ("cycle", *HOST_FACTS)}
    event = entry.attributes.get(names.DL_EVENT)
    if type(event) is str and event in NARRATED:
        found["loop_event"], found["fields"] = event, narrated(event, entry.fields)
    return found
