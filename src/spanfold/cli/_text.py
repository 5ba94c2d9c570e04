"""Make text fit for a terminal. Pure functions.

Whatever comes out of a run may hold anything, also what would move the cursor,
recolour the screen or turn the writing direction: `shown` makes such characters
visible instead.
"""

import unicodedata
from typing import Final

_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_JOINER: Final = "\u200d"
"""Joins emoji; harmless, though it is a format character."""
_BLOCKS: Final = " ▏▎▍▌▋▊▉█"
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def shown(text: object) -> str:
    r"""Return text in one line with every control, format and unassigned character as an escape such as `\x1b`."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(char if _is_harmless(char) else _escaped(char) for char in plain)


def _is_harmless(char: str) -> bool:
    return char.isprintable() or char == _JOINER or unicodedata.category(char) not in _HIDDEN


def _escaped(char: str) -> str:
    number = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def columns(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(_width(char) for char in text)


def _width(char: str) -> int:
    if unicodedata.combining(char) or char == _JOINER:
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Return text that takes at most so many columns; a cut one ends in an ellipsis."""
    if columns(text) <= width:
        return text
    taken, kept = 0, list[str]()
    for char in text:
        taken += _width(char)
        if taken > width - 1:
            break
        kept.append(char)
    return "".join(kept) + "…" if width > 0 else ""


def size(n_bytes: int | None) -> str:
    """Write a number of bytes: `928 B`, `11.2 kB`, `3.40 MB`."""
    if n_bytes is None:
        return "–"
    if n_bytes < 1000:
        return f"{n_bytes} B"
    value = n_bytes / 1000
    for unit in ("kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
        value /= 1000
    return f"{value:.2f} TB"


def bar(share: float, width: int) -> str:
    """Draw a share from 0 to 1 in at most so many columns, in eighths of one; as short as it is."""
    eighths = round(min(1.0, share) * width * 8)
    return (_BLOCKS[8] * (eighths // 8) + _BLOCKS[eighths % 8]).rstrip()


def age(seconds: float | None) -> str:
    """Write how long ago something was, coarsely: `12 s`, `5 min`, `3 h`, `2 d`."""
    if seconds is None:
        return "–"
    for limit, unit, length in ((90, "s", 1), (90 * 60, "min", 60), (36 * 3600, "h", 3600)):
        if seconds < limit:
            return f"{max(0, round(seconds / length))} {unit}"
    return f"{round(seconds / 86400)} d"


def moment(text: str | None, *, seconds_only: bool = True) -> str:
    """Write a time of a run, `2026-11-30T17:52:26.819391Z`, for people: `2026-11-30 17:52:26`. It stays UTC."""
    if not text:
        return "–"
    return shown(text.replace("T", " ").partition("." if seconds_only else "Z")[0].removesuffix("Z"))


def cycle(number: int | None) -> str:
    """Write the number of a cycle; empty when there is none, for which documents of a diagnose loop have -1."""
    return "" if number is None or number < 0 else str(number)


def count(number: int, one: str, many: str | None = None) -> str:
    """Write a number with its noun: `1 file`, `2 files`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
