"""Foreign trace files are named for what they are."""

import io
import json
from pathlib import Path

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from spanfold.journal._dialect import dialect
from spanfold.journal._reader import read_journal
from tests.journal.samples import File, line, small_run, span


def request() -> ExportTraceServiceRequest:
    message = ExportTraceServiceRequest()
    scoped = message.resource_spans.add().scope_spans.add()
    scoped.spans.add(name="n", trace_id=bytes(range(1, 17)), span_id=bytes(range(1, 9)), start_time_unix_nano=1)
    return message


def console_output() -> bytes:
    out = io.StringIO()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out)))
    with provider.get_tracer("t").start_as_current_span("n"):
        pass
    provider.shutdown()
    return out.getvalue().encode()


plain = line(span("00000000000000a1"))
proto = request().SerializeToString()
FILES = {
    "otlp-json-lines": plain,
    "otlp-json-pretty": json.dumps(json.loads(plain), indent=2).encode(),
    "otlp-json-array": b"[" + plain.strip() + b"]",
    "otlp-json-base64-ids": json_format.MessageToJson(request(), indent=None).encode() + b"\n",
    "otlp-json-snake-case": json_format.MessageToJson(request(), preserving_proto_field_name=True).encode(),
    "otlp-json-empty-ids": line(span("", trace_id="")),
    "otlp-protobuf": proto,
    "sdk-console": console_output(),
    "jaeger-json": b'{"data":[{"traceID":"0af7651916cd43dd8448eb211c80319c","spans":[{"traceID":"x","spanID":"y"}]}]}',
    "zipkin-json": b'[{"traceId":"0af7651916cd43dd","id":"a1","parentId":"b1","localEndpoint":{"serviceName":"s"}}]',
    "json": b'{"data": [1, 2]}\n',
    "compressed": b"\x1f\x8b\x08\x00rest",
    "empty": b"\0\0 \n\r\n",
    "unknown": b"\nhello, this is a text\n",
}


@pytest.mark.case("C-073")
@pytest.mark.parametrize("name", FILES)
def test_a_foreign_file_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(FILES[name])

    assert dialect(path).name == name


def test_the_length_prefixed_protobuf_of_the_collector_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(len(proto).to_bytes(4, "big") + proto)

    assert dialect(path).name == "otlp-protobuf"


def test_a_journal_of_ours_is_named(tmp_path: Path) -> None:
    owner, _ = small_run(tmp_path)

    assert dialect(owner.path).name == "spanfold-journal"


@pytest.mark.parametrize("name", FILES)
def test_what_a_dialect_calls_readable_is_read_whole(name: str, tmp_path: Path) -> None:
    file = File(tmp_path)
    file.path.write_bytes(FILES[name])
    read = read_journal(tmp_path)
    records = list(read.records)

    assert bool(records) == dialect(file.path).readable
    if not records:
        assert read.damage or name == "empty"


@pytest.mark.parametrize("indent", [2, "\t", 4])
def test_pretty_printed_json_is_one_damage_named_as_such(indent: int | str, tmp_path: Path) -> None:
    file = File(tmp_path)
    text = json.dumps(json.loads(plain), indent=indent).encode() + b"\n"
    file.path.write_bytes(text + plain)
    read = read_journal(tmp_path)

    assert [r.name for r in read.records] == ["work"]
    (damage,) = read.damage
    assert (damage.offset, damage.length, damage.kind) == (0, len(text), "foreign")
    assert "pretty-printed" in damage.found
