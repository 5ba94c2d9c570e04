"""What becomes of spans when the collector, Jaeger behind it, or the disk of its queue fails for a while."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import spanfold
from spanfold.deliver import Delivery, deliver_run, destinations
from spanfold.settings import resolve
from tests.services.journals import write_journal
from tests.services.programs import Collector, Jaeger, until
from tests.services.reading import exported, journaled, spans

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TO_FILE = """
exporters:
  file:
    path: {path}
    append: true
    flush_interval: 50ms
service:
  pipelines:
    traces:
      exporters: [file]
"""
QUEUE_ONLY = """
# The queue of gateway.yaml and nothing behind it: everything goes to its exporter for Jaeger.
service:
  pipelines:
    traces/all:
      exporters: [otlp_grpc/jaeger, span_metrics, forward/sampling]
    traces/kept:
      exporters: [debug]
    metrics:
      exporters: [debug]
exporters:
  debug:
  otlp_grpc/jaeger:
    retry_on_failure:
      initial_interval: 100ms
      max_interval: 500ms
"""


def sink(folder: Path) -> Collector:
    """A collector that writes what it gets to `folder`/spans.jsonl."""
    return Collector(folder, "local.yaml", replace=TO_FILE.format(path=folder / "spans.jsonl"))


def deliver(run_dir: Path, collector: Collector, timeout_s: float = 60) -> Delivery:
    (to,) = destinations(resolve(), {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint})
    return deliver_run(run_dir, to, timeout_s=timeout_s)


def in_background(work: Callable[[], Delivery]) -> Callable[[], Delivery]:
    """Start it in a thread; what is returned waits for the result."""
    results: list[Delivery] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()

    def wait() -> Delivery:
        thread.join(120)
        (result,) = results
        return result

    return wait


def numbers(found: list[dict]) -> Counter[int]:
    return Counter(int(s["id"], 16) for s in found)


@pytest.mark.case("C-045")
def test_a_collector_that_is_killed_in_the_middle_costs_no_span_and_repeats_one_request_at_most(tmp_path):
    write_journal(tmp_path / "run", [500] * 20_000)
    with sink(tmp_path / "sink") as end:
        environ = {"JAEGER_OTLP": f"127.0.0.1:{end.grpc_port}"}
        with Collector(tmp_path / "collector", "local.yaml", environ=environ) as collector:
            wait = in_background(lambda: deliver(tmp_path / "run", collector))
            for _ in range(2):
                until(lambda: collector.metric("otelcol_exporter_sent_spans") >= 2_000, "spans are on their way")
                collector.kill()
                collector.start()
            result = wait()
        end.stop()

    assert (result.sent, result.refused, result.waiting) == (20_000, 0, 0)
    counted = numbers(exported(tmp_path / "sink" / "spans.jsonl"))
    assert counted.keys() == set(range(1, 20_001)) and max(counted.values()) <= 3
    assert counted.total() - 20_000 <= 2 * 512


@pytest.mark.case("C-040")
def test_spans_of_a_run_that_found_no_collector_arrive_once_when_there_is_one(tmp_path, monkeypatch):
    collector = sink(tmp_path / "sink")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    spanfold.configure(otlp=True)
    with spanfold.run("down", dir=tmp_path / "run") as run:
        for cycle in range(40):
            with spanfold.stage("M1", cycle=cycle):
                spanfold.score("accuracy", cycle)
        down = spanfold.flush(1)
        with collector:
            up = spanfold.flush(30)
            collector.stop()
    spanfold.shutdown(1)
    assert (down.sent, down.refused, down.waiting) == (0, 0, 40)
    assert (up.sent, up.refused, up.waiting) == (40, 0, 0)

    with collector:
        done = subprocess.run(
            [sys.executable, "-m", "spanfold", "run", "deliver", str(run.dir)],
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint},
            capture_output=True,
            text=True,
            timeout=60,
        )
        collector.stop()
    assert done.returncode == 0, done.stderr
    assert {s["id"]: s for s in exported(tmp_path / "sink" / "spans.jsonl")} == journaled(run.dir)
    assert len(exported(tmp_path / "sink" / "spans.jsonl")) == 41


NEXT = """
import os, signal, sys, time, spanfold
run_dir, earlier = sys.argv[1:]
with spanfold.run("sent", dir=run_dir):
    for cycle in range(1000):
        with spanfold.stage("M1", cycle=cycle):
            spanfold.score("accuracy", cycle)
    if not earlier:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    from pathlib import Path
    from spanfold.deliver import backlogs
    while any(backlog.waiting for backlog in backlogs(Path(earlier))):
        time.sleep(0.1)
"""


def test_a_program_that_was_killed_without_a_collector_has_its_spans_sent_once_by_the_next_one(tmp_path):
    collector = sink(tmp_path / "sink")

    def run(name: str, earlier: str) -> int:
        arguments = [sys.executable, "-c", NEXT, str(tmp_path / "runs" / name), earlier]
        env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
        return subprocess.run(arguments, env=env, timeout=60).returncode

    assert run("killed", "") == -signal.SIGKILL
    with collector:
        assert run("next", str(tmp_path / "runs" / "killed")) == 0
        collector.stop()

    arrived = exported(tmp_path / "sink" / "spans.jsonl")
    expected = journaled(tmp_path / "runs" / "killed") | journaled(tmp_path / "runs" / "next")
    assert {s["id"]: s for s in arrived} == expected
    assert len(arrived) == len(expected) == 2001


def test_sent_means_that_jaeger_has_it_also_when_the_collector_is_up_and_jaeger_is_not(tmp_path):
    write_journal(tmp_path / "run", [100] * 2_000)
    jaeger = Jaeger(tmp_path / "jaeger")
    with Collector(tmp_path / "collector", "local.yaml", environ={"JAEGER_OTLP": jaeger.otlp}) as collector:
        down = deliver(tmp_path / "run", collector, 2)
        with jaeger:
            up = deliver(tmp_path / "run", collector)
            found = [s for t in range(1, 4) for s in spans(jaeger.trace(f"{t:032x}"))]

    assert (down.sent, down.refused, down.waiting) == (0, 0, 2_000)
    assert (up.sent, up.refused, up.waiting) == (2_000, 0, 0)
    assert sorted(numbers(found)) == list(range(1, 2_001))


def test_what_a_gateway_has_queued_survives_its_death(tmp_path):
    write_journal(tmp_path / "run", [500] * 5_000)
    end = sink(tmp_path / "sink")
    gateway = Collector(
        tmp_path / "gateway", "gateway.yaml", environ={"JAEGER_OTLP": f"127.0.0.1:{end.grpc_port}"}, replace=QUEUE_ONLY
    )
    with gateway:
        result = deliver(tmp_path / "run", gateway)
        assert (result.sent, result.refused, result.waiting) == (5_000, 0, 0)
        gateway.kill()
        with end:
            gateway.start()
            until(lambda: end.metric("otelcol_exporter_sent_spans") >= 5_000, "all spans are there")
            end.stop()
    assert numbers(exported(tmp_path / "sink" / "spans.jsonl")) == dict.fromkeys(range(1, 5001), 1)


@pytest.mark.parametrize("full", ["queue", "disk"])
def test_a_gateway_that_is_full_leaves_the_rest_waiting_in_the_journal(full, tmp_path):
    write_journal(tmp_path / "run", [4_000] * 5_000)
    end = sink(tmp_path / "sink")
    environ = {"JAEGER_OTLP": f"127.0.0.1:{end.grpc_port}"}
    if full == "queue":
        environ["COLLECTOR_QUEUE_BYTES"] = "10000000"
    with Collector(tmp_path / "gateway", "gateway.yaml", environ=environ, replace=QUEUE_ONLY) as gateway:
        if full == "disk":
            gateway.limit_files(20_000_000)
        first = deliver(tmp_path / "run", gateway, 3)
        assert first.refused == 0 and 0 < first.sent < 5_000 and first.sent + first.waiting == 5_000

        if full == "disk":
            gateway.limit_files(2**40)
        with end:
            rest = deliver(tmp_path / "run", gateway)
            assert (rest.sent, rest.refused, rest.waiting) == (first.waiting, 0, 0)
            until(lambda: end.metric("otelcol_exporter_sent_spans") >= 5_000, "all spans are there")
            end.stop()
    assert numbers(exported(tmp_path / "sink" / "spans.jsonl")) == dict.fromkeys(range(1, 5001), 1)
