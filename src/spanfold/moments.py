"""Write nanoseconds since the epoch as the two timestamp forms of the documents."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND_NS: Final = 1_000_000_000
_MAX_NS: Final = 1 << 64


def utc(ns: int) -> str | None:
    """Return `YYYY-MM-DDTHH:MM:SS.ffffff`, cut to microseconds; None when that moment has no date.

    With `Z` it is the form of EP 3.2, with `+00:00` that of DL 4.3.
    """
    whole, rest = divmod(ns, _SECOND_NS)
    second = _second(whole)
    return second and f"{second}.{rest // 1000:06d}"


# Records that stand together were made in the same seconds.
@lru_cache(maxsize=256)
def _second(seconds: int) -> str | None:
    try:
        return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]
    except OverflowError:  # a foreign span may claim any 64-bit time, or a larger one
        return None


def ts6(ns: int) -> str | None:
    """Return `YYYY-MM-DDTHH:MM:SS.ffffffZ` (EP 3.2), cut to microseconds; None when that moment has no date."""
    text = utc(ns)
    return text and text + "Z"


def duration(start_ns: int, end_ns: int) -> float:
    """Return seconds with 6 decimals (EP 3.3); 0 when a foreign span claims to end before its start."""
    return round(min(max(0, end_ns - start_ns), _MAX_NS) / 1e9, 6)


def epoch_seconds(ns: int | None) -> float | None:
    """Return seconds since the epoch, cut to microseconds; None for what is no 64-bit time."""
    # Not ns / 1e9: a double of today's epoch resolves a quarter of a microsecond, and rounding could go up.
    return ns // 1000 / 1e6 if ns is not None and -_MAX_NS <= ns <= _MAX_NS else None


def seconds(ns: Any) -> float | None:
    """Return nanoseconds as seconds with 6 decimals; None for what is no 64-bit number of nanoseconds."""
    return round(ns / 1e9, 6) if type(ns) is int and -_MAX_NS <= ns <= _MAX_NS else None
