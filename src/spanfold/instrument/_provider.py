"""An OpenTelemetry tracer provider that makes our own spans.

For programs and instrumentors that speak the OpenTelemetry API: their spans
are recorded in the run that is open where they start, like ours, and are
no-ops outside of one. Installed globally only with `provider="global"`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Tracer, TracerProvider
from opentelemetry.util.types import Attributes

from spanfold.instrument._api import start_span


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
        return SpanfoldTracer()


class SpanfoldTracer(Tracer):
    """Starts spans of kind `span` in the run of the context they are started in."""

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
        """Start a span; a no-op outside a run. Not current until `use_span` makes it so."""
        span: Any = start_span(name, context, otel_kind=kind.value + 1, start_ns=start_time)
        span.set_attributes(dict(attributes or {}))
        for link in links or ():
            span.add_link(link.context, link.attributes)
        return span

    @contextmanager
    def start_as_current_span(
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
    ) -> Iterator[trace.Span]:
        """Start a span and make it current inside the block."""
        span = self.start_span(name, context, kind, attributes, links, start_time)
        with trace.use_span(span, end_on_exit, record_exception, set_status_on_exception):
            yield span
