"""Instrumentation: what a program calls to be recorded.

Own light spans that implement the OpenTelemetry API, current in its context;
each is redacted and in the journal when it ends. After `configure()` nothing
of ours raises into the host, changes it, or waits without bound.
"""

from spanfold.instrument._bridge import bridge
from spanfold.instrument._current import current_run
from spanfold.instrument._events import artifact, event, score
from spanfold.instrument._guard import losing_only, losses, lost
from spanfold.instrument._host import git_commit
from spanfold.instrument._kinds import AgentSpan, ModelCallSpan, ToolSpan
from spanfold.instrument._lifecycle import FlushResult, configure, flush, shutdown
from spanfold.instrument._process import child_env, traced_executor
from spanfold.instrument._provider import SpanfoldTracerProvider
from spanfold.instrument._recording import CONTROL
from spanfold.instrument._run import Run, RunPlace
from spanfold.instrument._span import IS_NATIVE, RecordedSpan
from spanfold.instrument._starting import agent, model_call, run, stage, timed, tool
from spanfold.instrument._state import Connector, RunHooks, state, version
from spanfold.instrument._traced import traced

__all__ = [
    "CONTROL",
    "IS_NATIVE",
    "AgentSpan",
    "Connector",
    "FlushResult",
    "ModelCallSpan",
    "RecordedSpan",
    "Run",
    "RunHooks",
    "RunPlace",
    "SpanfoldTracerProvider",
    "ToolSpan",
    "agent",
    "artifact",
    "bridge",
    "child_env",
    "configure",
    "current_run",
    "event",
    "flush",
    "git_commit",
    "losing_only",
    "losses",
    "lost",
    "model_call",
    "run",
    "score",
    "shutdown",
    "stage",
    "state",
    "timed",
    "tool",
    "traced",
    "traced_executor",
    "version",
]
