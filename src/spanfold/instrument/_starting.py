"""What starts a run or a span: the calls of a program, a decorated function, a tracer.

After `configure()` nothing here raises into the host, changes what it returns,
or waits without bound (docs/how-it-works.md).
"""

import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

from spanfold import names
from spanfold.instrument._bridge import bridge
from spanfold.instrument._current import Near, current_parent
from spanfold.instrument._guard import lost
from spanfold.instrument._kinds import (
    AgentSpan,
    ModelCallSpan,
    ToolSpan,
    agent_attributes,
    model_attributes,
    tool_attributes,
)
from spanfold.instrument._noop import NOOP_AGENT, NOOP_MODEL_CALL, NOOP_SPAN, NOOP_TOOL, noop_run
from spanfold.instrument._run import Run
from spanfold.instrument._span import RecordedSpan, remember, start
from spanfold.instrument._state import state
from spanfold.instrument._stored import as_text
from spanfold.journal import EMPTY, AttributeValue, Fragment
from spanfold.settings import as_path


def run(name: str, dir: str | bytes | os.PathLike[str] | None = None, **fields: Any) -> Run:
    """Open a run: a directory with a journal and documents, and the root span of a trace.

    Use it as a context manager. When the block ends the journal is sealed and
    every document is complete.

    Args:
        name: What is run; low-cardinality, the name of the root span.
        dir: The run directory. Default, and in place of an empty text: a new one under `run_dir`. A directory that
            already holds a run is kept, and `<dir>-2` is used. `~` is the user's home.
        fields: Facts about the run (model, data, settings ...), in `run.json` under `run_start`.
    """
    try:
        if not state.ready().enabled:
            return noop_run(name)
        # An empty text is what a variable gives that is not set: it must not make a run directory of the working directory.
        is_given = dir is not None and dir not in ("", b"")
        return Run(as_text(name), as_path("dir", dir) if is_given else None, fields)
    except Exception as error:
        lost("a run", error)
        return noop_run(as_text(name))


def stage(name: str, *, cycle: int | None = None, **fields: Any) -> RecordedSpan:
    """Start a stage: `with spanfold.stage("M2", cycle=0) as s:`.

    Args:
        name: `M1` ... `M5` have documents of their own in the diagnose layout, any other name gets
            `stages/<name>/log.json`.
        cycle: Iteration of the loop; what happens inside inherits it.
        fields: Fields of the stage's record; more with `s.set(...)`.
    """
    try:
        near, parent_id = current_parent()
        if near is None:
            return NOOP_SPAN
        bridge.join_if_new()
        name = as_text(name)
        if cycle is not None and type(cycle) is not int:
            cycle, fields = None, {"cycle_given": cycle, **fields}
        span = start(
            RecordedSpan,
            near.run,
            name,
            "stage",
            near,
            parent_id,
            name,
            cycle if cycle is not None else near.cycle,
            EMPTY,
            1,
        )
        return _begin(span, fields)
    except Exception as error:
        lost("stages", error)
        return NOOP_SPAN


def model_call(
    model: str, *, provider: str | None = None, operation: str = "chat", input: Any = None, **fields: Any
) -> ModelCallSpan:
    """Start a model call: `with spanfold.model_call("m", provider="openai", input=messages) as call:`.

    Args:
        model: The model asked for.
        provider: Who serves it, by the well-known name of the GenAI conventions where one fits.
        operation: `chat`, `text_completion`, `generate_content`, `embeddings` ...
        input: Text, messages, or anything else; `call.output(...)` for the answer.
        fields: Further fields of the record.
    """
    try:
        near, parent_id = current_parent()
        if near is None:
            return NOOP_MODEL_CALL
        key: tuple[Any, ...] = ("model_call", operation, model, provider)
        if not (type(model) is str and type(operation) is str and (provider is None or type(provider) is str)):
            key = ("model_call", *(v if v is None else as_text(v) for v in (operation, model, provider)))
        known = near.run.memo.get(key) or _static(near.run, key, f"{key[1]} {key[2]}", model_attributes(*key[1:]))
        span = start(
            ModelCallSpan, near.run, known[0], "model_call", near, parent_id, near.stage, near.cycle, known[1], 3
        )
        span.identity = key[1:]
        if input is not None:
            span.input(input)
        return _begin(span, fields)
    except Exception as error:
        lost("model calls", error)
        return NOOP_MODEL_CALL


def agent(
    name: str, *, model: str | None = None, provider: str | None = None, input: Any = None, **fields: Any
) -> AgentSpan:
    """Start an agent invocation: `with spanfold.agent("reviewer", model="m") as a:`.

    Args:
        name: The agent's name.
        model: Its model, if it has one.
        provider: Who serves the agent or model.
        input: What it was asked; recorded only when given.
        fields: Further fields of the record.
    """
    try:
        near, parent_id = current_parent()
        if near is None:
            return NOOP_AGENT
        key: tuple[Any, ...] = ("agent", name, model, provider)
        if not (type(name) is str and (model is None or type(model) is str) and provider is None):
            key = ("agent", *(v if v is None else as_text(v) for v in (name, model, provider)))
        known = near.run.memo.get(key) or _static(near.run, key, f"invoke_agent {key[1]}", agent_attributes(*key[1:]))
        otel_kind = 1 if provider is None else 3
        span = start(
            AgentSpan, near.run, known[0], "agent", near, parent_id, near.stage, near.cycle, known[1], otel_kind
        )
        span.identity = key[1:]
        if input is not None:
            span.input(input)
        return _begin(span, fields)
    except Exception as error:
        lost("agent invocations", error)
        return NOOP_AGENT


def tool(name: str, *, arguments: Any = None, call_id: str | None = None, **fields: Any) -> ToolSpan:
    """Start a tool execution: `with spanfold.tool("grep", arguments={...}) as t:`.

    Args:
        name: The tool's name.
        arguments: What it was called with; `t.result(...)` for what it returned.
        call_id: The id the model gave to the call.
        fields: Further fields of the record.
    """
    try:
        near, parent_id = current_parent()
        if near is None:
            return NOOP_TOOL
        key = ("tool", as_text(name))
        known = near.run.memo.get(key) or _static(near.run, key, f"execute_tool {key[1]}", tool_attributes(*key[1:]))
        span = start(ToolSpan, near.run, known[0], "tool", near, parent_id, near.stage, near.cycle, known[1], 1)
        span.identity = key[1:]
        if call_id is not None:
            span.set_attribute(names.GENAI_TOOL_CALL_ID, call_id)
        if arguments is not None:
            span.arguments(arguments)
        return _begin(span, fields)
    except Exception as error:
        lost("tool executions", error)
        return NOOP_TOOL


def timed(name: str, *, phase: str | None = None, **fields: Any) -> RecordedSpan:
    """Time a piece of work: `with spanfold.timed("load", phase="setup"):` is a row of `timings.jsonl`.

    Args:
        name: What is timed; low-cardinality.
        phase: `setup`, `pass`, `verify`, `score`, `finalise`, `closeout` or another token.
        fields: Facts about the work.
    """
    try:
        near, parent_id = current_parent()
        if near is None:
            return NOOP_SPAN
        if phase is not None:
            fields = {"phase": phase, **fields}
        name = as_text(name)
        span = start(RecordedSpan, near.run, name, "timing", near, parent_id, near.stage, near.cycle, EMPTY, 1)
        return _begin(span, fields)
    except Exception as error:
        lost("timings", error)
        return NOOP_SPAN


# -- for a decorated function and for a tracer

_SPAN_TYPES: dict[str, type[RecordedSpan]] = {"model_call": ModelCallSpan, "agent": AgentSpan, "tool": ToolSpan}


def begin_span(
    kind: str, name: str, near: Near, parent_id: bytes, *, stage: str | None, cycle: int | None, function: str
) -> RecordedSpan:
    """Start the span of a decorated function; not current yet."""
    key = (kind, name, function)
    known = near.run.memo.get(key)
    if known is None:
        attributes: dict[str, AttributeValue] = {names.FUNCTION: function}
        label = name
        if kind == "agent":
            attributes.update(agent_attributes(name, None, None))
            label = f"invoke_agent {name}"
        elif kind == "tool":
            attributes.update(tool_attributes(name))
            label = f"execute_tool {name}"
        elif kind == "model_call":
            attributes.update(model_attributes("chat", name, None))
            label = f"chat {name}"
        known = _static(near.run, key, label, attributes)
    span = start(
        _SPAN_TYPES.get(kind, RecordedSpan),
        near.run,
        known[0],
        kind,
        near,
        parent_id,
        stage if stage is not None else near.stage,
        cycle if cycle is not None else near.cycle,
        known[1],
        1,
    )
    return _begin(span, _NO_FIELDS)


class Scope(NamedTuple):
    """The instrumentation scope of a span that is not ours."""

    name: str
    version: str
    schema_url: str


def start_span(
    name: str, near: Near, parent_id: bytes, *, otel_kind: int, start_ns: int | None, scope: Scope | None
) -> RecordedSpan:
    """Start a span for a tracer: not current by `with`, as OpenTelemetry wants it.

    Args:
        name: Its name.
        near: The recorded span around it.
        parent_id: Its real parent, when that is another one.
        otel_kind: OTLP SpanKind.
        start_ns: Wall clock, when it is not now.
        scope: The library that makes it, when the record must say so: then it has no kind of ours.
    """
    span = RecordedSpan(
        near.run,
        as_text(name),
        "span" if scope is None else "",
        near,
        parent_id=parent_id,
        stage=near.stage,
        cycle=near.cycle,
        otel_kind=otel_kind,
        start_ns=start_ns,
        scoped=False,
    )
    if scope is not None:
        span.frame = near.run.journal.frame(
            "span", scope_name=scope.name, scope_version=scope.version, schema_url=scope.schema_url
        )
    return _begin(span, _NO_FIELDS)


# -- for all of them

_Span = TypeVar("_Span", bound=RecordedSpan)
_NO_FIELDS: Final[Mapping[str, Any]] = {}


def _begin(span: _Span, fields: Mapping[str, Any]) -> _Span:
    """Set the first fields of a new span, journal its start if its kind wants that, show it to the host."""
    if fields:
        span.set(**fields)
    if span.kind in names.OPEN_KINDS:
        span.announce()
    if bridge.provider is not None:
        bridge.mirror_start(span)
    return span


def _static(
    run: Any, key: tuple[Any, ...], name: str, attributes: Mapping[str, AttributeValue]
) -> tuple[str, Fragment]:
    """Return name and encoded attributes of the model calls, agents and tools of one name, for this run."""
    memo = run.memo
    return remember(memo, key, (name, run.journal.encoder.fragment(attributes)))
