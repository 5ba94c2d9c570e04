"""No count limit anywhere: what is many arrives as it is, here and at a collector (case C-034)."""

from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanContext, TraceFlags

import spanfold
from spanfold.journal import content, read_journal
from spanfold.model import Event, Span
from spanfold.testing import LoopbackOtlpReceiver


@pytest.mark.case("C-034")
def test_two_hundred_attributes_events_and_links_and_a_long_chat_stay_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The variables that make an SDK drop the first of them.
    for limit in ("ATTRIBUTE_COUNT", "EVENT_COUNT", "LINK_COUNT"):
        monkeypatch.setenv(f"OTEL_SPAN_{limit}_LIMIT", "8")
    turns = [{"role": ("user", "assistant")[n % 2], "content": f"turn {n}"} for n in range(60)]
    with LoopbackOtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        spanfold.configure(otlp=True)
        with spanfold.run("many", dir=tmp_path / "run"), spanfold.model_call("m", provider="p", input=turns) as call:
            call.set(**{f"field_{n}": n for n in range(200)})
            for n in range(200):
                call.event(f"event_{n}")
                call.add_link(SpanContext(n + 1, n + 1, is_remote=True, trace_flags=TraceFlags(1)))
        assert spanfold.flush().waiting == 0
        sent = next(span for span in receiver.spans if span.name == "chat m")

    records = list(read_journal(tmp_path / "run").records)
    kept = next(record for record in records if isinstance(record, Span) and record.name == "chat m")
    events = [r for r in records if isinstance(r, Event) and r.span_id == kept.span_id and r.name.startswith("event_")]
    for span in (kept, sent):
        assert {f"spanfold.field_{n}": n for n in range(200)}.items() <= span.attributes.items()
        assert span.attributes["gen_ai.request.model"] == "m"
        assert span.attributes["gen_ai.provider.name"] == "p"
        assert len(span.links) == 200
    assert content(kept, output=False) == turns
    assert sent.attributes["gen_ai.input.messages"] == kept.attributes["gen_ai.input.messages"]
    assert [event.name for event in events] == [f"event_{n}" for n in range(200)]
    assert [event.name for event in sent.events if event.name.startswith("event_")] == [e.name for e in events]
    assert trace.get_current_span() is trace.INVALID_SPAN
