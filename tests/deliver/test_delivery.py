"""Delivery against a real HTTP server on loopback that checks strictly and fails on demand."""

import hashlib
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider

import spanfold
from spanfold.deliver import Destination, deliver_run, destinations
from spanfold.errors import LockedError, SettingsError
from spanfold.fs import FileLock, SafeRoot
from spanfold.journal import read_journal
from spanfold.model import Span
from spanfold.settings import resolve
from spanfold.testing import LoopbackOtlpReceiver, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def receiver():
    with LoopbackOtlpReceiver() as running:
        yield running


@pytest.fixture
def sending(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    spanfold.configure(otlp=True)
    return receiver


def destination_of(receiver, **changes) -> Destination:
    return Destination(
        **{"name": "otlp", "protocol": "http/protobuf", "url": f"{receiver.endpoint}/v1/traces", **changes}
    )


def journaled(run_dir: Path) -> list[Span]:
    return [record for record in read_journal(run_dir).records if isinstance(record, Span)]


def record(folder: Path, n: int = 5, **fields: object) -> Path:
    with spanfold.run("sent", dir=folder, **fields) as run:
        for i in range(n):
            with spanfold.stage("M1", cycle=i):
                spanfold.score("accuracy", i)
    return run.dir


def unsent(folder: Path, n: int = 5) -> Path:
    spanfold.configure(otlp=False)
    return record(folder, n)


# -- what arrives


def test_every_span_arrives_once_with_its_parent_attributes_events_and_status(sending, tmp_path):
    with (
        spanfold.run("sent", dir=tmp_path / "run") as run,
        pytest.raises(ZeroDivisionError),
        spanfold.stage("M1", cycle=3) as stage,
    ):
        stage.set(severity="high", nested={"a": [1, None]}, big=2**70)
        spanfold.score("accuracy", 0.5, comment="held out")
        with spanfold.model_call("m", provider="openai", input="why?") as call:
            call.output("because")
        raise ZeroDivisionError

    result = spanfold.flush(5)

    assert (result.sent, result.refused, result.waiting) == (3, 0, 0)
    assert not [r.problem for r in sending.requests if r.problem]
    local = {span.span_id: span for span in journaled(run.dir)}
    assert {s.span_id for s in sending.spans} == set(local) and len(sending.spans) == 3
    for span in sending.spans:
        mine = local[span.span_id]
        assert (span.trace_id, span.parent_span_id, span.name, span.otel_kind) == (
            mine.trace_id,
            mine.parent_span_id,
            mine.name,
            mine.otel_kind,
        )
        assert (span.start_ns, span.end_ns, span.status_code, span.status_message) == (
            *(mine.start_ns, mine.end_ns),
            *(mine.status_code, mine.status_message),
        )
        assert dict(span.attributes) == dict(mine.attributes)
    events = {e.name: e.attributes for s in sending.spans if s.name == "M1" for e in s.events}
    assert events["gen_ai.evaluation.result"]["gen_ai.evaluation.explanation"] == "held out"
    assert events["exception"]["exception.type"] == "ZeroDivisionError"


@pytest.mark.case("C-045")
def test_what_was_acknowledged_is_never_sent_again(receiver, tmp_path):
    run_dir = unsent(tmp_path / "run")
    first = deliver_run(run_dir, destination_of(receiver))
    second = deliver_run(run_dir, destination_of(receiver))

    assert (first.sent, second.sent, second.waiting) == (6, 0, 0)
    assert len(receiver.spans) == 6


def test_a_torn_acknowledgement_resends_only_its_batch(receiver, tmp_path):
    run_dir = unsent(tmp_path / "run", 600)  # two requests
    deliver_run(run_dir, destination_of(receiver))
    (ack,) = (run_dir / "journal" / ".deliver").glob("otlp-*.ack.jsonl")
    lines = ack.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3  # the name of the destination, and two requests
    ack.write_bytes(b"".join(lines[:2]) + lines[2][:20])
    before = len(receiver.spans)

    again = deliver_run(run_dir, destination_of(receiver))

    assert again.sent == 601 - 512 == len(receiver.spans) - before


def test_a_child_process_that_joined_the_run_is_sent_by_the_owner(sending, tmp_path):
    with spanfold.run("sent", dir=tmp_path / "run"), spanfold.stage("M1"):
        code = "import spanfold\nwith spanfold.tool('grep'): pass"
        subprocess.run(
            [sys.executable, "-c", code], env=spanfold.child_env({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}), check=True
        )
    assert spanfold.flush(5).waiting == 0
    assert sorted(s.name for s in sending.spans) == ["M1", "execute_tool grep", "sent"]


def test_twenty_thousand_spans_arrive_exactly_once(receiver, tmp_path):
    run_dir = unsent(tmp_path / "run", 20_000)
    assert deliver_run(run_dir, destination_of(receiver)).sent == 20_001
    assert len({s.span_id for s in receiver.spans}) == len(receiver.spans) == 20_001


# -- what is refused


@pytest.mark.case("C-044")
def test_one_refused_record_is_named_and_the_rest_arrives(receiver, tmp_path):
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=tmp_path / "run") as run:
        for i in range(40):
            with spanfold.timed("poison" if i == 17 else f"fine-{i}"):
                pass
    receiver.refuse_names = frozenset({"poison"})

    result = deliver_run(run.dir, destination_of(receiver))

    assert (result.sent, result.refused, result.waiting) == (40, 1, 0)
    aside = [
        json.loads(line)
        for line in next((run.dir / "journal/.deliver").glob("otlp-*.refused.jsonl")).read_text().splitlines()
    ]
    assert [(a["name"], a["reason"]) for a in aside] == [("poison", "HTTP 400")]
    assert len({s.span_id for s in receiver.spans}) == len(receiver.spans) == 40


@pytest.mark.case("C-044")
@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
def test_a_partial_success_counts_what_was_rejected_and_is_not_sent_again(receiver, tmp_path, protocol):
    run_dir = unsent(tmp_path / "run")
    with receiver.answering(behaviour="partial", rejected=3):
        result = deliver_run(run_dir, destination_of(receiver, protocol=protocol))

    assert (result.sent, result.refused, result.waiting) == (3, 3, 0)
    assert deliver_run(run_dir, destination_of(receiver, protocol=protocol)).sent == 0


@pytest.mark.case("C-031")
def test_requests_are_split_by_encoded_size(tmp_path):
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=tmp_path / "run") as run:
        for i in range(512):
            with spanfold.timed("part") as part:
                part.set(text=f"{i:05}" + "x" * 20_000)
    with LoopbackOtlpReceiver(limit_bytes=4_194_304) as small:
        result = deliver_run(run.dir, destination_of(small, protocol="http/protobuf"))
        assert (result.sent, result.refused, result.waiting) == (513, 0, 0)
        assert len({s.span_id for s in small.spans}) == 513


@pytest.mark.case("C-031")
def test_a_span_too_large_is_cut_inside_its_structure_and_whole_in_the_journal(tmp_path):
    spanfold.configure(otlp=False)
    value = {"rows": ["é" * 1000] * 3000}
    with spanfold.run("sent", dir=tmp_path / "run") as run, spanfold.timed("huge") as huge:
        huge.set(table=value, note="small")
    with LoopbackOtlpReceiver(limit_bytes=4_194_304) as small:
        wanted = destination_of(small)
        result = deliver_run(run.dir, wanted)
        assert (result.sent, result.refused, result.waiting) == (2, 0, 0)
        sent = next(s for s in small.spans if s.name == "huge")
    whole = next(s for s in journaled(run.dir) if s.name == "huge").attributes["spanfold.table"]
    assert json.loads(whole) == value
    cut = json.loads(sent.attributes["spanfold.table"])["rows"]
    digest = hashlib.sha256(b"\xc3\xa9" * 1000).hexdigest()
    assert len(cut) == 3000
    assert all(row.startswith("ééé") and row.endswith(f"...[cut: 2000 bytes, sha256 {digest}]") for row in cut)
    assert sent.attributes["spanfold.cut.spanfold.table"] == (
        f"{len(whole.encode())} bytes, sha256 {hashlib.sha256(whole.encode()).hexdigest()}"
    )
    assert sent.attributes["spanfold.note"] == "small"


# -- a peer that is not there, or behaves badly


@pytest.mark.case("C-040")
@pytest.mark.parametrize("behaviour", ["hang", "drip", "close", "html"])
def test_flush_returns_in_time_and_says_what_waits_whatever_the_peer_does(sending, tmp_path, behaviour):
    with sending.answering(behaviour=behaviour, stores=False):
        record(tmp_path / "run")
        begun = time.monotonic()
        result = spanfold.flush(1.0)
        assert time.monotonic() - begun < 4
        assert (result.sent, result.waiting) == (0, 6)
    assert wait_until(lambda: spanfold.flush(5).waiting == 0, 30)
    assert {s.span_id for s in sending.spans} == {s.span_id for s in journaled(tmp_path / "run")}


@pytest.mark.case("C-040")
def test_a_collector_that_is_down_costs_nothing_but_the_wait(sending, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "spanfold")
    sending.stop()
    run_dir = record(tmp_path / "run")
    assert spanfold.flush(0.5).waiting == 6
    assert [r.getMessage() for r in caplog.records if "does not take records" in r.getMessage()] != []
    sending.start()
    assert wait_until(lambda: spanfold.flush(5).waiting == 0, 30)
    assert len(sending.spans) == 6
    assert {s.span_id for s in sending.spans} == {s.span_id for s in journaled(run_dir)}


@pytest.mark.case("C-040")
def test_retry_after_of_an_hour_is_honoured_and_exit_is_still_in_time(receiver, tmp_path):
    program = (
        "import spanfold, time\n"
        "with spanfold.run('sent', dir='run'):\n"
        "    with spanfold.stage('M1'): pass\n"
        "time.sleep(1)\n"
    )
    with receiver.answering(status=503, retry_after="3600"):
        begun = time.monotonic()
        env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
        )
        took = time.monotonic() - begun
    assert done.returncode == 0 and took < 20
    assert "2 records have not arrived" in done.stderr and "run deliver" in done.stderr
    assert len(receiver.requests) <= 3
    assert deliver_run(tmp_path / "run", destination_of(receiver)).sent == 2


def test_one_record_that_has_not_arrived_is_told_as_one(receiver, tmp_path):
    program = "import spanfold\nwith spanfold.run('sent', dir='run'): pass\nspanfold.shutdown(1)\n"
    with receiver.answering(status=503, retry_after="3600"):
        env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
        )
    assert "1 record has not arrived at otlp at " in done.stderr
    assert "; it is in the journal, " in done.stderr and " sends it." in done.stderr


def test_a_killed_process_leaves_what_a_later_delivery_finishes(receiver, tmp_path):
    program = (
        "import os, signal, spanfold\n"
        "run = spanfold.run('sent', dir='run'); run.__enter__()\n"
        "for i in range(20):\n"
        "    with spanfold.stage('M1', cycle=i): pass\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with receiver.answering(status=503):
        env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, check=False)
    result = deliver_run(tmp_path / "run", destination_of(receiver))
    assert (result.sent, result.waiting) == (20, 0)


@pytest.mark.case("C-041")
def test_a_hung_collector_never_delays_the_program(sending, tmp_path):
    with sending.answering(behaviour="hang", stores=False), spanfold.run("sent", dir=tmp_path / "run"):
        slowest = 0.0
        for _ in range(200):
            begun = time.monotonic()
            with spanfold.timed("tick", phase="pass"):
                pass
            slowest = max(slowest, time.monotonic() - begun)
    assert slowest < 1.0  # a request takes the full ten seconds here
    assert spanfold.flush(10).waiting == 0


def test_a_second_delivery_of_the_same_run_is_refused_while_one_works(receiver, tmp_path):
    run_dir = unsent(tmp_path / "run")
    root = SafeRoot(run_dir / "journal")
    root.ensure_dir(".deliver")
    with FileLock(root, f".deliver/{destination_of(receiver).key}.lock"), pytest.raises(LockedError):
        deliver_run(run_dir, destination_of(receiver))


# -- what must not leave


@pytest.mark.case("C-064")
def test_no_secret_leaves(sending, tmp_path):
    canary = "ghp_" + "aB3d" * 10
    spanfold.configure(otlp=True)
    with (
        spanfold.run("sent", dir=tmp_path / "run", token_file=f"x {canary}"),
        spanfold.stage(f"stage {canary}") as stage,
    ):
        stage.set(api_key="hunter2hunter2", nested={"password": "correct horse", "deep": [canary]})
        spanfold.event(f"event {canary}", detail=canary)
    assert spanfold.flush(5).waiting == 0
    assert sending.spans
    for secret in (canary.encode(), b"hunter2hunter2", b"correct horse"):
        assert secret not in sending.payloads()


def test_local_content_stays_here(receiver, monkeypatch, tmp_path):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    spanfold.configure(otlp=True, content="local")
    with (
        spanfold.run("sent", dir=tmp_path / "run") as run,
        spanfold.model_call("m", input="a private question") as call,
    ):
        call.output("a private answer")
    assert spanfold.flush(5).waiting == 0
    assert b"private" not in receiver.payloads() and len(receiver.spans) == 2
    assert "private" in next((run.dir / "journal").glob("*.jsonl")).read_text()


def test_what_the_page_on_settings_calls_kept_is_kept_and_what_it_calls_sent_is_sent(receiver, monkeypatch, tmp_path):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    spanfold.configure(otlp=True, content="local")
    kept, sent = [], []

    def stays(what: str) -> str:
        kept.append(f"kept-{what}.")
        return kept[-1]

    def goes(what: str) -> str:
        sent.append(f"sent-{what}.")
        return sent[-1]

    @spanfold.traced
    def captured(value, *, fails=False):
        if fails:
            raise ValueError(goes("exception"))
        return stays("result")

    with (
        spanfold.run("sent", dir=tmp_path / "run", field=goes("run")) as run,
        spanfold.stage("M1", cycle=0, field=goes("stage")) as stage,
    ):
        stage.input(stays("stage-input")).set(more=goes("set"))
        stage.event("e", field=goes("span-event"))
        with spanfold.model_call("m", input=stays("input"), field=goes("call")) as call:
            call.output(stays("output"))
        with spanfold.agent("a", input=stays("agent-input")) as agent:
            agent.output(stays("agent-output"))
        with spanfold.tool("t", arguments={"x": stays("argument")}) as tool:
            tool.result([stays("tool-result")])
        captured(stays("captured"))
        with pytest.raises(ValueError, match="sent-exception"):
            captured(stays("captured-of-failed"), fails=True)
        spanfold.score("s", 1, comment=goes("comment"), why=goes("score"))
        spanfold.event("e", field=goes("event"))
        path = spanfold.artifact("picture", "kept-artifact.")
    assert spanfold.flush(5).waiting == 0

    arrived = receiver.payloads().decode("latin-1")
    journal = "".join(file.read_text() for file in (run.dir / "journal").glob("*.jsonl"))
    assert [word for word in [*kept, "kept-artifact."] if word in arrived] == []
    assert [word for word in sent if word not in arrived] == []
    assert [word for word in [*kept, *sent] if word not in journal] == []
    assert path is not None
    assert (path.read_text(), path.name in arrived) == ("kept-artifact.", True)


def test_local_content_of_other_instrumentors_and_of_the_opentelemetry_api_stays_here(receiver, monkeypatch, tmp_path):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    host = TracerProvider()
    spanfold.configure(otlp=True, content="local", provider=host)
    content = {
        "gen_ai.prompt.0.content": "a private question",
        "output.value": "a private answer",
        "llm.model_name": "m",
    }
    with spanfold.run("sent", dir=tmp_path / "run") as run, spanfold.stage("M1") as stage:
        stage.set_attributes(content)
        with host.get_tracer("openinference.instrumentation.openai").start_as_current_span(
            "chat", attributes=content
        ) as chat:
            chat.add_event("gen_ai.user.message", {"content": "a private question"})
            chat.add_event("kept", {"gen_ai.completion.0.content": "a private answer", "at": 1})
    assert spanfold.flush(5).waiting == 0
    assert len(receiver.spans) == 3
    assert b"private" not in receiver.payloads()
    assert receiver.payloads().count(b"llm.model_name") == 2 and b"kept" in receiver.payloads()
    assert "private" in next((run.dir / "journal").glob("*.jsonl")).read_text()


# -- settings


def test_a_required_destination_that_is_not_there_fails_at_configure_and_names_what_is_missing():
    with pytest.raises(SettingsError, match="OTEL_EXPORTER_OTLP_ENDPOINT"):
        spanfold.configure(otlp=True)
    with pytest.raises(SettingsError, match="LANGFUSE_PUBLIC_KEY"):
        spanfold.configure(langfuse=True)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "brotli"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "not an address"),
    ],
)
def test_a_standard_variable_that_cannot_be_read_is_named_and_its_value_is_not(variable, value):
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", variable: value}
    with pytest.raises(SettingsError) as caught:
        destinations(resolve(env), env)
    assert variable in str(caught.value) and value not in str(caught.value)


def test_keys_without_a_host_are_no_consent():
    env = {"LANGFUSE_PUBLIC_KEY": "pk-lf-x", "LANGFUSE_SECRET_KEY": "sk-lf-x"}
    assert destinations(resolve(env), env) == []


def test_the_signals_own_variables_win_and_the_general_endpoint_gets_the_path():
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1/base/",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=1,b=x%20y",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
    }
    (general,) = destinations(resolve(env), env)
    assert (general.url, general.headers, general.timeout_s, general.compression) == (
        *("http://127.0.0.1:1/base/v1/traces", {"a": "1", "b": "x y"}),
        *(2.5, "gzip"),
    )
    env |= {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:2/own", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "c=3"}
    (own,) = destinations(resolve(env), env)
    assert (own.url, own.headers) == ("http://127.0.0.1:2/own", {"c": "3"})


def test_gzip_and_json_arrive_as_the_same_spans(receiver, tmp_path):
    run_dir = unsent(tmp_path / "run")
    for number, changes in enumerate(
        ({"compression": "gzip"}, {"protocol": "http/json"}, {"protocol": "http/json", "compression": "deflate"})
    ):
        assert deliver_run(run_dir, destination_of(receiver, name=f"way{number}", **changes)).sent == 6
    assert not [r.problem for r in receiver.requests if r.problem]
    first, second, third = receiver.spans[:6], receiver.spans[6:12], receiver.spans[12:]
    strip = lambda spans: [(s.span_id, s.name, dict(s.attributes), [e.name for e in s.events]) for s in spans]  # noqa: E731
    assert strip(first) == strip(second) == strip(third)


def test_another_address_is_another_destination(receiver, tmp_path):
    run_dir = unsent(tmp_path / "run")
    with LoopbackOtlpReceiver() as second:
        assert deliver_run(run_dir, destination_of(receiver)).sent == 6
        assert deliver_run(run_dir, destination_of(second)).sent == 6


@pytest.mark.parametrize("status", [401, 404, 500])
def test_a_wrong_address_or_key_refuses_no_record(receiver, tmp_path, status):
    run_dir = unsent(tmp_path / "run")
    with receiver.answering(status=status):
        result = deliver_run(run_dir, destination_of(receiver), timeout_s=5)
    assert (result.sent, result.refused, result.waiting, result.reason) == (0, 0, 6, f"HTTP {status}")
    assert deliver_run(run_dir, destination_of(receiver)).sent == 6


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "abc")]
)
def test_a_wrong_variable_of_the_environment_costs_the_sending_and_not_the_run(
    tmp_path, monkeypatch, caplog, variable, value
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(variable, value)
    program = "import spanfold\nwith spanfold.run('r', dir='run'), spanfold.stage('M1'): pass"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert variable in done.stderr and "Nothing is sent" in done.stderr
    assert len(journaled(tmp_path / "run")) == 2


def test_a_program_does_not_wait_at_exit_for_a_collector_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    program = (
        "import spanfold, time\n"
        "with spanfold.run('r', dir='run'), spanfold.stage('M1'): pass\n"
        "begun = time.monotonic(); spanfold.shutdown(30); print(time.monotonic() - begun)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 15
    assert "2 records have not arrived" in done.stderr
