"""An OpenTelemetry tracer provider that makes our own spans.

For programs and instrumentors that speak the OpenTelemetry API: their spans
are recorded in the run that is open where they start, and are no-ops outside
of one. Installed globally only with `provider="global"`.

A program's own spans are recorded like ours. Those of an instrumentation
library keep its scope and are journaled if that is allowed (`is_allowed`);
HTTP, SQL and the like are not, and what starts below them keeps its place.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, SpanKind, Tracer, TracerProvider
from opentelemetry.util.types import Attributes

from spanfold.instrument._context import get_context, set_context
from spanfold.instrument._current import current_parent
from spanfold.instrument._foreign import is_allowed
from spanfold.instrument._guard import losing_only
from spanfold.instrument._near import Stand, id_of
from spanfold.instrument._span import RecordedSpan
from spanfold.instrument._starting import Scope, start_span

F = TypeVar("F", bound=Callable[..., Any])

_LIBRARIES: Final = "opentelemetry.instrumentation."
"""Scopes of instrumentation libraries begin so; any other scope is the program's own."""


class SpanfoldTracerProvider(TracerProvider):
    """Gives out tracers whose spans are recorded in the current run."""

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes | None = None,
    ) -> Tracer:
        """Return a tracer; its name is the instrumentation scope."""
        return SpanfoldTracer(
            Scope(instrumenting_module_name or "", instrumenting_library_version or "", schema_url or "")
        )


class SpanfoldTracer(Tracer):
    """Starts spans in the run of the context they are started in."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> trace.Span:
        """Start a span; outside a run one that only carries the context on. Not current until `use_span` makes it so."""
        with losing_only("spans of the OpenTelemetry API"):
            near, parent_id = current_parent(context)
            if near is not None:
                scope = self._scope
                is_library = is_allowed(scope.name, attributes)
                if not is_library and scope.name.startswith(_LIBRARIES):
                    return Stand(_context_of(near.run.trace_hex, parent_id or id_of(near)), near, parent_id)
                span = start_span(
                    name,
                    near,
                    parent_id,
                    otel_kind=kind.value + 1,
                    start_ns=start_time,
                    scope=scope if is_library else None,
                )
                span.set_attributes(attributes or {})
                for link in links or ():
                    span.add_link(link.context, link.attributes)
                return span
        return trace.NonRecordingSpan(trace.get_current_span(context).get_span_context())

    def start_as_current_span(  # type: ignore[override]  # upstream's class is private; this one does the same
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        end_on_exit: bool = True,
    ) -> "CurrentSpan":
        """Start a span that is current in the block, or in each call of the function this decorates."""

        def start() -> trace.Span:
            return self.start_span(name, context, kind, attributes, links, start_time)

        return CurrentSpan(
            start, ends=end_on_exit, tells_exceptions=record_exception, fails_on_exceptions=set_status_on_exception
        )


def _context_of(trace_hex: bytes, span_hex: bytes) -> SpanContext:
    return SpanContext(int(trace_hex, 16), int(span_hex, 16), False, trace.TraceFlags(trace.TraceFlags.SAMPLED))


class CurrentSpan:
    """A span that is current in a block: what `start_as_current_span` gives, without what fails in upstream's.

    An exception whose text cannot be made does not replace the host's, and no
    token is detached in a context it was not made in.
    """

    def __init__(
        self, start: Callable[[], trace.Span], *, ends: bool, tells_exceptions: bool, fails_on_exceptions: bool
    ) -> None:
        self._start = start
        self._ends = ends
        self._tells = tells_exceptions
        self._fails = fails_on_exceptions
        self._span: trace.Span = trace.INVALID_SPAN
        self._outside: Context | None = None
        self._inside: Context | None = None

    def __enter__(self) -> trace.Span:
        self._span = span = self._start()
        if isinstance(span, RecordedSpan):
            with losing_only("the current span"):
                span.make_current()
        else:
            self._outside = get_context()
            self._inside = trace.set_span_in_context(span)
            set_context(self._inside)
        return span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        span = self._span
        if not isinstance(span, RecordedSpan):
            if get_context() is self._inside and self._outside is not None:
                set_context(self._outside)
            return
        if error is not None and self._ends:
            span.ended_by(error, is_told=self._tells, is_failure=self._fails)
        elif self._ends:
            span.end()
        else:
            if error is not None:
                span.failed(error, is_told=self._tells, is_failure=self._fails)
            with losing_only("the current span"):
                span.leave()

    def __call__(self, func: F) -> F:
        """Decorate a function: each of its calls has a span of its own."""
        if inspect.iscoroutinefunction(func):

            @functools.wraps(func)
            async def coroutine(*args: Any, **kwargs: Any) -> Any:
                with self._again():
                    return await func(*args, **kwargs)

            return cast("F", coroutine)

        @functools.wraps(func)
        def function(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return func(*args, **kwargs)

        return cast("F", function)

    def _again(self) -> "CurrentSpan":
        return CurrentSpan(self._start, ends=self._ends, tells_exceptions=self._tells, fails_on_exceptions=self._fails)
