"""One row of `timings.jsonl` as a typed record (EP 4.3, schema `spanfold.timing/1`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from spanfold.moments import ts6
from spanfold.timings.clock import NS_PER_SECOND

CONTAINER_STAGES: Final = frozenset({"cell", "pass", "batch", "closeout"})
"""Stages that only enclose others, for rows that do not say so themselves (EP 7.4)."""

RowFlag = Literal["derived_seconds", "bad_interval", "bad_time", "naive_timestamp", "defaulted", "bad_field"]
"""What a reader had to do to understand a row.

`derived_seconds`: seconds were absent and taken from start and end.
`bad_interval`: the end lay before the start and was recomputed.
`bad_time`: a start or end that is no timestamp was taken as absent.
`naive_timestamp`: a time without zone was taken as UTC.
`defaulted`: `ok` or `measured` was absent and taken as true.
`bad_field`: another field had the wrong type and was taken as absent.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingRow:
    """One ended activity."""

    stage: str
    """What was done; `[a-z][a-z0-9_]{0,63}`."""
    seconds: float
    """Duration in seconds, 0 or more, from a monotonic clock."""
    start_ns: int | None = None
    """Start, nanoseconds since the Unix epoch; None when the row has no place in time."""
    end_ns: int | None = None
    """End as recorded, nanoseconds since the Unix epoch; intervals use `stop_ns`."""
    run_id: str | None = None
    """Name of the run or run set."""
    cell_id: str | None = None
    """The cell; outside a cell the folder name of the run."""
    phase: str | None = None
    """Life phase of the activity, such as `setup` or `pass`."""
    pass_number: int | None = None
    """From 1; None outside a pass. The field is called `pass` on disk."""
    parent: str | None = None
    """Stage of the enclosing activity."""
    depth: int | None = None
    """Number of enclosing activities."""
    ok: bool = True
    """False when an exception left the activity or the caller said so."""
    measured: bool = True
    """Whether a stopwatch of ours took the time; false for reported durations."""
    container: bool = False
    """Whether it only encloses other activities, and so counts in no total."""
    source: str = "timer"
    """Where the number comes from: `timer`, `agent`, `transcript`, `command_log`, `manifest`."""
    error: str | None = None
    """Class name of the exception that left the activity."""
    attributes: Mapping[str, object] = field(default_factory=dict[str, object])
    """Further facts: scalars, such as `kind`, `name`, `model`, `cycle`."""
    trace_id: str | None = None
    """32 hex digits."""
    span_id: str | None = None
    """16 hex digits; identifies the row."""
    parent_span_id: str | None = None
    """16 hex digits; identifies the row of the enclosing activity."""
    self_seconds: float | None = None
    """Seconds outside measured children, as its writer stored them."""
    extra: Mapping[str, object] = field(default_factory=dict[str, object])
    """Keys this version does not know."""
    flags: tuple[RowFlag, ...] = ()
    """What the reader had to do to understand the row."""
    line: int = 0
    """Line in its file, from 1; 0 for a row that was not read from a file."""
    offset: int = 0
    """First byte of the row in its file."""

    @property
    def duration_ns(self) -> int:
        """Duration in nanoseconds."""
        return round(self.seconds * NS_PER_SECOND)

    @property
    def stop_ns(self) -> int | None:
        """Start plus duration, where EP 8.2 ends the interval of a row; None without a start."""
        return None if self.start_ns is None else self.start_ns + self.duration_ns

    @property
    def kind(self) -> str | None:
        """What the span stood for (`run`, `stage`, `model_call`, …), when the writer said so."""
        kind = self.attributes.get("kind")
        return kind if isinstance(kind, str) else None

    @property
    def is_eligible(self) -> bool:
        """Whether totals count it: measured, and not a mere container (EP 8.2)."""
        return self.measured and not self.container

    def to_dict(self) -> dict[str, object]:
        """Return the row as a JSON object in the field order of EP 4.3, unknown keys last."""
        return {
            "schema": "spanfold.timing/1",
            "run_id": self.run_id,
            "cell_id": self.cell_id,
            "stage": self.stage,
            "phase": self.phase,
            "pass": self.pass_number,
            "parent": self.parent,
            "depth": self.depth,
            "start": None if self.start_ns is None else ts6(self.start_ns),
            "end": None if self.end_ns is None else ts6(self.end_ns),
            "seconds": self.seconds,
            "ok": self.ok,
            "measured": self.measured,
            "attributes": dict(self.attributes),
            "container": self.container,
            "source": self.source,
            "error": self.error,
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "parent_span_id": self.parent_span_id,
            "self_seconds": self.self_seconds,
            **self.extra,
        }
