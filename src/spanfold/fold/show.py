"""Say what happened in a run: one that ended, is running, was killed, or was moved here from elsewhere.

Everything comes from the journal, so documents may be missing or behind, and
nothing is written. Memory grows with the number of stages, models, artifacts and
kinds of errors, not with the number of records.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spanfold import names
from spanfold.fold.diagnose_overview import LoopGathering
from spanfold.fold.entry import EVENT, SCORE, STARTED, Entry
from spanfold.fold.overview import (
    ArtifactFile,
    CallWork,
    ErrorGroup,
    JournalFile,
    OpenWork,
    RunOverview,
    ScoreSeries,
    StageWork,
)
from spanfold.fold.presence import Presence, Writers
from spanfold.fold.run_state import HOST_FACTS, RunState
from spanfold.intervals import Interval, covered
from spanfold.journal import JournalRead, load, read_journal, verify_journal
from spanfold.model import Span
from spanfold.moments import ts6

MAX_ERRORS: Final = 1_000
"""Kinds of errors told apart; further ones are only counted."""


def show_run(run_dir: Path, *, now_ns: Callable[[], int] = time.time_ns) -> RunOverview:
    """Gather what happened in a run. Reads, and changes nothing.

    Args:
        run_dir: The run directory.
        now_ns: Wall clock, for ages.

    Raises:
        JournalMissing: There is no journal.
        UnsafeEntryError: The journal folder or a file of it is a link.
    """
    writers = Writers(run_dir)
    read = read_journal(run_dir)
    gathering = _Gathering()
    for record in read.records:
        gathering.add(Entry(record))
    return gathering.overview(run_dir, read, writers, now_ns())


@dataclass(frozen=True, slots=True)
class _Started:
    kind: str | None
    name: str | None
    stage: str | None
    cycle: int | None
    start_ns: int
    file: str


class _Gathering:
    """Takes the records of a run in canonical order."""

    def __init__(self) -> None:
        self.run = RunState()
        self.loop = LoopGathering()
        self.records: dict[str, int] = {}
        self.last_ns = 0
        self._first_start_ns: int | None = None
        self._last_end_ns = 0
        self._ran: dict[int, list[Interval]] = {}
        """Id of the work of each stage -> when those ran that ended."""
        self.root_id = ""
        self.root_file = ""
        self.given: dict[str, Any] = {}
        self.stages: dict[tuple[str | None, int | None], StageWork] = {}
        self.calls: dict[str, dict[tuple[str | None, str | None], CallWork]] = {
            "model_call": {},
            "agent": {},
            "tool": {},
        }
        self.scores: dict[tuple[str | None, str | None], ScoreSeries] = {}
        self.events: dict[str, int] = {}
        self.artifacts: list[ArtifactFile] = []
        self.errors: dict[tuple[Any, ...], ErrorGroup] = {}
        self.more_errors = 0
        self.left_open = 0
        self.open: dict[str, _Started] = {}
        self._failed_below: dict[str, set[str | None]] = {}
        """Span id -> types of the errors that arose below it."""
        self._stage_depth: dict[str, int] = {}
        """Span id of each open stage -> number of stages around it."""

    def add(self, entry: Entry) -> None:
        record = entry.record
        self.run.observe(entry)
        self.loop.add(entry)
        self.last_ns = max(self.last_ns, record.time_ns)
        if record.position is not None:
            file = record.position.path.name
            self.records[file] = self.records.get(file, 0) + 1
            # A later session of a diagnose loop begins the run again, in a file of its own.
            if self.run.root_id != self.root_id and self.run.is_root(entry):
                self.root_id, self.root_file = self.run.root_id, file
                self.given = {k: v for k, v in entry.fields.items() if _is_given(k)}
        if entry.span is not None:
            self._ended(entry, entry.span)
        elif entry.kind == STARTED:
            self._started(entry)
        elif entry.kind == SCORE:
            self._score(entry)
        elif entry.kind == EVENT:
            self._event(entry)

    def _work(self, entry: Entry) -> StageWork:
        key = entry.stage, entry.cycle
        if key not in self.stages:
            self.stages[key] = StageWork(entry.stage, entry.cycle)
        return self.stages[key]

    # -- spans

    def _started(self, entry: Entry) -> None:
        record, attributes = entry.record, entry.attributes
        kind, name, start = (attributes.get(key) for key in (names.KIND, names.SPAN_NAME, names.OPEN_START))
        started = _Started(
            kind if type(kind) is str else None,
            name if type(name) is str else None,
            entry.stage,
            entry.cycle,
            start if type(start) is int else record.time_ns,
            record.position.path.name if record.position else "",
        )
        self.open[record.span_id] = started
        self._spans(started.start_ns, started.start_ns)
        if kind == "stage":
            parent = attributes.get(names.SPAN_PARENT)
            work = self._work(entry)
            work.open += 1
            work.start = work.start or ts6(started.start_ns)
            # Timings between two stages are not in the table, so they do not count; only a stage right under one is inside.
            work.depth = self._stage_depth.get(parent, -1) + 1 if type(parent) is str else 0
            self._stage_depth[record.span_id] = work.depth

    def _ended(self, entry: Entry, span: Span) -> None:
        started = self.open.pop(span.span_id, None)
        self._stage_depth.pop(span.span_id, None)
        failed = span.status_code == 2
        self.left_open += entry.attributes.get(names.OUTCOME) == "left_open"
        if entry.kind:
            self._spans(span.start_ns, span.end_ns)
        if entry.kind == "stage":
            work = self._work(entry)
            if started is not None:  # a stage may have learned its cycle since
                begun = self.stages.get((started.stage, started.cycle))
                if begun is not None:
                    begun.open -= 1
            work.ended += 1
            work.failed += failed
            work.interrupted += (failed and entry.attributes.get(names.ERROR_TYPE) == "interrupted") or (
                entry.attributes.get(names.OUTCOME) == "abandoned"
            )
            work.seconds = round(work.seconds + entry.seconds, 6)
            work.start = work.start or entry.start
            self._ran.setdefault(id(work), []).append(Interval(span.start_ns, max(span.start_ns, span.end_ns)))
        elif entry.kind in self.calls and not entry.wrapped:
            self._call(entry, span)
        arose = self._failed_below.pop(span.span_id, ())
        if failed:
            self._error(entry, span, arose)

    def _spans(self, start_ns: int, end_ns: int) -> None:
        """Take in a time in which something ran."""
        if start_ns > 0:  # a foreign span may not say when it was
            self._first_start_ns = min(start_ns, self._first_start_ns or start_ns)
            self._last_end_ns = max(end_ns, self._last_end_ns)

    def _shares(self) -> None:
        """Say of each stage for which part of the run it ran. A stage told with its duration may begin before the run."""
        end_ns = self._last_end_ns if self.run.seconds is not None else max(self._last_end_ns, self.last_ns)
        whole = end_ns - (self._first_start_ns or 0)
        for work in self.stages.values():
            if (ran := self._ran.get(id(work))) and whole > 0:
                work.share = min(1.0, round(covered(ran) / whole, 6))

    def _call(self, entry: Entry, span: Span) -> None:
        work = self._work(entry)
        if entry.kind == "model_call":
            work.model_calls += 1
            name, provider = entry.value(names.GENAI_MODEL), entry.value(names.GENAI_PROVIDER)
        elif entry.kind == "agent":
            work.agents += 1
            name, provider = entry.value(names.GENAI_AGENT), None
        else:
            work.tools += 1
            name, provider = entry.value(names.GENAI_TOOL), None
        key = name if type(name) is str else None, provider if type(provider) is str else None
        call = self.calls[entry.kind].setdefault(key, CallWork(*key))
        call.calls += 1
        call.failed += span.status_code == 2
        call.seconds = round(call.seconds + entry.seconds, 6)
        for token, count in entry.usage.items():
            call.usage[token] = call.usage.get(token, 0) + count

    def _error(self, entry: Entry, span: Span, arose_below: "set[str | None] | tuple[()]") -> None:
        error_type, outcome = (_text(entry.attributes.get(key)) for key in (names.ERROR_TYPE, names.OUTCOME))
        if span.parent_span_id:
            self._failed_below.setdefault(span.parent_span_id, set()).add(error_type)
        if error_type in arose_below:
            return
        key = entry.kind, span.name, entry.stage, error_type, outcome
        group = self.errors.get(key)
        if group is None:
            if len(self.errors) >= MAX_ERRORS:
                self.more_errors += 1
                return
            group = self.errors[key] = ErrorGroup(entry.kind or "span", *key[1:])
        group.count += 1
        group.last, group.last_message, group.last_cycle = entry.end, span.status_message, entry.cycle

    # -- events

    def _score(self, entry: Entry) -> None:
        self._work(entry).scores += 1
        name = _text(entry.value(names.SCORE_NAME))
        series = self.scores.setdefault((entry.stage, name), ScoreSeries(name, entry.stage))
        value = entry.value(names.SCORE_VALUE)
        series.count += 1
        series.last_value = value
        series.last_label = _text(entry.value(names.SCORE_LABEL))
        series.last_comment = _text(entry.value(names.SCORE_COMMENT))
        series.last_cycle = entry.cycle
        if type(value) in (int, float):
            series.min_value = value if series.min_value is None else min(series.min_value, value)
            series.max_value = value if series.max_value is None else max(series.max_value, value)

    def _event(self, entry: Entry) -> None:
        name = entry.record.name
        if name == names.EVENT_ARTIFACT:
            self._work(entry).artifacts += 1
            self.artifacts.append(_artifact(entry))
        elif name != names.EVENT_EXCEPTION:  # the span it left says the same
            self._work(entry).events += 1
            self.events[name] = self.events.get(name, 0) + 1

    # -- the result

    def overview(self, run_dir: Path, read: JournalRead, writers: Writers, now_ns: int) -> RunOverview:
        run = self.run
        shown: dict[str, Any] = {key: load(value) for key, value in run.shown().items()}
        host = _text(shown.get("host"))
        writer = self._writer(writers, host)
        self._shares()
        return RunOverview(
            run_dir=run_dir,
            name=run.name,
            status="interrupted" if run.status == "running" and writer == "dead" else run.status,
            writer=writer,
            trace_id=run.trace_id,
            start=shown["start"],
            end=shown["end"],
            seconds=run.seconds,
            last_record=ts6(self.last_ns) if self.last_ns else None,
            silent_seconds=_age(now_ns, self.last_ns) if self.last_ns else None,
            facts={fact: shown[fact] for fact in HOST_FACTS if fact in shown},
            given=self.given,
            results=shown.get("fields") or {},
            error={key: shown[key] for key in ("error_type", "status_message", "outcome", "exit_code") if key in shown},
            totals=shown["totals"],
            stages=tuple(sorted(self.stages.values(), key=lambda work: (work.stage is not None, work.start or ""))),
            models=tuple(self.calls["model_call"].values()),
            agents=tuple(self.calls["agent"].values()),
            tools=tuple(self.calls["tool"].values()),
            scores=tuple(self.scores.values()),
            events=self.events,
            artifacts=tuple(self.artifacts),
            errors=tuple(self.errors.values()),
            more_errors=self.more_errors,
            open=self._open_work(writers, host, now_ns),
            lost_records=shown.get("losses", {}).get("journal_records", 0),
            losses={k: n for k, n in shown.get("losses", {}).items() if k != "journal_records" and type(n) is int},
            left_open=self.left_open,
            recovered=shown.get("recovered"),
            is_sealed=run.is_sealed,
            is_as_sealed=verify_journal(run_dir).ok if run.is_sealed else None,
            records=sum(self.records.values()),
            duplicates=read.duplicates,
            files=tuple(self._file(path, writers, host) for path in read.files),
            damage=tuple(read.damage),
            loop=self.loop.overview(run.document_trace_id) if run.is_diagnose else None,
        )

    def _writer(self, writers: Writers, host: str | None) -> Presence:
        if self.root_file:
            return writers.presence(self.root_file, host)
        return "alive" if writers.living else "dead"  # the record that says who began the run is lost

    def _open_work(self, writers: Writers, host: str | None, now_ns: int) -> tuple[OpenWork, ...]:
        oldest_first = sorted(self.open.items(), key=lambda item: item[1].start_ns)
        presence: dict[str, Presence] = {span_id: writers.presence(work.file, host) for span_id, work in oldest_first}
        return tuple(
            OpenWork(
                span_id=span_id,
                kind=work.kind,
                name=work.name,
                stage=work.stage,
                cycle=work.cycle,
                start=ts6(work.start_ns),
                age_seconds=_age(self.last_ns if presence[span_id] == "dead" else now_ns, work.start_ns),
                writer=presence[span_id],
            )
            for span_id, work in oldest_first
        )

    def _file(self, path: Path, writers: Writers, host: str | None) -> JournalFile:
        return JournalFile(
            name=path.name,
            records=self.records.get(path.name, 0),
            size_bytes=path.lstat().st_size,
            writer=writers.presence(path.name, host),
            pid=writers.living.get(path.name),
        )


def _is_given(name: str) -> bool:
    """Whether a field the run started with was given by whoever opened it."""
    return name not in HOST_FACTS and name != "layout" and not name.startswith(names.DL_FIELD)


def _artifact(entry: Entry) -> ArtifactFile:
    fields = entry.fields
    size = fields.get("size_bytes")
    return ArtifactFile(
        name=_text(fields.get("artifact")),
        stage=entry.stage,
        cycle=entry.cycle,
        kind=_text(fields.get("kind")),
        path=_text(fields.get("path")),
        size_bytes=size if type(size) is int else None,
        sha256=_text(fields.get("sha256")),
        figure=_text(fields.get("figure")),
        reason=_text(fields.get("reason")),
    )


def _text(value: Any) -> str | None:
    return value if type(value) is str else None


def _age(now_ns: int, then_ns: int) -> float:
    """Return seconds since a moment; 0 when it lies ahead, because the clock was set back."""
    return round(max(0, now_ns - then_ns) / 1e9, 3)
