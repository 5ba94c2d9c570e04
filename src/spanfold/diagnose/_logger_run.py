"""The run behind a diagnose-loop logger: its journal outside of the run directory, its spans with true times.

The loop tells of its work when it is done. So a span begins where its duration
says, and one whose parts are told first (the model calls of a probe) is opened
with the first of them: killed in between, it is visible as started.
"""

import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from opentelemetry.trace import StatusCode

from spanfold import names
from spanfold.artifacts import MEDIA_TYPES
from spanfold.diagnose._envelope import artifact_refs
from spanfold.diagnose._logger_values import seconds, tree
from spanfold.diagnose._rooms import tell_home
from spanfold.errors import SpanfoldError
from spanfold.instrument import ModelCallSpan, RecordedSpan, Run, RunPlace
from spanfold.instrument import losses as process_losses
from spanfold.journal import Fragment, OpenJournal, field_key, release_journal

NAME: Final = "diagnose"
TARGET_MODEL: Final = "target_model"
_DEMANDED: Final[Mapping[str, Any]] = {"raw_judge_output": None, "case": {}}
"""What stands in place of content that is not kept, where readers demand a value."""
_OPERATIONS: Final = {"generate": "chat", "chat": "chat"}
_ERROR_TYPE: Final = re.compile(r"[A-Za-z_][\w.]{0,120}")
_INT64: Final = 1 << 63
_OURS: Final = re.compile(r"((M[1-5]/)?artifacts|media)/")
"""Where the files stand that the logger writes; others may be changed by whoever wrote them."""
_MOST_KNOWN: Final = 4096
_DOCUMENTS_S: Final = 30.0
"""Longest wait for the documents of one event."""


class LoopSpan(RecordedSpan):
    """A span whose start is learned at its end."""

    def started_at(self, start_ns: int) -> None:
        """Move the start; what is known of its children stays where it is."""
        self._mono += start_ns - self.start_ns
        self.start_ns = start_ns
        self._retroactive = True


@dataclass(slots=True)
class OpenStage:
    """A stage of which parts are known, and not yet the result."""

    span: LoopSpan
    analyzers: dict[str, LoopSpan] = field(default_factory=dict[str, LoopSpan])


class LoopRun(Run):
    """One session of a logger on a run directory.

    Args:
        place: Where it is recorded.
        home: The claimed place of a journal outside of the run directory, None when it stands inside.
        trace_id: Of the documents.
        is_late: Whether the logger was closed before: the run itself has ended.
        is_offline: Whether nothing may be sent.
    """

    may_be_left_open = True

    def __init__(
        self, place: RunPlace, home: OpenJournal | None, *, trace_id: str, is_late: bool, is_offline: bool
    ) -> None:
        self.is_offline = is_offline
        self.is_late = is_late
        self._home = home
        self._writer = 0
        self._last_ns = self._event_ns = 0
        self._stages: dict[tuple[str, int | None], OpenStage] = {}
        self._known_files: set[tuple[str, str]] = set()
        fields: dict[str, Any] = {"layout": NAME, "diagnose.trace_id": trace_id}
        if is_late:
            fields["diagnose.late"] = True
        super().__init__(NAME, None, fields, place=place)
        if self.content == "local":
            self.span.set_attribute(names.CONTENT, "local")

    # -- what a logger holds while it writes

    def begin(self) -> None:
        """Note that this thread is recording an event: documents wait until all of it is in the journal."""
        self._writer = threading.get_ident()
        self._event_ns = 0

    def end_of_event(self, *, is_urgent: bool) -> None:
        """Note that the event is recorded, and have it in its documents unless it may wait."""
        self._writer = 0
        if self.is_durable and is_urgent:
            self.journal.sync()
        if is_urgent and self.hooks is not None:
            self.hooks.flush(_DOCUMENTS_S)

    def recorded(self, kind: str) -> None:
        """Leave the documents to `end_of_event` when the logger records, not the program itself."""
        if self._writer != threading.get_ident():
            super().recorded(kind)

    def moment(self) -> int:
        """Return the wall clock in nanoseconds, never earlier than before: the order of events is that of their times.

        Everything that is told with one event was told at one moment.
        """
        if self._writer and self._event_ns:
            return self._event_ns
        self._last_ns = max(self._last_ns, time.time_ns())
        self._event_ns = self._last_ns
        return self._last_ns

    # -- records

    def tell(self, event: str, fields: Mapping[str, Any], *, stage: str | None = None, cycle: Any = None) -> None:
        """Record an event of the loop that is a moment."""
        attributes: dict[str, Any] = {names.DL_EVENT: event}
        if stage is not None:
            attributes[names.STAGE] = stage
        if cycle is not None:
            attributes[names.CYCLE] = cycle
        prepared = self._prepared(fields)
        attributes.update({field_key(key): value for key, value in prepared.items()})
        self.files(self.span, prepared, stage, cycle)
        self.span.add_event(f"{NAME}.{event}", attributes, self.moment())

    def spanned(
        self,
        event: str,
        fields: Mapping[str, Any],
        *,
        stage: str | None,
        cycle: Any = None,
        duration_sec: Any = None,
        kind: str = "stage",
        name: str | None = None,
        parts: OpenStage | None = None,
        outcome: str = "",
        error: Any = None,
    ) -> LoopSpan:
        """Record an event of the loop that took time, and return its span, which has ended.

        Args:
            event: Event name.
            fields: Its payload.
            stage: M1 ... M5, None for the run.
            cycle: Of the record.
            duration_sec: How long it took; without it, it began with its parts, or now.
            kind: A `names.Kind`.
            name: Of the span.
            parts: The open stage that ends with it.
            outcome: How it ended, when not plainly.
            error: Why it failed, when it did.
        """
        end = self.moment()
        span = parts.span if parts else self._new(name or f"{stage or 'run'} {event}", kind, stage, cycle, end)
        if parts:
            span.update_name(name or f"{stage} {event}")
            if type(cycle) is int:
                span.set(cycle=cycle)
        took = seconds(duration_sec)
        if took is not None:
            span.started_at(end - round(took * 1e9))
        if type(cycle) is not int and cycle is not None:
            fields = {"cycle": cycle, **fields}
        span.set_attribute(names.DL_EVENT, event)
        if self.content == "local":
            span.set_attribute(names.CONTENT, "local")
        prepared = self._prepared(fields)
        span.set(**prepared)
        self.files(span, prepared, stage, cycle)
        if outcome:
            span.set_attribute(names.OUTCOME, outcome)
        if error is not None:
            failed(span, error)
        span.end(end)
        return span

    def files(self, span: RecordedSpan, fields: Mapping[str, Any], stage: str | None = None, cycle: Any = None) -> None:
        """Record hash and size of each file of ours that an event speaks of, so that a change is found, once for each content."""
        for ref in artifact_refs(fields, self.dir):
            path, sha256 = str(ref["path"]), str(ref["artifact_id"]).removeprefix("sha256:")
            if not _OURS.match(path) or (path, sha256) in self._known_files:
                continue
            self._known_files.add((path, sha256))
            stem, suffix = os.path.splitext(str(ref["filename"]))
            told = {
                "artifact": stem,
                "kind": "array" if suffix == ".npy" else "media" if suffix.lower() in MEDIA_TYPES else "file",
                "path": path,
                "media_type": MEDIA_TYPES.get(suffix.lower(), ref["mime_type"]),
                "sha256": sha256,
                "size_bytes": ref["size_bytes"],
            }
            attributes: dict[str, Any] = {names.DL_EVENT: "artifact"}
            if stage is not None:
                attributes[names.STAGE] = stage
            if type(cycle) is int:
                attributes[names.CYCLE] = cycle
            if self.content != "all":
                attributes[names.CONTENT] = "local"
            attributes.update({field_key(key): value for key, value in told.items()})
            span.add_event(names.EVENT_ARTIFACT, attributes, self.moment())

    def _new(
        self,
        name: str,
        kind: str,
        stage: str | None,
        cycle: Any,
        start_ns: int,
        parent: RecordedSpan | None = None,
    ) -> LoopSpan:
        return LoopSpan(
            self,
            name,
            kind,
            parent or self.span,
            stage=stage,
            cycle=cycle if type(cycle) is int and -_INT64 <= cycle < _INT64 else None,
            start_ns=start_ns,
        )

    def model_call(
        self,
        fields: Mapping[str, Any],
        *,
        stage: str | None,
        cycle: Any,
        inputs: Any,
        output: Any,
        method: str,
        role: str | None = None,
        analyzer: str | None = None,
        duration_sec: Any = None,
        error: Any = None,
        within: RecordedSpan | None = None,
    ) -> None:
        """Record one call of a model, below its stage (and analyzer), or below the event that tells of it."""
        end = self.moment()
        took = seconds(duration_sec)
        start = end if took is None else end - round(took * 1e9)
        parent = within or self._above(stage, cycle, analyzer, start)
        operation = _OPERATIONS.get(method, method)
        model = role or TARGET_MODEL
        name, before = self.memo.get((NAME, operation, model)) or self._known_call(operation, model)
        span = ModelCallSpan(
            self,
            name,
            "model_call",
            parent,
            stage=stage,
            cycle=cycle if type(cycle) is int and -_INT64 <= cycle < _INT64 else None,
            before=before,
            otel_kind=3,
            start_ns=start,
        )
        span.identity = (operation, model, None)
        if type(cycle) is not int and cycle is not None:
            span.set(**self._prepared({"cycle": cycle}))
        span.set(**self._prepared(fields))
        span.input(tree(inputs)[0])
        span.output(tree(output)[0])
        if error is not None:
            failed(span, error)
        span.end(end)

    def _known_call(self, operation: str, model: str) -> tuple[str, Fragment]:
        """Return name and encoded attributes of the calls of one kind, which come again and again."""
        memo = self.memo  # as it is before the gate is asked: a secret that is registered now replaces it
        if len(memo) >= _MOST_KNOWN:
            memo.clear()
        attributes = {names.GENAI_OPERATION: operation, names.GENAI_MODEL: model, names.DL_EVENT: "model_call"}
        known = memo[NAME, operation, model] = f"{operation} {model}", self.journal.encoder.fragment(attributes)
        return known

    def _above(self, stage: str | None, cycle: Any, analyzer: str | None, start_ns: int) -> RecordedSpan:
        """Return the span a model call stands below, opened when it is the first one there."""
        if stage is None:
            return self.span
        key = _key(stage, cycle)
        found = self._stages.get(key)
        if found is None:
            span = self._new(stage, "stage", stage, cycle, start_ns)
            span.set_attribute(names.DL_EVENT, "stage")
            span.announce()
            found = self._stages[key] = OpenStage(span)
        if analyzer is None:
            return found.span
        above = found.analyzers.get(analyzer)
        if above is None:
            above = found.analyzers[analyzer] = self._new(
                f"probe {analyzer}", "step", stage, cycle, start_ns, found.span
            )
            above.set(**{"diagnose.analyzer": analyzer})
            above.set_attribute(names.DL_EVENT, "analyzer")
            above.announce()
        return above

    def take_stage(self, stage: str, cycle: Any) -> OpenStage | None:
        """Return the open stage of a cycle, which ends with the event that is recorded next; None when there is none."""
        return self._stages.pop(_key(stage, cycle), None)

    def analyzer(
        self,
        name: str,
        parent: RecordedSpan,
        parts: OpenStage | None,
        cycle: Any,
        facts: Mapping[str, Any],
        failure: Any,
    ) -> None:
        """End the span of one analyzer of a probe."""
        end = self.moment()
        span = parts.analyzers.pop(name, None) if parts else None
        if span is None:
            span = self._new(f"probe {name}", "step", parent.stage, cycle, parent.start_ns, parent)
            span.set(**{"diagnose.analyzer": name})
            span.set_attribute(names.DL_EVENT, "analyzer")
        span.set(**self._prepared(facts))
        if failure is not None:
            failed(span, failure)
        span.end(end)

    def _prepared(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields as plain data, without content that must not be kept, and notes of what had to be changed."""
        prepared: dict[str, Any] = {}
        notes: dict[str, str] = {}
        for key, value in fields.items():
            if self.content == "none" and key in names.DL_CONTENT:
                if key in _DEMANDED:
                    prepared[key] = _DEMANDED[key]
                continue
            prepared[key], note = tree(value)
            if note:
                notes[key] = note
        if notes:
            prepared["diagnose.notes"] = notes
        return prepared

    def forked(self) -> None:
        """In a forked child: the stages that are open are the parent's."""
        self._stages = {}
        self._writer = 0

    # -- the end

    def end_open_spans(self, outcome: str, *, keep: RecordedSpan | None = None) -> None:
        """End stages whose result was never told, and what the program itself left open."""
        stages, self._stages = self._stages, {}
        end = self.moment()
        for stage in stages.values():
            for span in (*stage.analyzers.values(), stage.span):
                span.set_attribute(names.OUTCOME, outcome)
                span.end(end)
        super().end_open_spans(outcome, keep=keep)

    def close(self) -> None:
        """End the run, finish its documents, and bring its journal home. Harmless when repeated; never raises."""
        super().close()
        self._go_home()

    def finish(self) -> bool:
        """Do what the disk refused at the end; whether it is done or given up."""
        is_done = super().finish()
        if is_done:
            self._go_home()
        return is_done

    def _go_home(self) -> None:
        home = self._home
        if home is None or not (self.closed and self.journal.is_sealed):
            return
        self._home = None
        try:
            release_journal(home)
            tell_home(self)
        except (OSError, SpanfoldError) as error:
            process_losses[f"the way home of a journal, which stays in {home.journal} ({type(error).__name__})"] += 1


def _key(stage: str, cycle: Any) -> tuple[str, int | None]:
    # The repair of M5 is of no cycle, and the models it asks are asked in whatever cycle the loop is.
    return stage, cycle if type(cycle) is int and stage != "M5" else None


def failed(span: RecordedSpan, error: Any) -> None:
    """Say that a span failed, as far as the loop tells why."""
    told = error if isinstance(error, str) else str(cast("object", type(error).__name__))
    span.set_status(StatusCode.ERROR, told)
    kind = _ERROR_TYPE.match(told)
    span.set_attribute(names.ERROR_TYPE, kind[0] if kind else "error")
