"""Plain lines about the events of a loop, and the narrator instead of them (DL 12)."""

import sys
from collections.abc import Mapping
from typing import Any

from spanfold.diagnose._narrator import LoopNarrator


class Console:
    """Tells of events on the standard output; a closed or broken one stops nothing.

    Args:
        verbose: Whether each event has a plain line.
        narrate: Whether a narrator tells instead.
    """

    def __init__(self, *, verbose: bool, narrate: bool) -> None:
        self._narrator = LoopNarrator() if narrate else None
        self._is_plain = verbose and not narrate
        self._failures = 0

    @property
    def failures(self) -> int:
        """Lines that could not be written."""
        return self._failures + (self._narrator.failures if self._narrator else 0)

    @property
    def is_silent(self) -> bool:
        """Whether nothing is told."""
        return self._narrator is None and not self._is_plain

    def stage_event(self, stage: str, bucket: str, record: Mapping[str, Any]) -> None:
        """Tell of an event of a stage."""
        if self._narrator is not None:
            self._narrator.on_event(stage, bucket, record)
        elif self._is_plain:
            self._line(stage, bucket, record)

    def run_event(self, bucket: str, record: Mapping[str, Any]) -> None:
        """Tell of an event of the run."""
        if self._narrator is not None:
            if bucket == "run_start":
                self._narrator.on_run_start(record)
            else:
                self._narrator.on_run_event(bucket, record)
        elif self._is_plain:
            self._line("run", bucket, record)

    def _line(self, stage: str, bucket: str, record: Mapping[str, Any]) -> None:
        cycle = f" cycle={record['cycle']}" if "cycle" in record else ""
        try:
            sys.stdout.write(f"[{stage}] {bucket}{cycle}\n")
            sys.stdout.flush()
        except Exception:  # closed, a broken pipe, or None in a program without a console
            self._failures += 1
