"""Interrupt a call at each of the places where Python would run a signal handler."""

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

# The evaluation loop looks for signals when a function begins, when a loop goes back and after a call of something that
# is not written in Python, and nowhere else.
_LOOKS_BEHIND = ("RESUME", "CALL", "INSTRUMENTED_CALL", "JUMP_BACKWARD")


Called = Callable[[FrameType], bool]
Comes = Callable[[FrameType, int], bool]


class Interrupt(BaseException):
    """Stands for what a signal handler raises, KeyboardInterrupt among others."""


def interrupted(call: Callable[[], object], *places: int, action: Callable[[], None] | None = None) -> int:
    """Call, and in the code of spanfold do something at the given places, counted from 1.

    Args:
        action: What the signal handler does; by default it raises `Interrupt`.

    Returns:
        How many places were met before the call was over.
    """
    met = 0
    last: dict[FrameType, str] = {}

    def called(frame: FrameType) -> bool:
        """Take note of a function that begins; tell whether its instructions are looked at."""
        if frame.f_back is not None:
            last.pop(frame.f_back, None)
        # What a finalizer raises ends there.
        return frame.f_globals.get("__name__", "").startswith("spanfold.") and frame.f_code.co_name != "__del__"

    def comes(frame: FrameType, offset: int) -> bool:
        """Take note of the next instruction of a frame; tell whether the signal handler runs before it."""
        nonlocal met
        before, last[frame] = last.get(frame, ""), dis.opname[frame.f_code.co_code[offset]]
        if not before.startswith(_LOOKS_BEHIND) or _is_finalizing(frame):
            return False
        met += 1
        return met in places

    if sys.version_info >= (3, 12):
        _monitored(call, called, comes, action)
    else:
        _traced(call, called, comes, action)
    return met


def _raise() -> None:
    raise Interrupt


def _traced(call: Callable[[], object], called: Called, comes: Comes, action: Callable[[], None] | None) -> None:
    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "call":
            if not called(frame):
                return None
            frame.f_trace_opcodes = True
        if event == "opcode" and comes(frame, frame.f_lasti):
            sys.settrace(None)
            try:
                (action or _raise)()
            finally:
                sys.settrace(trace)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)


def _monitored(call: Callable[[], object], called: Called, comes: Comes, action: Callable[[], None] | None) -> None:
    # From Python 3.12 on a function that runs already is not traced by its instructions.
    monitoring: Any = vars(sys)["monitoring"]
    events, tool = monitoring.events, monitoring.PROFILER_ID
    looked_at: dict[FrameType, bool] = {}

    def began(code: CodeType, offset: int) -> None:
        frame = sys._getframe(1)
        looked_at[frame] = called(frame)

    def instruction(code: CodeType, offset: int) -> None:
        frame = sys._getframe(1)
        if looked_at.get(frame) and comes(frame, offset):
            (action or _raise)()

    monitoring.use_tool_id(tool, "interrupts")
    try:
        for event, callback in ((events.PY_START, began), (events.PY_RESUME, began), (events.INSTRUCTION, instruction)):
            monitoring.register_callback(tool, event, callback)
        monitoring.set_events(tool, events.PY_START | events.PY_RESUME | events.INSTRUCTION)
        call()
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)


def _is_finalizing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None
