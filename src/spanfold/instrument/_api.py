"""The recording functions: `configure`, `run`, `stage`, `model_call`, `agent`, `tool`, `timed`, `score` ...

After `configure()` nothing here raises into the host, changes what it returns,
or waits without bound (docs/how-it-works.md).
"""

import enum
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, cast

from opentelemetry import trace
from opentelemetry.context import Context

from spanfold import names
from spanfold.errors import SettingsError
from spanfold.fs import SafeRoot
from spanfold.instrument import _process, _signals
from spanfold.instrument._bridge import bridge
from spanfold.instrument._context import SPAN_KEY, get_context
from spanfold.instrument._guard import losing_only, losses, lost, too_late
from spanfold.instrument._kinds import (
    AgentSpan,
    ModelCallSpan,
    ToolSpan,
    agent_attributes,
    model_attributes,
    tool_attributes,
)
from spanfold.instrument._near import Anchor, Stand
from spanfold.instrument._noop import NOOP_AGENT, NOOP_MODEL_CALL, NOOP_SPAN, NOOP_TOOL, noop_run
from spanfold.instrument._run import Run
from spanfold.instrument._span import RecordedSpan, remember, start
from spanfold.instrument._state import state
from spanfold.instrument._stored import as_number, as_text
from spanfold.instrument._unfinished import finish_unfinished
from spanfold.journal import EMPTY, AttributeValue, Fragment, field_key, store, to_tree
from spanfold.routing import place
from spanfold.settings import Content, Destination, Durability, RedactCallback, as_path, resolve

_INT64: Final = 1 << 63
_LONGEST_NAME: Final = 200
"""Characters of a name in a line of the log."""

Near = RecordedSpan | Anchor
"""The span around a new one: ours, or the stand-in for one of another process."""


def configure(
    run_dir: str | Path | None = None,
    otlp: Destination | None = None,
    langfuse: Destination | None = None,
    redact: bool | RedactCallback | None = None,
    durability: Durability | None = None,
    content: Content | None = None,
    provider: Any = None,
) -> None:
    """Decide how this process records. Optional: without it environment and defaults decide.

    Args:
        run_dir: Folder that holds run directories made without an explicit `dir`. Default `runs`.
        otlp: `"auto"` (default) sends to the collector that `OTEL_EXPORTER_OTLP_*` names, and says so
            once; True requires one; False never sends.
        langfuse: The same for Langfuse and its keys.
        redact: True (default) applies all rules, False only registered secrets and sensitive names,
            a callable is applied to every string after the rules.
        durability: `"process"` (default): a killed process loses no ended span. `"machine"`: after
            `flush()` or a control record a power cut loses nothing before it.
        content: Message content is recorded and sent (`"all"`, default), recorded only (`"local"`),
            or not recorded (`"none"`).
        provider: `"auto"` (default) joins the host's OpenTelemetry provider, `"own"` ignores it,
            `"global"` installs ours where the host has none, or a provider object to join.

    Raises:
        SettingsError: A setting cannot be used; it names the argument or environment variable.
            Nothing was changed then.
    """
    settings = resolve(
        run_dir=run_dir,
        otlp=otlp,
        langfuse=langfuse,
        redact=redact,
        durability=durability,
        content=content,
        provider=provider,
    )
    if not isinstance(settings.provider, str) and not hasattr(settings.provider, "add_span_processor"):
        kind = cast("type[object]", type(settings.provider))
        lost(f"the provider {kind.__module__}.{kind.__qualname__}, which takes no span processors; ours is used alone")
    state.apply(settings)
    bridge.join()


def run(name: str, dir: str | bytes | os.PathLike[str] | None = None, **fields: Any) -> Run:
    """Open a run: a directory with a journal and documents, and the root span of a trace.

    Use it as a context manager. When the block ends the journal is sealed and
    every document is complete.

    Args:
        name: What is run; low-cardinality, the name of the root span.
        dir: The run directory. Default: a new one under `run_dir`. A directory that already holds a
            run is kept, and `<dir>-2` is used. `~` is the user's home.
        fields: Facts about the run (model, data, settings ...), in `run.json` under `run_start`.
    """
    try:
        if not state.ready().enabled:
            return noop_run(name)
        return Run(as_text(name), None if dir is None else as_path("dir", dir), fields)
    except Exception as error:
        lost("a run", error)
        return noop_run(as_text(name))


class Scope(NamedTuple):
    """The instrumentation scope of a span that is not ours."""

    name: str
    version: str
    schema_url: str


def current_run() -> Run | None:
    """Return the run that records what happens here, None outside of one."""
    near, _ = current_parent()
    return near.run if near is not None and isinstance(near.run, Run) else None


def current_parent(context: Context | None = None) -> tuple[Near | None, bytes]:
    """Return the recorded span around what starts here, None when nothing is recorded here.

    The second value is the id of the real parent when a foreign span stands
    between, else empty. The current OpenTelemetry span decides. Without one (a
    thread that was given no context) the only open run of the process takes it
    in; when several are open it cannot be known, and the record is counted as
    lost.
    """
    current = (get_context() if context is None else context).get(SPAN_KEY)
    if type(current) in _OURS or isinstance(current, RecordedSpan):
        ours: Any = current
        if ours.run.closed:
            too_late(ours.run)
            return None, b""
        return ours, b""
    return _outer_parent(current)


def _outer_parent(current: object) -> tuple[Near | None, bytes]:
    if isinstance(current, Stand):
        if current.near.run.closed:
            too_late(current.near.run)
            return None, b""
        return current.near, current.parent_id
    if not state.runs and not _joinable():
        return None, b""
    if isinstance(current, trace.Span) and (found := current.get_span_context()).is_valid:
        owner = state.runs.get(f"{found.trace_id:032x}".encode())
        if owner is not None:
            span_id = f"{found.span_id:016x}".encode()
            return bridge.processor.place_below(found.span_id) or (owner.open_spans.get(span_id) or owner.span, span_id)
    if state.sole is not None:
        return state.sole.span, b""
    if state.runs:
        lost(
            "records made in a thread without context while several runs are open; use traced_executor or pass the context"
        )
        return None, b""
    return state.joined.anchor, b""


_join_tried: list[bool] = []
_join_lock = threading.RLock()
"""Re-entrant: a signal handler may record while the run is being joined."""


def _joinable() -> bool:
    """Join the run of a parent process at the first chance, once; whether there is one."""
    if _join_tried:
        return state.joined is not None
    with _join_lock:
        if not _join_tried:
            with losing_only("the run of the parent process"):
                # A task of a process pool has joined already.
                if state.joined is None and os.environ.get(names.ENV_RUN_DIR):
                    state.joined = _process.join()
                    if state.joined is not None:
                        _signals.install()
                        bridge.join()
            _join_tried.append(True)
    return state.joined is not None


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


def _static(
    run: Any, key: tuple[Any, ...], name: str, attributes: Mapping[str, AttributeValue]
) -> tuple[str, Fragment]:
    """Return name and encoded attributes of the model calls, agents and tools of one name, for this run."""
    memo = run.memo
    return remember(memo, key, (name, run.journal.encoder.fragment(attributes)))


def is_idle() -> bool:
    """Whether nothing is recorded anywhere in this process: the one check a decorated function costs then."""
    return not state.runs and state.joined is None and bool(_join_tried)


_OURS: Final = frozenset({RecordedSpan, ModelCallSpan, AgentSpan, ToolSpan})
"""What is ours for sure; asking `isinstance` is slow, because OpenTelemetry's class is an abstract one."""
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
            attributes[names.GENAI_OPERATION], attributes[names.GENAI_AGENT] = "invoke_agent", name
            label = f"invoke_agent {name}"
        elif kind == "tool":
            attributes[names.GENAI_OPERATION], attributes[names.GENAI_TOOL] = "execute_tool", name
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


def score(name: str, value: float | bool | str, *, comment: str | None = None, **fields: Any) -> None:
    """Record a score of the current span, on disk when this returns.

    Args:
        name: What is scored.
        value: A number or boolean; a text is a label. NaN and infinities are refused and counted.
        comment: Why.
        fields: Further facts.
    """
    with losing_only("scores"):
        near, parent_id = current_parent()
        if near is None:
            return
        attributes: dict[str, AttributeValue] = {names.SCORE_NAME: as_text(name)}
        number = as_number(value)
        if number is not None:
            attributes[names.SCORE_VALUE] = number if -_INT64 <= number < _INT64 else float(number)
        elif issubclass(type(value), (str, enum.Enum)):
            attributes[names.SCORE_LABEL] = as_text(value)
        else:
            called = as_text(name)[:_LONGEST_NAME]
            lost(
                "scores that are no number, boolean or text",
                name=state.gate.scrub_text(called) if state.gate else called,
            )
            return
        if comment is not None:
            attributes[names.SCORE_COMMENT] = comment
        _write_event(near, parent_id, names.EVENT_SCORE, attributes, fields)


def event(name: str, /, **fields: Any) -> None:
    """Record a moment of the current span, on disk when this returns."""
    with losing_only("events"):
        near, parent_id = current_parent()
        if near is not None:
            _write_event(near, parent_id, as_text(name), {}, fields)


def _write_event(
    near: Near, parent_id: bytes, name: str, attributes: dict[str, AttributeValue], fields: Mapping[str, Any]
) -> None:
    placed: dict[str, AttributeValue] = {}
    if near.stage is not None:
        placed[names.STAGE] = near.stage
    if near.cycle is not None:
        placed[names.CYCLE] = near.cycle
    notes: dict[str, str] = {}
    for field, value in fields.items():
        key = field_key(field)
        attributes[key], note = store(value)
        if note:
            notes[key] = note
    recording = near.run
    body, is_clean = recording.journal.encoder.event(
        trace_id=recording.trace_hex,
        span_id=parent_id or near._id,  # pyright: ignore[reportPrivateUsage]  # same room
        name=name,
        time_ns=time.time_ns(),
        attributes={**placed, **attributes},
        notes=notes,
    )
    recording.journal.event(body, is_clean)
    recording.recorded("event")


def artifact(name: str, value: Any) -> Path | None:
    """Store an object as a file of the run, with its hash on the current span.

    Arrays and tensors become `.npy` (without pickle) and, where the name says
    what they show, a figure; figures become PNG; dict and list JSON; text and
    bytes files; a `Path` is copied. Anything else is recorded as not stored.

    Args:
        name: What it is; part of the file name.
        value: The object.

    Returns:
        The file, None when nothing was stored.
    """
    with losing_only("artifacts"):
        near, parent_id = current_parent()
        if near is None:
            return None
        return _store_artifact(near, parent_id, as_text(name), value)
    return None


def _store_artifact(near: Near, parent_id: bytes, name: str, value: Any) -> Path | None:
    from spanfold.artifacts import store as store_file

    assert state.gate is not None
    recording = near.run
    gate = state.gate
    # As the record of the stage has it: a folder name is read like any text.
    folder = f"{place(near.stage and gate.scrub_text(near.stage)).folder}artifacts"
    stem = name if near.cycle is None else f"c{near.cycle}_{name}"

    def to_clean_tree(data: Any) -> tuple[Any, str | None]:
        tree, note = to_tree(data)
        return gate.scrub_value(tree), note

    root = SafeRoot(recording.dir, create=True)
    stored = store_file(root, folder, stem, value, scrub=gate.scrub_text, to_tree=to_clean_tree)
    facts = stored.to_dict()
    if isinstance(near, RecordedSpan) and not near.ended:
        near.add_artifact({"name": name, **facts})
        if recording.content != "all":
            near.set_attribute(names.CONTENT, "local")  # or a destination would be told of a file it never gets
    stays: dict[str, AttributeValue] = {} if recording.content == "all" else {names.CONTENT: "local"}
    _write_event(near, parent_id, names.EVENT_ARTIFACT, stays, {"artifact": name, **facts})
    return recording.dir / stored.path if stored.path else None


class FlushResult(NamedTuple):
    """What became of the records so far."""

    written: int
    """Records of open runs in journals of this process."""
    held: int
    """Records in memory because the disk refuses them."""
    lost: int
    """Records and parts of records that could not be kept."""
    sent: int
    """Records every destination acknowledged."""
    refused: int
    """Records a destination refused for good; the journal names them."""
    waiting: int
    """Records a destination has not acknowledged yet; the journal keeps them."""
    reasons: Mapping[str, int] = MappingProxyType({})
    """Destination and why records were refused there, or wait -> how many; empty when all have arrived."""


FLUSH_S: Final = 5.0
"""How long a flush waits for destinations by default."""


def flush(timeout_s: float = FLUSH_S) -> FlushResult:
    """Bring journals, documents and destinations up to date, within a time limit.

    Args:
        timeout_s: Seconds for destinations; local files are always brought up to date.

    Returns:
        Counts of what this process recorded; `waiting` and `held` are zero when everything of that is where it
        belongs. What is sent of earlier runs is not among them.
    """
    return _flush(timeout_s, last=False)


def shutdown(timeout_s: float = FLUSH_S) -> FlushResult:
    """Flush, then stop threads and connections of ours, within a time limit.

    Open runs stay open: what is recorded later is still in their journal, and
    they are sealed when they end. Recording again starts everything again.
    Harmless when repeated.

    Args:
        timeout_s: Seconds for destinations.
    """
    result = _flush(timeout_s, last=True)
    _signals.uninstall()
    bridge.forget()
    return result


def _seconds(given: Any) -> float:
    """Return a time limit as a number, the usual one in place of what is none: whoever flushes must not fail by it."""
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError):
        lost(
            "a time limit",
            SettingsError("timeout_s", "seconds as a number", f"an object of type {type(given).__name__}"),
        )
        return FLUSH_S


def _flush(timeout_s: float, *, last: bool) -> FlushResult:
    deadline = time.monotonic() + _seconds(timeout_s)
    written = held = dropped = 0
    for recording in (*state.runs.values(), state.joined, *finish_unfinished()):
        if recording is None:
            continue
        with losing_only("a flush"):
            recording.journal.sync()
            stats = recording.stats
            written, held, dropped = written + recording.journal.written, held + stats.held, dropped + stats.lost
            if recording.hooks is not None:
                recording.hooks.flush(max(0.0, deadline - time.monotonic()))
    delivery: Mapping[str, Any] = {}
    if state.connector is not None:
        with losing_only("a delivery flush"):
            act = state.connector.shutdown if last else state.connector.flush
            delivery = act(max(0.0, deadline - time.monotonic()))
    return FlushResult(
        written,
        held,
        dropped + sum(losses.values()),
        int(delivery.get("sent", 0)),
        int(delivery.get("refused", 0)),
        int(delivery.get("waiting", 0)),
        dict(delivery.get("reasons", {})),
    )
