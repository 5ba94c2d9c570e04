"""How an exception that leaves a span is recorded: outcome, status, and one event (in one place, DESIGN 4).

Span status and `error.type` follow the general OpenTelemetry conventions for
recording errors. The event is a log record named `exception`, since exceptions
as span events are deprecated upstream; to change that, change `exception_event`.
"""

import asyncio
import traceback
from typing import Any, Final, NamedTuple

from spanfold import names
from spanfold.journal import clean_text

MAX_MESSAGE: Final = 4_096
"""Characters kept of an exception's text."""
MAX_STACKTRACE: Final = 65_536
"""Characters kept of a stack trace: its end, where the error is."""
UNPRINTABLE: Final = "<unprintable>"


class Ending(NamedTuple):
    """What an exception means for the span it left."""

    status_code: int
    error_type: str
    outcome: str
    exit_code: int | None
    is_error: bool
    """Whether an `exception` event is worth recording."""


def type_name(error: BaseException) -> str:
    """Return the class of an exception; built-in classes without module, as upstream writes `error.type`."""
    kind = type(error)
    module, name = kind.__module__, kind.__qualname__
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def message(error: BaseException) -> str:
    """Return the text of an exception, `<unprintable>` when it cannot say it."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the host's __str__; whatever it raises must not replace the host's exception
        return UNPRINTABLE
    text = clean_text(str.__str__(text))[0]
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}...[{len(text)} characters]"


def ending(error: BaseException) -> Ending:
    """Judge an exception that leaves a span."""
    name = type_name(error)
    if isinstance(error, asyncio.CancelledError):
        return Ending(2, name, "cancelled", None, False)
    if isinstance(error, KeyboardInterrupt):
        return Ending(2, name, "interrupted", None, False)
    if isinstance(error, GeneratorExit):
        return Ending(0, "", "closed_early", None, False)
    if isinstance(error, SystemExit):
        code = error.code if type(error.code) is int else (0 if error.code is None else 1)
        return Ending(2 if code else 0, name if code else "", "exit", code, False)
    return Ending(2, name, "", None, True)


def exception_event(error: BaseException, escaped: bool = True) -> dict[str, Any]:
    """Return the attributes of the `exception` event."""
    attributes: dict[str, Any] = {names.EXCEPTION_TYPE: type_name(error), names.EXCEPTION_MESSAGE: message(error)}
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - formatting calls the host's __str__ and reads its sources
        return attributes
    attributes[names.EXCEPTION_STACKTRACE] = clean_text(text[-MAX_STACKTRACE:])[0]
    return attributes
