"""Context over process borders: the environment of a child, and pools.

W3C trace context in environment variables (`TRACEPARENT`), plus where the run
is and where in it the child works. Put into a copy of the environment for the
child, never into our own; read by the child (`_joining`). Baggage is left
alone: every descendant inherits it, and it may not be ours.
"""

import contextvars
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from spanfold import names
from spanfold.instrument._context import set_context
from spanfold.instrument._current import current_parent
from spanfold.instrument._guard import losing_only
from spanfold.instrument._joining import work_for
from spanfold.instrument._near import UnrecordedId, id_of

P = ParamSpec("P")
R = TypeVar("R")


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
            before = work_for(env)
    try:
        return fn(*args, **kwargs)
    finally:
        if before is not None:
            set_context(before)
