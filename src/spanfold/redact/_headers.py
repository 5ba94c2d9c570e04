"""Values of HTTP headers that have a form of their own: credentials behind a scheme, and cookies."""

import re
from functools import lru_cache
from typing import Final

from spanfold.redact._names import TOKEN_START, is_plain_value
from spanfold.redact._values import LONGEST_LEFT_ALONE, Span, bare_end

SCHEMES: Final = frozenset(
    {
        *(
            "basic",
            "bearer",
            "digest",
            "token",
            "negotiate",
            "ntlm",
            "apikey",
            "api-key",
            "key",
            "hawk",
            "oauth",
            "sso-key",
        ),
        *("ssws", "geniekey", "splunk", "aws4-hmac-sha256"),
    }
)
"""Authorization schemes, lower case; they are kept in front of the value."""


@lru_cache(maxsize=1)
def _scheme() -> re.Pattern[str]:
    return re.compile(rf"(?i:{'|'.join(sorted(SCHEMES))})(?:[ \t]++|\Z|(?=[\"'`\\\r\n]))")


@lru_cache(maxsize=1)
def _parameters() -> re.Pattern[str]:
    # `username="x", response=y`: each quote in its pair, so that a JSON string around them keeps its own.
    pair = r"[A-Za-z][\w-]*+=(?:\\*+\"(?![\s,:\]}])[^\"\\\r\n]*+\\*+\"|[^\s,\"'\\;]++)"
    return re.compile(rf"{pair}(?:,[ \t]*+{pair})*+", re.ASCII)


@lru_cache(maxsize=1)
def _cookies() -> re.Pattern[str]:
    return re.compile(r"[\w!#$%&*^|~.+-]++=[^\x00-\x1f\x7f\"'`\\]++", re.ASCII)


def credentials(text: str, start: int, end: int | None) -> Span | None:
    """Return the credentials of an Authorization header, behind their scheme; None when there are none.

    Args:
        text: Where the header stands.
        start: Where its value begins.
        end: Where the quotes around the value close; None when it has none, and prose may follow the name.
    """
    scheme = _scheme().match(text, start, len(text) if end is None else end)
    # The scheme is never taken for the credentials, also when those have been replaced before.
    start = scheme.end() if scheme else start
    if text.startswith(TOKEN_START, start):
        return None
    if end is not None:
        return None if is_plain_value(text[start:end]) else Span(start, end)
    parameters = _parameters().match(text, start) if scheme else None
    if parameters is not None and len(parameters[0]) >= 16:
        return Span(start, parameters.end())
    value = text[start : bare_end(text, start)].rstrip(".:")
    if len(value) > LONGEST_LEFT_ALONE:
        return Span(start, start + len(value))
    if is_plain_value(value) or value.startswith("$"):
        return None
    if scheme:
        is_prose = value.islower() and value.isalpha() and len(value) < 16
    else:
        is_prose = len(value) < 8 or not any(character.isdigit() for character in value)
    return None if is_prose else Span(start, start + len(value))


def cookies(text: str, start: int) -> Span | None:
    """Return the cookies of a header line up to its end or a quote; None when no `name=value` follows."""
    match = _cookies().match(text, start)
    return Span(*match.span()) if match else None
