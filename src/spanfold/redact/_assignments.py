r"""Secrets told by the name beside them: `NAME=value`, `"name": "value"`, headers, connection strings, URL queries.

The name decides whether there is a secret (`_names`), the separator and the quotes decide where it ends (`_values`).
Everything stays inside one line. Texts come in as one character per UTF-8 byte, see `_engine`.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from spanfold.redact._headers import cookies, credentials
from spanfold.redact._names import WORDS, is_plain_value, is_sensitive_name, token
from spanfold.redact._values import (
    LONGEST_LEFT_ALONE,
    bare_end,
    closing_quote,
    connection_end,
    is_code,
    percent_encoded_end,
    query_end,
    quoted_value,
)

SEPARATOR_PROBE: Final = r"(?:[:=]|%3[ADad]|\\+u003[ADad])"
"""What stands between a name and its value, for the pre-filter."""

_KEY_HEADERS: Final = frozenset(
    {
        *("x-api-key", "api-key", "x-auth-token", "private-token", "x-vault-token", "x-goog-api-key"),
        "ocp-apim-subscription-key",
    }
)
_NPM_NAMES: Final = frozenset({"_authtoken", "_auth", "_password"})
_NAME_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
_LONGEST_NAME: Final = 96
_ENCODED_SEPARATORS: Final = {"%3d": "=", "u003d": "=", "%3a": ":", "u003a": ":"}
_BEFORE_PARAMETERS: Final = frozenset("?&#6;")
_DROP_SEPARATORS: Final = str.maketrans("", "", "_-. ")


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


class _Place:
    """A sensitive name and what stands around it."""

    __slots__ = ("_text", "encoded", "name", "quote", "separator", "spaced", "start", "value")

    def __init__(self, text: str, name: str, start: int, match: re.Match[str]) -> None:
        self._text = text
        self.name = name
        self.start = start
        self.value = match.end()
        # The closing quote of the name with its backslashes, or nothing.
        quote, before, separator, after = match.group("quote", "before", "separator", "after")
        self.quote = quote or ""
        self.separator = _ENCODED_SEPARATORS.get(separator.lstrip("\\"), separator)
        # Whether name and value stand percent-encoded inside a URL.
        self.encoded = separator.startswith("%")
        blanks = before + after
        self.spaced = bool(blanks) and (" " in blanks or "\t" in blanks)

    def in_query(self) -> bool:
        before = self._text[self.start - 1 : self.start]
        if self.spaced or self.separator != "=" or before not in _BEFORE_PARAMETERS:
            return False
        return before in ("?", "&", "#") or self._text.endswith(("u0026", "&amp;"), 0, self.start)

    def in_connection_string(self, end: int) -> bool:
        """Tell whether `;` separates here: it stands before the name, or another `name=` follows it behind the value."""
        if self.spaced or self.separator != "=":
            return False
        if self._text.startswith(";", end) and _next_part().match(self._text, end):
            return True
        return self._text[self.start - 1 : self.start] == ";" and not self._text.endswith("&amp;", 0, self.start)

    def in_colon_list(self) -> bool:
        """Tell whether the name is a part of `arn:aws:...:secret:name`."""
        return self.separator == ":" and not self.spaced and self._text[self.start - 1 : self.start] == ":"


def redact_assignments(text: str) -> str:
    """Replace the values beside sensitive names."""
    pieces: list[str] = []
    done = 0
    for match in _named().finditer(text.lower()):
        if done > match.start():
            continue
        begin, end = match.span("name")
        start = _name_start(text, begin)
        name = text[start:end]
        if is_sensitive_name(name):
            edit = _judge(text, _Place(text, name, start, match))
        elif name == "PWD" and text.startswith("=", match.end() - 1):
            edit = _odbc_password(text, _Place(text, name, start, match))
        else:
            continue
        if edit is not None:
            pieces += (text[done : edit.start], edit.text)
            done = edit.end
    if not pieces:
        return text
    pieces.append(text[done:])
    return "".join(pieces)


# --- names ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def kind_of(name: str) -> str:
    """Return the kind a value called `name` is replaced by."""
    lower = name.lower()
    key = lower.translate(_DROP_SEPARATORS)
    if lower in _KEY_HEADERS or key.endswith(("authorization", "cookie")):
        return "header"
    if "secretaccesskey" in key or "awssecret" in key:
        return "aws-secret"
    if key.endswith(("sessiontoken", "amzsecuritytoken", "amzsignature", "amzcredential")):
        return "aws-session"
    if key.endswith(("accountkey", "sharedaccesskey")):
        return "azure-key"
    return "npm" if lower in _NPM_NAMES else "assignment"


@lru_cache(maxsize=1)
def _named() -> re.Pattern[str]:
    """Match, in lower-case text, the end of a name, its closing quote, and the separator up to the value.

    A value that begins with a replacement token is none.
    """
    blank = r"(?:[ \t]|\x1b\[[0-9;]*+m)*+"
    annotation = r":[ \t]*+[a-z_][\w.]*+(?:\[[\w., |]*+\])?+(?:[ \t]*+\|[ \t]*+none)?+[ \t]++=(?=[ \t])"
    separator = rf"{annotation}|=>|:=|={{1,3}}|:(?!:|//)|%3[ad]|\\++u003[da]"
    return re.compile(
        rf"(?P<name>(?:{WORDS}|\b_auth)[0-9_.\-]*+)(?P<quote>\\*+[\"'])?+\]?+(?P<before>{blank})(?P<separator>{separator})"
        rf"(?P<after>{blank})(?!(?:\\*+[\"'`])?+\(redacted-)",
        re.ASCII,
    )


@lru_cache(maxsize=1)
def _escape_tail() -> re.Pattern[str]:
    # What belongs to an escape before the name, though it looks like a part of it.
    return re.compile(r"(?<=\\)(?:[nrtbfv0]|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2})|(?<=%)[0-9A-Fa-f]{2}|(?<=\[)[0-9;]*m")


def _name_start(text: str, found: int) -> int:
    """Return where the name begins whose last word was found at `found`."""
    start = found
    floor = max(0, start - _LONGEST_NAME)
    while start > floor and text[start - 1] in _NAME_CHARACTERS:
        start -= 1
    if text[start - 1 : start] in ("\\", "%", "["):
        escape = _escape_tail().match(text, start)
        if escape is not None and escape.end() <= found:
            return escape.end()
    return start


# --- values -----------------------------------------------------------------------------------------------------------


def _judge(text: str, place: _Place) -> _Edit | None:
    kind = kind_of(place.name)
    quoted = quoted_value(text, place.value, after_bare_name=not place.quote)
    if kind == "header" and place.name.lower().endswith("authorization") and (quoted or not place.quote):
        found = credentials(text, *(quoted or (place.value, None)))
        return _Edit(*found, token(kind)) if found else None
    if (
        kind == "header"
        and place.separator == ":"
        and not place.quote
        and place.name.lower() in ("cookie", "set-cookie")
    ):
        found = cookies(text, place.value)
        return _Edit(*found, token(kind)) if found else None
    if quoted is None:
        # What is compared with and stands without quotes is a variable.
        return None if place.separator in ("==", "===") else _bare_value(text, place, kind)
    if is_plain_value(text[quoted.start : quoted.end]):
        return None
    return _Edit(*quoted, token(_kind_here(text, place, kind, quoted.end)))


def _bare_value(text: str, place: _Place, kind: str) -> _Edit | None:
    if place.in_colon_list():
        return None
    in_query = place.in_query()
    find_end = percent_encoded_end if place.encoded else query_end if in_query else bare_end
    end = find_end(text, place.value)
    if not place.quote and place.in_connection_string(end):
        end = connection_end(text, place.value)
    if in_query:
        fragment = text.find("#", place.value, end)
        end = fragment if fragment >= 0 else end
    if text[end - 1] in ".:" and end > place.value:
        end -= 1
    # A long value is never left alone: it would be read again for each name in it.
    if end - place.value <= LONGEST_LEFT_ALONE:
        value = text[place.value : end]
        if is_plain_value(value) or is_code(text, value, end):
            return None
        if not in_query and not _is_convincing(value, place, kind):
            return None
    # A number becomes a text: JSON stays JSON.
    quote = place.quote if place.separator in (":", "=>") else ""
    return _Edit(place.value, end, quote + token(_kind_here(text, place, kind, end)) + quote)


def _is_convincing(value: str, place: _Place, kind: str) -> bool:
    """Tell whether a value without quotes is one: prose and code follow separators too."""
    if place.separator == "=" and not place.spaced:
        return True
    has_digit = any(character.isdigit() for character in value)
    if place.separator in (":", "=>"):
        if place.quote and value.isdigit():
            return True
        return len(value) >= 8 and (has_digit or (kind == "header" and len(value) >= 16))
    has_mark = any(character in "!@#$%^*+/~=" for character in value)
    return len(value) >= 6 and (has_digit or has_mark)


def _kind_here(text: str, place: _Place, kind: str, end: int) -> str:
    if kind != "assignment":
        return kind
    if place.in_query():
        around = text[max(0, place.start - 512) : end + 512]
        return "azure-sas" if place.name == "sig" and _sas_part().search(around) else "url-query"
    return "connection" if place.in_connection_string(end) else kind


def _odbc_password(text: str, place: _Place) -> _Edit | None:
    """`PWD=` is a folder in a shell, and a password in a connection string."""
    around = text[max(0, place.start - 256) : place.value + 256]
    if text.startswith("/", place.value) or not (
        text[place.start - 1 : place.start] == ";" or _odbc_part().search(around) is not None
    ):
        return None
    end = connection_end(text, place.value)
    value = text[place.value : end]
    return None if is_plain_value(value) else _Edit(place.value, end, token("connection"))


@lru_cache(maxsize=1)
def _next_part() -> re.Pattern[str]:
    return re.compile(r";[ ]?[A-Za-z][A-Za-z ]{0,30}=")


@lru_cache(maxsize=1)
def _odbc_part() -> re.Pattern[str]:
    return re.compile(r"(?i)(?:uid|user id|driver|server|data source|initial catalog)=[^;\s]*;")


@lru_cache(maxsize=1)
def _sas_part() -> re.Pattern[str]:
    return re.compile(r"[?&;]s[ve]=")


# --- pairs ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _pair() -> re.Pattern[str]:
    quote, blank = r"\\*+\"", r"[ \t]*+"
    return re.compile(
        rf"{quote}(?:name|key){quote}{blank}:{blank}{quote}(?P<name>[\w. -]++){quote}{blank},{blank}"
        rf"{quote}value{quote}{blank}:{blank}(?P<slashes>\\*+)\"",
        re.IGNORECASE | re.ASCII,
    )


def redact_pairs(text: str) -> str:
    """Replace the values of `{"name": "API_KEY", "value": "..."}`."""
    if '"' not in text:
        return text
    pieces: list[str] = []
    done = 0
    for match in _pair().finditer(text):
        if match.start() < done or not is_sensitive_name(match["name"]):
            continue
        end = closing_quote(text, match.end(), '"', len(match["slashes"]))
        if not is_plain_value(text[match.end() : end]):
            pieces += (text[done : match.end()], token(kind_of(match["name"])))
            done = end
    if not pieces:
        return text
    pieces.append(text[done:])
    return "".join(pieces)
