"""Our spans are OpenTelemetry spans: the whole interface, its odd inputs, and what is current when."""

import asyncio
import copy
import datetime
import enum
import gc
import pickle
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

import spanfold
from spanfold.instrument import SpanfoldTracerProvider
from spanfold.journal import fields
from spanfold.redact import register_literal
from tests.instrument.reading import Lost, events, program, span, spans, tree

LINKED = SpanContext(0xABC, 0xDEF, True, TraceFlags(1))


@pytest.fixture
def tracer() -> trace.Tracer:
    return SpanfoldTracerProvider().get_tracer("my.app")


def test_a_span_answers_the_whole_opentelemetry_interface(where: Path) -> None:
    with spanfold.run("r", dir=where) as run, spanfold.stage("before") as stage:
        assert isinstance(stage, trace.Span)
        assert stage.is_recording()
        context = stage.get_span_context()
        assert (f"{context.trace_id:032x}", f"{context.span_id:016x}") == (run.trace_id, stage.span_id)
        assert context.is_valid
        assert context.trace_flags.sampled
        assert not context.is_remote
        stage.update_name("after")
        stage.set_attribute("text", "a")
        stage.set_attributes({"number": 1, "flag": True, "list": [1, 2], "float": 0.5, "bytes": b"\x00\xff"})
        stage.add_event("event", {"a": 1}, timestamp=5)
        stage.add_link(LINKED, {"why": "so"})
        stage.set_status(StatusCode.ERROR, "bad")
        stage.record_exception(ValueError("told"), {"extra": 1}, timestamp=6, escaped=True)

    found = span(where, "after")
    assert {k: v for k, v in found.attributes.items() if not k.startswith("spanfold.")} == {
        "text": "a",
        "number": 1,
        "flag": True,
        "list": [1, 2],
        "float": 0.5,
        "bytes": b"\x00\xff",
    }
    assert (found.status_code, found.status_message, found.otel_kind) == (2, "bad", 1)
    assert [(k.trace_id, k.span_id, k.attributes) for k in found.links] == [
        ("0" * 29 + "abc", "0" * 13 + "def", {"why": "so"})
    ]
    (event,) = events(where, "event")
    assert (event.time_ns, event.attributes["a"], event.span_id) == (5, 1, found.span_id)
    (told,) = events(where, "exception")
    assert (told.time_ns, told.attributes["extra"], told.attributes["exception.message"]) == (6, 1, "told")


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([(StatusCode.OK, None)], (1, "")),
        ([(StatusCode.ERROR, "a"), (StatusCode.OK, None)], (1, "")),
        ([(StatusCode.OK, None), (StatusCode.ERROR, "a")], (1, "")),
        ([(StatusCode.ERROR, "a"), (StatusCode.UNSET, "b")], (2, "a")),
        ([(StatusCode.ERROR, "a"), (StatusCode.ERROR, "b")], (2, "b")),
        ([(Status(StatusCode.ERROR, "a"), None)], (2, "a")),
        ([(Status(StatusCode.OK), "ignored")], (1, "")),
        ([(StatusCode.OK, "ignored")], (1, "")),
        ([(StatusCode.ERROR, None)], (2, "")),
        ([(StatusCode.ERROR, 5)], (2, "5")),
        ([("error", "a")], (0, "")),
        ([(None, None)], (0, "")),
    ],
)
def test_status_follows_the_rules_of_the_specification(where: Path, calls: Any, expected: tuple[int, str]) -> None:
    with spanfold.run("r", dir=where), spanfold.stage("s") as stage:
        for code, description in calls:
            stage.set_status(code, description)

    assert (span(where, "s").status_code, span(where, "s").status_message) == expected


def test_a_status_of_ok_outlives_an_exception(where: Path) -> None:
    with spanfold.run("r", dir=where), pytest.raises(KeyError), spanfold.stage("s") as stage:
        stage.set_status(StatusCode.OK)
        raise KeyError

    assert span(where, "s").status_code == 1
    assert len(events(where, "exception")) == 1


def test_after_the_end_nothing_changes_and_late_events_are_counted(where: Path, lost: Lost) -> None:
    with spanfold.run("r", dir=where):
        with spanfold.model_call("m") as call:
            pass
        before = (where / "journal").stat(), [p.stat().st_size for p in (where / "journal").iterdir()]
        assert not call.is_recording()
        call.end()
        call.end(end_time=1)
        call.set(a=1)
        call.set_attribute("a", 1)
        call.set_attributes({"a": 1})
        call.update_name("late")
        call.set_status(StatusCode.ERROR, "late")
        call.add_link(LINKED)
        call.input("late").output("late").usage(input_tokens=1).served_model("x").response_id("y").finish_reasons("z")
        call.__exit__(ValueError, ValueError("late"), None)
        with call:
            assert trace.get_current_span() is not call
        call.event("late")
        call.add_event("late")
        call.record_exception(ValueError("late"))
        assert [p.stat().st_size for p in (where / "journal").iterdir()] == before[1]
        assert call.span_id
        assert call.get_span_context().is_valid

    assert lost() == {"events of spans that have ended": 3}
    assert len(spans(where, "chat m")) == 1


def test_odd_inputs_of_the_interface_raise_nothing_and_break_no_record(where: Path, lost: Lost) -> None:
    class Text(str):
        def __str__(self) -> str:
            raise AssertionError("called")

    class Color(enum.StrEnum):
        RED = "red"

    with spanfold.run("r", dir=where), spanfold.stage("s") as stage:
        odd: Any = stage
        for key in (None, 3, "", b"bytes", ("a",), Text("subclass")):
            odd.set_attribute(key, 1)
        odd.set_attributes(None)
        odd.set_attributes([("a", 1)])
        odd.set_attributes({"none": None, "nested": {"a": [1]}, "object": object(), "mixed": [1, "a", None, {"b": 2}]})
        odd.add_link(None)
        odd.add_link(LINKED, [1])
        odd.add_event(None, timestamp="noon")
        odd.add_event(Color.RED, {1: 2})
        odd.set_status(StatusCode.ERROR, {"a": 1})
        odd.update_name(3)
        odd.update_name(Color.RED)
        odd.event(Text("text"), name="a field of this name")
        odd.record_exception(None)
        odd.set(**{"": 1, "field.x": 2, "self": 3, "kind": 4, "a\udcff": 5, "x" * 10_000: 6})

    found = span(where, "red")
    assert fields(found) == {"": 1, "field.x": 2, "self": 3, "kind": 4, "a\ufffd": 5, "x" * 10_000: 6}
    assert found.attributes["subclass"] == 1
    assert found.attributes["nested"] == '{"a":[1]}'
    assert found.status_message == '{"a":1}'
    names = [e.name for e in events(where) if e.name != "spanfold.span.started"]
    assert names[:3] == ["null", "red", "text"]
    assert set(lost()) <= {"attribute values", "links", "events", "exception events"}


@pytest.mark.parametrize("make", ["stage", "timed", "agent", "tool", "model_call", "score", "event", "run", "artifact"])
def test_every_name_may_be_any_object(where: Path, make: str) -> None:
    class Name(enum.Enum):
        VALUE = "value"

    class Unprintable:
        def __str__(self) -> str:
            raise AssertionError("called")

        __repr__ = __str__

    for number, name in enumerate((Name.VALUE, 3, None, ("a", 1), Unprintable(), "a\udcffb")):
        odd: Any = name
        folder = where.with_name(f"run{number}")
        with spanfold.run(odd if make == "run" else "r", dir=folder):
            if make == "score":
                spanfold.score(odd, 1)
            elif make == "artifact":
                spanfold.artifact(odd, "text")
            elif make == "event":
                spanfold.event(odd, name="field")
            elif make != "run":
                getattr(spanfold, make)(odd).end()
        found = {s.name for s in spans(folder)} | {e.name for e in events(folder)}
        if make in ("stage", "timed", "event", "run"):
            assert found & {"value", "3", "null", '["a",1]', f"<{__name__}.{Unprintable.__qualname__}>", "a\ufffdb"}


def test_start_and_end_times_given_by_hand_are_kept(where: Path, tracer: trace.Tracer) -> None:
    with spanfold.run("r", dir=where):
        tracer.start_span("both", start_time=1_000).end(end_time=5_000)
        tracer.start_span("end before start", start_time=5_000).end(end_time=1_000)
        tracer.start_span("start only", start_time=time.time_ns() - 10**9).end()
        tracer.start_span("end only").end(end_time=2**62)
        odd: Any = tracer
        odd.start_span("odd", start_time="noon").end(end_time=object())
        odd.start_span("float", start_time=1.5).end(end_time=2.5)

    found = {s.name: s for s in spans(where)}
    assert (found["both"].start_ns, found["both"].end_ns) == (1_000, 5_000)
    assert (found["end before start"].start_ns, found["end before start"].end_ns) == (5_000, 5_000)
    assert 10**9 <= found["start only"].end_ns - found["start only"].start_ns < 10**10
    assert found["end only"].end_ns == 2**62
    for name in ("odd", "float"):
        assert abs(found[name].start_ns - time.time_ns()) < 60 * 10**9
        assert found[name].end_ns >= found[name].start_ns
    assert all(s.attributes["spanfold.self_ns"] >= 0 for s in found.values())


def test_a_tracer_of_ours_starts_spans_with_everything_given(where: Path, tracer: trace.Tracer) -> None:
    with spanfold.run("r", dir=where), spanfold.stage("M1", cycle=2) as stage:
        explicit = trace.set_span_in_context(stage)
        with spanfold.stage("inner"):
            started = tracer.start_span(
                "s", explicit, SpanKind.CLIENT, {"a": 1}, [Link(LINKED, {"why": "so"})], record_exception=False
            )
            assert trace.get_current_span() is not started
            with trace.use_span(started, end_on_exit=True):
                assert trace.get_current_span() is started
                spanfold.timed("below").end()

    found = span(where, "s")
    assert (found.parent_span_id, found.otel_kind, found.attributes["a"]) == (span(where, "M1").span_id, 3, 1)
    assert (found.attributes["spanfold.stage"], found.attributes["spanfold.cycle"]) == ("M1", 2)
    assert len(found.links) == 1
    assert span(where, "below").parent_span_id == found.span_id


def test_start_as_current_span_decorates_functions_and_coroutines(where: Path, tracer: trace.Tracer) -> None:
    @tracer.start_as_current_span("function")
    def function(n: int) -> int:
        spanfold.timed(f"in function {n}").end()
        return n

    @tracer.start_as_current_span("coroutine")
    async def coroutine(n: int) -> int:
        await asyncio.sleep(0.01)
        spanfold.timed(f"in coroutine {n}").end()
        return n

    with spanfold.run("r", dir=where):
        assert [function(1), function(2), asyncio.run(coroutine(3))] == [1, 2, 3]

    assert [s.name for s in spans(where)] == [
        "in function 1",
        "function",
        "in function 2",
        "function",
        "in coroutine 3",
        "coroutine",
        "r",
    ]
    last = span(where, "coroutine")
    assert last.end_ns - last.start_ns >= 10**7
    assert span(where, "in coroutine 3").parent_span_id == last.span_id


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_options_of_start_as_current_span_are_honoured(
    where: Path, tracer: trace.Tracer, told: bool, fails: bool, ends: bool
) -> None:
    with spanfold.run("r", dir=where) as run:
        block = tracer.start_as_current_span(
            "s", record_exception=told, set_status_on_exception=fails, end_on_exit=ends
        )
        with pytest.raises(KeyError), block as started:
            raise KeyError("k")
        assert started.is_recording() is not ends
        assert trace.get_current_span().get_span_context().span_id == int(run.span_id, 16)
        started.end()

    assert span(where, "s").status_code == (2 if fails else 0)
    assert len(events(where, "exception")) == told


def test_the_current_span_travels_by_w3c_trace_context(where: Path) -> None:
    with spanfold.run("r", dir=where) as run, spanfold.stage("s") as stage:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)

    assert carrier["traceparent"] == f"00-{run.trace_id}-{stage.span_id}-01"


def test_what_is_current_comes_back_whatever_order_spans_end_in(where: Path) -> None:
    with spanfold.run("r", dir=where) as run:
        outside = otel_context.get_current()
        a, b, c = spanfold.stage("a"), spanfold.stage("b"), spanfold.stage("c")
        for entered in (a, b, c):
            entered.__enter__()
        b.__exit__(None, None, None)
        assert trace.get_current_span() is not b
        a.end()
        c.__exit__(None, None, None)
        assert otel_context.get_current() is outside
        assert trace.get_current_span().get_span_context().span_id == int(run.span_id, 16)
        token = otel_context.attach(otel_context.set_value("key", "value"))
        with spanfold.stage("d"):
            assert otel_context.get_value("key") == "value"
        assert otel_context.get_value("key") == "value"
        otel_context.detach(token)


def test_a_span_ended_in_another_thread_leaves_that_threads_context_alone(where: Path) -> None:
    seen: list[Any] = []

    def elsewhere() -> None:
        with spanfold.stage("theirs") as theirs:
            stage.__exit__(None, None, None)
            seen.append(trace.get_current_span() is theirs)

    with spanfold.run("r", dir=where):
        stage = spanfold.stage("ours")
        stage.__enter__()
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    assert seen == [True]
    assert len(spans(where)) == 3
    assert not trace.get_current_span().get_span_context().is_valid


def test_spans_and_runs_refuse_to_be_pickled_and_copy_as_themselves(where: Path) -> None:
    with spanfold.run("r", dir=where) as run, spanfold.stage("s") as stage:
        holder = {"client": [run, stage]}
        assert copy.deepcopy(holder)["client"] == [run, stage]
        for one in (run, stage):
            with pytest.raises(TypeError, match="traced_executor"):
                pickle.dumps(one)


def test_nothing_of_the_host_is_kept_by_an_ended_span(where: Path) -> None:
    class Thing:
        def __init__(self) -> None:
            self.data = [1]

    refs: list[weakref.ref[Any]] = []

    def thing() -> Any:
        made = Thing()
        refs.append(weakref.ref(made))
        return made

    with spanfold.run("r", dir=where, thing=thing()):
        with spanfold.stage("s", thing=thing()) as stage:
            stage.set(thing=thing(), things=[thing()])
            stage.set_attribute("thing", thing())
            stage.event("e", thing=thing())
            stage.add_link(LINKED, {"thing": thing()})
        with spanfold.model_call("m", input=thing()) as call:
            call.output(thing())
        with spanfold.tool("t", arguments=thing()) as tool:
            tool.result(thing())
        spanfold.artifact("a", thing())
        spanfold.traced(lambda a: a)(thing())
        gc.collect()
        assert [r() for r in refs] == [None] * len(refs)
    assert stage.is_recording() is False


@pytest.mark.case("C-046")
@pytest.mark.slow
def test_a_hundred_thousand_spans_never_ended_take_bounded_memory(where: Path, tracer: trace.Tracer) -> None:
    with spanfold.run("r", dir=where) as run:
        for _ in range(2_000):
            spanfold.timed("warm")
        gc.collect()
        before = len(gc.get_objects())
        for number in range(100_000):
            if number % 2:
                spanfold.timed("never ended").set(a=number)
            else:
                tracer.start_span("never ended").set_attribute("a", number)
        gc.collect()
        assert len(gc.get_objects()) - before < 1_000
        assert len(run.open_spans) == 1

    assert tree(where) == {"r": {}}


@pytest.mark.case("C-046")
@pytest.mark.slow
def test_many_short_spans_do_not_grow_memory(where: Path) -> None:
    import tracemalloc

    def work(count: int) -> None:
        for number in range(count):
            with spanfold.timed(f"name {number % 50}") as timed:
                timed.set(number=number, text="x" * 100)
            with spanfold.stage("s", cycle=number) as stage:
                stage.event("e", number=number)

    with spanfold.run("r", dir=where):
        work(2_000)
        gc.collect()
        tracemalloc.start()
        work(1_000)
        first, _ = tracemalloc.get_traced_memory()
        work(8_000)
        gc.collect()
        second, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    # The caches of encoded places are bounded; nine times the spans may not take more than what fills them.
    assert second - first < 4_000_000


def test_spans_of_one_name_keep_their_own_kind(where: Path, tracer: trace.Tracer) -> None:
    with spanfold.run("r", dir=where):
        for kind in SpanKind:
            tracer.start_span("same", kind=kind).end()

    assert [s.otel_kind for s in spans(where, "same")] == [kind.value + 1 for kind in SpanKind]


@pytest.mark.case("C-064")
def test_names_that_passed_before_a_secret_was_registered_are_judged_again(where: Path) -> None:
    def work() -> None:
        stage, agent, tool = (
            spanfold.stage("stage zanzibar-77"),
            spanfold.agent("agent zanzibar-77"),
            spanfold.tool("zanzibar-77"),
        )
        with (
            stage,
            agent,
            tool,
            spanfold.model_call("model zanzibar-77"),
            tracer.start_as_current_span("span zanzibar-77"),
        ):
            pass

    tracer = SpanfoldTracerProvider().get_tracer("my.app")
    with spanfold.run("r", dir=where):
        work()
        size = sum(p.stat().st_size for p in (where / "journal").iterdir())
        register_literal("zanzibar-77")
        work()

    text = b"".join(p.read_bytes() for p in (where / "journal").iterdir())
    assert text[:size].count(b"zanzibar-77") > 10
    assert b"zanzibar-77" not in text[size:]


def test_names_that_passed_another_gate_are_judged_again(where: Path) -> None:
    def work(folder: str) -> bytes:
        with spanfold.run("r", dir=where / folder), spanfold.stage("see https://u:hunter22222@host/db"):
            pass
        return b"".join(p.read_bytes() for p in (where / folder / "journal").iterdir())

    spanfold.configure(redact=False)
    assert b"hunter22222" in work("1")
    spanfold.configure(redact=True)
    assert b"hunter22222" not in work("2")


@pytest.mark.slow
@pytest.mark.case("C-069")
@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/St_Johns", "UTC"])
def test_times_and_folder_names_are_utc_under_every_time_zone(tmp_path: Path, zone: str) -> None:
    before = time.time_ns()
    result = program(
        f"""
import time
time.tzset()
spanfold.configure(run_dir={str(tmp_path)!r})
with spanfold.run("r") as run, spanfold.stage("s"):
    pass
print(run.dir)
""",
        TZ=zone,
    )
    assert (result.code, result.err) == (0, "")
    where = Path(result.out.strip())
    stamp = datetime.datetime.strptime(where.name.split("-")[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
    (writer,) = (where / "journal").glob("*.otlp.jsonl")
    for found in (stamp, datetime.datetime.strptime(writer.name[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)):
        assert abs(found.timestamp() - before / 1e9) < 120
    assert all(before <= s.start_ns <= s.end_ns <= time.time_ns() for s in spans(where))
