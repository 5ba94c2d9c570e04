"""Joining the run of a parent process: the environment names it, as `_process` wrote it there, or a pool's task does."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, TraceFlags

from spanfold import names
from spanfold.instrument._bridge import bridge
from spanfold.instrument._context import SPAN_KEY, get_context, set_context
from spanfold.instrument._guard import lost
from spanfold.instrument._near import Anchor, Stand
from spanfold.instrument._recording import JoinedRun
from spanfold.instrument._run_folder import JOURNAL_FOLDER
from spanfold.instrument._state import state
from spanfold.journal import journal_elsewhere

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


def _anchor(joined: JoinedRun, parent: EnvParent, env: Mapping[str, str]) -> Anchor:
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


_joined: dict[tuple[str, bytes], JoinedRun] = {}
"""Run directory and trace id -> the run, those that worked last at the end."""


def work_for(env: Mapping[str, str]) -> Context | None:
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
