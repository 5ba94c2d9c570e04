"""Where the OpenTelemetry context keeps the current span, and how to get there quickly."""

import gc
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

SPAN_KEY: Final = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, Context())))
"""Where the OpenTelemetry context keeps the current span, learned from the API itself."""


def _context_access() -> tuple[Callable[[], Context], Callable[[Context], object]]:
    """Return how to read and set the current OpenTelemetry context.

    The API's default keeps it in a context variable; going straight to that
    saves four Python calls each time. Any other implementation is asked
    through the API.
    """
    variable = getattr(getattr(otel_context, "_RUNTIME_CONTEXT", None), "_current_context", None)
    if isinstance(variable, ContextVar):
        return cast("ContextVar[Context]", variable).get, cast("ContextVar[Context]", variable).set
    return otel_context.get_current, otel_context.attach


get_context, set_directly = _context_access()


def _set_undisturbed(context: Context) -> object:
    """Make a context the current one.

    Before Python 3.12 the garbage collector runs in the middle of `ContextVar.set`. A finalizer that
    sets one then, as one that records a span does, makes the interpreter go on with memory it gave away.
    """
    # Of two threads in here only the one that switched the collector off switches it on again.
    if not gc.isenabled():
        return set_directly(context)
    gc.disable()
    try:
        return set_directly(context)
    finally:
        gc.enable()


set_context = _set_undisturbed if sys.version_info < (3, 12) else set_directly
