r"""The pre-filter: one linear-time automaton over bytes that decides whether any rule can apply.

It runs on every record's serialised line and on every text before a rule does, so its law is one-sided: where a rule
would change a text, the automaton matches the text, and also the text escaped as a JSON string once or twice. The other
direction is a matter of speed only. Three things keep the law:

- the engine itself runs no rule on a text the automaton passes, so a rule cannot know a secret the automaton does not;
- the shapes of tokens consist of characters that JSON leaves alone;
- between a name, its separator and its value every pattern lets backslashes, quotes and escape letters through, and no
  pattern looks at what stands before (the letter n of an escaped newline may).

The patterns are RE2's, read as Latin-1 so that any bytes will do.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from spanfold.redact import _assignments, _blocks, _commands, _headers, _interpreter, _names, _tokens, _urls

Matcher = Callable[[Any, bytes, int, int], list[tuple[int, int]]]
"""RE2's own search: anchor, bytes, begin, end. Answers one span, (-1, -1) for none."""

_BLANKS: Final = r"(?:[ \t\x1b]|\\+(?:t|u00[0-9a-f]{2})|\[[0-9;]*m)*"
"""Blanks and terminal colours, and their JSON escapes."""

_BREAKS: Final = r"(?:\s|\\+[nrt])*"
"""What an indented JSON text may hold between two parts, and its JSON escapes."""

_NOT_BARE: Final = r"\x00-\x20\x7f\"'`\\,;&|()\[\]{}<>"
"""What a value without quotes does not contain, as the inside of a class."""


def _no_token(begun: int = 0) -> str:
    """Return a pattern for anything but a replacement token, of which so many characters have been read.

    A text that was redacted before is not suspect again by it.
    """
    start = _names.TOKEN_START
    return "|".join(rf"{re.escape(start[begun:at])}(?:[^{re.escape(start[at])}]|\z)" for at in range(begun, len(start)))


_NAME: Final = rf"(?i:{_names.WORDS}|_auth){_names.TAIL}"
_NAME_END: Final = rf"(?:\\*[\"'])?\]?{_BLANKS}"

_VALUE_PROBES: Final = (
    # In quotes.
    rf"(?i:[bfru]{{0,2}})\\*[\"'`](?:{_no_token()})",
    # Bare, and not just a word: prose and code follow separators too.
    rf"[^{_NOT_BARE}]*(?:[0-9!@#$%^*+/~=]|\\+u[0-9a-f])",
    rf"[^{_NOT_BARE}]{{16}}",
    rf"(?i:{'|'.join(sorted(_headers.SCHEMES))})",
    # An annotation before the value.
    r"[A-Za-z_][A-Za-z0-9_.\[\], |\t\\]*[ t\t]=[ \t\\]",
)

_NAME_PROBES: Final = (
    rf"{_NAME}{_NAME_END}{_assignments.SEPARATOR_PROBE}[=>]*{_BLANKS}(?:{'|'.join(_VALUE_PROBES)})",
    # Bare, directly behind the separator: any value.
    (
        rf"{_NAME}{_NAME_END}(?:=|%3[Dd]|\\+u003[Dd])(?:(?:\x1b|\\+u001b)\[[0-9;]*m)*"
        rf"(?:[^\x00-\x20\x7f\"'`\\;(]|\((?:{_no_token(1)})|\\+u)"
    ),
    # A key of a container; a name at the end of a string, whose value is the next one or stands under "value".
    rf"{_NAME}\\*\"[ \t]*(?::[ \t]*[\[{{]|[,}}\]]|{_BREAKS}[}}\]])",
)
"""A sensitive name, and behind it what may be a value. Each part tolerates the escapes JSON puts there."""

_ARGUMENT_PROBES: Final = (
    rf"\"-{{1,2}}(?:u|user|proxy-user)\\*\",{_BREAKS}\\*\"[^\"]*:",
    r"\"-p[A-Za-z0-9!@#$%^&*+_~-]{8}",
    _commands.PASSWORD_PROBE,
)
"""Options whose value is the next item of a list."""


_BYTES_PROBES: Final = (r'"bytesValue"', r"\$bytes")
"""Where a record carries bytes, in base64: what they hold only decoding shows."""


def probes(*, patterns: bool) -> list[str]:
    """Return the necessary conditions of all rules, or of the sensitive names alone."""
    found = [*_NAME_PROBES, *_ARGUMENT_PROBES, *_BYTES_PROBES]
    if patterns:
        found += (shape.probe or shape.start + shape.rest for shape in _tokens.SHAPES)
        found += (_tokens.JWT_PROBE, _blocks.PROBE, *_urls.PROBES, *_commands.PROBES)
    return found


def compile_matcher(patterns: Iterable[str], literals: Iterable[bytes]) -> tuple[Matcher, Any]:
    """Build the automaton; return its search function and the anchor to call it with.

    When RE2 refuses it, which only an enormous amount of registered literals can cause, and in an interpreter that RE2 does
    not work in, everything is suspect: slow, but nothing is missed.
    """
    if not _interpreter.is_main():
        return _everything, None
    # Imported here: nothing is loaded before the first text is looked at. The inner class is used because the public
    # one caches by pattern (a forked child must not get the parent's automaton back) and searches through a generator.
    import re2 as untyped

    re2 = cast("Any", untyped)
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.log_errors = False
    options.max_mem = 64 << 20
    alternatives = [pattern.encode("latin-1") for pattern in patterns]
    alternatives += (re2.escape(literal) for literal in literals)
    automaton = re2._re2.RE2(b"|".join(alternatives), options)
    return cast("Matcher", automaton.Match if automaton.ok() else _everything), re2._Anchor.UNANCHORED


def _everything(_anchor: Any, _data: bytes, begin: int, end: int) -> list[tuple[int, int]]:
    return [(begin, end)]
