"""Both directions between our spans and an OpenTelemetry SDK provider the host has.

Theirs to us: a span processor of ours on the host's provider (`_foreign`).
Ours to them: their processors are shown each of our spans as an SDK
`ReadableSpan`, redacted, so that their back end shows whole traces. The
provider is joined, never replaced; with `provider="global"` ours is installed
only where the host has none.
"""

import os
import weakref
from collections.abc import Mapping
from typing import Any, cast

from opentelemetry import trace

from spanfold import names
from spanfold.instrument._foreign import ForeignProcessor
from spanfold.instrument._guard import losing_only, lost
from spanfold.instrument._span import RecordedSpan
from spanfold.instrument._state import state
from spanfold.journal import AttributeValue

_api_globals: Mapping[str, Any] = vars(trace)


class Bridge:
    """The provider this process is joined to, if any."""

    def __init__(self) -> None:
        self.processor = ForeignProcessor()
        self.provider: Any = None
        """The joined provider that is shown our spans, None when there is none."""
        self._joined: Any = None
        """The provider that shows us its spans."""
        self._seen: Any = self
        self._added: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def description(self) -> str:
        """Which provider is used, in words, for `doctor`."""
        if self._joined is None:
            return "spanfold's own; the host has no OpenTelemetry SDK provider that can be joined"
        kind: Any = cast("Any", type(self._joined))
        return f"spanfold's own, joined with the host's {kind.__module__}.{kind.__qualname__}"

    def join_if_new(self) -> None:
        """Join the host's SDK provider if it has another one than when last asked; called when a stage starts."""
        # Where the API keeps it. Asking the API costs more than all else at the start of a stage; if it moves, we ask.
        found = _api_globals.get("_TRACER_PROVIDER", _api_globals)
        if found is not self._seen or found is _api_globals:
            self._seen = found
            self.join()

    def join(self) -> None:
        """Join the host's SDK provider if it has one we have not joined; called when a run starts."""
        try:
            settings = state.settings
            choice = settings.provider if settings is not None else "auto"
            if choice == "own":
                self.forget()
                return
            found: Any = trace.get_tracer_provider() if isinstance(choice, str) else choice
            if type(found).__module__.startswith("opentelemetry.trace"):  # the API's placeholder: there is none
                if choice == "global":
                    from spanfold.instrument._provider import SpanfoldTracerProvider

                    trace.set_tracer_provider(SpanfoldTracerProvider())
            elif found is not self._joined:
                self._join(found)
        except Exception as error:
            lost("the host's provider", error)

    def _join(self, found: Any) -> None:
        self.forget()
        if not hasattr(found, "add_span_processor"):
            return
        if found not in self._added:
            found.add_span_processor(self.processor)
            self._added.add(found)
        self._joined = found
        if hasattr(found, "_active_span_processor"):
            self.provider = found

    def forget(self) -> None:
        """Stop showing spans to the host; the processor stays added, since the SDK cannot remove one, and is idle."""
        self.provider = self._joined = None

    def mirror_start(self, span: RecordedSpan) -> None:
        """Tell the host's processors that one of our spans started."""
        provider = self.provider
        if provider is None:
            return
        with losing_only("spans shown to the host's provider"):
            from spanfold.instrument._mirror import shown

            started = shown(span, provider, {names.KIND: span.kind} if span.kind else {})
            span.mirrored = started
            provider._active_span_processor.on_start(started, None)

    def mirror_end(self, span: RecordedSpan, end_ns: int, attributes: Mapping[str, AttributeValue]) -> None:
        """Give the host's processors one of our ended spans, redacted."""
        provider = self.provider
        if provider is None:
            return
        with losing_only("spans shown to the host's provider"):
            from spanfold.instrument._mirror import shown

            ended = shown(span, provider, attributes, end_ns=end_ns, started=span.mirrored)
            provider._active_span_processor.on_end(ended)


bridge = Bridge()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=bridge.processor.forked)
