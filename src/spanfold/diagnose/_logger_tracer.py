"""The tracer of a diagnose-loop logger (DL section 10): its modes, and spans, generations and scores of a caller's own.

What the loop itself tells is traced from its events. What is recorded here is
in the journal too, and so in `langfuse_trace.json` and at every destination.
"""

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from opentelemetry.trace import StatusCode

from spanfold import names
from spanfold.diagnose._logger_run import LoopRun
from spanfold.diagnose._logger_values import text, tree
from spanfold.instrument import ModelCallSpan, RecordedSpan

Mode = Literal["auto", "live", "offline"]

VARIABLE: Final = "EVALRX_LANGFUSE_MODE"
_MODES: Final[Mapping[str, Mode]] = {"auto": "auto", "live": "live", "offline": "offline"}
_USAGE: Final = {**names.USAGE_ALIASES, "input": "input_tokens", "output": "output_tokens"}
_KEYS: Final = ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")


def mode_of(given: str | None) -> Mode:
    """Return the mode: the argument, else `EVALRX_LANGFUSE_MODE`, else `auto` (DL 10.1).

    Raises:
        ValueError: It is none of the three.
        RuntimeError: It is `live` and the keys are missing.
    """
    told = given or os.environ.get(VARIABLE, "auto")
    mode = _MODES.get(told.strip().lower())
    if mode is None:
        raise ValueError(f"{VARIABLE}: expected auto, live or offline, found a text of {len(told)} characters.")
    if mode == "live" and not has_credentials():
        raise RuntimeError(
            f"live: expected {_KEYS[0]} and {_KEYS[1]} in the environment, found {_found()}. "
            f"Set both, or choose offline ({VARIABLE}=offline)."
        )
    return mode


def has_credentials() -> bool:
    """Whether both keys of Langfuse are set."""
    return all(os.environ.get(key) for key in _KEYS)


def _found() -> str:
    found = [key for key in _KEYS if os.environ.get(key)]
    return f"only {found[0]}" if found else "neither"


class LoopTracer:
    """Spans, generations and scores beside the events of the loop.

    Args:
        session: Returns the open run.
        lock: Held while something is recorded.
        mode: `auto`, `live` or `offline`.
        trace_id: Of the documents.
    """

    def __init__(self, session: Callable[[], LoopRun], lock: "threading.RLock", *, mode: Mode, trace_id: str) -> None:
        self.mode: Mode = mode
        self.trace_id = trace_id
        self._session = session
        self._spans: dict[str, RecordedSpan] = {}

    @property
    def service_trace_id(self) -> str:
        """The trace at Langfuse and in every other destination: 32 hex digits."""
        return self._session().trace_id

    @property
    def live_enabled(self) -> bool:
        """Whether records are sent to Langfuse while the loop runs."""
        return self.mode != "offline" and has_credentials()

    def start_span(
        self,
        name: str,
        stage: str,
        input_data: Any = None,
        metadata: Mapping[str, Any] | None = None,
        parent_id: str | None = None,
    ) -> str:
        """Start a span and return its id."""
        run = self._session()
        parent = self._spans.get(parent_id or "", run.span)
        span = RecordedSpan(run, text(name), "span", parent, stage=text(stage))
        if input_data is not None:
            span.input(tree(input_data)[0])
        span.set(**{text(key): tree(value)[0] for key, value in (metadata or {}).items()})
        self._spans[span.span_id] = span
        return span.span_id

    def end_span(self, span_id: str, output_data: Any = None, status: str = "completed") -> None:
        """End a span; an id that is not known is passed over."""
        span = self._spans.pop(span_id, None)
        if span is None:
            return
        if output_data is not None:
            span.output(tree(output_data)[0])
        if status == "failed":
            span.set_status(StatusCode.ERROR)
            span.set_attribute(names.ERROR_TYPE, status)
        elif status != "completed":
            span.set_attribute(names.OUTCOME, status)
        span.end()

    def log_generation(
        self,
        name: str,
        model: str,
        prompt: Any,
        completion: Any,
        span_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> str:
        """Record what a model was asked and said, and return the id of the span."""
        run = self._session()
        parent = self._spans.get(span_id or "", run.span)
        span = ModelCallSpan(run, text(name), "model_call", parent, stage=parent.stage, otel_kind=3)
        span.set_attribute(names.GENAI_OPERATION, "chat")
        span.set_attribute(names.GENAI_MODEL, text(model))
        span.input(tree(prompt)[0]).output(tree(completion)[0])
        for key, count in (usage or {}).items():
            known = _USAGE.get(text(key), text(key))
            if known in names.USAGE_KEYS:
                span.usage(**{known: count})
            else:
                span.set(**{f"usage.{known}": count})
        span.set(**{text(key): tree(value)[0] for key, value in (metadata or {}).items()})
        span.end()
        return span.span_id

    def log_score(self, name: str, value: float, comment: str = "", span_id: str | None = None) -> None:
        """Record a score of a span, or of the run."""
        run = self._session()
        span = self._spans.get(span_id or "", run.span)
        attributes = {names.SCORE_NAME: text(name), names.SCORE_VALUE: float(value), names.SCORE_COMMENT: comment}
        span.add_event(names.EVENT_SCORE, attributes)

    def flush(self) -> None:
        """Bring the documents up to date."""
        run = self._session()
        if run.hooks is not None:
            run.hooks.flush(0.0)
