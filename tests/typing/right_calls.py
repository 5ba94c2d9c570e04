# pyright: strict
"""The public names used as a user would. Never run: mypy and pyright read it (test_types.py), and must find no error."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, assert_type, overload

import spanfold
from spanfold.artifacts import WorkspaceSnapshot, restore_workspace, snapshot_workspace
from spanfold.diagnose import (
    DiagnosticTracer,
    InstrumentedModel,
    LoopNarrator,
    RunLogger,
    backfill,
    export_langfuse_bundle,
)
from spanfold.fs import SafeRoot

T = TypeVar("T")


@spanfold.traced
def bare(x: int, *, y: str = "") -> float:
    return x / (len(y) + 1)


@spanfold.traced()
def parentheses(x: int) -> list[int]:
    return [x]


@spanfold.traced(stage="M1")
def staged(model: str, cases: list[str]) -> dict[str, int]:
    return {model: len(cases)}


@spanfold.traced(kind="tool", name="grep")
def variadic(first: bytes, *rest: int, **options: bool) -> tuple[int, ...]:
    return rest


@spanfold.traced
def generic(value: T) -> list[T]:
    return [value]


@spanfold.traced
async def coroutine(x: int) -> str:
    await asyncio.sleep(0)
    return str(x)


@spanfold.traced(kind="model_call")
async def model_coroutine(prompt: str) -> bytes:
    return prompt.encode()


@spanfold.traced
def generator(n: int) -> Generator[int, str, bool]:
    said = ""
    while said != "stop":
        said = yield n
    return True


@spanfold.traced(kind="timing")
def iterator(n: int) -> Iterator[int]:
    yield from range(n)


@spanfold.traced
async def async_generator(n: int) -> AsyncGenerator[int, bytes]:
    for i in range(n):
        yield i


@spanfold.traced(kind="agent")
async def async_iterator(n: int) -> AsyncIterator[str]:
    for i in range(n):
        yield str(i)


@contextmanager
@spanfold.traced
def managed(name: str) -> Generator[Path, None, None]:
    yield Path(name)


@overload
def picked(x: int) -> int: ...
@overload
def picked(x: str) -> str: ...
@spanfold.traced
def picked(x: int | str) -> int | str:
    return x


@overload
def plain_overload(x: int) -> list[int]: ...
@overload
def plain_overload(x: str) -> set[str]: ...
def plain_overload(x: int | str) -> list[int] | set[str]:
    return [x] if isinstance(x, int) else {x}


traced_overload = spanfold.traced(plain_overload)


class Prober(ABC):
    @spanfold.traced
    def method(self, x: int) -> str:
        return str(x)

    @spanfold.traced(kind="stage")
    async def async_method(self, x: int) -> str:
        return str(x)

    @classmethod
    @spanfold.traced
    def class_inner(cls, x: int) -> bytes:
        return bytes(x)

    @spanfold.traced
    @classmethod
    def class_outer(cls, x: int) -> bytes:
        return bytes(x)

    @staticmethod
    @spanfold.traced
    def static_inner(x: int) -> complex:
        return complex(x)

    @spanfold.traced
    @staticmethod
    def static_outer(x: int) -> complex:
        return complex(x)

    @property
    @spanfold.traced
    def size(self) -> int:
        return 1

    @abstractmethod
    @spanfold.traced
    def must(self) -> int: ...


@spanfold.traced
@dataclass
class Case:
    name: str
    weight: float = 1.0


@spanfold.traced(kind="span")
class Box(Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value


def functions() -> None:
    assert_type(bare(1, y="a"), float)
    assert_type(parentheses(x=1), list[int])
    assert_type(staged("m", cases=["c"]), dict[str, int])
    assert_type(variadic(b"", 1, 2, strict=True), tuple[int, ...])
    assert_type(generic("a"), list[str])
    assert_type(picked(1), int)
    assert_type(picked("a"), str)
    assert_type(traced_overload(1), list[int])
    assert_type(traced_overload("a"), set[str])
    with managed("x") as folder:
        assert_type(folder, Path)


def generators() -> Generator[int, str, bool]:
    assert_type(generator(3), Generator[int, str, bool])
    assert_type(iterator(3), Iterator[int])
    return (yield from generator(3))


async def coroutines() -> None:
    assert_type(await coroutine(1), str)
    assert_type(await model_coroutine("p"), bytes)
    assert_type(async_generator(3), AsyncGenerator[int, bytes])
    async for text in async_iterator(3):
        assert_type(text, str)
    first, second = await asyncio.gather(coroutine(1), model_coroutine("p"))
    assert_type(first, str)
    assert_type(second, bytes)


async def methods(prober: Prober) -> None:
    assert_type(prober.method(1), str)
    assert_type(Prober.method(prober, x=1), str)
    assert_type(await prober.async_method(1), str)
    assert_type(Prober.class_inner(1), bytes)
    assert_type(Prober.class_outer(1), bytes)
    assert_type(prober.static_inner(1), complex)
    assert_type(prober.static_outer(1), complex)
    assert_type(prober.size, int)
    assert_type(prober.must(), int)


def classes() -> None:
    assert_type(Case("a", weight=2.0), Case)
    assert_type(Case("a").weight, float)
    assert_type(Box("a"), Box[str])
    assert_type(Box(1).value, int)


def contexts(array: Any) -> None:
    spanfold.configure(
        run_dir=Path("runs"), otlp=False, langfuse="auto", redact=True, durability="machine", content="local"
    )
    with spanfold.run("digits", dir="runs/001") as run:
        assert_type(run.dir, Path)
        assert_type(run.trace_id, str)
        with spanfold.stage("M2", cycle=0) as stage:
            stage.set(severity="high", signals=["margin"], p=0.01)
            stage.event("picked", case=3)
            assert_type(stage.span_id, str)
            assert_type(stage.trace_id, str)
        messages = [{"role": "user", "content": "why?"}]
        with spanfold.model_call("some-model", provider="openai", operation="chat", input=messages) as call:
            call.output("because")
            call.usage(input_tokens=12, output_tokens=3)
            call.served_model("some-model-2026-10")
        with spanfold.agent("reviewer", model="m") as agent, spanfold.tool("grep", arguments={"pattern": "x"}) as tool:
            agent.set(verdict="fine")
            tool.set(hits=2)
        with spanfold.timed("load", phase="setup"):
            spanfold.score("accuracy", 0.93, comment="held out")
            spanfold.event("checkpoint", epoch=3)
        spanfold.artifact("attn_map", array)
    current = spanfold.current_run()
    if current is not None:
        assert_type(current.dir, Path)
    spanfold.flush(timeout_s=5)
    spanfold.shutdown(timeout_s=5)


def helper(run: spanfold.Run) -> Path:
    return run.view()


def annotated(
    span: spanfold.Span, call: spanfold.ModelCallSpan, agent: spanfold.AgentSpan, tool: spanfold.ToolSpan
) -> None:
    span.set(a=1)
    call.usage(
        input_tokens=1, output_tokens=None, cache_read_tokens=0, cache_write_tokens=0, reasoning_tokens=0, other=3
    ).finish_reasons("stop", "length").finish_reasons(["stop"])
    agent.output("done").usage(output_tokens=1)
    tool.arguments({"pattern": "x"}).result([1])


def handed_on() -> None:
    with spanfold.run("digits") as run, spanfold.stage("M1") as stage, spanfold.timed("load") as timed:
        assert_type(run, spanfold.Run)
        assert_type(stage, spanfold.Span)
        assert_type(timed, spanfold.Span)
        with spanfold.model_call("m") as call, spanfold.agent("a") as agent, spanfold.tool("t") as tool:
            assert_type(call, spanfold.ModelCallSpan)
            assert_type(agent, spanfold.AgentSpan)
            assert_type(tool, spanfold.ToolSpan)
            annotated(stage, call, agent, tool)
        assert_type(helper(run), Path)
        assert_type(spanfold.artifact("a", 1), Path | None)


def context_elsewhere() -> None:
    environment: Mapping[str, str] = spanfold.child_env({"EXTRA": "1"})
    assert environment
    with spanfold.traced_executor(ThreadPoolExecutor(2)) as pool:
        assert_type(pool.submit(bare, 1, y="a").result(), float)
        assert_type(list(pool.map(parentheses, [1, 2])), list[list[int]])


def diagnose_loops(model: object) -> None:
    with RunLogger("runs_v2/1", observability_mode="offline", narrate=True) as log:
        asked = InstrumentedModel(model, log, cycle=0, analyzer="blur", case_prompts=[("what?", "case-1")])
        asked.generate("what?", temperature=0)
        assert_type(log.tracer, DiagnosticTracer)
        span = log.tracer.start_span("mine", "M2", {"a": 1})
        log.tracer.end_span(span, status="failed")
    LoopNarrator(color=False).on_run_start({"model": "m"})
    assert_type(backfill("runs_v2/1", dry_run=True), dict[str, int | str])
    assert_type(export_langfuse_bundle(Path("runs_v2/1"), "bundle.json", overwrite=True), dict[str, Any])


def workspaces(root: SafeRoot) -> None:
    snapshot = snapshot_workspace(root, "M5/artifacts", "work", keep_everything=True)
    assert_type(snapshot, WorkspaceSnapshot | None)
    if snapshot is not None:
        assert_type(restore_workspace(root, snapshot.to_dict(), Path("again")).is_exact, bool)
