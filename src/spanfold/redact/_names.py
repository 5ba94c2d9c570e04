"""Which names say "the value beside me is a secret", and which values are plainly none.

A name is sensitive by its *last* words: `GITHUB_TOKEN`, `clientSecret` and `db.password_2` are, `max_tokens`,
`token_type` and `public_key` are not. Words end at `_`, `-`, `.`, a space, and where camel case changes. A few words
(`password` and its kin) count whatever stands before them, as in `PGPASSWORD`. Trailing digits are ignored.

The same word list builds the pre-filter (`_prefilter`), so a name that is sensitive here is always suspect there.
"""

import re
from functools import lru_cache
from typing import Final

_GAP: Final = r"[_\-. ]?"

_PASS: Final = r"passwords?|passwd|passphrase"

WORDS: Final = (
    rf"(?:{_PASS}|pwd|secrets?|token|credentials?|dsn|cookies?|sig|signature|authorization"
    rf"|(?:api|secret|private|signing|encryption|account|subscription){_GAP}keys?"
    rf"|access{_GAP}keys?(?:{_GAP}id)?|webhook{_GAP}url|connection{_GAP}string)"
)
"""Regular expression, lower case, no groups: what a sensitive name ends in. Valid for `re` and for RE2."""

TAIL: Final = r"[0-9_.\- ]*"
"""What may follow the last word of a name and is ignored: `API_KEY_2`."""

_COMPOUND: Final = (
    r"(?:auth|access|refresh|session|id|bearer|client|csrf|xsrf|api|user|bot|deploy)token"
    r"|(?:client|app|consumer|api|shared)secret"
)
"""Words that are written as one: `authtoken`, `clientsecret`."""

_WORD_START: Final = r"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]))"

_SHELL_FOLDERS: Final = frozenset({"PWD", "OLDPWD"})

_LONGEST_END: Final = 96
"""Only this many characters at the end of a name are looked at; no sensitive ending is longer."""


@lru_cache(maxsize=1)
def _sensitive_end() -> re.Pattern[str]:
    return re.compile(rf"(?:{_WORD_START}(?i:{WORDS}|{_COMPOUND})|(?i:{_PASS})|(?:^|[:/])_auth){TAIL}\Z", re.ASCII)


@lru_cache(maxsize=8192)
def is_sensitive_name(name: str) -> bool:
    """Tell whether a value called `name` (attribute, key, variable, option, header) is taken for a secret.

    Source: contract "agent invocations", 6.4. Memoised, so asking again for the same name costs a dictionary look-up.
    """
    return name not in _SHELL_FOLDERS and _sensitive_end().search(name[-_LONGEST_END:]) is not None


_PLAIN_WORDS: Final = frozenset(
    {
        *("", "null", "none", "nil", "true", "false", "undefined", "nan", "yes", "no", "on", "off", "n/a", "na"),
        *(
            "str",
            "string",
            "text",
            "int",
            "integer",
            "number",
            "float",
            "bool",
            "boolean",
            "bytes",
            "object",
            "array",
            "any",
        ),
        *(
            "optional",
            "required",
            "unknown",
            "secretstr",
            "changeme",
            "change-me",
            "change_me",
            "change me",
            "placeholder",
        ),
        *("redacted", "masked", "hidden", "removed", "omitted", "todo", "tbd", "unset"),
    }
)


@lru_cache(maxsize=1)
def _plain() -> re.Pattern[str]:
    return re.compile(
        r"""(?ix)
          (?: \*+ | x{3,} | \.+ | -+ | _+ | \#{3,} | (?:•|â\x80¢)+
            | \$[a-z_]\w* | \$\{[^{}]*\} | \$\([^()]*\) | \$?\{\{.*\}\} | <[^<>]*> | %[a-z_]\w*% | \[[a-z _-]+\]
            | (?:[^a-z0-9]*(?:\{[a-z_][\w.]*\}|%\([a-z_]\w*\)[sdr]|%[sdr]))+[^a-z0-9]* | [^a-z0-9]{1,3}
            | v?\d{1,5}(?:\.\d{1,5}){0,3} | 0x[0-9a-f]{1,8}
            | your[-_ ].* | my[-_ ](?:api|secret|access|private)?[-_ ]?(?:key|token|secret|password)
            | (?:insert|enter|put|add|replace)[-_ ](?:your|with|me|here).*
            | (?:sha|md|hs|rs|es|ps)-?\d{1,3} | base(?:16|32|58|64) | u?int\d+ | float\d+ | utf-?\d+ | oauth-?2?
          )\Z""",
        re.ASCII,
    )


def is_plain_value(value: str) -> bool:
    """Tell whether `value` is no secret even under a sensitive name: a placeholder, a reference, a short number.

    Source: contract "agent invocations", 6.4 and 6.10. An empty value and an existing replacement token are plain too.
    """
    if value.isalnum():
        lower = value.lower()
        if lower in _PLAIN_WORDS or (len(value) >= 3 and not lower.strip("x")):
            return True
        if len(value) > _LONGEST_PLAIN_ALNUM or value.isalpha():
            return False
    elif value.lower() in _PLAIN_WORDS:
        return True
    return value.startswith(TOKEN_START) or _plain().match(value) is not None


_LONGEST_PLAIN_ALNUM: Final = 10
"""`0x08074b50`: the longest of the patterns that have letters and digits only."""

TOKEN_START: Final = "(REDACTED-"

TOKEN_PATTERN: Final = r"\(REDACTED-[a-z0-9-]{1,32}\)"

TOKENS: Final = re.compile(rf"({TOKEN_PATTERN})")


def token(kind: str) -> str:
    """Return the replacement for a secret of `kind`; it breaks neither JSON, YAML, URLs nor argument lists."""
    return f"(REDACTED-{kind})"


ENGINE_FAILURE: Final = token("engine-failure")
"""Stands for a text the engine could not judge. It is never the input."""
