"""What the recording functions give out where nothing is recorded: same surface, no effect, next to no cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan

from spanfold.instrument._context import get_context
from spanfold.instrument._kinds import AgentSpan, ModelCallSpan, ToolSpan
from spanfold.instrument._run import Run
from spanfold.instrument._span import RecordedSpan
from spanfold.journal import AttributeValue, Stats


class NoopSpan(NonRecordingSpan):
    """A span that records nothing. Every method of the recording spans, without effect."""

    # What a program may read of a span.
    span_id = ""
    trace_id = ""
    parent_span_id = ""
    token = ""
    name = ""
    kind = ""
    stage: str | None = None
    cycle: int | None = None
    depth = 0
    start_ns = 0
    parent: None = None
    ended = True
    status: tuple[int, str] = 0, ""
    links: Sequence[tuple[str, str, Mapping[str, AttributeValue]]] = ()

    def __init__(self) -> None:
        super().__init__(INVALID_SPAN_CONTEXT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def set(self, /, **fields: Any) -> Self:
        """Do nothing."""
        return self

    def event(self, name: str, /, **fields: Any) -> None:
        """Do nothing."""

    def input(self, value: Any) -> Self:
        """Do nothing."""
        return self

    def output(self, value: Any) -> Self:
        """Do nothing."""
        return self

    def arguments(self, value: Any) -> Self:
        """Do nothing."""
        return self

    def result(self, value: Any) -> Self:
        """Do nothing."""
        return self

    def usage(
        self,
        /,
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cache_read_tokens: int | None = None,
        cache_write_tokens: int | None = None,
        reasoning_tokens: int | None = None,
        **others: int | None,
    ) -> Self:
        """Do nothing."""
        return self

    def served_model(self, name: str) -> Self:
        """Do nothing."""
        return self

    def response_id(self, response_id: str) -> Self:
        """Do nothing."""
        return self

    def finish_reasons(self, *reasons: str | Sequence[str]) -> Self:
        """Do nothing."""
        return self

    def clock(self) -> int:
        """Return the time of a span that has none."""
        return 0

    def failed(
        self, error: BaseException, *, time_ns: int | None = None, is_told: bool = True, is_failure: bool = True
    ) -> None:
        """Do nothing."""

    def ended_by(self, error: BaseException, *, is_told: bool = True, is_failure: bool = True) -> None:
        """Do nothing."""

    def announce(self) -> None:
        """Do nothing."""

    def make_current(self) -> None:
        """Do nothing."""

    def detached_context(self) -> Context:
        """Return the context as it is."""
        return get_context()

    def leave(self) -> None:
        """Do nothing."""

    def is_above(self, span: object) -> bool:
        """Nothing is below a span that is not recorded."""
        return False

    def add_artifact(self, facts: Mapping[str, Any]) -> None:
        """Do nothing."""

    def captured(self, key: str, value: Any, *, max_nodes: int, max_text: int, max_chars: int) -> None:
        """Do nothing."""

    def foreign_child(self, start_ns: int, end_ns: int) -> None:
        """Do nothing."""

    def foreign_child_started(self, start_ns: int) -> None:
        """Do nothing."""

    def foreign_child_ended(self, end_ns: int | None = None) -> None:
        """Do nothing."""


class NoopRun(NoopSpan):
    """A run that records nothing: switched off, or it could not be opened."""

    closed = True
    is_offline = True
    is_mirrored = False
    is_late_told = False
    may_be_left_open = True

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.dir = Path()
        self.losses: dict[str, int] = {}
        self.stats = Stats()

    def view(self) -> Path:
        """Return an empty path: there is no directory."""
        return self.dir

    def close(self) -> None:
        """Do nothing."""

    def finish(self) -> bool:
        """There is nothing to finish."""
        return True

    def recorded(self, kind: str) -> None:
        """Do nothing."""

    def mirror_end(self, span: RecordedSpan, end_ns: int, attributes: Mapping[str, AttributeValue]) -> None:
        """Do nothing."""

    def end_open_spans(self, outcome: str, *, keep: RecordedSpan | None = None) -> None:
        """Do nothing."""

    def end_root(self, outcome: str) -> None:
        """Do nothing."""


# A user writes one type, `spanfold.ModelCallSpan`, whether or not anything is recorded. That the one no-op has every
# public name of each class, with its signature, is tested.
NOOP: Final = NoopSpan()
NOOP_SPAN: Final = cast("RecordedSpan", NOOP)
NOOP_MODEL_CALL: Final = cast("ModelCallSpan", NOOP)
NOOP_AGENT: Final = cast("AgentSpan", NOOP)
NOOP_TOOL: Final = cast("ToolSpan", NOOP)


def noop_run(name: str) -> Run:
    """Return a run that records nothing, as the type of one that does."""
    return cast("Run", NoopRun(name))
