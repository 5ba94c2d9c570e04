"""replay.yaml: what the otlpjsonfile receiver makes of our journals and of what is in a bundle."""

import tarfile
from pathlib import Path

import pytest
import zstandard
from opentelemetry.sdk.trace import TracerProvider

import spanfold
from spanfold.bundle import export
from tests.services.journals import write_journal
from tests.services.programs import Collector, until
from tests.services.reading import exported, journaled
from tests.services.test_jaeger import arrived, check_equal, record_everything
from tests.services.test_outages import sink

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def replay(folder: Path, files: str, otlp: str) -> Collector:
    return Collector(folder, "replay.yaml", environ={"REPLAY_FILES": files, "REPLAY_OTLP": otlp})


@pytest.mark.case("C-073")
def test_replay_sends_every_span_of_a_bundle_to_jaeger_without_its_events(jaeger, tmp_path):
    spanfold.configure(otlp=False)
    run_dir = record_everything(tmp_path / "run", TracerProvider())
    bundle = export(run_dir).path
    with (
        bundle.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as plain,
        tarfile.open(fileobj=plain, mode="r|") as archive,
    ):
        archive.extractall(tmp_path / "unpacked", filter="data")

    expected = journaled(run_dir)
    with replay(tmp_path / "replay", f"{tmp_path}/unpacked/run/journal/*.otlp.jsonl", jaeger.otlp) as running:
        # Not by asking Jaeger: it puts a warning on spans that it is asked for before their parents are there.
        until(lambda: running.metric("otelcol_exporter_sent_spans") >= len(expected), "all spans were sent")
        found = arrived(jaeger, run_dir)
    for span in (*found.values(), *expected.values()):
        # Those of other instrumentors are on the span also in the journal.
        span["events"] = [e for e in span["events"] if span["name"] == "foreign"]
    check_equal(found, expected)


def test_replay_of_100_000_spans_arrives_exactly_once_also_when_the_destination_comes_late(tmp_path):
    write_journal(tmp_path / "run", [200] * 99_999 + [3_000_000])
    end = sink(tmp_path / "sink")
    files = f"{tmp_path}/run/journal/*.otlp.jsonl"
    with replay(tmp_path / "replay", files, f"127.0.0.1:{end.grpc_port}") as running:
        until(lambda: running.metric("otelcol_exporter_queue_size") > 0, "the file is being read")
        with end:
            until(lambda: end.metric("otelcol_exporter_sent_spans") >= 100_000, "all spans are there", 120)
            end.stop()
    found = exported(tmp_path / "sink" / "spans.jsonl")
    assert len(found) == 100_000
    assert {s["id"]: s for s in found} == journaled(tmp_path / "run")
