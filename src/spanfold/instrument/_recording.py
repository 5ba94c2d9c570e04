"""What an open run is to its spans, in the process that opened it and in those that joined it.

`JoinedRun` is a run seen from a child process that found it in its
environment: it writes a journal file of its own into the same folder and
leaves documents and seal to the owner (`_run`).
"""

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from opentelemetry import trace

from spanfold import names
from spanfold.instrument._bridge import bridge
from spanfold.instrument._guard import losing_only
from spanfold.instrument._near import Anchor, OfThisProcess
from spanfold.instrument._run_folder import JOURNAL_FOLDER
from spanfold.instrument._span import RecordedSpan
from spanfold.instrument._state import RunHooks, process_resource, state, version
from spanfold.journal import AttributeValue, Journal, Stats

CONTROL: Final = frozenset(
    {"run", "stage", "agent", "event", "score", "artifact", "cell", "pass", "batch", "closeout", "tick", "step"}
)
"""Kinds of record that are synced (with `durability="machine"`) and in their document when the call returns."""

_recordings: "weakref.WeakSet[Recording]" = weakref.WeakSet()


def _judge_again() -> None:
    """Forget what passed the gate before a secret was registered."""
    for recording in tuple(_recordings):
        # Replaced, not cleared: a verdict that another thread is just getting goes into the old one.
        recording.memo = {}
        recording.journal.encoder.forget()


state.redactor.on_registration(_judge_again)


class Recording(OfThisProcess):
    """What a span needs of its run (`_span.Recorder`), for the owner and for a joined child."""

    closed = False
    """Whether the run is over, so that nothing belongs to it any more."""
    is_late_told = False
    """Whether it was told already that work goes on after it."""

    def __init__(self, folder: Path, trace_hex: bytes, journal_folder: Path | None = None) -> None:
        settings = state.ready()
        assert state.gate is not None
        self.dir = folder
        self.content: str = settings.content
        self.trace_hex = trace_hex
        self.open_spans: dict[bytes, RecordedSpan] = {}
        self.memo: dict[Any, Any] = {}
        _recordings.add(self)
        self.hooks: RunHooks | None = None
        self.is_watched = settings.durability == "machine"
        """Whether anybody wants to be told after each line."""
        self.journal = Journal(
            journal_folder or folder / JOURNAL_FOLDER,
            gate=state.gate,
            resource=process_resource,
            durable=settings.durability == "machine",
            scope_version=version(),
        )
        self.is_durable = settings.durability == "machine"

    @property
    def trace_id(self) -> str:
        """32 lower-case hex digits."""
        return self.trace_hex.decode()

    @property
    def stats(self) -> Stats:
        """What the journal of this process wrote, holds and lost."""
        return self.journal.stats

    def recorded(self, kind: str) -> None:
        """Told after each line: control records are synced and shown in the documents at once."""
        if self.is_durable and kind in CONTROL:
            self.journal.sync()
        if self.hooks is not None:
            self.hooks.recorded(kind)

    @property
    def is_mirrored(self) -> bool:
        """Whether the host has a provider that is shown our spans."""
        return bridge.provider is not None

    def mirror_end(self, span: RecordedSpan, end_ns: int, attributes: Mapping[str, AttributeValue]) -> None:
        """Show an ended span to the host's provider."""
        bridge.mirror_end(span, end_ns, attributes)

    def end_open_spans(self, outcome: str, *, keep: RecordedSpan | None = None) -> None:
        """End every span that is current somewhere, innermost first, with an outcome."""
        for span in sorted(self.open_spans.values(), key=lambda s: -s.depth):
            if span is keep or span.ended:
                continue
            with losing_only("open spans at the end"):
                tell_outcome(span, outcome)
                span.end()


def tell_outcome(span: RecordedSpan, outcome: str) -> None:
    """Say of a span how it comes to its end, which nobody has ended."""
    span.set_attribute(names.OUTCOME, outcome)
    if outcome == "terminated":
        span.set_status(trace.StatusCode.ERROR, outcome)
        span.set_attribute(names.ERROR_TYPE, outcome)


class JoinedRun(Recording):
    """A run of a parent process, joined by this one through its environment."""

    anchor: Anchor
    """The span of the parent process under which this one works."""

    def __init__(self, folder: Path, name: str, trace_hex: bytes, journal_folder: Path | None = None) -> None:
        super().__init__(folder, trace_hex, journal_folder)
        self.name = name
