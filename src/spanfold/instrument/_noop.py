"""What the recording functions give out where nothing is recorded: same surface, no effect, next to no cost."""

from types import TracebackType
from typing import Any, Self

from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan


class NoopSpan(NonRecordingSpan):
    """A span that records nothing. Every method of the recording spans, without effect."""

    span_id = ""
    trace_id = ""

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

    def usage(self, **tokens: int | None) -> Self:
        """Do nothing."""
        return self

    def served_model(self, name: str) -> Self:
        """Do nothing."""
        return self

    def response_id(self, response_id: str) -> Self:
        """Do nothing."""
        return self

    def finish_reasons(self, *reasons: str) -> Self:
        """Do nothing."""
        return self


NOOP = NoopSpan()
