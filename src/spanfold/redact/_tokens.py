r"""Secrets that carry their kind in their own spelling: prefixed tokens and JSON web tokens.

One row per shape, in the order they are tried. A row is a *start* (its literal part, what the engine looks for) and a
*rest* that must follow. The pre-filter is built from the same two, or from `probe` where the whole shape would cost the
automaton too many states; a probe only has to match whenever the row does.

A token may follow the start of the text, anything but a letter or digit, a two-character escape (`\n`), a `\u000a`
escape, a percent escape, or a terminal colour sequence. Texts come in as one character per UTF-8 byte, see `_engine`.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from spanfold.redact._names import token

_B64: Final = r"[A-Za-z0-9+/=_-]"


class TokenShape(NamedTuple):
    """How one kind of token is spelled."""

    kind: str
    start: str
    """Regular expression of the leading part, without groups or assertions."""
    rest: str
    """Regular expression of what must follow; valid for `re` and for RE2."""
    whole_word: bool = False
    """No letter or digit may follow; set where the length is fixed."""
    probe: str | None = None
    """A cheaper necessary condition for the pre-filter."""
    needle: str = ""
    """Text that must occur for the row to be tried; set where `start` does not begin with a literal."""
    partial: bool = True
    """Whether the start alone, with four more characters, is telling enough to mask at a cut."""


SHAPES: Final = (
    TokenShape("age-key", "AGE-SECRET-KEY-1", r"[0-9A-Z]{40,}"),
    TokenShape("aws-key-id", "A(?:KIA|SIA|BIA|CCA|ROA|IDA|GPA|NPA|NVA|IPA)", r"[A-Z0-9]{16}", whole_word=True),
    TokenShape("google-api-key", "AIza", r"[A-Za-z0-9_-]{35}"),
    TokenShape("google-oauth", r"ya29\.", r"[A-Za-z0-9_-]{20,}"),
    TokenShape("google-oauth", r"1\\*/\\*/0", r"[A-Za-z0-9_-]{20,}", probe=r"1[\\/]+0[A-Za-z0-9_-]{20}", partial=False),
    TokenShape("google-oauth", "GOCSPX-", r"[A-Za-z0-9_-]{20,}"),
    TokenShape(
        "azure-client-secret",
        r"[A-Za-z0-9_~.-]{3}[0-9]Q~",
        r"[A-Za-z0-9_~.-]{31,34}",
        whole_word=True,
        probe=r"[0-9]Q~[A-Za-z0-9_~.-]{31}",
        needle="Q~",
    ),
    TokenShape("digitalocean", "do[por]_v1_", r"[0-9a-f]{64}", whole_word=True),
    TokenShape("alibaba", "LTAI", r"[A-Za-z0-9]{12,24}", whole_word=True),
    TokenShape("heroku", "HRKU-", r"[A-Za-z0-9_-]{36,}"),
    TokenShape("cloudflare", r"v1\.0-", r"[0-9a-f]{24}-[0-9a-f]{146}", whole_word=True, probe=r"v1\.0-[0-9a-f]{24}-"),
    TokenShape("fly", "fm2_", rf"{_B64}{{40,}}"),
    TokenShape("fly", "fo1_", r"[A-Za-z0-9_-]{40,}"),
    TokenShape("vault", r"hv[sbr]\.", r"[A-Za-z0-9_-]{20,}"),
    TokenShape(
        "terraform",
        r"[A-Za-z0-9]{14}\.atlasv1\.",
        r"[A-Za-z0-9_-]{60,}",
        probe=r"\.atlasv1\.[A-Za-z0-9_-]{20}",
        needle=".atlasv1.",
    ),
    TokenShape("databricks", "dapi", r"[0-9a-f]{32}(?:-[0-9])?", whole_word=True, probe=r"dapi[0-9a-f]{32}"),
    TokenShape("pulumi", "pul-", r"[0-9a-f]{40}", whole_word=True),
    TokenShape("doppler", r"dp\.(?:pt|st|ct|sa|scim|audit)\.", r"[A-Za-z0-9._-]{39,}[A-Za-z0-9_-]"),
    TokenShape("supabase", "sbp_", r"[0-9a-f]{40}", whole_word=True),
    TokenShape("supabase", "sb_secret_", r"[A-Za-z0-9_-]{20,}"),
    TokenShape("planetscale", "pscale_(?:tkn|pw|oauth)_", r"[A-Za-z0-9._=-]{31,}[A-Za-z0-9_=-]"),
    TokenShape("github", "gh[pousr]_", r"[A-Za-z0-9_]{20,}"),
    TokenShape("github", "github_pat_", r"[A-Za-z0-9_]{22,}"),
    TokenShape("gitlab", "gl(?:pat|ptt|dt|rt|cbt|soat|ft|imt|agent|ffct)-", r"[A-Za-z0-9_.-]{15,}[A-Za-z0-9_-]"),
    TokenShape("gitlab", "GR1348941", r"[A-Za-z0-9_-]{20,}"),
    TokenShape("bitbucket", "ATBB", r"[A-Za-z0-9]{24,}"),
    TokenShape("bitbucket", "AT(?:ATT|CTT)3", r"[A-Za-z0-9_=-]{60,}"),
    TokenShape("npm", "npm_", r"[A-Za-z0-9]{36}", whole_word=True),
    TokenShape("pypi", "pypi-", r"[A-Za-z0-9_-]{50,}"),
    TokenShape("rubygems", "rubygems_", r"[0-9a-f]{48}", whole_word=True),
    TokenShape("crates", "cio", r"[A-Za-z0-9]{32}", whole_word=True, partial=False),
    TokenShape("nuget", "oy2", r"[a-z0-9]{43}", whole_word=True, partial=False),
    TokenShape("docker", "dckr_(?:pat|oat)_", r"[A-Za-z0-9_-]{20,}"),
    TokenShape("huggingface", "hf_", r"[A-Za-z0-9]{30,}"),
    TokenShape("huggingface", "api_org_", r"[A-Za-z0-9]{30,}"),
    TokenShape("jfrog", "AKCp", r"[A-Za-z0-9]{69,}"),
    TokenShape("sentry", "sntrys_", rf"{_B64}{{40,}}"),
    TokenShape("sentry", "sntryu_", r"[0-9a-f]{64}", whole_word=True),
    TokenShape("ci", "CCIP(?:AT|RJ)_", r"[A-Za-z0-9]{10,}_[0-9a-f]{40}", whole_word=True),
    TokenShape("ci", "bkua_", r"[0-9a-f]{40}", whole_word=True),
    TokenShape("anthropic", "sk-ant-", r"[A-Za-z0-9_-]{20,}"),
    TokenShape("openai", "sk-(?:proj|svcacct|admin|None)-", r"[A-Za-z0-9_-]{20,}"),
    TokenShape("llm", "sk-or-", r"[A-Za-z0-9_-]{20,}"),
    TokenShape("openai", "sk-", r"[A-Za-z0-9]{20,}"),
    TokenShape("llm", "gsk_", r"[A-Za-z0-9]{40,}"),
    TokenShape("llm", "xai-", r"[A-Za-z0-9]{60,}"),
    TokenShape("llm", "pplx-", r"[A-Za-z0-9]{40,}"),
    TokenShape("llm", "r8_", r"[A-Za-z0-9]{37}", whole_word=True),
    TokenShape("llm", "lsv2_(?:pt|sk)_", r"[0-9a-f]{32}_[0-9a-f]{10}", whole_word=True),
    TokenShape("llm", "nvapi-", r"[A-Za-z0-9_-]{64,}", probe=r"nvapi-[A-Za-z0-9_-]{20}"),
    TokenShape("llm", "tgp_v1_", r"[A-Za-z0-9_-]{40,}"),
    TokenShape("llm", "tvly-", r"[A-Za-z0-9_-]{24,}"),
    TokenShape("slack", "xox[abeoprs]-", r"[A-Za-z0-9-]{10,}"),
    TokenShape("slack", "xapp-[0-9]-", r"[A-Za-z0-9-]{10,}"),
    TokenShape(
        "discord",
        r"[MNO][A-Za-z0-9_-]{23,27}\.",
        r"[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}",
        probe=r"[MNO][A-Za-z0-9_-]{23,}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27}",
        needle=".",
        partial=False,
    ),
    TokenShape(
        "telegram",
        "[0-9]{8,10}:AA",
        r"[A-Za-z0-9_-]{33}",
        whole_word=True,
        probe="[0-9]:AA[A-Za-z0-9_-]{33}",
        needle=":AA",
    ),
    TokenShape("sendgrid", r"SG\.", r"[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,}"),
    TokenShape("mail", "key-", r"[0-9a-f]{32}", whole_word=True, partial=False),
    TokenShape(
        "mail",
        "[0-9a-f]{32}-us",
        "[0-9]{1,2}",
        whole_word=True,
        probe="[0-9a-f]{4}-us[0-9]",
        needle="-us",
        partial=False,
    ),
    TokenShape("twilio", "SK", r"[0-9a-f]{32}", whole_word=True, partial=False),
    TokenShape("stripe", "[sr]k_(?:live|test)_", r"[A-Za-z0-9]{10,}"),
    TokenShape("stripe", "whsec_", rf"{_B64}{{24,}}"),
    TokenShape("square", "sq0(?:atp|csp|idp)-", r"[A-Za-z0-9_-]{22,}"),
    TokenShape("shopify", "shp(?:at|ca|pa|ss)_", r"[0-9a-fA-F]{32}", whole_word=True),
    TokenShape("braintree", r"access_token\$(?:production|sandbox)\$", r"[a-z0-9]{16}\$[0-9a-f]{32}", whole_word=True),
    TokenShape("facebook", "EAA", r"[A-Za-z0-9]{80,}", partial=False),
    TokenShape(
        "observability",
        "sk-lf-",
        "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
        whole_word=True,
        probe="sk-lf-[0-9a-fA-F]{8}-",
    ),
    TokenShape("observability", "NRAK-", r"[A-Z0-9]{27}", whole_word=True),
    TokenShape("observability", "glc_", rf"{_B64}{{32,}}"),
    TokenShape("observability", "glsa_", r"[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}", whole_word=True),
    TokenShape("saas", "lin_api_", r"[A-Za-z0-9]{40}", whole_word=True),
    TokenShape("saas", "ntn_", r"[A-Za-z0-9]{40,}"),
    TokenShape("saas", "secret_", r"[A-Za-z0-9]{40,}", partial=False),
    TokenShape("saas", "figd_", r"[A-Za-z0-9_-]{40,}"),
    TokenShape("saas", "PMAK-", r"[0-9a-f]{24}-[0-9a-f]{34}", whole_word=True),
    TokenShape("saas", r"sl\.", r"[A-Za-z0-9_-]{130,}", probe=r"sl\.[A-Za-z0-9_-]{64}", partial=False),
    TokenShape("saas", r"pat[A-Za-z0-9]{14}\.", r"[0-9a-f]{64}", whole_word=True, partial=False),
)

JWT_PROBE: Final = r"eyJ[A-Za-z0-9+/=_-]{4,}\.[A-Za-z0-9+/=_-]{4}"
"""Necessary condition of a JSON web token, for the pre-filter."""


def _after_boundary(literal: str = "") -> str:
    """Return an assertion: `literal` just ended, and where it began a token may begin."""
    escapes = (r"\\[nrtbfv0]", r"\\u[0-9A-Fa-f]{4}", r"\\x[0-9A-Fa-f]{2}", "%[0-9A-Fa-f]{2}", r"[0-9;\[]m")
    return "|".join((rf"(?:(?<![A-Za-z0-9]{literal})", *(rf"(?<={escape}{literal})" for escape in escapes))) + ")"


class _Row(NamedTuple):
    shape: TokenShape
    start: re.Pattern[str]
    whole: re.Pattern[str]


@lru_cache(maxsize=1)
def _rows() -> tuple[_Row, ...]:
    def row(shape: TokenShape) -> _Row:
        # A literal is found fastest bare, its boundary is looked at afterwards; a start that begins with a class
        # must not match where it may not begin, or it would hide a good one that overlaps it.
        # Nor may it take the digits of a percent escape for its own.
        boundary = _after_boundary() + "(?!(?<=%)[0-9A-Fa-f]{2})" if shape.needle else ""
        end = "(?![A-Za-z0-9])" if shape.whole_word else ""
        return _Row(shape, re.compile(boundary + shape.start), re.compile(shape.start + shape.rest + end))

    return tuple(map(row, SHAPES))


@lru_cache(maxsize=1)
def _boundary() -> re.Pattern[str]:
    return re.compile(_after_boundary())


def may_start_at(text: str, index: int) -> bool:
    """Tell whether a token may begin at `index`: no letter or digit before it, unless that one ends an escape."""
    return _boundary().match(text, index) is not None


def redact_tokens(text: str) -> str:
    """Replace every prefixed token and JSON web token as a whole."""
    for row in _rows():
        if row.shape.needle in text:
            text = _redact_row(text, row)
    if "eyJ" in text:
        text = _jwt().sub(_replace_jwt, text)
    return text


def _redact_row(text: str, row: _Row) -> str:
    pieces: list[str] = []
    done = 0
    for found in row.start.finditer(text):
        begin = found.start()
        if begin < done or not may_start_at(text, begin):
            continue
        if row.shape.start == "key-" and text[begin - 1 : begin] in ("-", "_"):
            continue  # a cache key built on a hash, not Mailgun's
        match = row.whole.match(text, begin)
        if match is not None:
            pieces += (text[done:begin], token(row.shape.kind))
            done = match.end()
    if not pieces:
        return text
    pieces.append(text[done:])
    return "".join(pieces)


@lru_cache(maxsize=1)
def _jwt() -> re.Pattern[str]:
    # The first part is taken possessively and the others are optional: a run without a dot is stepped over once,
    # however many `eyJ` it holds. A last part ends before `/` or `+` unless padding or `+` shows standard base64.
    part = "[A-Za-z0-9+/=_-]"
    last = rf"[A-Za-z0-9_-]*+(?:(?=[A-Za-z0-9/_-]*+[+=]){part}*+)?+"
    return re.compile(rf"eyJ{_after_boundary('eyJ')}{part}{{4,}}+(\.{part}{{4,}}+\.{last}(?:\.{last}){{0,2}})?+")


def _replace_jwt(match: re.Match[str]) -> str:
    return match[0] if match[1] is None else token("jwt")


_RUN: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.~+/=$:"
_LONGEST_RUN: Final = 8192


@lru_cache(maxsize=1)
def _partial() -> re.Pattern[str]:
    starts = "|".join(shape.start for shape in SHAPES if shape.partial)
    return re.compile(rf"{_after_boundary()}(?:eyJ|{starts})[A-Za-z0-9_.~+/=-]{{4,}}+\Z")


def partial_token(text: str, end: int) -> int | None:
    """Return where a token begins that reaches `end` and may go on behind it, or None.

    Unfinished is a known start and at least four more characters. Only the 8 KiB before `end` are looked at.
    """
    window = text[max(0, end - _LONGEST_RUN) : end]
    found = _partial().search(window, len(window.rstrip(_RUN)))
    return None if found is None else end - len(window) + found.start()


def whole_token(text: str) -> tuple[str, int] | None:
    """Return the kind and the length of the token that begins `text`, or None."""
    for row in _rows():
        if match := row.whole.match(text):
            return row.shape.kind, match.end()
    match = _jwt().match(text)
    return ("jwt", match.end()) if match and match[1] is not None else None
