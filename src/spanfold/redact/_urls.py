r"""Secrets inside URLs: user information, secret paths of webhooks, authorization codes; and bearer tokens anywhere.

Query parameters with sensitive names are read by `_assignments`. Texts come in as one character per UTF-8 byte.
"""

import re
from functools import lru_cache
from typing import Final

from spanfold.redact._names import TOKEN_START, is_plain_value, token
from spanfold.redact._tokens import may_start_at

_USER_BYTE: Final = r"[^\x00-\x20\x7f/?#\"'<>\\`@]"

PROBES: Final = (
    r":[\\/]{2,}(?:[^\x00-\x20\x7f/?#\"'<>\\`@]|\\+u[0-9A-Fa-f]{4})*@",
    r"(?:hooks\.slack\.com|webhook\.office\.com|webhooks)[\\/]+[A-Za-z0-9]",
    r"[?&#;6]code=[A-Za-z0-9%_.~+/-]{8}",
    r"(?i:bearer)(?:[ +\\]|%20)[ \\t]*[A-Za-z0-9._~+/=-]{16}",
)
"""Necessary conditions of the rules here, for the pre-filter."""

_LONG_USER: Final = 20
"""A user of this many characters without a password is a token."""


def redact_urls(text: str) -> str:
    """Replace the secrets that stand in URLs; scheme, user, host and the plain parts of the path are kept."""
    if "@" in text and ":" in text:
        text = _user_info().sub(_replace_user_info, text)
    if "hook" in text:
        text = _webhook().sub(_replace_webhook, text)
    if "code=" in text:
        text = _code().sub(_replace_code, text)
    return text


def redact_bearer(text: str) -> str:
    """Replace the token behind the word Bearer."""
    return _bearer().sub(_replace_bearer, text)


@lru_cache(maxsize=1)
def _user_info() -> re.Pattern[str]:
    return re.compile(rf"(:\\*+/\\*+/)((?:{_USER_BYTE}*+@)++)")


def _replace_user_info(match: re.Match[str]) -> str:
    user, colon, password = match[2][:-1].partition(":")
    if user.startswith(TOKEN_START):
        return match[0]
    if (colon and (password.startswith("$") or is_plain_value(password))) or (not colon and len(user) < _LONG_USER):
        return match[0]
    if len(user) >= _LONG_USER:
        user = token("url-userinfo")
    return f"{match[1]}{user}{colon}{token('url-userinfo') if colon else ''}@"


@lru_cache(maxsize=1)
def _webhook() -> re.Pattern[str]:
    slash = r"\\*+/"
    hosts = (
        rf"hooks\.slack\.com{slash}(?:services|workflows|triggers){slash}"
        rf"|webhook\.office\.com{slash}(?:webhookb?\d*{slash})?+"
        rf"|{slash}webhooks{slash}\d{{5,20}}{slash}"
    )
    return re.compile(rf"({hosts})((?:[A-Za-z0-9_.~%@=-]|{slash}){{8,}}+)", re.ASCII)


def _replace_webhook(match: re.Match[str]) -> str:
    return match[1] + token("webhook")


@lru_cache(maxsize=1)
def _code() -> re.Pattern[str]:
    return re.compile(r"(?<=[?&#;6])(code=)([A-Za-z0-9%_.~+/-]{8,}+)")


def _replace_code(match: re.Match[str]) -> str:
    return match[0] if is_plain_value(match[2]) else match[1] + token("url-query")


@lru_cache(maxsize=1)
def _bearer() -> re.Pattern[str]:
    return re.compile(r"(bearer(?:[ \t]++|%20|\+|\\+t))([a-z0-9._~+/=-]{15,}[a-z0-9_~+/=-])", re.IGNORECASE | re.ASCII)


def _replace_bearer(match: re.Match[str]) -> str:
    if not any(character.isdigit() for character in match[2]) or not may_start_at(match.string, match.start()):
        return match[0]
    return match[1] + token("bearer")
