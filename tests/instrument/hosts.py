"""A host's OpenTelemetry SDK provider with an exporter in memory."""

from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

SECRET = "sk-ant-api03-" + "A1b2C3d4" * 11 + "-AAAA"
"""Has the form of a key, and is none."""
OPENAI = "opentelemetry.instrumentation.openai.v1"
HTTP = "opentelemetry.instrumentation.requests"


class Host(TracerProvider):
    """The provider; `seen` is what left through its exporter."""

    def __init__(self, processor: type[SpanProcessor] = SimpleSpanProcessor, **options: Any) -> None:
        super().__init__(resource=Resource({"service.name": "host"}), **options)
        self.exporter = InMemorySpanExporter()
        self.add_span_processor(processor(self.exporter))  # type: ignore[call-arg]  # one that exports

    def seen(self) -> dict[str, ReadableSpan]:
        self.force_flush()
        found = self.exporter.get_finished_spans()
        assert len({s.name for s in found}) == len(found), [s.name for s in found]
        return {s.name: s for s in found}

    def text(self) -> str:
        self.force_flush()
        return "\n".join(s.to_json() for s in self.exporter.get_finished_spans())


def id_of(shown: ReadableSpan) -> str:
    assert shown.context is not None
    return f"{shown.context.span_id:016x}"


def parent_of(shown: ReadableSpan) -> str:
    return f"{shown.parent.span_id:016x}" if shown.parent else ""
