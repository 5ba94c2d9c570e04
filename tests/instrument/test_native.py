"""A program has the same records with the C core as without, and nothing a host does to a span brings the process down."""

import gc
import inspect
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import context as otel_context

import spanfold
from spanfold.instrument._own_time import OwnTime
from spanfold.instrument._span import PythonSpan, RecordedSpan, native
from spanfold.journal import Fragment
from tests.instrument.both_cores import Interpreter
from tests.instrument.reading import Lost, program, span, spans

pytestmark = pytest.mark.skipif(native is None, reason="needs the C core, which was not built or is switched off")


@pytest.fixture(scope="module")
def cores() -> Iterator[tuple[Interpreter, Interpreter]]:
    with Interpreter("") as c, Interpreter("0") as python:
        yield c, python


odd = st.builds(lambda n: {"v": n}, st.integers(0, 60))
values = odd | st.text(max_size=8) | st.integers() | st.floats() | st.sampled_from(["a", "M2", "loop", "b"])
names = st.sampled_from(["a", "b", "M2", "m1_probe", "load"]) | odd
fields = st.dictionaries(
    st.sampled_from(["a", "b", "c", "cycle", "password", "phase", "model_", "x" * 300, "ü", "artifacts"]),
    values,
    max_size=4,
)
kinds = st.sampled_from(["stage", "model_call", "agent", "tool", "timed", "ours", "theirs", "http"])
which = st.integers(0, 5)
keys = st.sampled_from(
    ["a", "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.request.model", "spanfold.a", "spanfold.cycle"]
) | st.text(max_size=3)
counts = st.dictionaries(
    st.sampled_from(
        ["input_tokens", "output_tokens", "cache_read_tokens", "reasoning_tokens", "prompt_tokens", "other"]
    ),
    odd | st.integers(0, 9),
    max_size=3,
)
moments = st.integers(-50, 50)
leaves = st.one_of(
    st.tuples(st.just("open"), kinds, names, fields),
    st.tuples(st.just("retro"), names, moments, st.none() | moments),
    st.tuples(st.sampled_from(["enter", "end_plainly"]), which),
    st.tuples(st.just("leave"), which, st.none() | which),
    st.tuples(st.just("end"), which, st.none() | moments),
    st.tuples(st.just("tell"), which, st.just("set_attribute"), keys, values),
    st.tuples(st.just("tell"), which, st.sampled_from(["input", "output", "update_name", "update_name"]), values),
    st.tuples(st.just("tell"), which, st.sampled_from(["event", "add_event", "served_model", "result"]), names),
    st.tuples(st.just("set"), which, fields),
    st.tuples(st.just("usage"), which, counts),
    st.tuples(st.just("failed"), which, which),
    st.tuples(st.just("status"), which, which, values),
    st.tuples(st.just("link"), which, which, fields),
    st.tuples(st.just("event"), names, fields),
    st.tuples(st.sampled_from(["score", "artifact"]), names, values),
    st.tuples(st.just("register")),
)
fails = st.tuples(st.just("fail"), which)
functions = st.sampled_from(["stage", "agent", "tool", "model_call", "timing", "span"])
steps: st.SearchStrategy[Any] = st.recursive(
    st.lists(leaves, min_size=1, max_size=5),
    lambda inner: st.lists(
        leaves
        | st.tuples(st.just("block"), kinds, names, fields, inner)
        | st.tuples(st.just("block"), kinds, names, fields, inner)
        | st.tuples(st.sampled_from(["caught", "thread", "alone", "task"]), inner)
        | st.tuples(st.just("function"), functions, st.just("f"), inner)
        | st.tuples(st.just("generator"), st.integers(0, 3), inner)
        | st.tuples(
            st.just("caught"),
            st.lists(
                st.tuples(st.just("block"), kinds, names, fields, st.tuples(leaves, fails)), min_size=1, max_size=1
            ),
        ),
        min_size=2,
        max_size=8,
    ),
    max_leaves=20,
)


@pytest.mark.slow
@given(steps=steps, content=st.sampled_from(["all", "all", "local", "none"]), host=st.booleans())
def test_a_program_has_the_same_records_losses_and_host_spans_with_both_cores(
    cores: tuple[Interpreter, Interpreter], steps: list[Any], content: str, host: bool
) -> None:
    program = {"content": content, "host": host, "steps": steps}
    with_c, without = (core.play(program) for core in cores)
    assert (with_c.pop("core"), without.pop("core")) == ("C", "Python")
    assert with_c == without


# -- time of children


class Reference(OwnTime):
    """The counters of a span without C."""


@given(
    steps=st.lists(st.tuples(st.sampled_from("seeer"), st.integers(0, 1000), st.integers(1, 1200)), max_size=30),
    end=st.integers(0, 40_000),
)
def test_both_cores_count_the_time_of_children_the_same_in_whatever_order_they_come(
    steps: list[tuple[str, int, int]], end: int
) -> None:
    both: list[Any] = [RecordedSpan.__new__(RecordedSpan), Reference()]
    for one in both:
        one._mono, one.start_ns = 100, 0
    now = 100
    for what, later, times in steps:
        now += later
        for one in both:
            for n in range(times if times > 1100 and what == "s" else 1):  # more periods than are kept
                if what == "s":
                    one._child_started(now + n)
                    if times > 1100:
                        one._child_ended(now + n + 1)
                elif what == "e":
                    one._child_ended(now)
                else:
                    one._child_reported(now - times, now)
    facts = [
        (one._self_ns(end), one._covered_ns, one._periods, one._extra, one._folded_ns, one._floor, one._open_children)
        for one in both
    ]
    assert facts[0] == facts[1]


def test_the_counters_take_numbers_of_any_size_and_type() -> None:
    for odd_one in (2**70, -(2**70), 1.5, True):
        both: list[Any] = [RecordedSpan.__new__(RecordedSpan), Reference()]
        for one in both:
            one._child_started(5)
            one._child_started(odd_one)
            one._child_ended(odd_one)
        assert both[0]._open_children == both[1]._open_children == 1


# -- what a host does to a span


MEMBERS = sorted(n for n, m in vars(native.Span).items() if inspect.ismemberdescriptor(m)) if native else []
CALLS: dict[str, Callable[[Any], object]] = {
    "set": lambda s: s.set(a=1, b="x", c=[1], cycle=2),
    "announce": lambda s: s.announce(),
    "make_current": lambda s: s.make_current(),
    "enter": lambda s: s.__enter__(),
    "exit": lambda s: s.__exit__(None, None, None),
    "exit with an error": lambda s: s.__exit__(ValueError, ValueError("x"), None),
    "exit without arguments": lambda s: s.__exit__(),
    "child started": lambda s: s._child_started(1),
    "child ended": lambda s: s._child_ended(2),
    "end at a time": lambda s: s.end(end_time=5),
    "end": lambda s: s.end(),
    "end again": lambda s: s.end(),
}


def called(span: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for call in CALLS.values():
        try:
            call(span)
        except (AttributeError, TypeError) as error:
            found[type(error).__name__] += 1
    return found


def test_a_span_that_was_never_started_can_be_asked_anything(lost: Lost) -> None:
    called(RecordedSpan.__new__(RecordedSpan))
    called(native.Span())
    RecordedSpan.__new__(RecordedSpan).end()
    assert lost()["spans"] >= 1


@pytest.mark.parametrize("member", MEMBERS)
def test_a_span_from_which_something_was_deleted_or_replaced_can_be_asked_anything(
    member: str, where: Path, lost: Lost
) -> None:
    odd: list[Any] = [None, 5, "text", [], {}, (1, 2, 3, 4), object()]
    with spanfold.run("r", dir=where):
        for change in [None, *odd]:
            for is_parent in (False, True):
                changed = spanfold.stage("changed", a=1)
                changed.__enter__()
                inner = spanfold.stage("inner")
                try:
                    if change is None:
                        delattr(changed, member)
                    else:
                        setattr(changed, member, change)
                except (TypeError, AttributeError):
                    continue
                finally:
                    if is_parent:
                        inner.end()
                        called(spanfold.stage("another"))
                    called(changed)
                    inner.end()
        otel_context.attach(otel_context.Context())
        spanfold.stage("whole").end()
    otel_context.attach(otel_context.Context())
    lost()
    # Not through the reader: what was put into the span may be no record any more.
    assert b'"name":"whole"' in b"".join(path.read_bytes() for path in (where / "journal").iterdir())


def test_a_callback_of_the_run_that_ends_the_span_again_makes_no_second_record(where: Path) -> None:
    class Hooks:
        def recorded(self, kind: str) -> None:
            ended.append(kind)
            for one in held:
                one.end()
                one.set(late=1)

        def flush(self, timeout_s: float) -> None: ...
        def ended(self) -> None: ...

    ended: list[str] = []
    held: list[Any] = []
    with spanfold.run("r", dir=where) as run:
        run.hooks, run.is_watched = Hooks(), True  # type: ignore[assignment]  # as much of them as is asked
        held.append(spanfold.stage("once"))
        held[0].end()
        held[0].end()
        run.hooks, run.is_watched = None, False
    assert "stage" in ended
    assert "late" not in span(where, "once").attributes


def test_what_a_callback_of_the_run_raises_is_ours_and_the_record_is_kept(where: Path, lost: Lost) -> None:
    class Hooks:
        def recorded(self, kind: str) -> None:
            raise ZeroDivisionError

        def flush(self, timeout_s: float) -> None: ...

    with spanfold.run("r", dir=where) as run:
        run.hooks, run.is_watched = Hooks(), True  # type: ignore[assignment]  # as much of them as is asked
        with spanfold.stage("kept"):
            pass
        run.hooks, run.is_watched = None, False
    assert len(spans(where, "kept")) == 1
    assert lost() == {"started events": 1, "spans": 1}


def test_a_key_that_compares_itself_may_end_the_span_that_is_told(where: Path) -> None:
    class Key(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            told.end()
            return str.__eq__(self, other)

    with spanfold.run("r", dir=where):
        for number in range(50):
            told = spanfold.timed(f"t{number}")
            told.set_attribute(Key("spanfold.mine"), number)
            told.set(**{"".join(("mi", "ne")): number})
    assert len(spans(where)) == 51


def test_an_encoder_that_changes_what_it_is_asked_to_encode_brings_nothing_down(where: Path, lost: Lost) -> None:
    with spanfold.run("r", dir=where) as run:
        encoder = run.journal.encoder

        class Changing:
            """Deletes parts of the span in the middle of its own record."""

            def __getattr__(self, name: str) -> Any:
                def call(*arguments: Any) -> Any:
                    answer = getattr(encoder, name)(*arguments)
                    for member in members:
                        if hasattr(victim, member):
                            delattr(victim, member)
                    return answer

                return call

        for members in ([m] for m in MEMBERS):
            if members[0] in (
                "_generation",
                "_open_children",
                "_scoped",
                "_entered",
                "_retroactive",
                "_is_recorded",
                "_is_moved",
            ):
                continue
            victim = spanfold.stage("victim", a=[1])
            victim.set(b=2)
            run.journal.encoder = Changing()  # type: ignore[assignment]  # a hostile one
            try:
                victim.announce()
                victim.end()
            finally:
                run.journal.encoder = encoder
    lost()
    assert len(spans(where, "r")) == 1


class Garbage:
    """Acts when it is collected."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act
        self.itself = self

    def __del__(self) -> None:
        self.act()


@pytest.fixture
def collected_at() -> Iterator[Callable[[int, Callable[[], object]], None]]:
    """Return what makes the collector run so many allocations later, and have garbage act then."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()

    def later(allocations: int, act: Callable[[], object]) -> None:
        gc.disable()
        gc.collect()
        Garbage(act)
        gc.set_threshold(allocations, 1_000, 1_000)
        gc.enable()

    yield later
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_a_finalizer_may_change_and_end_the_span_that_is_being_recorded(
    where: Path, collected_at: Callable[[int, Callable[[], object]], None], lost: Lost
) -> None:
    with spanfold.run("r", dir=where):
        for number in range(360):
            outer = spanfold.timed("outer")
            acted = spanfold.stage("acted", a="x" * number)
            acted.set(b=str(number), cycle=number)
            acted.input("content")

            def act(acted: Any = acted, outer: Any = outer, number: int = number) -> None:
                acted.update_name(f"late {number}")
                acted.end()
                outer.end()

            collected_at(1 + number // 6, act)
            if number % 3 == 0:
                acted.announce()
            elif number % 3 == 1:
                with acted:
                    pass
            acted.end()
            outer.end()
    lost()
    assert len(spans(where)) == 721


def test_a_finalizer_may_record_children_while_the_time_of_one_is_counted(
    where: Path, collected_at: Callable[[int, Callable[[], object]], None]
) -> None:
    with spanfold.run("r", dir=where):
        for number in range(120):
            with spanfold.stage("outer") as outer:
                inner = spanfold.timed("inner")
                collected_at(1 + number // 4, lambda: spanfold.timed("from a finalizer").end())
                inner.end()
                gc.collect(0)
                # Those of both children, whichever was counted first, though they may be one.
                assert outer._periods
                assert sum(end - start for start, end in outer._periods) == outer._covered_ns
                assert outer._open_children == 0
    assert len(spans(where, "from a finalizer")) == 120


def test_threads_that_end_one_span_at_once_make_one_record(where: Path) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with spanfold.run("r", dir=where):
            for _ in range(100):
                shared = spanfold.stage("shared", a=1)
                threads = [
                    threading.Thread(target=end) for end in (shared.end, shared.end, lambda s=shared: s.set(b=1))
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(spans(where, "shared")) == 100


def test_an_error_without_a_traceback_is_counted(where: Path, lost: Lost) -> None:
    with spanfold.run("r", dir=where):
        one: Any = spanfold.timed("one")
        del one._before
        one.announce()
        one._attributes = None
        one.announce()
        one.end()
    assert lost() == {"started events": 2, "spans": 1}


# -- what stays behind


KINDS: dict[str, Callable[[], Any]] = {
    "stage": lambda: spanfold.stage("M2", cycle=1, a=1),
    "model call": lambda: spanfold.model_call("m", provider="p", input="question"),
    "agent": lambda: spanfold.agent("a", b=[1]),
    "tool": lambda: spanfold.tool("t", arguments={"a": 1}),
    "timing": lambda: spanfold.timed("load"),
}
WAYS: dict[str, Callable[[Any], object]] = {
    "in a block": lambda s: s.__enter__().__exit__(None, None, None),
    "failed": lambda s: s.__exit__(ValueError, ValueError("x"), None),
    "ended by hand": lambda s: s.end(),
    "ended at a time": lambda s: s.end(s.start_ns + 5),
    "never ended": lambda s: None,
    "in a cycle": lambda s: setattr(s, "itself", [s]),
    "with a cycle": lambda s: s.set(cycle=3).end(),
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_of_a_span_stays_behind(way: str, where: Path, lost: Lost) -> None:
    def use(times: int) -> None:
        for _ in range(times):
            for make in KINDS.values():
                WAYS[way](make())

    with spanfold.run("r", dir=where):
        use(30)
        gc.collect()
        objects, references = len(gc.get_objects()), [sys.getrefcount(one) for one in shared()]
        use(200)
        gc.collect()
        assert len(gc.get_objects()) - objects < 50
        grown = [sys.getrefcount(one) - before for one, before in zip(shared(), references, strict=True)]
        assert max(grown) < 50
        held = weakref.ref(KINDS["stage"]())
        gc.collect()
        assert held() is None
    lost()


def shared() -> list[Any]:
    run = spanfold.current_run()
    assert run is not None
    return [
        run,
        run.span,
        run.open_spans,
        RecordedSpan,
        spanfold.ModelCallSpan,
        native.Span,
        PythonSpan._told,
        Fragment,
        True,
        False,
    ]


# -- the surface


@pytest.mark.parametrize(
    "name", sorted(n for n, v in vars(native.Span).items() if inspect.ismethoddescriptor(v)) if native else []
)
def test_a_method_in_c_reads_as_the_one_it_stands_for(name: str) -> None:
    c, python = getattr(native.Span, name), getattr(PythonSpan, name)
    # That `self` goes by position alone is how a method of C is.
    assert [(p.name, p.default) for p in inspect.signature(c).parameters.values()] == [
        (p.name, p.default) for p in inspect.signature(python).parameters.values()
    ]
    # Those with two underscores have the text of OpenTelemetry's.
    assert name.startswith("__") or inspect.getdoc(c) == inspect.getdoc(python)


@pytest.mark.slow
def test_a_span_has_the_same_names_with_both_cores() -> None:
    here = {name for name in dir(spanfold.Span) if not name.startswith("_")}
    there = program("print(*dir(spanfold.Span))", SPANFOLD_NATIVE="0")
    assert here - {"cycle", "depth", "kind", "name", "otel_kind", "run", "stage", "start_ns"} == {
        name for name in there.out.split() if not name.startswith("_")
    }


# -- where it cannot be used


@pytest.mark.slow
def test_a_core_of_another_version_is_left_alone() -> None:
    for wrong in ("setup = lambda **parts: {}['x'] if 0 else (_ for _ in ()).throw(TypeError)", "other = 1"):
        answer = program(
            f"""
import spanfold.instrument._span as first
assert first.native is not None
import sys, types
for name in [n for n in sys.modules if n.startswith("spanfold")]:
    if name != "spanfold.journal" and not name.startswith("spanfold.journal."):
        del sys.modules[name]
broken = types.ModuleType("spanfold.instrument._native")
exec({wrong!r}, broken.__dict__)
sys.modules["spanfold.instrument._native"] = broken
import spanfold.instrument._span as found
assert found.native is None
print(found.RecordedSpan.__mro__[1].__name__)
"""
        )
        assert answer.out == "PythonSpan\n", answer.err


@pytest.mark.slow
def test_nothing_is_made_before_the_module_was_told_what_belongs_to_python() -> None:
    answer = program(
        """
import spanfold.instrument._native as native
import importlib.machinery, importlib.util, os, shutil, tempfile
path = native.__file__
copy = os.path.join(tempfile.mkdtemp(), os.path.basename(path))
shutil.copy(path, copy)
loader = importlib.machinery.ExtensionFileLoader("spanfold.instrument._native", copy)
fresh = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
assert fresh.Span is not native.Span
for call in fresh.Span, lambda: fresh.start(fresh.Span, *range(9)), lambda: fresh.setup(a=1):
    try:
        call()
    except (RuntimeError, TypeError) as error:
        print(type(error).__name__)
"""
    )
    assert answer.out == "RuntimeError\nRuntimeError\nTypeError\n", answer.err
