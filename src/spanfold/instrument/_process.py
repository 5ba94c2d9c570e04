"""Context over process borders: the environment of a child, joining a parent's run, and pools.

W3C trace context in environment variables (`TRACEPARENT`, `TRACESTATE`), plus
where the run is. Put into a copy of the environment for the child, never into
our own; read once by the child. Baggage is left alone: every descendant
inherits it, and it may not be ours.
"""

import contextvars
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, TraceFlags

from spanfold import names
from spanfold.instrument import _signals
from spanfold.instrument._guard import losing_only, lost
from spanfold.instrument._span import SPAN_KEY, Stand, get_context, set_context
from spanfold.instrument._state import state

P = ParamSpec("P")
R = TypeVar("R")


class EnvParent(NamedTuple):
    """The span a parent process passed on."""

    trace_hex: bytes
    span_id: bytes


_env_parent: list[EnvParent | None] = []


def env_parent(environ: Mapping[str, str] | None = None) -> EnvParent | None:
    """Return the parent span named by `TRACEPARENT`, read once; None when absent or not valid."""
    from spanfold.instrument._run import parse_traceparent

    if environ is not None:
        found = parse_traceparent(environ.get(names.ENV_TRACEPARENT, ""))
        return EnvParent(*found) if found else None
    if not _env_parent:
        found = parse_traceparent(os.environ.get(names.ENV_TRACEPARENT, ""))
        _env_parent.append(EnvParent(*found) if found else None)
    return _env_parent[0]


def child_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for a subprocess that should join the current run.

    A copy of this process's environment, with `extra` over it, `TRACEPARENT`
    naming the current span, and the run directory. Outside a run it is the
    copy with `extra`. The child joins by importing spanfold and recording
    something; it needs no configuration.
    """
    env = {**os.environ, **(extra or {})}
    with losing_only("the context of a child process"):
        env.update(carrier())
    return env


def carrier() -> dict[str, str]:
    """Return only the variables that carry the current context; empty outside a run."""
    from spanfold.instrument._api import current_parent

    near, parent_id = current_parent()
    if near is None:
        return {}
    run: Any = near.run
    span_id = (parent_id or near._id).decode()  # pyright: ignore[reportPrivateUsage]  # same room
    found = {
        names.ENV_TRACEPARENT: f"00-{run.trace_id}-{span_id}-01",
        names.ENV_RUN_DIR: str(run.dir),
        names.ENV_RUN_NAME: run.name,
    }
    if near.stage is not None:
        found[names.ENV_STAGE] = near.stage
    if near.cycle is not None:
        found[names.ENV_CYCLE] = str(near.cycle)
    return found


def join(environ: Mapping[str, str] | None = None) -> Any:
    """Join the run of a parent process named by the environment; None when there is none to join."""
    from spanfold.instrument._run import JOURNAL_FOLDER, JoinedRun

    env = os.environ if environ is None else environ
    folder = env.get(names.ENV_RUN_DIR, "")
    parent = env_parent(environ)
    if not folder or parent is None:
        return None
    path = Path(folder)
    # The variable comes from outside: only a directory that is a run already is written to.
    if not path.is_absolute() or not (path / JOURNAL_FOLDER).is_dir() or (path / JOURNAL_FOLDER).is_symlink():
        lost(f"the run of the parent process: {names.ENV_RUN_DIR} does not name a run directory")
        return None
    joined = JoinedRun(path, env.get(names.ENV_RUN_NAME, ""), parent.trace_hex)
    joined.stand_in(parent.span_id, env.get(names.ENV_STAGE) or None, _cycle(env))
    return joined


def _cycle(env: Mapping[str, str]) -> int | None:
    text = env.get(names.ENV_CYCLE, "")
    return int(text) if text.lstrip("-").isdigit() and len(text) < 19 else None


def traced_executor(executor: Executor) -> Executor:
    """Return an executor whose tasks run inside the context of their `submit` call.

    Works for threads (the OpenTelemetry context and every other context
    variable are copied) and for `ProcessPoolExecutor` (the task joins the run
    and writes a journal file of its own). `shutdown` shuts the given one down.
    """
    return _TracedExecutor(executor)


class _TracedExecutor(Executor):
    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._across = isinstance(executor, ProcessPoolExecutor)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Schedule a call that runs in the context of this one."""
        if self._across:
            return self._executor.submit(_call_in_child, carrier(), fn, args, kwargs)
        run = contextvars.copy_context().run
        return self._executor.submit(run, fn, *args, **kwargs)  # type: ignore[arg-type]  # mypy infers no ParamSpec through a ParamSpec

    def map(
        self, fn: Callable[..., R], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[R]:
        """Like `Executor.map`; each call runs in the context of this one."""
        if self._across:
            return self._executor.map(_MapInChild(carrier(), fn), *iterables, timeout=timeout, chunksize=chunksize)
        return super().map(fn, *iterables, timeout=timeout, chunksize=chunksize)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut the wrapped executor down."""
        self._executor.shutdown(wait=wait, cancel_futures=cancel_futures)


class _MapInChild:
    """A function of a process pool's `map`, with the context it was mapped in."""

    def __init__(self, env: Mapping[str, str], fn: Callable[..., Any]) -> None:
        self.env, self.fn = dict(env), fn

    def __call__(self, *args: Any) -> Any:
        return _call_in_child(self.env, self.fn, args, {})


def _call_in_child(env: Mapping[str, str], fn: Callable[..., R], args: Any, kwargs: Any) -> R:
    """Run a task of a process pool inside the span its `submit` call was made in."""
    before = None
    with losing_only("the context of a pooled task"):
        if env:
            before = _work_for(env)
    try:
        return fn(*args, **kwargs)
    finally:
        if before is not None:
            set_context(before)


def _work_for(env: Mapping[str, str]) -> Context | None:
    """Make the span that `env` names the current one, and return what was current before.

    A forked worker inherits what was current, and the runs that were open, when
    its pool was made. What its tasks record belongs to neither.
    """
    known = state.joined
    if (
        known is None
        or str(known.dir) != env[names.ENV_RUN_DIR]
        or known.trace_hex.decode() not in env[names.ENV_TRACEPARENT]
    ):
        if known is not None:
            known.journal.close()
        known = state.joined = join(env)
        _signals.install()
    parent = env_parent(env)
    if known is None or parent is None:
        return None
    known.stand_in(parent.span_id, env.get(names.ENV_STAGE) or None, _cycle(env))
    sampled = TraceFlags(TraceFlags.SAMPLED)
    stand = Stand(SpanContext(int(parent.trace_hex, 16), int(parent.span_id, 16), True, sampled), known.anchor, b"")
    before = get_context()
    set_context(Context({**before, SPAN_KEY: stand}))
    return before
