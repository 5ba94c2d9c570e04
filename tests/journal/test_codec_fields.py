"""What is recorded comes back exactly: fields, messages, and every part of a span."""

import base64
import importlib.util
import json
from typing import Any

import orjson
import pytest
from google.protobuf import json_format
from hypothesis import assume, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from spanfold import names
from spanfold.journal._core import Encoder
from spanfold.journal._decode import NotOtlp, content, decode_line, fields, line_seal, value_of
from spanfold.journal._encode import STRUCTURAL, field_key, field_name
from spanfold.journal._messages import decode_messages, encode_messages
from spanfold.journal._scrub import scrub_body
from spanfold.journal._values import MAX_INT_BITS, JsonText, load, store
from spanfold.model import Event, Record, Span
from spanfold.redact import Gate, Redactor
from tests.journal.steps import steps

TRACE, SPAN, PARENT = b"0af7651916cd43dd8448eb211c80319c", b"00f067aa0ba902b7", b"b7ad6b7169203331"
INT64 = 1 << 63

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << MAX_INT_BITS) + 1, (1 << MAX_INT_BITS) - 1)
    | st.integers(INT64 - 2, INT64 + 2)
    | st.integers(-INT64 - 2, -INT64 + 2)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=25
)
field_names = (
    st.text(max_size=12)
    | st.sampled_from(sorted(key.removeprefix("spanfold.") for key in STRUCTURAL))
    | st.just("field.x")
)


def wrap(body: bytes) -> bytes:
    """Return a journal line around an encoded record."""
    if b'"endTimeUnixNano"' in body:
        return b'{"resourceSpans":[{"scopeSpans":[{"scope":{"name":"spanfold"},"spans":[%b]}]}]}\n' % body
    return b'{"resourceLogs":[{"scopeLogs":[{"scope":{"name":"spanfold"},"logRecords":[%b]}]}]}\n' % body


def encoder() -> Encoder:
    return Encoder(lambda key: False)


def span_body(attributes: dict[str, Any], **more: Any) -> bytes:
    given: dict[str, Any] = {
        "trace_id": TRACE,
        "span_id": SPAN,
        "parent_span_id": PARENT,
        "name": "n",
        "otel_kind": 1,
        "start_ns": 1,
        "end_ns": 2,
    }
    return encoder().span(**{**given, **more}, attributes=attributes)[0]


def event_body(attributes: dict[str, Any], **more: Any) -> bytes:
    given: dict[str, Any] = {"trace_id": TRACE, "span_id": SPAN, "name": "e", "time_ns": 5}
    return encoder().event(**{**given, **more}, attributes=attributes)[0]


def decoded(body: bytes) -> Record:
    (record,) = decode_line(wrap(body))
    return record


def exactly(value: Any) -> str:
    """Return text that differs whenever type, value or order of keys differ (1, 1.0 and True are three values)."""
    return repr(value)


# -- fields


@given(given=st.dictionaries(field_names, json_values, max_size=6), as_event=st.booleans())
def test_fields_of_any_json_value_come_back_exactly(given: dict[str, Any], as_event: bool) -> None:
    stored = {field_key(name): store(value) for name, value in given.items()}
    attributes = {key: value for key, (value, _) in stored.items()}
    body = event_body(attributes) if as_event else span_body(attributes)

    assert exactly(fields(decoded(body))) == exactly(given)
    assert not any(note for _, note in stored.values())
    assert b"\n" not in body


@given(st.text())
def test_every_field_name_has_a_key_of_its_own_and_comes_back(name: str) -> None:
    key = field_key(name)

    assert field_name(key) == name
    assert key not in STRUCTURAL
    assert key.startswith("spanfold.")


@pytest.mark.parametrize("key", sorted(STRUCTURAL))
def test_a_field_may_have_the_name_of_a_structural_attribute(key: str) -> None:
    name = key.removeprefix("spanfold.")
    attributes = {names.KIND: "stage", field_key(name): "mine", names.STAGE: "M2"}

    record = decoded(span_body(attributes))

    assert fields(record) == {name: "mine"}
    assert (record.attributes[names.KIND], record.attributes[names.STAGE]) == ("stage", "M2")


def test_attributes_of_conventions_are_no_fields() -> None:
    attributes = {"gen_ai.request.model": "m", "error.type": "E", "spanfold.cycle": 3, "spanfold.x": "y"}

    assert fields(decoded(span_body(attributes))) == {"cycle": 3, "x": "y"}


@given(json_values)
def test_one_attribute_of_any_key_comes_back_exactly(value: Any) -> None:
    record = decoded(span_body({"gen_ai.tool.call.arguments": store(value)[0]}))

    assert exactly(value_of(record, "gen_ai.tool.call.arguments")) == exactly(value)
    assert value_of(record, "absent") is None


@given(st.dictionaries(st.text(max_size=5), json_values, min_size=1, max_size=4))
def test_json_text_is_named_whatever_its_key(given: dict[str, Any]) -> None:
    """Keys with quotes, commas and backslashes do not break the list that names them."""
    given = {**given, 'a","b': [1], "back\\": {}, '"': None}
    attributes = {key: store(value)[0] for key, value in given.items()}

    record = decoded(span_body(attributes))

    assert exactly({key: value_of(record, key) for key in given}) == exactly(given)


def test_notes_are_written_beside_the_record() -> None:
    record = decoded(span_body({"spanfold.x": 1}, notes={"spanfold.x": "cut", 'odd "key"': "nonfinite"}))

    assert json.loads(record.attributes[names.NOTES]) == {"spanfold.x": "cut", 'odd "key"': "nonfinite"}


# -- the other parts of a record

attribute_values = (
    st.booleans()
    | st.integers(-INT64, INT64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary()
    | st.lists(st.booleans() | st.integers(-INT64, INT64 - 1) | st.text(), max_size=3).map(tuple)
)
attribute_lists = st.dictionaries(st.text(min_size=1, max_size=8).map("k.{}".format), attribute_values, max_size=4)
hexes = st.binary(min_size=16, max_size=16).map(lambda b: b.hex())


@given(
    attributes=attribute_lists,
    name=st.text(),
    links=st.lists(st.tuples(hexes, hexes.map(lambda h: h[:16]), attribute_lists), max_size=2),
    events=st.lists(st.tuples(st.text(), st.integers(0, INT64 - 1), attribute_lists), max_size=2),
    status=st.sampled_from([0, 1, 2]),
    message=st.text(),
    trace_state=st.text(),
    times=st.tuples(st.integers(0, INT64 - 1), st.integers(0, INT64 - 1)),
    kind=st.integers(1, 5),
)
def test_every_part_of_a_span_comes_back(
    attributes: dict[str, Any],
    name: str,
    links: list[tuple[str, str, dict[str, Any]]],
    events: list[tuple[str, int, dict[str, Any]]],
    status: int,
    message: str,
    trace_state: str,
    times: tuple[int, int],
    kind: int,
) -> None:
    found = decoded(
        span_body(
            attributes,
            name=name,
            links=links,
            events=events,
            status_code=status,
            status_message=message,
            trace_state=trace_state,
            start_ns=times[0],
            end_ns=times[1],
            otel_kind=kind,
        )
    )

    def plain(values: dict[str, Any]) -> str:
        return exactly({k: list(v) if isinstance(v, tuple) else v for k, v in values.items()})

    assert isinstance(found, Span)
    assert (found.trace_id, found.span_id, found.parent_span_id) == (TRACE.decode(), SPAN.decode(), PARENT.decode())
    assert (found.name, found.otel_kind, found.start_ns, found.end_ns) == (name, kind, *times)
    assert (found.status_code, found.status_message) == (status, message if status else "")
    assert (found.trace_state, found.flags) == (trace_state, 1)
    assert plain(dict(found.attributes)) == plain(attributes)
    assert [(n.trace_id, n.span_id, plain(dict(n.attributes))) for n in found.links] == [
        (trace, span, plain(a)) for trace, span, a in links
    ]
    assert [(e.name, e.time_ns, plain(dict(e.attributes))) for e in found.events] == [
        (n, t, plain(a)) for n, t, a in events
    ]


@given(
    attributes=attribute_lists, name=st.text(min_size=1), time=st.integers(1, INT64 - 1), severity=st.integers(1, 24)
)
def test_every_part_of_an_event_comes_back(attributes: dict[str, Any], name: str, time: int, severity: int) -> None:
    found = decoded(event_body(attributes, name=name, time_ns=time, severity=severity))

    assert isinstance(found, Event)
    assert (found.trace_id, found.span_id, found.name, found.time_ns) == (TRACE.decode(), SPAN.decode(), name, time)
    assert found.severity == severity
    assert list(found.attributes) == list(attributes)


# -- lone surrogates


@pytest.mark.case("C-025")
@pytest.mark.parametrize(
    "where", ["name", "value", "key", "json key", "json value", "message", "event", "link", "note key"]
)
def test_a_lone_surrogate_anywhere_is_replaced_and_the_record_kept(where: str) -> None:
    bad = "a\udcff"
    more: dict[str, Any] = {}
    attributes: dict[str, Any] = {"spanfold.other": "kept"}
    if where == "name":
        more["name"] = bad
    elif where == "value":
        attributes["spanfold.x"] = bad
    elif where == "key":
        attributes[bad] = "x"
    elif where == "json key":
        attributes[bad] = JsonText("[1]")
    elif where == "json value":
        attributes["spanfold.x"] = store([bad, {bad: bad}])[0]
    elif where == "message":
        more.update(status_code=2, status_message=bad)
    elif where == "event":
        more["events"] = [(bad, 1, {bad: bad})]
    elif where == "link":
        more["links"] = [(TRACE.decode(), SPAN.decode(), {bad: bad})]
    else:
        more["notes"] = {bad: "cut"}

    body = span_body(attributes, **more)

    record = decoded(body)
    assert record.attributes["spanfold.other"] == "kept"
    assert "a\ufffd" in body.decode("utf-8")
    if where == "json key":
        assert value_of(record, "a\ufffd") == [1]


def test_a_pair_of_surrogates_is_joined_and_not_replaced() -> None:
    record = decoded(span_body({"spanfold.x": "\ud83d\ude00"}))

    assert record.attributes["spanfold.x"] == "\U0001f600"


def test_a_replaced_surrogate_in_an_attribute_is_noted() -> None:
    record = decoded(span_body({"spanfold.x": "a\udcff"}))

    assert json.loads(record.attributes[names.NOTES]) == {"spanfold.x": "surrogates"}


# -- redacted keys


@pytest.mark.case("C-029")
def test_attributes_whose_keys_all_become_the_same_stay_apart_in_steps_in_proportion_to_their_number() -> None:
    gate = Gate(Redactor())

    def scrubbed(n: int) -> bytes:
        return scrub_body(span_body({f"ghp_{number:030d}": number for number in range(n)}), gate)

    token = "(REDACTED-github)"
    assert decoded(scrubbed(3)).attributes == {token: 0, f"{token}#2": 1, f"{token}#3": 2}
    assert steps(lambda: scrubbed(1_000)) < 2.5 * steps(lambda: scrubbed(500))


# -- OTLP


def with_base64_ids(line: bytes) -> dict[str, Any]:
    """Return an OTLP JSON request as the protobuf JSON mapping wants it: ids in base64 where OTLP has hex."""

    def convert(node: Any) -> Any:
        if isinstance(node, list):
            return [convert(item) for item in node]
        if not isinstance(node, dict):
            return node
        return {
            key: base64.b64encode(bytes.fromhex(item)).decode()
            if key in ("traceId", "spanId", "parentSpanId")
            else convert(item)
            for key, item in node.items()
        }

    return convert(json.loads(line))  # type: ignore[no-any-return]  # a tree of JSON


def strict(line: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(line, parse_constant=refuse)


@given(given=st.dictionaries(field_names, json_values, max_size=4), attributes=attribute_lists, surrogate=st.booleans())
def test_lines_are_otlp_json(given: dict[str, Any], attributes: dict[str, Any], surrogate: bool) -> None:
    name = "n\udcff" if surrogate else "n"
    stored = {**{field_key(key): store(value)[0] for key, value in given.items()}, **attributes}
    more: dict[str, Any] = {
        "links": [(TRACE.decode(), SPAN.decode(), attributes)],
        "events": [("e", 7, attributes)],
        "status_code": 2,
        "status_message": name,
        "trace_state": "a=b",
    }
    span_line = wrap(span_body(stored, name=name, **more))
    event_line = wrap(event_body(stored, name=name))

    spans = json_format.ParseDict(with_base64_ids(span_line), ExportTraceServiceRequest())
    # Messages of opentelemetry-proto before 1.34 do not know the name of an event.
    is_older = "event_name" not in LogRecord.DESCRIPTOR.fields_by_name
    logs = json_format.ParseDict(
        with_base64_ids(event_line), ExportLogsServiceRequest(), ignore_unknown_fields=is_older
    )

    (span,) = spans.resource_spans[0].scope_spans[0].spans
    (record,) = logs.resource_logs[0].scope_logs[0].log_records
    assert (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()) == (
        TRACE.decode(),
        SPAN.decode(),
        PARENT.decode(),
    )
    assert (span.start_time_unix_nano, span.end_time_unix_nano, span.kind, span.status.code) == (1, 2, 1, 2)
    assert (record.time_unix_nano, record.observed_time_unix_nano, record.trace_id.hex()) == (5, 5, TRACE.decode())
    assert (
        [a.key for a in span.attributes][: len(stored)]
        == list(stored)
        == [a.key for a in record.attributes][: len(stored)]
    )
    for line in (span_line, event_line):
        assert strict(line)
        assert line.count(b"\n") == 1
    if importlib.util.find_spec("opentelemetry.proto_json") is not None:
        from opentelemetry.proto_json.collector.trace.v1 import trace_service

        read = trace_service.ExportTraceServiceRequest.from_dict(json.loads(span_line))
        assert read.resource_spans[0].scope_spans[0].spans[0].trace_id == bytes.fromhex(TRACE.decode())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda v: (
            st.lists(v, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "resourceSpans",
                        "resource",
                        "attributes",
                        "scopeSpans",
                        "scope",
                        "spans",
                        "traceId",
                        "spanId",
                        "events",
                        "links",
                        "status",
                        "key",
                        "value",
                        "stringValue",
                        "arrayValue",
                        "values",
                        "kvlistValue",
                        "bytesValue",
                        "intValue",
                    ]
                ),
                v,
                max_size=4,
            )
        ),
    )
)
def test_a_request_of_any_shape_is_read_or_refused_and_never_an_exception(tree: Any) -> None:
    try:
        line = orjson.dumps({"resourceSpans": tree})
    except TypeError:  # an integer JSON parsers elsewhere would not read either
        assume(False)
    try:
        records = list(decode_line(line))
    except NotOtlp:
        return
    for record in records:
        assert isinstance(record.attributes, dict)


def test_resource_and_scope_of_a_known_writer_are_not_taken_over_by_a_line_that_only_looks_alike() -> None:
    """What surrounds a record is remembered; a line with other bytes there is parsed anew."""
    body = span_body({})
    frame = (
        '{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"one"}}]},"scopeSpans":'
        '[{"scope":{"name":"spanfold","version":"1","attributes":[{"key":"spanfold.journal.seq","value":{"intValue":"%d"}},'
        '{"key":"spanfold.journal.prev","value":{"stringValue":"%s"}}]},"spans":[%s],"schemaUrl":"u"}]}]}\n'
    )
    known = (frame % (1, "0" * 64, body.decode())).encode()
    (first,) = decode_line(known)
    two_spans = known.replace(body, body + b"," + body.replace(SPAN, b"1111111111111111"))
    other_url = known.replace(b'"schemaUrl":"u"', b'"schemaUrl":"v"')
    other_scope = known.replace(b'"version":"1"', b'"version":"2"')
    more = known.replace(b'"scopeSpans"', b'"schemaUrl":"","scopeSpans"')
    broken = known.replace(b"0" * 64, b"0" * 62 + b'"x')
    long = known.replace(b'"intValue":"1"', b'"intValue":"12345"')

    assert first.resource == {"service.name": "one"}
    assert [r.span_id for r in decode_line(two_spans)] == [SPAN.decode(), "1111111111111111"]
    assert [r.scope.version for line in (other_url, other_scope, more) for r in decode_line(line)] == ["1", "2", "1"]
    with pytest.raises(NotOtlp):
        list(decode_line(broken))
    (numbered,) = decode_line(long)
    assert numbered.position is not None
    assert numbered.position.seq == 12345


def test_a_frame_that_is_no_frame_is_not_learned_from_a_line_that_only_contains_its_parts() -> None:
    chain = (
        '{"key":"spanfold.journal.seq","value":{"intValue":"1"}},{"key":"spanfold.journal.prev","value":{"stringValue":"%s"}}]}'
        % ("0" * 64)
    )
    body = span_body({}).decode()
    teacher = (
        f'{{"resourceSpans":[{{"resource":{{"attributes":[{chain},"scopeSpans":[{{"scope":{{"attributes":[{chain},"spans":[{body}]'
        ',"schemaUrl":"u"}]}]}\n'
    )
    assert len(list(decode_line(teacher.encode()))) == 1
    broken = f'{{"resourceSpans":[{{"resource":{{"attributes":[{chain},"spans":[{body}],"schemaUrl":"u"}}]}}]}}\n'
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken)

    with pytest.raises(NotOtlp):
        list(decode_line(broken.encode()))


def test_a_sequence_number_no_writer_could_reach_is_none() -> None:
    line = b'{"key":"spanfold.journal.seq","value":{"intValue":"%b"}},{"key":"spanfold.journal.prev","value":{"stringValue":"x"}}'

    assert line_seal(line % b"12") == (12, 'x"}}')
    assert line_seal(line % (b"9" * 10_000)) == (0, "")


# -- messages

roles = st.sampled_from(["user", "assistant", "system", "tool"])
messages = st.lists(
    st.builds(lambda role, text: {"role": role, "content": text}, roles, st.text()), min_size=1, max_size=4
)


@given(st.text() | messages)
def test_texts_and_simple_messages_take_the_conventions_form_and_come_back(value: Any) -> None:
    encoded = encode_messages(value, "user")

    assert encoded is not None
    text, form = encoded
    tree = load(str(text))
    assert exactly(decode_messages(tree, form)) == exactly(value)
    assert all(set(m) == {"role", "parts"} and all(p["type"] == "text" for p in m["parts"]) for m in tree)


@given(json_values)
def test_a_value_that_is_no_message_is_not_bent_into_one(value: Any) -> None:
    encoded = encode_messages(value, "user")

    if encoded is not None:
        assert exactly(decode_messages(load(str(encoded[0])), encoded[1])) == exactly(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        [{"content": "x", "role": "user"}],
        [{"role": "user", "content": "x", "name": "y"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        ({"role": "user", "content": "x"},),
        "a\udcff",
    ],
)
def test_what_has_no_exact_message_form_is_left_to_the_general_one(value: Any) -> None:
    assert encode_messages(value, "user") is None


@given(value=st.text() | messages | json_values, output=st.booleans())
def test_content_is_read_in_the_form_its_caller_passed(value: Any, output: bool) -> None:
    own, shared, form = (
        (names.OUTPUT, names.GENAI_OUTPUT, names.OUTPUT_FORM)
        if output
        else (names.INPUT, names.GENAI_INPUT, names.INPUT_FORM)
    )
    encoded = encode_messages(value, "user")
    attributes: dict[str, Any] = {own: store(value)[0]} if encoded is None else {shared: encoded[0], form: encoded[1]}

    record = decoded(span_body(attributes))

    assert exactly(content(record, output=output)) == exactly(value)
    assert content(record, output=not output) is None
