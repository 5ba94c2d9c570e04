"""Read the UTC timestamps of records as integer nanoseconds; `spanfold.moments` writes them.

Integers, because intervals are compared, clipped and added: a float of today's
epoch seconds resolves a quarter of a microsecond, which is enough to make a
child stick out of its parent.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_FORM: Final = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d)(?::(\d\d)(?:\.(\d{0,9}))?)?(Z|[+-]\d\d:\d\d)?", re.ASCII | re.IGNORECASE
)

NS_PER_SECOND: Final = 1_000_000_000
EARLIEST_NS: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _SECOND * NS_PER_SECOND
"""Nanoseconds from the Unix epoch to the first moment that has a date."""
LATEST_NS: Final = (datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC) - _EPOCH) // _SECOND * NS_PER_SECOND
"""Nanoseconds from the Unix epoch to the last whole second that has a date."""


class Moment(NamedTuple):
    """A timestamp that was read."""

    ns: int
    """Nanoseconds since the Unix epoch, UTC."""
    naive: bool
    """Whether it came without a zone and was taken as UTC."""


def parse_moment(text: object) -> Moment | None:
    """Read a timestamp; None when it is none.

    Accepts 0 to 9 fraction digits, absent seconds, and `Z`, a numeric offset or
    no zone at all (EP 3.2).
    """
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    minute, second, fraction, zone = match.groups()
    try:
        whole = datetime.fromisoformat(f"{minute}:{second or '00'}{(zone or 'Z').upper()}")
    except ValueError:  # a 31st of February, a 25th hour, a leap second
        return None
    ns = (whole - _EPOCH) // _SECOND * NS_PER_SECOND + int((fraction or "").ljust(9, "0"))
    # An offset can carry a date over the edge of the calendar, where it could not be written again.
    return Moment(ns, naive=zone is None) if EARLIEST_NS <= ns <= LATEST_NS else None


def seconds(ns: int) -> float:
    """Turn nanoseconds into seconds rounded to 6 decimals, as records hold them (EP 3.3)."""
    return round(ns / NS_PER_SECOND, 6)
