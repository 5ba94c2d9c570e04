"""spanfold: a run is a durable journal of OpenTelemetry records; everything else is a fold over it.

    import spanfold

    with spanfold.run("digits", dir="runs/001"):
        with spanfold.stage("M1", cycle=0) as stage:
            stage.set(severity="high")

Start with the README; every name here is documented in docs/api.md.
"""

from spanfold import _connect
from spanfold.errors import SpanfoldError
from spanfold.instrument import (
    AgentSpan,
    FlushResult,
    ModelCallSpan,
    Run,
    ToolSpan,
    agent,
    artifact,
    child_env,
    configure,
    current_run,
    event,
    flush,
    model_call,
    run,
    score,
    shutdown,
    stage,
    timed,
    tool,
    traced,
    traced_executor,
)
from spanfold.instrument import RecordedSpan as Span
from spanfold.instrument import version as _version

_connect.connect()


def __getattr__(name: str) -> str:
    if name == "__version__":  # reading the installed metadata at import would slow every program down
        return _version()
    raise AttributeError(f"module 'spanfold' has no attribute {name!r}")


__all__ = [
    "AgentSpan",
    "FlushResult",
    "ModelCallSpan",
    "Run",
    "Span",
    "SpanfoldError",
    "ToolSpan",
    "agent",
    "artifact",
    "child_env",
    "configure",
    "current_run",
    "event",
    "flush",
    "model_call",
    "run",
    "score",
    "shutdown",
    "stage",
    "timed",
    "tool",
    "traced",
    "traced_executor",
]
