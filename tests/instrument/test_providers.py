"""Together with a real OpenTelemetry SDK: parents right in both directions, each span once, redacted, nothing hijacked."""

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

import spanfold
from spanfold.instrument import bridge, losses
from spanfold.instrument._stored import as_text
from tests.instrument.hosts import HTTP, OPENAI, SECRET, Host, id_of, parent_of
from tests.instrument.reading import Lost, events, program, span, spans

pytestmark = pytest.mark.slow


@pytest.fixture
def host() -> Iterator[Host]:
    provider = Host()
    spanfold.configure(provider=provider)
    yield provider
    provider.shutdown()


@pytest.mark.case("C-058")
def test_spans_of_both_sides_have_the_right_parents_in_both_places(where: Path, host: Host) -> None:
    http, openai = host.get_tracer(HTTP), host.get_tracer(OPENAI)
    with spanfold.run("r", dir=where, x=1), spanfold.stage("M2", cycle=3):
        with openai.start_as_current_span("chat a", attributes={"gen_ai.operation.name": "chat"}):
            with http.start_as_current_span("POST a"):
                spanfold.timed("under http").end()
            spanfold.tool("under chat").end()
        with http.start_as_current_span("POST b"):
            with openai.start_as_current_span("chat b"):
                pass
            with http.start_as_current_span("POST c"), spanfold.agent("under two"):
                spanfold.event("moment")
        openai.start_span("chat detached").end()

    seen = host.seen()
    assert {
        name: parent_of(s) and next(n for n, o in seen.items() if id_of(o) == parent_of(s)) for name, s in seen.items()
    } == {
        "r": "",
        "M2": "r",
        "chat a": "M2",
        "POST a": "chat a",
        "under http": "POST a",
        "execute_tool under chat": "chat a",
        "POST b": "M2",
        "chat b": "POST b",
        "POST c": "POST b",
        "invoke_agent under two": "POST c",
        "chat detached": "M2",
    }
    journaled = {s.name: s for s in spans(where)}
    assert sorted(journaled) == sorted(name for name in seen if not name.startswith("POST"))
    for name, shown in seen.items():
        if name in journaled:
            assert (journaled[name].span_id, journaled[name].parent_span_id) == (id_of(shown), parent_of(shown))
            assert journaled[name].trace_id == f"{shown.context.trace_id:032x}"  # type: ignore[union-attr]  # it has one

    def recorded_parent(name: str) -> str:
        above = journaled[name].attributes.get("spanfold.recorded_parent", journaled[name].parent_span_id)
        return next(n for n, s in journaled.items() if s.span_id == above)

    assert {name: recorded_parent(name) for name in journaled if name != "r"} == {
        "M2": "r",
        "chat a": "M2",
        "under http": "chat a",
        "execute_tool under chat": "chat a",
        "chat b": "M2",
        "invoke_agent under two": "M2",
        "chat detached": "M2",
    }
    for name in ("chat a", "chat b", "chat detached"):
        found = journaled[name].attributes
        assert "spanfold.kind" not in found
        assert (found["spanfold.stage"], found["spanfold.cycle"], found["spanfold.depth"]) == ("M2", 3, 1)
        assert found["spanfold.parent"] == "m2"
        assert journaled[name].scope.name == OPENAI
    assert journaled["chat a"].resource["service.name"] == "host"
    (moment,) = events(where, "moment")
    assert moment.span_id == journaled["invoke_agent under two"].span_id


def test_depth_and_place_of_nested_foreign_spans(where: Path, host: Host) -> None:
    tracer = host.get_tracer(OPENAI)
    with spanfold.run("r", dir=where):
        with tracer.start_as_current_span("top"), tracer.start_as_current_span("below"):
            pass
        with spanfold.timed("ours"), tracer.start_as_current_span("in ours"):
            pass

    found = {s.name: s.attributes for s in spans(where)}
    assert {name: found[name]["spanfold.depth"] for name in ("top", "below", "ours", "in ours")} == {
        "top": 0,
        "below": 1,
        "ours": 0,
        "in ours": 1,
    }
    assert "spanfold.parent" not in found["top"]
    assert found["in ours"]["spanfold.parent"] == "ours"


@pytest.mark.case("C-058")
@pytest.mark.parametrize(
    ("scope", "attributes", "late", "allowed"),
    [
        (HTTP, {}, {}, False),
        ("opentelemetry.instrumentation.sqlalchemy", {"db.system": "x"}, {}, False),
        ("my.own.code", {}, {}, False),
        ("my.own.code", {"gen_ai.system": "x"}, {}, True),
        ("my.own.code", {}, {"gen_ai.usage.input_tokens": 3}, True),
        (OPENAI, {}, {}, True),
        ("openinference.instrumentation.langchain", {}, {}, True),
        ("", {}, {}, False),
    ],
)
def test_only_allowed_scopes_and_generative_ai_are_journaled(
    where: Path, host: Host, scope: str, attributes: dict[str, Any], late: dict[str, Any], allowed: bool
) -> None:
    with spanfold.run("r", dir=where), host.get_tracer(scope).start_as_current_span("f", attributes=attributes) as f:
        f.set_attributes(late)

    assert len(spans(where, "f")) == allowed
    assert "f" in host.seen()


def test_a_foreign_span_is_journaled_with_everything_it_has(where: Path, host: Host) -> None:
    tracer = host.get_tracer(OPENAI, "2.0", "https://example.org/schema")
    linked = SpanContext(0xABC, 0xDEF, True, TraceFlags(1))
    with spanfold.run("r", dir=where):
        f = tracer.start_span(
            "f", kind=SpanKind.CLIENT, links=[Link(linked, {"why": "so"})], start_time=1_000, attributes={"a": [1, 2]}
        )
        f.set_attribute("text", "größe \u2028 \x00")
        f.set_attribute("bytes", b"ab")
        f.set_attribute("mixed", ["x", "y"])
        f.add_event("e", {"n": 1}, timestamp=1_500)
        f.set_status(Status(StatusCode.ERROR, "bad"))
        f.end(end_time=2_000)

    found = span(where, "f")
    assert (found.start_ns, found.end_ns, found.otel_kind) == (1_000, 2_000, 3)
    assert (found.status_code, found.status_message) == (2, "bad")
    assert (found.scope.name, found.scope.version) == (OPENAI, "2.0")
    own = {k: v for k, v in found.attributes.items() if not k.startswith("spanfold.")}
    assert own.pop("bytes") in (b"ab", "ab")  # older SDKs make text of it
    assert own == {"a": [1, 2], "text": "größe \u2028 \x00", "mixed": ["x", "y"]}
    assert [(e.name, e.time_ns, e.attributes) for e in found.events] == [("e", 1_500, {"n": 1})]
    assert [(k.trace_id[-3:], k.span_id[-3:], k.attributes) for k in found.links] == [("abc", "def", {"why": "so"})]


@pytest.mark.case("C-064")
def test_names_of_a_foreign_span_that_are_no_text_are_written_as_text(where: Path, host: Host) -> None:
    names: list[Any] = [5, None, b"name", ["a"], {"a": 1}]
    before = losses.copy()
    with spanfold.run("r", dir=where), spanfold.stage("M1"):
        for name in names:
            scope = name if isinstance(name, int | bytes) else OPENAI
            foreign = host.get_tracer(scope).start_span("chat", attributes={"gen_ai.operation.name": "chat"})
            foreign.update_name(name)
            foreign.add_event(name)
            foreign.end()

    assert losses == before
    found = [s.name for s in spans(where) if s.scope.name != "spanfold"]
    assert found == ["5", "null", as_text(b"name"), '["a"]', '{"a":1}']


def test_secrets_in_every_part_of_a_foreign_span_stay_out_of_the_journal(where: Path, host: Host) -> None:
    tracer = host.get_tracer(OPENAI)
    with spanfold.run("r", dir=where):
        f = tracer.start_span(f"f {SECRET}", attributes={"a": SECRET, "api_key": "hunter2hunter2", "b": [SECRET]})
        f.add_event(f"e {SECRET}", {"n": SECRET, "password": "hunter3hunter3"})
        f.add_link(SpanContext(1, 2, True), {"l": SECRET, "client_secret": "hunter4hunter4"})
        f.set_status(Status(StatusCode.ERROR, f"bad {SECRET}"))
        f.end()

    text = b"".join(p.read_bytes() for p in (where / "journal").iterdir()).decode()
    assert "f (REDACTED" in text
    for secret in (SECRET, "hunter2hunter2", "hunter3hunter3", "hunter4hunter4"):
        assert secret not in text


# -- ours to theirs


class Watching(SpanProcessor):
    """A processor as hosts have: it stamps every span at its start and looks at it at its end."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []
        self.open: list[str] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.started.append(span.name)
        span.set_attribute("stamp", "host")
        span.set_attributes({"stamps": (1, 2)})
        assert span.is_recording()
        assert span.parent is None or span.parent.is_valid
        self.open.append(span.to_json())

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span.name)
        assert span.end_time is not None


@pytest.mark.parametrize("processor", [SimpleSpanProcessor, BatchSpanProcessor])
def test_each_of_our_spans_reaches_the_hosts_processors_once_whole_and_redacted(
    where: Path, processor: type[SpanProcessor]
) -> None:
    host = Host(processor)
    watching = Watching()
    host.add_span_processor(watching)
    spanfold.configure(provider=host)
    linked = SpanContext(0xABC, 0xDEF, True, TraceFlags(1))
    with spanfold.run(f"r {SECRET}", dir=where), spanfold.stage("M1", cycle=2, note=f"x {SECRET}") as stage:
        stage.add_link(linked, {"why": SECRET})
        stage.set(password="hunter2hunter2", nested={"api_key": "hunter3hunter3", "n": [1, SECRET]}, flag=True)
        stage.event(f"e {SECRET}", detail=SECRET, number=3)
        with spanfold.model_call("m", provider="openai", input=f"ask {SECRET}") as call:
            call.output("answer").usage(input_tokens=3)
        with pytest.raises(ValueError), spanfold.tool("t"):
            raise ValueError(f"bad {SECRET}")

    seen = host.seen()
    assert sorted(watching.started) == sorted(watching.ended) == sorted(seen)
    assert len(seen) == 4
    stage_shown, call_shown, tool_shown = seen["M1"], seen["chat m"], seen["execute_tool t"]
    everything = host.text() + "".join(watching.open)
    for secret in (SECRET, "hunter2hunter2", "hunter3hunter3"):
        assert secret not in everything
    found = stage_shown.attributes or {}
    assert (found["spanfold.cycle"], found["spanfold.flag"], found["stamp"], found["stamps"]) == (
        2,
        True,
        "host",
        (1, 2),
    )
    assert found["spanfold.kind"] == "stage"
    assert str(found["spanfold.nested"]).startswith('{"api_key":"(REDACTED')
    assert stage_shown.events[0].name.startswith("e (REDACTED")
    assert (stage_shown.events[0].attributes or {})["spanfold.number"] == 3
    assert [f"{k.context.span_id:x}" for k in stage_shown.links] == ["def"]
    assert call_shown.kind is SpanKind.CLIENT
    assert "ask (REDACTED" in str((call_shown.attributes or {})["gen_ai.input.messages"])
    assert (call_shown.attributes or {})["gen_ai.usage.input_tokens"] == 3
    assert tool_shown.status.status_code is StatusCode.ERROR
    assert (tool_shown.status.description or "").startswith("bad (REDACTED")
    assert [e.name for e in tool_shown.events] == ["exception"]
    journaled = {s.span_id: s for s in spans(where)}
    for shown in seen.values():
        record = journaled[id_of(shown)]
        assert (record.parent_span_id, record.start_ns, record.end_ns) == (
            parent_of(shown),
            shown.start_time,
            shown.end_time,
        )
        assert shown.resource.attributes["service.name"] == "host"
        assert shown.instrumentation_scope is not None
        assert shown.instrumentation_scope.name == "spanfold"
    host.shutdown()


def test_a_processor_of_the_host_that_fails_costs_the_host_nothing(where: Path, lost: Lost) -> None:
    class Failing(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            raise RuntimeError("start")

        def on_end(self, span: ReadableSpan) -> None:
            raise RuntimeError("end")

    host = Host()
    host.add_span_processor(Failing())
    spanfold.configure(provider=host)
    with spanfold.run("r", dir=where), spanfold.stage("s") as stage:
        assert trace.get_current_span() is stage

    assert lost() == {"spans shown to the host's provider": 4}
    assert [s.name for s in spans(where)] == ["s", "r"]


def test_limits_and_samplers_of_the_host_drop_nothing_of_ours(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "SPAN_ATTRIBUTE_COUNT",
        "ATTRIBUTE_COUNT",
        "SPAN_EVENT_COUNT",
        "SPAN_LINK_COUNT",
        "ATTRIBUTE_VALUE_LENGTH",
    ):
        monkeypatch.setenv(f"OTEL_{name}_LIMIT", "3")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    host = Host(sampler=ALWAYS_OFF, span_limits=SpanLimits(max_attributes=2))
    spanfold.configure(provider=host)
    with spanfold.run("r", dir=where), spanfold.stage("s") as stage:
        stage.set(**{f"field_{n}": "long text" for n in range(200)})
        for number in range(200):
            stage.add_event(f"event {number}")
            stage.add_link(SpanContext(1, number + 1, True))
        with host.get_tracer(OPENAI).start_as_current_span("not sampled"):
            spanfold.timed("below").end()

    found = span(where, "s")
    assert found.attributes["spanfold.field_199"] == "long text"
    assert len([k for k in found.attributes if k.startswith("spanfold.field_")]) == 200
    assert len(found.links) == 200
    assert len([e for e in events(where) if e.name.startswith("event ")]) == 200
    assert span(where, "below").trace_id == found.trace_id
    assert len([k for k in host.seen()["s"].attributes or {} if k.startswith("spanfold.field_")]) == 200


@pytest.mark.case("C-048")
def test_fifty_runs_leave_one_processor_and_keep_apart(tmp_path: Path, host: Host) -> None:
    processors = len(host._active_span_processor._span_processors)
    for number in range(50):
        run = spanfold.run(f"run {number}", dir=tmp_path / str(number))
        with run, spanfold.stage("s"), host.get_tracer(OPENAI).start_as_current_span("chat"):
            pass

    assert len(host._active_span_processor._span_processors) == processors
    sizes = set()
    traces = [spans(tmp_path / str(n))[0].trace_id for n in range(50)]
    for number in range(50):
        data = b"".join(p.read_bytes() for p in (tmp_path / str(number) / "journal").iterdir())
        sizes.add(len(spans(tmp_path / str(number))))
        assert sum(trace_id.encode() in data for trace_id in traces) == 1
    assert sizes == {3}
    assert len(host.exporter.get_finished_spans()) == 150


@pytest.mark.case("C-012", "C-048")
def test_runs_in_threads_keep_apart_with_a_shared_provider(tmp_path: Path, host: Host) -> None:
    tracer = host.get_tracer(OPENAI)

    def work(numbers: list[int]) -> None:
        for number in numbers:
            with spanfold.run(f"run {number}", dir=tmp_path / str(number)):
                for step in range(5):
                    with spanfold.stage(f"stage {step}"), tracer.start_as_current_span(f"chat {number}"):
                        spanfold.timed(f"timed {number}").end()

    threads = [threading.Thread(target=work, args=([*range(t, 30, 8)],)) for t in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for number in range(30):
        found = spans(tmp_path / str(number))
        assert [s.name for s in found if s.attributes.get("spanfold.kind") == "stage"] == [
            f"stage {n}" for n in range(5)
        ]
        assert len([s for s in found if s.name in (f"chat {number}", f"timed {number}")]) == 10
        assert len(found) == 16
        assert len({s.trace_id for s in found}) == 1
        assert found[-1].attributes["spanfold.run.id"] == f"run {number}"


def test_open_foreign_spans_are_bounded_and_none_is_lost(where: Path, host: Host) -> None:
    tracer = host.get_tracer(OPENAI)
    with spanfold.run("r", dir=where) as run:
        first = tracer.start_span("first")
        kept = [tracer.start_span("never ended") for _ in range(10_000)]
        assert len(bridge.processor._open) <= 10_000
        first.end()
        kept[-1].end()

    assert span(where, "first").parent_span_id == run.span_id
    assert len(spans(where)) == 3


# -- which provider


def test_a_provider_installed_before_us_is_joined_and_kept(where: Path) -> None:
    assert program(f"""
from opentelemetry import trace
from tests.instrument.hosts import OPENAI, Host
host = Host()
trace.set_tracer_provider(host)
with spanfold.run("r", dir={str(where)!r}):
    with trace.get_tracer(OPENAI).start_as_current_span("chat"):
        spanfold.timed("ours").end()
assert trace.get_tracer_provider() is host
assert sorted(host.seen()) == ["chat", "ours", "r"], host.seen()
""") == (0, "", "")
    assert sorted(s.name for s in spans(where)) == ["chat", "ours", "r"]


@pytest.mark.case("C-057")
def test_a_provider_installed_after_us_is_joined_with_the_next_stage(where: Path) -> None:
    assert program(f"""
from opentelemetry import trace
from tests.instrument.hosts import OPENAI, Host
early = trace.get_tracer(OPENAI)
with spanfold.run("r", dir={str(where)!r}):
    with early.start_as_current_span("nothing"), spanfold.timed("below nothing"):
        pass
    host = Host()
    trace.set_tracer_provider(host)
    with spanfold.stage("s"), early.start_as_current_span("chat"):
        spanfold.timed("ours").end()
assert trace.get_tracer_provider() is host
assert sorted(host.seen()) == ["chat", "ours", "r", "s"], host.seen()
""") == (0, "", "")
    assert sorted(s.name for s in spans(where)) == ["below nothing", "chat", "ours", "r", "s"]
    assert span(where, "below nothing").parent_span_id == span(where, "r").span_id


@pytest.mark.case("C-057")
@pytest.mark.parametrize("choice", ["auto", "own", "global"])
def test_a_provider_that_takes_no_processors_is_left_alone(where: Path, choice: str) -> None:
    assert program(f"""
from opentelemetry import trace
class Odd(trace.TracerProvider):
    def get_tracer(self, *a, **k): return trace.NoOpTracer()
odd = Odd()
trace.set_tracer_provider(odd)
from spanfold.instrument import bridge, losses
from spanfold.instrument._stored import as_text
spanfold.configure(provider={choice!r})
with spanfold.run("r", dir={str(where)!r}), spanfold.stage("s"):
    with trace.get_tracer("x").start_as_current_span("theirs"):
        spanfold.timed("ours").end()
assert trace.get_tracer_provider() is odd
assert bridge.description.startswith("spanfold's own"), bridge.description
""") == (0, "", "")
    assert sorted(s.name for s in spans(where)) == ["ours", "r", "s"]
    assert span(where, "ours").parent_span_id == span(where, "s").span_id


def test_a_given_provider_that_takes_no_processors_is_named_once(
    where: Path, caplog: pytest.LogCaptureFixture, lost: Lost
) -> None:
    spanfold.configure(provider=trace.NoOpTracerProvider())
    with spanfold.run("r", dir=where):
        pass

    assert any("NoOpTracerProvider" in r.getMessage() for r in caplog.records)
    assert len(lost()) == 1


def test_own_ignores_the_hosts_provider(where: Path) -> None:
    assert program(f"""
from opentelemetry import trace
from tests.instrument.hosts import OPENAI, Host
host = Host()
trace.set_tracer_provider(host)
with spanfold.run("joined", dir={str(where) + "-1"!r}):
    pass
spanfold.configure(provider="own")
with spanfold.run("r", dir={str(where)!r}), spanfold.stage("s"):
    spanfold.timed("ours").end()
assert sorted(host.seen()) == ["joined"], host.seen()
""") == (0, "", "")
    assert sorted(s.name for s in spans(where)) == ["ours", "r", "s"]


@pytest.mark.case("C-057")
def test_global_installs_ours_once_where_the_host_has_none(where: Path) -> None:
    assert program(f"""
from opentelemetry import trace
from spanfold.instrument import SpanfoldTracerProvider
for _ in range(2):
    spanfold.configure(provider="global")
assert isinstance(trace.get_tracer_provider(), SpanfoldTracerProvider)
with spanfold.run("r", dir={str(where)!r}), spanfold.stage("M1", cycle=4):
    with trace.get_tracer("opentelemetry.instrumentation.requests").start_as_current_span("POST") as post:
        assert not post.is_recording()
        with trace.get_tracer("my.app").start_as_current_span("mine"):
            pass
        with trace.get_tracer("opentelemetry.instrumentation.openai.v1", "2").start_as_current_span("chat x") as chat:
            chat.set_attribute("gen_ai.operation.name", "chat")
            spanfold.timed("ours").end()
        spanfold.tool("t").end()
    with spanfold.stage("second"):
        pass
""") == (0, "", "")
    found = {s.name: s for s in spans(where)}
    assert sorted(found) == ["M1", "chat x", "execute_tool t", "mine", "ours", "r", "second"]
    stage = found["M1"].span_id
    assert [found[n].parent_span_id for n in ("mine", "chat x", "execute_tool t")] == [stage, stage, stage]
    assert found["ours"].parent_span_id == found["chat x"].span_id
    assert (found["mine"].scope.name, found["mine"].attributes["spanfold.kind"]) == ("spanfold", "span")
    assert (found["chat x"].scope.name, found["chat x"].scope.version) == (OPENAI, "2")
    assert "spanfold.kind" not in found["chat x"].attributes
    for name in ("mine", "chat x", "ours", "execute_tool t"):
        assert (found[name].attributes["spanfold.stage"], found[name].attributes["spanfold.cycle"]) == ("M1", 4)


def test_our_tracer_outside_a_run_carries_the_context_on(where: Path) -> None:
    assert program("""
from opentelemetry import trace, propagate
spanfold.configure(provider="global")
tracer = trace.get_tracer("my.app")
incoming = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
with tracer.start_as_current_span("handler", context=propagate.extract(incoming)):
    with tracer.start_as_current_span("inner"):
        outgoing = {}
        propagate.inject(outgoing)
assert outgoing == incoming, outgoing
assert not trace.get_current_span().get_span_context().is_valid
""") == (0, "", "")


@pytest.mark.parametrize("variable", ["OTEL_SDK_DISABLED", "SPANFOLD_DISABLED"])
def test_switched_off_nothing_is_recorded_and_everything_works(where: Path, variable: str) -> None:
    result = program(
        f"""
import os
@spanfold.traced(stage="M1")
def f(x): return x
with spanfold.run("r", dir={str(where)!r}) as run, spanfold.stage("s") as s:
    assert f(3) == 3
    s.set(a=1); s.event("e"); run.set(b=2); run.event("e", name="x")
    assert spanfold.current_run() is None and run.trace_id == "" and run.span_id == ""
    with spanfold.model_call("m", input="x") as c:
        c.output("y"); c.usage(input_tokens=1); c.served_model("z"); c.response_id("r"); c.finish_reasons("stop")
    with spanfold.tool("t", arguments=1) as t: t.result(2)
    spanfold.score("a", 1); spanfold.artifact("a", "text"); spanfold.event("e")
    assert spanfold.child_env({{"A": "1"}}) == {{**os.environ, "A": "1"}}
assert spanfold.flush() == (0, 0, 0, 0, 0, 0, {{}})
assert not os.path.exists({str(where)!r})
""",
        **{variable: "true"},
    )

    assert result == (0, "", "")


def test_a_host_object_passed_through_the_bridge_is_not_kept(where: Path, host: Host) -> None:
    class Thing:
        pass

    with spanfold.run("r", dir=where):
        with spanfold.stage("s") as stage:
            thing = Thing()
            ref = weakref.ref(thing)
            stage.set(thing=thing)
            stage.event("e", thing=thing)
            del thing
        gc.collect()
        assert ref() is None
