"""What stands around a span: its run as far as it needs it, and what takes the place of a span that cannot be there."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

from opentelemetry import trace
from opentelemetry.trace import SpanContext

from spanfold.instrument._exceptions import Trail
from spanfold.journal import AttributeValue, Journal

if TYPE_CHECKING:
    from spanfold.instrument._span import RecordedSpan


class Recorder(Protocol):
    """What a span needs of its run."""

    @property
    def journal(self) -> Journal:
        """Where its records go."""
        ...

    @property
    def memo(self) -> dict[Any, Any]:
        """Encoded parts of records the run has made, with the verdict of the gate; they come again and again."""
        ...

    @property
    def dir(self) -> Path:
        """The run directory."""
        ...

    @property
    def trace_hex(self) -> bytes:
        """Trace id of the run, 32 hex digits."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the run is over."""
        ...

    is_late_told: bool
    """Whether it was told already that work goes on after the run."""

    @property
    def content(self) -> str:
        """Content policy: none, local or all."""
        ...

    @property
    def open_spans(self) -> dict[bytes, "RecordedSpan"]:
        """Spans that are current somewhere, by id: what a signal has to end."""
        ...

    @property
    def is_watched(self) -> bool:
        """Whether it wants to be told after each line."""
        ...

    def recorded(self, kind: str) -> None:
        """Told after each line: documents may be due."""
        ...

    @property
    def is_mirrored(self) -> bool:
        """Whether the host has a provider that is shown our spans."""
        ...

    def mirror_end(self, span: "RecordedSpan", end_ns: int, attributes: Mapping[str, AttributeValue]) -> None:
        """Show an ended span to the host's provider, if it has one."""
        ...


class Anchor:
    """What a span needs of the span around it; stands in for one of another process."""

    kind = "run"
    name = ""
    depth = 0
    token = ""
    parent = None
    ended = False

    def __init__(self, run: Recorder, span_id: bytes, stage: str | None, cycle: int | None) -> None:
        self.run = run
        self._id = span_id
        self.stage = stage
        self.cycle = cycle
        self._seen_error: Trail | None = None

    def below_a_span(self, depth: int, token: str) -> None:
        """Stand in for a span that is not the root of its run.

        Args:
            depth: Its depth.
            token: Stage name of its timing row.
        """
        self.kind, self.depth, self.name, self.token = "span", depth, token, token

    def _child_started(self, mono: int) -> None:
        """Time of children is counted by the process that recorded the span."""

    def _child_ended(self, mono: int) -> None:
        """Time of children is counted by the process that recorded the span."""

    def _child_reported(self, start: int, end: int) -> None:
        """Time of children is counted by the process that recorded the span."""


class UnrecordedId(bytes):
    """Id of a span that is a parent and not journaled, with the id of its nearest ancestor that is."""

    recorded: bytes

    def __new__(cls, span_id: bytes, recorded: bytes) -> Self:
        made = super().__new__(cls, span_id)
        made.recorded = recorded
        return made


def id_of(near: "RecordedSpan | Anchor") -> bytes:
    """Return the id of a span or of its stand-in, 16 hex digits."""
    return near._id  # pyright: ignore[reportPrivateUsage]  # the module's own


class Stand(trace.NonRecordingSpan):
    """What is current where a recorded span cannot be: below a span that is not recorded, or in another process."""

    def __init__(self, context: SpanContext, near: "RecordedSpan | Anchor", parent_id: bytes) -> None:
        super().__init__(context)
        self.near = near
        self.parent_id = parent_id


class OfThisProcess:
    """Something that only works in the process that made it."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return itself: a copy of an object that holds a span or run holds the same one."""
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__}: expected to stay in the process that made it, found an attempt to pickle it. "
            "Send work to other processes with spanfold.traced_executor, or start them with spanfold.child_env()."
        )
