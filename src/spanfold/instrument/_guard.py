"""The one place where our own failures end: counted, logged once, never the host's.

`losing_only("what")` surrounds work of ours inside the host's program. Only
`Exception` is caught: KeyboardInterrupt, SystemExit and GeneratorExit belong
to the host.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol

from spanfold.errors import JournalSealed, SettingsError

log = logging.getLogger("spanfold")

losses: Counter[str] = Counter()
"""What was lost -> how often. Read by `doctor` and by `run.losses`."""


def lost(what: str, error: BaseException | None = None, *, name: str = "") -> None:
    """Count one loss; log the first of its kind with the place it happened, never with a value.

    Args:
        what: The kind.
        error: Why.
        name: What the program calls the thing, redacted.
    """
    losses[what] += 1
    if losses[what] > 1:
        return
    where = f", first {name!r}" if name else ""
    if isinstance(error, (SettingsError, JournalSealed)):
        where = f" ({str(error).removesuffix('.')})"  # it says more than a place in our code, and no value
    elif error is not None:
        tb = error.__traceback__
        while tb is not None and tb.tb_next is not None:
            tb = tb.tb_next
        if tb is not None:
            where = f" ({type(error).__name__} in {tb.tb_frame.f_code.co_name}, line {tb.tb_lineno})"
    _warn("spanfold lost %s%s; the program goes on. Further losses of this kind are only counted.", what, where)


def _warn(message: str, *told: object) -> None:
    try:
        log.warning(message, *told)
    except Exception:  # a handler of the host's
        losses["log messages"] += 1


def not_usable(error: SettingsError, instead: str) -> None:
    """Count and tell a variable that cannot be used, with what is in force in its place."""
    losses[f"the setting {error.setting}"] += 1
    _warn('spanfold reads %s as "%s": expected %s, found %s.', error.setting, instead, error.expected, error.found)


def tell_unused(found: Mapping[str, str], told: frozenset[str]) -> frozenset[str]:
    """Tell which variables look like ours and change nothing, once each.

    Args:
        found: Them, each with the one that may have been meant, or "".
        told: Those that were told.

    Returns:
        Those that are told now.
    """
    new = [f"{name} (did you mean {meant}?)" if meant else name for name, meant in found.items() if name not in told]
    if new:
        _warn(
            "spanfold knows no variable %s: what %s set to changes nothing.",
            ", ".join(new),
            "it is" if len(new) == 1 else "they are",
        )
    return told | found.keys()


class _Ended(Protocol):
    """A run that is over."""

    is_late_told: bool
    """Whether it was told already that work goes on after it."""

    @property
    def dir(self) -> Path:
        """The run directory."""
        ...


def too_late(run: _Ended) -> None:
    """Count a record that belongs to a run that is over; log the first of each run, since no document of it tells that."""
    losses["records made after the end of their run"] += 1
    if run.is_late_told:
        return
    run.is_late_told = True
    _warn(
        "%s: something is recorded after the end of this run, and is lost; the program goes on. Wait for threads, tasks and "
        "pools inside of `with spanfold.run(...)`. Further losses of this kind in this run are only counted.",
        run.dir,
    )


class losing_only:  # noqa: N801 - reads as a statement: `with losing_only("arguments"):`
    """Context manager: an `Exception` of ours inside costs `what` and is counted."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        lost(self.what, error)
        return True
