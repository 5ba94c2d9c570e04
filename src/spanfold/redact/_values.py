r"""Where a value ends: behind an opening quote, and without one.

An opening quote written with k backslashes (k = 0, 1, 3, 7: JSON inside JSON strings) is closed by one with as many, not
by the escaped quotes of a deeper level; the end of any string around the value ends it too, and so does the line.
Nothing of that is taken, so text that parsed before parses afterwards. Every function scans a value once.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from spanfold.redact._names import TOKEN_PATTERN, is_sensitive_name


class Span(NamedTuple):
    """Where a value begins and ends."""

    start: int
    end: int


_MARKS: Final = frozenset("\"'`")
_QUOTE_STARTS: Final = frozenset("\\\"'`bfruBFRU")


_ENDERS: Final = frozenset('\\"\r\n')
_SHORT_VALUE: Final = 256
LONGEST_LEFT_ALONE: Final = 512
"""Characters of a value without blanks and quotes that may be prose, code or a reference. A longer one never is: it would
be read again for each name in it."""


@lru_cache(maxsize=1)
def _opening() -> re.Pattern[str]:
    return re.compile(r"(?:[bfru]|[bf]r|rb)?(?P<slashes>(?:\\{7}|\\{3}|\\)?)(?P<mark>\"{3}|'{3}|[\"'`])", re.IGNORECASE)


@lru_cache(maxsize=1)
def _quote_or_break() -> re.Pattern[str]:
    return re.compile(r"(?<!\\)(\\*+)([\"'`\r\n])")


@lru_cache(maxsize=2)
def _triple_end(mark: str) -> re.Pattern[str]:
    return re.compile(rf"{mark}|(?<!\\)\\*+\"|[\r\n]" if mark == "'''" else rf"{mark}|[\r\n]")


@lru_cache(maxsize=1)
def _bare() -> re.Pattern[str]:
    return re.compile(rf"(?:[^\x00-\x20\x7f\"'`\\,;&|()\[\]{{}}<>]|{TOKEN_PATTERN})*+")


@lru_cache(maxsize=1)
def _in_query() -> re.Pattern[str]:
    return re.compile(rf"(?:[^\x00-\x20\x7f\"'`\\,;&|()\[\]{{}}<>#]|{TOKEN_PATTERN})*+")


@lru_cache(maxsize=1)
def _percent_encoded() -> re.Pattern[str]:
    return re.compile(r"[A-Za-z0-9_.~*+-]*+")


@lru_cache(maxsize=1)
def _in_connection() -> re.Pattern[str]:
    return re.compile(r"[^\x00-\x20\x7f\"'`\\;]*+")


@lru_cache(maxsize=1)
def _expression() -> re.Pattern[str]:
    # Code that gives a value, not the value: `self.token`, `os.environ`, `settings.api_key`.
    heads = "self|cls|this|os|args|config|cfg|settings|env|process|request|req|ctx|context|opts|options|params|kwargs"
    return re.compile(rf"(?:{heads})(?:\.[A-Za-z_]\w*)+\Z", re.ASCII)


def quoted_value(text: str, at: int, *, after_bare_name: bool) -> Span | None:
    """Return the inside of the quotes that open at `at`, or None when none do.

    Behind a name without quotes, a quote that is followed by what follows strings is the *closing* quote of a string
    that ends in `NAME=`; the value is empty then.
    """
    mark, slashes, start = text[at : at + 1], 0, at + 1
    if mark not in _QUOTE_STARTS:
        return None
    if mark not in _MARKS or text.startswith(mark * 3, at):
        opening = _opening().match(text, at)
        if opening is None:
            return None
        start, mark, slashes = opening.end(), opening["mark"], len(opening["slashes"])
        if len(mark) == 3 and slashes:
            mark, start = mark[0], start - 2
    if len(mark) == 3:
        end = _triple_end(mark).search(text, start)
        return Span(start, end.start() if end else len(text))
    if after_bare_name and (start == len(text) or text[start] in " \t\r\n,:]}\\"):
        return Span(start, start)
    return Span(start, closing_quote(text, start, mark, slashes))


def closing_quote(text: str, start: int, mark: str, slashes: int) -> int:
    """Return where the value ends that was opened by `mark` behind so many backslashes."""
    if not slashes:
        end = text.find(mark, start, start + _SHORT_VALUE)
        if end >= 0 and _ENDERS.isdisjoint(text[start:end]):
            return end  # the common case
    for found in _quote_or_break().finditer(text, start):
        level = len(found[1]) % (2 * slashes + 2)
        if found[2] == mark and level == slashes:
            return found.start(2) - slashes
        if found[2] == mark and level == 2 * slashes + 1:
            continue  # escaped: a quote inside the value
        if found[2] in (mark, '"', "\r", "\n"):
            return found.start()  # a string around the value ends, or the line
    return len(text)


def bare_end(text: str, at: int) -> int:
    """Return the end of a value without quotes: at a blank, a quote, a backslash, a bracket, or one of `,;&|`."""
    return _end(_bare(), text, at)


def query_end(text: str, at: int) -> int:
    """Return the end of a value in the query of a URL: that of a value without quotes, or the fragment."""
    return _end(_in_query(), text, at)


def percent_encoded_end(text: str, at: int) -> int:
    """Return the end of a value that stands percent-encoded in a URL: at the next escape."""
    return _end(_percent_encoded(), text, at)


def connection_end(text: str, at: int) -> int:
    """Return the end of a value in a connection string, where only `;` separates."""
    return _end(_in_connection(), text, at)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def is_code(text: str, value: str, end: int) -> bool:
    """Tell whether a bare value is an expression: a call, an item, an attribute, a reference, the name of a variable."""
    following = text[end : end + 1]
    if value.endswith("$") and following in ("{", "("):
        return True
    letters = value.replace(".", "").replace("_", "")
    if letters.isalpha():
        return following in ("(", "[") or is_sensitive_name(value) or _expression().match(value) is not None
    return following in ("(", "[") and letters.isalnum()
