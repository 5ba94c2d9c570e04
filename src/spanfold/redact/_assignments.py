r"""Secrets told by the name beside them: `NAME=value`, `"name": "value"`, headers, connection strings, URL queries.

The name decides whether there is a secret (`_names`), the separator and the quotes decide where it ends. Everything
stays inside one line, and quotes, brackets and backslashes around a value are never taken, so that JSON, YAML and shell
text still parses afterwards. That includes JSON inside JSON strings: an opening quote written with k backslashes
(k = 0, 1, 3, 7) is closed by one with as many, not by the escaped quotes of a deeper level.

Texts come in as one character per UTF-8 byte, see `_engine`. Every pattern is linear: what is searched with a loop is
taken possessively, and a value is scanned once from where its name ends.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from spanfold.redact._names import TOKEN_PATTERN, TOKEN_START, WORDS, is_plain_value, is_sensitive_name, token

SEPARATOR_PROBE: Final = r"(?:[:=]|%3[ADad]|\\+u003[ADad])"
"""What stands between a name and its value, for the pre-filter."""

SCHEMES: Final = (
    "basic|bearer|digest|token|negotiate|ntlm|apikey|api-key|key|hawk|oauth|sso-key|sswts|ssws|geniekey|splunk"
    "|aws4-hmac-sha256"
)
"""Authorization schemes, lower case; kept in front of the value."""

_KEY_HEADERS: Final = frozenset(
    {
        "x-api-key",
        "api-key",
        "x-auth-token",
        "private-token",
        "x-vault-token",
        "x-goog-api-key",
        "ocp-apim-subscription-key",
    }
)
_NPM_NAMES: Final = frozenset({"_authtoken", "_auth", "_password"})
_NAME_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
_LONGEST_NAME: Final = 96


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


class _Place(NamedTuple):
    """A sensitive name and what stands around it."""

    name: str
    start: int
    """Where the name begins."""
    quote: str
    """The closing quote of the name with its backslashes, or nothing."""
    separator: str
    spaced: bool
    """Whether blanks stand around the separator."""
    value: int
    """Where the value begins."""

    key: str
    """The name in lower case without separators."""


def redact_assignments(text: str) -> str:
    """Replace the values beside sensitive names."""
    pieces: list[str] = []
    done = 0
    for match in _named().finditer(text.lower()):
        if match.start() < done:
            continue
        place = _place(text, match)
        edit = _judge(text, place) if is_sensitive_name(place.name) or _is_odbc_password(text, place) else None
        if edit is not None:
            pieces += (text[done : edit.start], edit.text)
            done = edit.end
    if not pieces:
        return text
    pieces.append(text[done:])
    return "".join(pieces)


_DROP_SEPARATORS: Final = str.maketrans("", "", "_-. ")


def _key(name: str) -> str:
    return name.lower().translate(_DROP_SEPARATORS)


def kind_of(name: str) -> str:
    """Return the kind a value called `name` is replaced by."""
    key = _key(name)
    if name.lower() in _KEY_HEADERS or key.endswith(("authorization", "cookie")):
        return "header"
    if "secretaccesskey" in key or "awssecret" in key:
        return "aws-secret"
    if key.endswith(("sessiontoken", "amzsecuritytoken", "amzsignature", "amzcredential")):
        return "aws-session"
    if key.endswith(("accountkey", "sharedaccesskey")):
        return "azure-key"
    if name.lower() in _NPM_NAMES:
        return "npm"
    return "assignment"


def _judge(text: str, place: _Place) -> _Edit | None:
    if text.startswith(TOKEN_START, place.value):
        return None
    if place.key.endswith("authorization"):
        return _authorization(text, place)
    if place.key in ("cookie", "setcookie") and not place.quote and place.separator == ":":
        cookies = _cookies().match(text, place.value)
        return _Edit(cookies.start(), cookies.end(), token("header")) if cookies else None
    quoted = _quoted_value(text, place)
    if quoted is not None:
        start, end = quoted
        return None if is_plain_value(text[start:end]) else _Edit(start, end, token(_kind_at(text, place, end)))
    return _bare_value(text, place)


# --- names ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _named() -> re.Pattern[str]:
    """Match, in lower-case text, the end of a name, its closing quote, and the separator up to the value."""
    blank = r"(?:[ \t]|\x1b\[[0-9;]*+m)*+"
    annotation = r":[ \t]*+[a-z_][\w.]*+(?:\[[\w., |]*+\])?+(?:[ \t]*+\|[ \t]*+none)?+[ \t]++=(?=[ \t])"
    separator = rf"{annotation}|=>|:=|={{1,3}}|:(?!:|//)|%3[ad]|\\++u003[da]"
    return re.compile(
        rf"(?:{WORDS}|\b_auth)[0-9_.\-]*+(?P<quote>\\*+[\"'`])?+\]?+(?P<before>{blank})(?P<separator>{separator})"
        rf"(?P<after>{blank})",
        re.ASCII,
    )


@lru_cache(maxsize=1)
def _escape_tail() -> re.Pattern[str]:
    # What belongs to an escape before the name, though it looks like a part of it.
    return re.compile(r"(?<=\\)(?:[nrtbfv0]|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2})|(?<=%)[0-9A-Fa-f]{2}|(?<=\[)[0-9;]*m")


def _place(text: str, match: re.Match[str]) -> _Place:
    start = match.start()
    floor = max(0, start - _LONGEST_NAME)
    while start > floor and text[start - 1] in _NAME_CHARACTERS:
        start -= 1
    escape = _escape_tail().match(text, start)
    if escape is not None and escape.end() <= match.start():
        start = escape.end()
    name = text[start : match.start("before")].rstrip("]").removesuffix(match["quote"] or "\0")
    return _Place(
        name=name,
        start=start,
        quote=text[match.start("quote") : match.end("quote")] if match["quote"] else "",
        separator=match["separator"],
        spaced=bool(match["before"] or match["after"]),
        value=match.end(),
        key=_key(name),
    )


def _is_odbc_password(text: str, place: _Place) -> bool:
    """`PWD=` is a folder in a shell and a password in a connection string."""
    if place.name != "PWD" or place.separator != "=":
        return False
    if text.startswith("/", place.value):
        return False
    around = text[max(0, place.start - 256) : place.value + 256]
    return text[place.start - 1 : place.start] == ";" or _odbc_words().search(around) is not None


@lru_cache(maxsize=1)
def _odbc_words() -> re.Pattern[str]:
    return re.compile(r"(?i)(?:uid|user id|driver|server|data source|initial catalog)=[^;\s]*;")


# --- quoted values ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _opening() -> re.Pattern[str]:
    return re.compile(r"(?:[bfru]|[bf]r|rb)?(?P<slashes>(?:\\{7}|\\{3}|\\)?)(?P<mark>\"{3}|'{3}|[\"'`])", re.IGNORECASE)


def _quoted_value(text: str, place: _Place) -> tuple[int, int] | None:
    """Return where the quoted value begins and ends, or None when none is quoted here."""
    opening = _opening().match(text, place.value)
    if opening is None:
        return None
    start, mark = opening.end(), opening["mark"]
    if len(mark) == 3 and opening["slashes"]:
        mark, start = mark[0], start - 2
    if not place.quote and (start == len(text) or text[start] in " \t\r\n,:]}\\") and len(mark) == 1:
        return start, start  # the closing quote of a string that ends in `NAME=`
    if len(mark) == 3:
        end = re.compile(rf"{mark}|[\r\n]|\Z").search(text, start)
        return start, end.start() if end else len(text)
    return start, _closing_quote(text, start, mark, len(opening["slashes"]))


def _closing_quote(text: str, start: int, mark: str, slashes: int) -> int:
    """Return where the value ends that was opened by `mark` behind so many backslashes."""
    for found in _quote_or_break().finditer(text, start):
        run = len(found[1])
        if found[2] in "\r\n":
            return found.start()
        if found[2] == mark:
            if run < slashes:
                return found.start()  # the string around the value ends
            if run % (2 * slashes + 2) == slashes:
                return found.start(2) - slashes
        elif found[2] == '"' and run <= slashes:
            return found.start()
    return len(text)


@lru_cache(maxsize=1)
def _quote_or_break() -> re.Pattern[str]:
    return re.compile(r"(?<!\\)(\\*+)([\"'`\r\n])")


# --- bare values ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _bare() -> re.Pattern[str]:
    return re.compile(rf"(?:[^\x00-\x20\x7f\"'`\\,;&|()\[\]{{}}<>]|{TOKEN_PATTERN})*+")


@lru_cache(maxsize=1)
def _bare_encoded() -> re.Pattern[str]:
    return re.compile(r"[A-Za-z0-9_.~*+-]*+")


@lru_cache(maxsize=1)
def _bare_in_connection() -> re.Pattern[str]:
    return re.compile(r"[^\x00-\x20\x7f\"'`\\;]*+")


@lru_cache(maxsize=1)
def _next_connection_part() -> re.Pattern[str]:
    return re.compile(r";[ ]?[A-Za-z][A-Za-z ]{0,30}=")


@lru_cache(maxsize=1)
def _expression() -> re.Pattern[str]:
    # Code that gives a value, not the value: `self.token`, `os.environ`, `settings.api_key`.
    heads = "self|cls|this|os|args|config|cfg|settings|env|process|request|req|ctx|context|opts|options|params|kwargs"
    return re.compile(rf"(?:{heads})(?:\.[A-Za-z_]\w*)+\Z", re.ASCII)


def _bare_value(text: str, place: _Place) -> _Edit | None:
    before = text[place.start - 1 : place.start]
    in_query = before in ("?", "&", "#") or text[max(0, place.start - 6) : place.start].endswith(("u0026", "&amp;"))
    if place.separator.startswith("%"):
        match = _bare_encoded().match(text, place.value)
    else:
        match = _bare().match(text, place.value)
    if match is None:
        return None
    end = match.end()
    if before == ";" or _next_connection_part().match(text, end):
        connection = _bare_in_connection().match(text, place.value)
        end = connection.end() if connection else end
    if in_query:
        fragment = text.find("#", place.value, end)
        end = fragment if fragment >= 0 else end
    value = text[place.value : end]
    if value.endswith((".", ":")):
        value, end = value[:-1], end - 1
    if is_plain_value(value) or _is_reference(text, value, end) or _is_code(text, value, end):
        return None
    quote = place.quote if place.separator in (":", "=>") else ""
    if not _is_convincing(value, place, in_query=in_query):
        return None
    return _Edit(place.value, end, quote + token(_kind_at(text, place, end)) + quote)


def _is_reference(text: str, value: str, end: int) -> bool:
    """Tell whether `value` is the beginning of `${NAME}` or `$(command)`."""
    return value.endswith("$") and text[end : end + 1] in ("{", "(")


def _is_code(text: str, value: str, end: int) -> bool:
    """Tell whether `value` is an expression of a program: a call, an item, an attribute, the name of a variable."""
    if text[end : end + 1] in ("(", "[") and value.replace(".", "").replace("_", "").isalnum():
        return True
    if value.replace(".", "").replace("_", "").isalpha():
        return is_sensitive_name(value) or _expression().match(value) is not None
    return False


def _is_convincing(value: str, place: _Place, *, in_query: bool) -> bool:
    """Tell whether a value without quotes is one: prose and code follow separators too."""
    has_digit = any(character.isdigit() for character in value)
    if place.separator in (":", "=>"):
        if place.quote and value.isdigit():
            return True
        return len(value) >= 8 and (has_digit or (kind_of(place.name) == "header" and len(value) >= 16))
    if in_query or (place.separator == "=" and not place.spaced):
        return True
    has_mark = any(character in "!@#$%^*+/~=" for character in value)
    return len(value) >= 6 and (has_digit or has_mark)


def _kind_at(text: str, place: _Place, end: int) -> str:
    kind = kind_of(place.name)
    if kind != "assignment":
        return kind
    before = text[place.start - 1 : place.start]
    if before in ("?", "&", "#") or text[max(0, place.start - 6) : place.start].endswith(("u0026", "&amp;")):
        if place.key == "sig" and re.search(r"[?&;]s[ve]=", text[max(0, place.start - 512) : end + 512]):
            return "azure-sas"
        return "url-query"
    if before == ";" or _next_connection_part().match(text, end):
        return "connection"
    return kind


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
        end = _closing_quote(text, match.end(), '"', len(match["slashes"]))
        if not is_plain_value(text[match.end() : end]):
            pieces += (text[done : match.end()], token(kind_of(match["name"])))
            done = end
    if not pieces:
        return text
    pieces.append(text[done:])
    return "".join(pieces)


# --- authorization ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _scheme() -> re.Pattern[str]:
    return re.compile(rf"(?i:{SCHEMES})(?:[ \t]++|\Z|(?=[\"'`\\\r\n]))")


@lru_cache(maxsize=1)
def _parameters() -> re.Pattern[str]:
    # `username="x", response=y`: each quote in its pair, so that a JSON string around them keeps its own.
    pair = r"[A-Za-z][\w-]*+=(?:(\\*+)\"(?![\s,:\]}])[^\"\\\r\n]*+\\*+\"|[^\s,\"'\\;]++)"
    return re.compile(rf"{pair}(?:,[ \t]*+{pair})*+", re.ASCII)


@lru_cache(maxsize=1)
def _cookies() -> re.Pattern[str]:
    return re.compile(r"[\w!#$%&*^|~.+-]++=[^\x00-\x1f\x7f\"'`\\]++", re.ASCII)


def _authorization(text: str, place: _Place) -> _Edit | None:
    quoted = _quoted_value(text, place)
    start, end = quoted if quoted is not None else (place.value, len(text))
    scheme = _scheme().match(text, start, end)
    start = scheme.end() if scheme else start
    if text.startswith(TOKEN_START, start):
        return None
    if quoted is not None:
        return None if is_plain_value(text[start:end]) else _Edit(start, end, token("header"))
    parameters = _parameters().match(text, start) if scheme else None
    if parameters is not None and len(parameters[0]) >= 16:
        return _Edit(start, parameters.end(), token("header"))
    bare = _bare().match(text, start)
    value = bare[0].rstrip(".:") if bare else ""
    if is_plain_value(value) or value.startswith("$"):
        return None
    prose = value.islower() and value.isalpha() and len(value) < 16
    if prose or (not scheme and (len(value) < 8 or not any(character.isdigit() for character in value))):
        return None
    return _Edit(start, start + len(value), token("header"))
