"""Interrupt a call at each of the places where Python would run a signal handler."""

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

# The evaluation loop looks for signals when a function begins, when a loop goes back and after a call of something that
# is not written in Python, and nowhere else.
_LOOKS_BEHIND = ("RESUME", "CALL", "INSTRUMENTED_CALL", "JUMP_BACKWARD")


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

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal met
        if event == "call" and frame.f_back is not None:
            last.pop(frame.f_back, None)
        # What a finalizer raises ends there.
        if not frame.f_globals.get("__name__", "").startswith("spanfold.") or frame.f_code.co_name == "__del__":
            return None
        if not frame.f_trace_opcodes:
            frame.f_trace_opcodes = True
            if sys.version_info[:2] == (3, 12):  # which looks at that only when tracing is set
                sys.settrace(trace)
        if event == "opcode":
            before, last[frame] = last.get(frame, ""), dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before.startswith(_LOOKS_BEHIND) and not _is_finalizing(frame):
                met += 1
                if met in places:
                    if action is None:
                        raise Interrupt
                    sys.settrace(None)
                    try:
                        action()
                    finally:
                        sys.settrace(trace)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return met


def _is_finalizing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None
