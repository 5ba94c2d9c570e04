"""What happened in a run, as plain data. `show_run` makes it.

Times are text as of EP 3.2 (`2026-11-30T17:52:26.819391Z`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spanfold.fold.diagnose_overview import LoopOverview
from spanfold.fold.presence import Presence
from spanfold.fold.run_state import Status
from spanfold.journal import Damage


@dataclass(slots=True)
class StageWork:
    """What was done in one stage in one cycle."""

    stage: str | None
    """Its name as given; None for what stands under no stage."""
    cycle: int | None
    depth: int = 0
    """Number of stages around it."""
    start: str | None = None
    """When it first started."""
    ended: int = 0
    """How often it ended; a stage may be entered several times in a cycle."""
    failed: int = 0
    interrupted: int = 0
    """How many were ended by others: by `recover_run` after their process had died, or at the exit of a program that had
    left them open."""
    open: int = 0
    """How often it was started and has not ended."""
    seconds: float = 0.0
    """Duration of those that ended, added up."""
    share: float | None = None
    """Part of the run's span of time, from its first start to its last end, or to its last record before it has ended, in
    which any of those that ended ran: at most 1. None when none ended."""
    model_calls: int = 0
    agents: int = 0
    tools: int = 0
    scores: int = 0
    artifacts: int = 0
    events: int = 0


@dataclass(slots=True)
class CallWork:
    """What one model, agent or tool was asked."""

    name: str | None
    provider: str | None = None
    """Of a model."""
    calls: int = 0
    failed: int = 0
    seconds: float = 0.0
    """Durations added up: more than the clock when calls ran in parallel."""
    usage: dict[str, int | float] = field(default_factory=dict[str, "int | float"])
    """Tokens by the names of `usage(...)`; what an agent says of itself is in no total."""


@dataclass(slots=True)
class ScoreSeries:
    """The values one score took in one stage."""

    name: str | None
    stage: str | None
    count: int = 0
    last_value: Any = None
    last_label: str | None = None
    last_comment: str | None = None
    last_cycle: int | None = None
    min_value: float | None = None
    max_value: float | None = None


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """An object that the run kept, or the reason why it could not."""

    name: str | None
    stage: str | None
    cycle: int | None
    kind: str | None
    path: str | None
    """Relative to the run directory; None when there is no file."""
    size_bytes: int | None
    sha256: str | None
    figure: str | None
    reason: str | None


@dataclass(slots=True)
class ErrorGroup:
    """Failures of one kind in one place. A failure that passed through enclosing spans is told once, where it arose."""

    kind: str
    name: str
    stage: str | None
    error_type: str | None
    outcome: str | None
    count: int = 0
    last: str | None = None
    """Time of the last of them."""
    last_message: str = ""
    last_cycle: int | None = None


@dataclass(frozen=True, slots=True)
class OpenWork:
    """A span that was started and never ended."""

    span_id: str
    kind: str | None
    name: str | None
    stage: str | None
    cycle: int | None
    start: str | None
    age_seconds: float
    """Since its start; of one whose process has died until the last record of the run, its last sign of life."""
    writer: Presence
    """Whether the process that began it still lives: `dead` means that it was interrupted."""


@dataclass(frozen=True, slots=True)
class JournalFile:
    """What one process wrote."""

    name: str
    records: int
    size_bytes: int
    writer: Presence
    pid: int | None
    """Of the writer, if it lives."""


@dataclass(frozen=True, slots=True)
class RunOverview:
    """What happened in a run, as far as its journal tells."""

    run_dir: Path
    name: str | None
    status: Status
    """`running` while the process that records it lives, or lives on a machine that cannot be seen."""
    writer: Presence
    """Of the run's own process."""
    trace_id: str | None
    start: str | None
    end: str | None
    """None until the run ended."""
    seconds: float | None
    """Duration of the run; None until it ended."""
    last_record: str | None
    """Time of the last record."""
    silent_seconds: float | None
    """Since the last record."""
    facts: Mapping[str, Any]
    """With what it was made: host, pid, versions, argv, git_commit."""
    given: Mapping[str, Any]
    """Fields the run started with."""
    results: Mapping[str, Any]
    """Fields that were set later; known when the run has ended."""
    error: Mapping[str, Any]
    """error_type, status_message and outcome of the run itself, as far as it has them."""
    totals: Mapping[str, Any]
    """model_calls, failed, wrapped and usage, each call counted once."""
    stages: tuple[StageWork, ...]
    """In the order of their start; what stands under no stage first."""
    models: tuple[CallWork, ...]
    agents: tuple[CallWork, ...]
    tools: tuple[CallWork, ...]
    scores: tuple[ScoreSeries, ...]
    events: Mapping[str, int]
    """Name of each event of the program -> how often it came."""
    artifacts: tuple[ArtifactFile, ...]
    errors: tuple[ErrorGroup, ...]
    more_errors: int
    """Failures of yet other kinds, beyond the first thousand."""
    open: tuple[OpenWork, ...]
    """Oldest first."""
    lost_records: int
    """Records that could not be written, as the recorder itself said later."""
    losses: Mapping[str, int]
    """What else the run's own process could not keep -> how often; known when the run has ended."""
    left_open: int
    """Spans that were still open when the run ended, and were ended by that."""
    recovered: Mapping[str, Any] | None
    """What `recover_run` did, if it was needed."""
    is_sealed: bool
    is_as_sealed: bool | None
    """Whether the journal is byte for byte what was sealed; None before the seal."""
    records: int
    duplicates: int
    files: tuple[JournalFile, ...]
    damage: tuple[Damage, ...]
    """What could not be read; of a run that is recorded a torn end is being written."""
    loop: LoopOverview | None = None
    """What a diagnose loop told; None for a run that none of its loggers recorded."""
