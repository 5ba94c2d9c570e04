"""The bytes that delivery writes, decoded by the official messages of OTLP: nothing added, nothing missing."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

from spanfold import names
from spanfold.deliver._encode import Shown, ShownEvent, message, request
from spanfold.model import Link, Scope, Span

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ids = st.integers(1, 2**64 - 1).map(lambda n: f"{n:016x}")
traces = st.integers(1, 2**128 - 1).map(lambda n: f"{n:032x}")
times = st.integers(0, 2**64 - 1)
leaves = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | text | st.binary(max_size=300)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=6
)
attributes = st.dictionaries(text, values, max_size=4)
events = st.lists(st.builds(ShownEvent, times, text, attributes), max_size=2)
links = st.lists(st.builds(Link, traces, ids, attributes), max_size=2)
scopes = st.builds(Scope, st.sampled_from([names.SCOPE, "openai", ""]) | text, text, attributes | st.just({}))
resources = st.sampled_from([{"service.name": "a"}, {"service.name": "b", "n": 1}, {}])
spans = st.builds(
    Span,
    trace_id=traces,
    span_id=ids,
    parent_span_id=ids | st.just(""),
    name=text,
    otel_kind=st.integers(0, 5),
    start_ns=times,
    end_ns=times,
    attributes=attributes,
    status_code=st.integers(0, 2),
    status_message=text,
    scope=scopes,
    resource=resources,
    trace_state=text,
    flags=st.integers(0, 2**32 - 1),
)
shown = st.builds(
    Shown, attributes, events, links, text, dropped_events=st.integers(0, 2**31 - 1), dropped_links=st.integers(0, 9)
)


def plain(found: AnyValue) -> Any:
    """Return a decoded value; numbers with their kind, so that 1, 1.0 and true differ."""
    kind = found.WhichOneof("value")
    if kind is None:
        return None
    held = getattr(found, kind)
    if kind == "array_value":
        return [plain(v) for v in held.values]
    if kind == "kvlist_value":
        return pairs(held.values)
    return kind, "nan" if kind == "double_value" and math.isnan(held) else held


def expected(value: Any) -> Any:
    """Return what `plain` has to give for a value of a journal."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "bool_value", value
    if isinstance(value, int):
        return ("int_value", value) if -(2**63) <= value < 2**63 else ("string_value", str(value))
    if isinstance(value, float):
        return "double_value", "nan" if math.isnan(value) else value
    if isinstance(value, list):
        return [expected(v) for v in value]
    if isinstance(value, dict):
        return {k: expected(v) for k, v in value.items()}
    return "string_value" if isinstance(value, str) else "bytes_value", value


def pairs(found: list[KeyValue]) -> dict[str, Any]:
    out = {pair.key: plain(pair.value) for pair in found}
    assert len(out) == len(found)
    return out


@pytest.mark.slow
@given(st.lists(st.tuples(spans, shown), max_size=3, unique_by=lambda pair: pair[0].trace_id + pair[0].span_id))
def test_a_request_says_of_every_span_what_the_record_says(sent):
    decoded = ExportTraceServiceRequest.FromString(request((r, message(r, s)) for r, s in sent))
    size = decoded.ByteSize()
    decoded.DiscardUnknownFields()
    assert decoded.ByteSize() == size

    found: list[tuple[Any, Any, SpanMessage]] = []
    for group in decoded.resource_spans:
        for scoped in group.scope_spans:
            assert scoped.schema_url == (names.GENAI_CONVENTIONS if scoped.scope.name == names.SCOPE else "")
            scope = (scoped.scope.name, scoped.scope.version, pairs(scoped.scope.attributes))
            found += [(pairs(group.resource.attributes), scope, one) for one in scoped.spans]
    assert len({repr(f[:2]) for f in found}) == sum(len(g.scope_spans) for g in decoded.resource_spans)
    wanted = sorted(sent, key=lambda pair: pair[0].trace_id + pair[0].span_id)
    found.sort(key=lambda f: f[2].trace_id + f[2].span_id)
    assert len(found) == len(wanted)
    for (resource, scope, one), (record, showing) in zip(found, wanted, strict=True):
        assert resource == expected(dict(record.resource))
        assert scope == (record.scope.name, record.scope.version, expected(dict(record.scope.attributes)))
        assert (one.trace_id.hex(), one.span_id.hex(), one.parent_span_id.hex()) == (
            *(record.trace_id, record.span_id),
            record.parent_span_id,
        )
        assert (one.name, one.kind, one.trace_state, one.flags) == (
            *(record.name, record.otel_kind),
            *(record.trace_state, record.flags),
        )
        assert (one.start_time_unix_nano, one.end_time_unix_nano) == (record.start_ns, record.end_ns)
        assert (one.status.code, one.status.message) == (
            (record.status_code, showing.status_message) if record.status_code else (0, "")
        )
        assert pairs(one.attributes) == expected(showing.attributes)
        assert [(e.time_unix_nano, e.name, pairs(e.attributes)) for e in one.events] == [
            (e.time_ns, e.name, expected(e.attributes)) for e in showing.events
        ]
        assert [(k.trace_id.hex(), k.span_id.hex(), pairs(k.attributes)) for k in one.links] == [
            (k.trace_id, k.span_id, expected(dict(k.attributes))) for k in showing.links
        ]
        assert (one.dropped_events_count, one.dropped_links_count) == (
            *(showing.dropped_events, showing.dropped_links),
        )


def record(**changes: Any) -> Span:
    ids = {"trace_id": "0a" * 16, "span_id": "0b" * 8, "parent_span_id": ""}
    said = {"name": "n", "otel_kind": 1, "start_ns": 1, "end_ns": 2, "status_code": 0, "status_message": ""}
    return Span(**{**ids, **said, "attributes": {}, "scope": Scope("spanfold", "1"), "resource": {}, **changes})


@pytest.mark.parametrize(
    "changes",
    [{"start_ns": -1}, {"end_ns": 2**64}, {"flags": 2**32}, {"flags": -1}, {"otel_kind": -1}, {"otel_kind": 2**31}],
)
def test_a_number_that_otlp_cannot_hold_is_a_value_error(changes):
    with pytest.raises(ValueError, match="cannot hold"):
        message(record(**changes), Shown({}, (), (), ""))


def test_a_value_of_many_megabytes_is_written_whole():
    large = "\N{SNOWMAN}" * 3_000_000
    content = message(record(), Shown({"large": large}, (), (), ""))
    assert SpanMessage.FromString(content).attributes[0].value.string_value == large
