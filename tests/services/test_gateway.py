"""gateway.yaml, langfuse.yaml and balancer.yaml: what is kept, what reaches Langfuse, and which gateway gets a trace."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import spanfold
from spanfold.deliver._langfuse import type_of
from spanfold.testing import LoopbackLangfuse, LoopbackOtlpReceiver
from tests.services.journals import write_journal
from tests.services.programs import Collector, until
from tests.services.reading import exported, journaled, spans
from tests.services.test_outages import deliver, sink

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TO_FILES = """
# A file stands for ClickHouse, which is no program that can be had here; metrics go to another.
exporters:
  file/all:
    path: {folder}/all.jsonl
    flush_interval: 50ms
  file/metrics:
    path: {folder}/metrics.jsonl
    flush_interval: 50ms
connectors:
  span_metrics:
    metrics_flush_interval: 1s
processors:
  tail_sampling:
    decision_wait_after_root_received: 500ms
service:
  pipelines:
    traces/all:
      exporters: [file/all, span_metrics, forward/sampling]
    metrics:
      exporters: [file/metrics]
"""


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, dict[str, dict]]:
    """Runs of which a gateway keeps some: spans by id, by name of the run. Their journals are in `runs`."""
    spanfold.configure(otlp=False)
    for name in ("plain", "failed", "stopped"):
        with spanfold.run(name, dir=tmp_path / "runs" / name):
            for cycle in range(3):
                with spanfold.stage("M1", cycle=cycle):
                    with spanfold.model_call("m-1", provider="openai", input="why?") as call:
                        call.output("because")
                    if name == "failed" and cycle == 1:
                        with pytest.raises(ValueError, match="no"), spanfold.tool("search", arguments={"q": 1}):
                            raise ValueError("no")
                    if name == "stopped" and cycle == 1:
                        with pytest.raises(KeyboardInterrupt), spanfold.agent("reviewer"):
                            raise KeyboardInterrupt
    write_journal(tmp_path / "runs" / "slow", [10] * 3, traces=4242, apart_ns=40_000_000_000)
    return {folder.name: journaled(folder) for folder in (tmp_path / "runs").iterdir()}


def test_a_gateway_keeps_all_for_clickhouse_and_the_runs_that_failed_were_cut_short_or_slow_for_jaeger(
    jaeger, runs, tmp_path
):
    with Collector(
        tmp_path / "gateway",
        "gateway.yaml",
        environ={"JAEGER_OTLP": jaeger.otlp, "GATEWAY_PERCENT": "0"},
        replace=TO_FILES.format(folder=tmp_path),
    ) as gateway:
        for name in runs:
            assert deliver(tmp_path / "runs" / name, gateway).waiting == 0
        # To the file each span, and to Jaeger those of three runs.
        expected = sum(map(len, runs.values())) * 2 - len(runs["plain"])
        until(lambda: gateway.metric("otelcol_exporter_sent_spans") >= expected, "it has decided")
        until(lambda: (tmp_path / "metrics.jsonl").exists() and (tmp_path / "metrics.jsonl").stat().st_size, "metrics")
        gateway.stop()

    every = {span_id: span for run in runs.values() for span_id, span in run.items()}
    assert {s["id"]: s for s in exported(tmp_path / "all.jsonl")} == every
    for name, run in runs.items():
        (trace_id,) = {s["trace"] for s in run.values()}
        found = {s["id"] for s in spans(jaeger.trace(trace_id))}
        assert found == (set() if name == "plain" else run.keys()), name
    metrics = (tmp_path / "metrics.jsonl").read_text()
    assert '"spanfold.calls"' in metrics and '"model_call"' in metrics


def test_a_gateway_takes_secrets_out_of_what_others_send_and_leaves_the_rest_as_it_is(runs, tmp_path):
    secret = "sk-" + "a1B2c3D4" * 4
    journal = tmp_path / "runs" / "slow" / "journal"
    (file,) = journal.iterdir()
    # Written by somebody without a gate: the reader of the journal does not look at the chain.
    file.write_bytes(file.read_bytes().replace(b'"stringValue":"1 ', b'"stringValue":"key ' + secret.encode() + b" "))
    with Collector(tmp_path / "gateway", "gateway.yaml", replace=TO_FILES.format(folder=tmp_path)) as gateway:
        assert deliver(tmp_path / "runs" / "slow", gateway).sent == 3
        gateway.stop()
    found = {s["id"]: s for s in exported(tmp_path / "all.jsonl")}
    assert secret not in (tmp_path / "all.jsonl").read_text()
    assert found[f"{1:016x}"]["attributes"]["spanfold.text"][1].startswith("key ****")
    for number in (2, 3):
        assert found[f"{number:016x}"] == runs["slow"][f"{number:016x}"]


OF_LANGFUSE = """
import spanfold
spanfold.configure(otlp=False)
with spanfold.run("sent", dir="run"):
    with spanfold.stage("M1", cycle=0), spanfold.model_call("m-1", provider="openai", input="why?") as call:
        call.output("because")
        call.usage(input_tokens=12, output_tokens=3, cache_write_tokens=4)
    with spanfold.tool("search", arguments={"q": 1}) as tool:
        tool.result("nothing")
    with spanfold.timed("load"), spanfold.agent("reviewer"):
        pass
    for operation in ("embeddings", "retrieval", "plan", "invoke_workflow", "create_agent", "chat"):
        with spanfold.model_call("m-1", operation=operation):
            pass
"""


def test_langfuse_gets_the_kept_runs_with_its_own_attributes_and_the_keys_of_the_project(tmp_path):
    # A process of its own: a run has a parent of somebody else's only once in one.
    env = {**os.environ, "TRACEPARENT": f"00-{'0a' * 16}-{'0b' * 8}-01"}
    subprocess.run([sys.executable, "-c", OF_LANGFUSE], cwd=tmp_path, env=env, capture_output=True, check=True)
    sent = journaled(tmp_path / "run")
    with LoopbackLangfuse() as langfuse, LoopbackOtlpReceiver() as nobody:
        environ = {
            **langfuse.environment,
            "GATEWAY_PERCENT": "100",
            "GATEWAY_DECISION_WAIT": "1s",
            "JAEGER_OTLP": nobody.endpoint.removeprefix("http://"),
        }
        configs = ("gateway.yaml", "langfuse.yaml")
        replace = TO_FILES.format(folder=tmp_path)
        with Collector(tmp_path / "gateway", *configs, environ=environ, replace=replace) as gateway:
            assert deliver(tmp_path / "run", gateway).sent == len(sent)
            until(lambda: len(langfuse.spans) == len(sent), "Langfuse has all")
    assert not [request.problem for request in langfuse.requests if request.problem]
    assert {request.headers["x-langfuse-ingestion-version"] for request in langfuse.requests} == {"4"}
    for span in langfuse.spans:
        attributes = dict(span.attributes)
        assert attributes["langfuse.observation.type"] == type_of(attributes), attributes
        assert attributes.get("langfuse.internal.as_root") == (True if span.name == "sent" else None)
    types = {span.attributes["langfuse.observation.type"] for span in langfuse.spans}
    assert types == {"chain", "generation", "tool", "agent", "span", "embedding", "retriever"}
    (with_usage,) = [s for s in langfuse.spans if "gen_ai.usage.input_tokens" in s.attributes]
    assert with_usage.attributes["gen_ai.usage.cache_creation.input_tokens"] == 4
    assert "gen_ai.usage.cache_write.input_tokens" not in with_usage.attributes


def test_a_balancer_sends_all_spans_of_a_trace_to_the_same_gateway_and_waits_for_one_that_is_down(tmp_path):
    write_journal(tmp_path / "run", [100] * 5_000, trace_of=100)
    ends = [sink(tmp_path / name) for name in ("one", "two")]
    static = (
        "exporters:\n  load_balancing:\n    resolver:\n      dns:\n      static:\n        hostnames: [{}]\n".format(
            ", ".join(f"127.0.0.1:{end.grpc_port}" for end in ends)
        )
    )
    with Collector(tmp_path / "balancer", "balancer.yaml", replace=static) as balancer, ends[0]:
        assert deliver(tmp_path / "run", balancer).sent == 5_000
        until(lambda: ends[0].metric("otelcol_exporter_sent_spans") > 0, "one has got something")
        with ends[1]:
            until(
                lambda: sum(end.metric("otelcol_exporter_sent_spans") for end in ends) >= 5_000, "all spans are there"
            )
            for end in ends:
                end.stop()
    found = [exported(tmp_path / name / "spans.jsonl") for name in ("one", "two")]
    assert sorted(s["id"] for part in found for s in part) == [f"{n:016x}" for n in range(1, 5_001)]
    traces = [{s["trace"] for s in part} for part in found]
    assert traces[0] and traces[1] and not traces[0] & traces[1]
