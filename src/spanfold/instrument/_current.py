"""Where a record belongs: the run and the span around what is recorded here."""

import os
import threading
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context

from spanfold import names
from spanfold.instrument import _joining, _signals
from spanfold.instrument._bridge import bridge
from spanfold.instrument._context import SPAN_KEY, get_context
from spanfold.instrument._guard import losing_only, lost, too_late
from spanfold.instrument._kinds import AgentSpan, ModelCallSpan, ToolSpan
from spanfold.instrument._near import Anchor, Stand
from spanfold.instrument._run import Run
from spanfold.instrument._span import RecordedSpan
from spanfold.instrument._state import state

Near = RecordedSpan | Anchor
"""The span around a new one: ours, or the stand-in for one of another process."""

_OURS: Final = frozenset({RecordedSpan, ModelCallSpan, AgentSpan, ToolSpan})
"""What is ours for sure; asking `isinstance` is slow, because OpenTelemetry's class is an abstract one."""


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
                    state.joined = _joining.join()
                    if state.joined is not None:
                        _signals.install()
                        bridge.join()
            _join_tried.append(True)
    return state.joined is not None


def is_idle() -> bool:
    """Whether nothing is recorded anywhere in this process: the one check a decorated function costs then."""
    return not state.runs and state.joined is None and bool(_join_tried)
