"""Large spans and many spans, against the limits that a collector has by default."""

import json
from collections import Counter

import pytest

from spanfold.deliver import deliver_run, destinations
from spanfold.settings import resolve
from tests.services.journals import write_journal
from tests.services.reading import exported, journaled
from tests.services.test_outages import deliver, sink

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.mark.case("C-031")
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_512_spans_of_20_kb_and_one_of_5_mb_arrive_within_the_limits_of_a_collector(protocol, tmp_path):
    write_journal(tmp_path / "run", [20_000] * 512 + [5_000_000])
    with sink(tmp_path / "sink") as collector:
        endpoint = f"http://127.0.0.1:{collector.grpc_port}" if protocol == "grpc" else collector.endpoint
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
        (to,) = destinations(resolve(), environ)
        result = deliver_run(tmp_path / "run", to, timeout_s=30)
        collector.stop()

    assert (result.sent, result.refused, result.waiting) == (513, 0, 0)
    found = {s["id"]: s for s in exported(tmp_path / "sink" / "spans.jsonl")}
    expected = journaled(tmp_path / "run")
    assert found.keys() == expected.keys()
    large = f"{513:016x}"
    assert {i: s for i, s in found.items() if i != large} == {i: s for i, s in expected.items() if i != large}
    if protocol == "grpc":
        # Over 4 MiB: cut, and it says so.
        cut = found[large]["attributes"]
        assert len(cut["spanfold.text"][1]) < 4_194_304
        assert cut["spanfold.cut.spanfold.text"][1].startswith("5000000 bytes, sha256 ")
        assert {k: v for k, v in cut.items() if "text" not in k} == {
            k: v for k, v in expected[large]["attributes"].items() if "text" not in k
        }
    else:
        assert found[large] == expected[large]


def test_100_000_spans_arrive_exactly_once(tmp_path):
    write_journal(tmp_path / "run", [200] * 100_000)
    with sink(tmp_path / "sink") as collector:
        result = deliver(tmp_path / "run", collector, 300)
        memory = collector.peak_memory_bytes()
        collector.stop()

    assert (result.sent, result.refused, result.waiting) == (100_000, 0, 0)
    counted: Counter[str] = Counter()
    with (tmp_path / "sink" / "spans.jsonl").open("rb") as file:
        for line in file:
            for group in json.loads(line)["resourceSpans"]:
                for scoped in group["scopeSpans"]:
                    counted.update(span["spanId"] for span in scoped["spans"])
    assert counted == {f"{n:016x}": 1 for n in range(1, 100_001)}
    assert memory < 1_000_000_000
