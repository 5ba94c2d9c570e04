"""How an exception that leaves a span is recorded: outcome, status, and one event (in one place, DESIGN 4).

Span status and `error.type` follow the general OpenTelemetry conventions for
recording errors. The event is a log record named `exception`, since exceptions
as span events are deprecated upstream; to change that, change `exception_event`.

The exception itself is only read, and nothing of it is kept.
"""

import sys
import traceback
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

from spanfold import names
from spanfold.journal import clean_text

MAX_MESSAGE: Final = 4_096
"""Characters kept of an exception's text."""
MAX_STACKTRACE: Final = 65_536
"""Characters kept of a stack trace: its end, where the error is."""
MAX_LINE: Final = 8_192
"""Characters kept of each line of a stack trace."""
MAX_FRAMES: Final = 200
"""Frames shown of each traceback: the innermost."""
MAX_RELATED: Final = 100
"""Causes, contexts and members of groups; of an exception that has more only its own traceback is shown."""
_TRAIL: Final = 16
UNPRINTABLE: Final = "<unprintable>"

Trail = tuple[int, tuple[tuple[int, int], ...]]
"""Identity of an exception and the innermost places it came through."""


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
    # Through `type` itself: a metaclass of the host may answer for its classes, or raise.
    kind: type = type(error)
    name: str = type.__getattribute__(kind, "__qualname__")
    module: object = type.__getattribute__(kind, "__module__")
    return name if module in ("builtins", "__main__") or not isinstance(module, str) else f"{module}.{name}"


def message(error: BaseException) -> str:
    """Return the text of an exception, `<unprintable>` when it cannot say it."""
    try:
        text = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # the host's __str__: whatever it raises must not replace the host's exception
        return UNPRINTABLE
    text = str.__str__(text)
    return clean_text(text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}...[{len(text)} characters]")[0]


def ending(error: BaseException) -> Ending:
    """Judge an exception that leaves a span."""
    name = type_name(error)
    asyncio = sys.modules.get("asyncio")  # a program that has not imported it cannot cancel a task
    if asyncio is not None and isinstance(error, asyncio.CancelledError):
        return Ending(2, name, "cancelled", None, False)
    if isinstance(error, KeyboardInterrupt):
        return Ending(2, name, "interrupted", None, False)
    if isinstance(error, GeneratorExit):
        return Ending(0, "", "closed_early", None, False)
    if isinstance(error, SystemExit):
        code = error.code if type(error.code) is int else (0 if error.code is None else 1)
        return Ending(2 if code else 0, name if code else "", "exit", code, False)
    return Ending(2, name, "", None, True)


def exception_event(error: BaseException) -> dict[str, Any]:
    """Return the attributes of the `exception` event."""
    name, text = type_name(error), message(error)
    try:
        if _has_many_related(error):
            lines = _plain_trace(error, name, text)
        else:
            lines = traceback.format_exception(error, limit=-MAX_FRAMES)
    except Exception:  # it calls the host's code: notes, attributes of classes
        lines = _plain_trace(error, name, text)
    trace = clean_text(_end_of(lines, MAX_STACKTRACE))[0]
    return {names.EXCEPTION_TYPE: name, names.EXCEPTION_MESSAGE: text, names.EXCEPTION_STACKTRACE: trace}


def _plain_trace(error: BaseException, name: str, text: str) -> list[str]:
    return [*traceback.format_tb(error.__traceback__, limit=-MAX_FRAMES), f"{name}: {text}\n"]


def trail(error: BaseException) -> Trail:
    """Return what tells this exception from another one, without keeping it.

    The address alone does not: the next exception is often made where the last
    one was freed.
    """
    places: list[tuple[int, int]] = []
    tb = error.__traceback__
    while tb is not None:
        places.append((id(tb.tb_frame.f_code), tb.tb_lasti))
        tb = tb.tb_next
    return id(error), tuple(places[-_TRAIL:])


def is_same(earlier: Trail, later: Trail) -> bool:
    """Whether a trail is the continuation of an earlier one, seen further out."""
    length = len(earlier[1])
    return earlier[0] == later[0] and (not length or earlier[1] == later[1][-length:])


def _has_many_related(error: BaseException) -> bool:
    found = _related(error)
    return any(count >= MAX_RELATED for count, _ in enumerate(found))


def _related(error: BaseException) -> Iterator[BaseException]:
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        waiting += (found.__cause__, found.__context__)
        if isinstance(found, BaseExceptionGroup):
            waiting += cast("BaseExceptionGroup[BaseException]", found).exceptions[: MAX_RELATED + 1]


def _end_of(lines: list[str], limit: int) -> str:
    """Return the last `limit` characters of joined lines, without joining more."""
    kept: list[str] = []
    for line in reversed(lines):
        # One long line, the exception's own text, must not push the frames out.
        line = line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}...[{len(line)} characters]\n"
        kept.append(line[-limit:])
        limit -= len(kept[-1])
        if limit <= 0:
            break
    return "".join(reversed(kept))
