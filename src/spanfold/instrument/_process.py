"""Context over process borders: the environment of a child, joining a parent's run, and pools.

W3C trace context in environment variables (`TRACEPARENT`, `TRACESTATE`), plus
where the run is and where in it the child works. Put into a copy of the
environment for the child, never into our own; read once by the child. Baggage
is left alone: every descendant inherits it, and it may not be ours.
"""

import contextvars
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, TraceFlags

from spanfold import names
from spanfold.instrument._bridge import bridge
from spanfold.instrument._context import SPAN_KEY, get_context, set_context
from spanfold.instrument._guard import losing_only, lost
from spanfold.instrument._near import Anchor, Stand, UnrecordedId, id_of
from spanfold.instrument._recording import JoinedRun
from spanfold.instrument._run_folder import JOURNAL_FOLDER
from spanfold.instrument._state import state
from spanfold.journal import journal_elsewhere

P = ParamSpec("P")
R = TypeVar("R")

_MAX_JOINED: Final = 8
"""Runs a worker keeps joined, with one journal file each: pools outlive runs."""


class EnvParent(NamedTuple):
    """The span a parent process passed on."""

    trace_hex: bytes
    span_id: bytes


_env_parent: list[EnvParent | None] = []


def env_parent(environ: Mapping[str, str] | None = None) -> EnvParent | None:
    """Return the parent span named by `TRACEPARENT`, read once; None when absent or not valid."""
    if environ is not None:
        return _parse_traceparent(environ.get(names.ENV_TRACEPARENT, ""))
    if not _env_parent:
        _env_parent.append(_parse_traceparent(os.environ.get(names.ENV_TRACEPARENT, "")))
    return _env_parent[0]


_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?\Z")


def _parse_traceparent(text: str) -> EnvParent | None:
    """Return the span a W3C traceparent names, None when it is not valid (Trace Context, section 3.2)."""
    match = _TRACEPARENT.match(text.strip())
    if match is None or (text.startswith("00-") and match[3]):
        return None
    trace_hex, span_hex = match[1].encode(), match[2].encode()
    return None if not trace_hex.strip(b"0") or not span_hex.strip(b"0") else EnvParent(trace_hex, span_hex)


def child_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for a subprocess that should join the current run.

    A copy of this process's environment, with `extra` over it, `TRACEPARENT`
    naming the current span, and the run directory. Outside a run it is the
    copy with `extra`. The child joins by importing spanfold and recording
    something; it needs no configuration. A content policy stricter than the
    child's own goes with it; a redaction callback cannot.
    """
    env = {**os.environ, **(extra or {})}
    with losing_only("the context of a child process"):
        env.update(carrier())
    return env


def carrier() -> dict[str, str]:
    """Return only the variables that carry the current context; empty outside a run."""
    from spanfold.instrument._current import current_parent

    near, parent_id = current_parent()
    if near is None:
        return {}
    run: Any = near.run
    if isinstance(parent_id, UnrecordedId):
        parent_id = parent_id.recorded
    found = {
        names.ENV_TRACEPARENT: f"00-{run.trace_id}-{(parent_id or id_of(near)).decode()}-01",
        names.ENV_RUN_DIR: str(run.dir),
        names.ENV_RUN_NAME: run.name,
        names.ENV_CONTENT: run.content,
    }
    if near.stage is not None:
        found[names.ENV_STAGE] = near.stage
    if near.cycle is not None:
        found[names.ENV_CYCLE] = str(near.cycle)
    if near.kind != "run":
        found[names.ENV_DEPTH], found[names.ENV_TOKEN] = str(near.depth), near.token
    return found


def join(environ: Mapping[str, str] | None = None) -> JoinedRun | None:
    """Join the run of a parent process named by the environment; None when there is none to join."""
    env = os.environ if environ is None else environ
    folder = env.get(names.ENV_RUN_DIR, "")
    parent = env_parent(environ)
    if not folder or parent is None or not state.ready().enabled:
        return None
    path = Path(folder)
    # The variable comes from outside: only a directory that is a run already is written to.
    journal = path / JOURNAL_FOLDER
    if path.is_absolute() and not journal.is_dir() and (elsewhere := journal_elsewhere(path)) is not None:
        journal = elsewhere.journal  # it stands outside of the run directory while the run is open
    if not path.is_absolute() or not journal.is_dir() or journal.is_symlink():
        lost(f"the run of the parent process: {names.ENV_RUN_DIR} does not name a run directory")
        return None
    joined = JoinedRun(path, env.get(names.ENV_RUN_NAME, ""), parent.trace_hex, journal)
    joined.content = min(joined.content, env.get(names.ENV_CONTENT, "all"), key=_strictness)
    joined.anchor = _anchor(joined, parent, env)
    return joined


def _strictness(content: str) -> int:
    # What another version of spanfold may say is taken for the strictest.
    return {"all": 2, "local": 1}.get(content, 0)


def _anchor(joined: Any, parent: EnvParent, env: Mapping[str, str]) -> Anchor:
    """Return the stand-in for the span of the parent process that `env` names."""
    anchor = Anchor(joined, parent.span_id, env.get(names.ENV_STAGE) or None, _number(env, names.ENV_CYCLE))
    depth, token = _number(env, names.ENV_DEPTH), env.get(names.ENV_TOKEN, "")
    if depth is not None and depth >= 0 and _TOKEN.fullmatch(token):
        anchor.below_a_span(depth, token)
    return anchor


_TOKEN: Final = re.compile("[a-z][a-z0-9_]{0,63}")


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return int(text) if re.fullmatch("-?[0-9]{1,18}", text) else None


def traced_executor(executor: Executor) -> Executor:
    """Return an executor whose tasks run inside the context of their `submit` or `map` call.

    Works for threads (the OpenTelemetry context and every other context
    variable are copied) and for processes (the task joins the run and writes a
    journal file of its own), of the standard library and of others. `shutdown`
    shuts the given one down; what else it offers is passed on.
    """
    return _TracedExecutor(executor)


class _TracedExecutor(Executor):
    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Schedule a call that runs in the context of this one."""
        return self._executor.submit(_Task(contextvars.copy_context(), {}, fn), *args, **kwargs)

    def map(self, fn: Callable[..., R], *iterables: Iterable[Any], **options: Any) -> Iterator[R]:
        """Like the executor's own `map`; each call runs in the context of this one."""
        return self._executor.map(_Task(contextvars.copy_context(), {}, fn), *iterables, **options)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut the wrapped executor down."""
        self._executor.shutdown(wait=wait, cancel_futures=cancel_futures)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


class _Task:
    """A function with the context it was submitted in. Where an executor pickles it, it is going to another process."""

    def __init__(self, context: contextvars.Context | None, env: Mapping[str, str], fn: Callable[..., Any]) -> None:
        self._context, self._env, self._fn = context, env, fn

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._context is None:
            return _call_in_child(self._env, self._fn, args, kwargs)
        # A copy for each call: `map` makes several at once, and a context takes one at a time.
        return self._context.copy().run(self._fn, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        env: Mapping[str, str] = self._env
        if self._context is not None:
            env = {}
            with losing_only("the context of a pooled task"):
                env = self._context.copy().run(carrier)
        return _Task, (None, env, self._fn)


def _call_in_child(env: Mapping[str, str], fn: Callable[..., R], args: Any, kwargs: Any) -> R:
    """Run a task of a process pool inside the span it was submitted in."""
    before = None
    with losing_only("the context of a pooled task"):
        if env:
            before = _work_for(env)
    try:
        return fn(*args, **kwargs)
    finally:
        if before is not None:
            set_context(before)


_joined: dict[tuple[str, bytes], Any] = {}


def _work_for(env: Mapping[str, str]) -> Context | None:
    """Make the span that `env` names the current one, and return what was current before.

    A forked worker inherits what was current, and the runs that were open, when
    its pool was made. What its tasks record belongs to neither.
    """
    parent = env_parent(env)
    if parent is None:
        return None
    key = env.get(names.ENV_RUN_DIR, ""), parent.trace_hex
    joined = _joined.pop(key, None) or join(env)
    if joined is None:
        return None
    if len(_joined) >= _MAX_JOINED:
        _joined.pop(next(iter(_joined))).journal.close()
    _joined[key] = joined
    anchor = _anchor(joined, parent, env)
    # No handler for SIGTERM: a pool ends its workers by it while they wait for work (see `_signals`).
    joined.anchor, state.joined = anchor, joined
    bridge.join()
    context = SpanContext(int(parent.trace_hex, 16), int(parent.span_id, 16), True, TraceFlags(TraceFlags.SAMPLED))
    before = get_context()
    set_context(Context({**before, SPAN_KEY: Stand(context, anchor, b"")}))
    return before


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_joined.clear)
