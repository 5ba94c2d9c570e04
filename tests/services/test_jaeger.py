"""From a program through the real collector into the real Jaeger, and back through its query API: equal to the journal."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

import spanfold
from spanfold.deliver import deliver_run, destinations
from spanfold.settings import resolve
from tests.services.programs import ROOT, Collector, Jaeger, until
from tests.services.reading import journaled, spans

pytestmark = [pytest.mark.integration, pytest.mark.slow]

UNICODE = "Grüße, 日本語, \N{ROCKET}, \u202eright to left\u202c, e\u0301, \x00\x1b[31m, \ud800 alone"
HUGE = "text and \N{SNOWMAN} " * 200_000


def record_everything(folder: Path, host: TracerProvider) -> Path:
    """Record a run with every kind of span, event, link, status and value."""
    elsewhere = trace.SpanContext(0x1234, 0x5678, is_remote=True, trace_flags=trace.TraceFlags(1))
    with spanfold.run("everything", dir=folder, session_id="s-1", tags=["a", "b"]) as run:
        for cycle in range(2):
            with spanfold.stage("M1", cycle=cycle, note=UNICODE) as stage:
                stage.set(
                    yes=True, no=False, one=1, big=2**70, small=-(2**63), part=0.1, whole=1.0, nothing=None, empty=""
                )
                stage.set(nan=float("nan"), far=float("inf"), raw=b"\x00\xff", many=[1, 2], mixed=[1, "a", None, [2.5]])
                stage.set(nested={"a": [1, {"b": UNICODE}], "empty": {}, "none": None})
                stage.add_link(elsewhere, {"why": "copied", "weight": 2})
                spanfold.score("accuracy", 0.5, comment=UNICODE)
                spanfold.score("passed", True)
                spanfold.event("chosen", option="b", ranks=[3, 1])
                spanfold.artifact("notes.txt", "kept")
                with spanfold.model_call(
                    "m-1", provider="openai", input=[{"role": "user", "content": UNICODE}]
                ) as call:
                    call.output("because")
                    call.usage(input_tokens=12, output_tokens=3, cache_read_tokens=4)
                    call.served_model("m-1-2026")
                    call.finish_reasons(["stop"])
        with spanfold.stage("M2", cycle=0):
            with spanfold.agent("reviewer", model="m-1", provider="anthropic", input="look") as agent:
                with spanfold.tool("search", arguments={"q": UNICODE}, call_id="c-1") as tool:
                    tool.result({"hits": []})
                with pytest.raises(ValueError, match="no"), spanfold.tool("fail", arguments={}):
                    raise ValueError("no")
                agent.output("fine")
            with spanfold.timed("load", phase="warm", text=HUGE):
                pass
        with pytest.raises(KeyboardInterrupt), spanfold.stage("M3", cycle=0):
            raise KeyboardInterrupt
        with spanfold.stage("M4", cycle=0) as stage:
            stage.set_status(Status(StatusCode.OK))
        # Spans of another instrumentor, through the OpenTelemetry interface.
        tracer = host.get_tracer("openinference.instrumentation.test", "2.0")
        with tracer.start_as_current_span(
            "foreign", kind=SpanKind.CLIENT, links=[Link(elsewhere, {"n": 1})], attributes={"llm.model_name": "m-2"}
        ) as foreign:
            foreign.add_event("moment", {"at": 1.5, "words": ["a", "b"]})
            foreign.set_status(Status(StatusCode.ERROR, UNICODE))
    return run.dir


def arrived(jaeger: Jaeger, run_dir: Path) -> dict[str, dict[str, Any]]:
    """Return what Jaeger has of a run's traces, by id of the span, once it has as many spans as the journal."""
    expected = journaled(run_dir)
    traces = {s["trace"] for s in expected.values()}

    def all_there() -> list[dict[str, Any]] | None:
        found = [s for trace_id in sorted(traces) for s in spans(jaeger.trace(trace_id))]
        return found if len(found) >= len(expected) else None

    found = until(all_there, f"Jaeger has {len(expected)} spans", 20)
    assert len({s["id"] for s in found}) == len(found)
    return {s["id"]: s for s in found}


def check_equal(found: dict[str, dict[str, Any]], expected: dict[str, dict[str, Any]]) -> None:
    assert found.keys() == expected.keys()
    for span_id, span in expected.items():
        for part, content in span.items():
            assert found[span_id][part] == content, f"{part} of {span['name']}"


@pytest.mark.parametrize(
    ("protocol", "compression"),
    [
        ("http/protobuf", "none"),
        ("http/protobuf", "gzip"),
        ("http/protobuf", "deflate"),
        ("http/json", "gzip"),
        ("grpc", "none"),
        ("grpc", "gzip"),
    ],
)
def test_every_span_of_every_kind_is_in_jaeger_as_it_is_in_the_journal(
    protocol, compression, jaeger, tmp_path, monkeypatch
):
    with Collector(tmp_path / "collector", "local.yaml", environ={"JAEGER_OTLP": jaeger.otlp}) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            f"http://127.0.0.1:{collector.grpc_port}" if protocol == "grpc" else collector.endpoint,
        )
        host = TracerProvider(resource=Resource({"service.name": "host", "telemetry.sdk.name": "opentelemetry"}))
        spanfold.configure(otlp=True, provider=host)
        run_dir = record_everything(tmp_path / "run", host)
        result = spanfold.flush(30)

    expected = journaled(run_dir)
    assert (result.sent, result.refused, result.waiting) == (len(expected), 0, 0)
    found = arrived(jaeger, run_dir)
    check_equal(found, expected)


DEMO = """
import sys
from pathlib import Path
from spanfold.demo import run_demo
result = run_demo(Path(sys.argv[1]), cases=60, narrate=lambda line: None)
print(result.run_dir, result.second_run_dir, sep="\\n")
"""


def test_both_runs_of_the_demo_are_in_jaeger_as_they_are_in_the_journal(jaeger, tmp_path):
    with Collector(tmp_path / "collector", "local.yaml", environ={"JAEGER_OTLP": jaeger.otlp}) as collector:
        done = subprocess.run(
            [sys.executable, "-c", DEMO, str(tmp_path / "runs")],
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    for run_dir in map(Path, done.stdout.split()):
        expected = journaled(run_dir)
        assert len(expected) > 10
        check_equal(arrived(jaeger, run_dir), expected)


@pytest.mark.case("C-073")
def test_jaegers_upload_takes_the_spans_of_a_journal(jaeger, tmp_path):
    spanfold.configure(otlp=False)
    run_dir = record_everything(tmp_path / "run", TracerProvider())
    # As docs/jaeger.md says; the page puts the lines of a file together in the same way.
    lines = subprocess.run(
        ["sh", "-c", "grep -h '^{\"resourceSpans\"' journal/*.otlp.jsonl"], cwd=run_dir, capture_output=True, check=True
    ).stdout.splitlines()
    merged = {"resourceSpans": [group for line in lines for group in json.loads(line)["resourceSpans"]]}
    uploaded = jaeger.transform(json.dumps(merged).encode())

    assert not uploaded["errors"]
    expected = journaled(run_dir)
    shown = {s["spanID"]: s for t in uploaded["data"] for s in t["spans"]}
    assert {i: s["operationName"] for i, s in shown.items()} == {i: s["name"] for i, s in expected.items()}
    for span_id, span in expected.items():
        references = {r["spanID"]: r["refType"] for r in shown[span_id]["references"]}
        assert references == {
            **{link[1]: "FOLLOWS_FROM" for link in span["links"]},
            **({span["parent"]: "CHILD_OF"} if span["parent"] else {}),
        }
        keys = {t["key"] for t in shown[span_id]["tags"]}
        assert span["attributes"].keys() <= keys


def test_a_run_goes_straight_to_jaeger_and_only_once(jaeger, tmp_path):
    spanfold.configure(otlp=False)
    run_dir = record_everything(tmp_path / "run", TracerProvider())
    (straight,) = destinations(resolve(), {"OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.endpoint})

    first = deliver_run(run_dir, straight, timeout_s=30)
    second = deliver_run(run_dir, straight, timeout_s=30)

    expected = journaled(run_dir)
    assert (first.sent, first.refused, first.waiting) == (len(expected), 0, 0)
    assert (second.sent, second.refused, second.waiting) == (0, 0, 0)
    check_equal(arrived(jaeger, run_dir), expected)


def test_a_run_is_found_by_each_of_the_tags_that_the_page_names(jaeger, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "searched")
    spanfold.configure(otlp=False)
    with spanfold.run("digits", dir=tmp_path / "run") as run:
        with spanfold.stage("M2", cycle=3, severity="high"), spanfold.model_call("some-model"):
            pass
        with pytest.raises(ValueError, match="no"), spanfold.tool("search", arguments={}):
            raise ValueError("no")
        with pytest.raises(asyncio.CancelledError), spanfold.agent("reviewer"):
            raise asyncio.CancelledError
    (straight,) = destinations(resolve(), {"OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.endpoint})
    assert deliver_run(run.dir, straight).waiting == 0

    page = (ROOT / "docs" / "jaeger.md").read_text()
    tags = re.findall(r"^\| [^|`]*`([\w.]+=[^`]+)`", page, re.MULTILINE)
    assert len(tags) == 7
    for found in tags:
        assert jaeger.search("searched", dict(tag.split("=") for tag in found.split())) == {run.trace_id}, found
    assert not jaeger.search("searched", {"spanfold.run.id": "other"})
