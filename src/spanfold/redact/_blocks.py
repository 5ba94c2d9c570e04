r"""Private-key blocks: the only secrets that run over many lines, and so the only rules with a state.

A block opens at its PEM or PGP begin line, or at PuTTY's `Private-Lines: n`. It closes at its end line, after the n
lines, or, when no end comes within 64 KiB, behind the last line that still looks like key material. Line breaks may be
real ones or written as `\n` in a quoted string. Where quotes stand between begin and end (a list of lines, source code)
only the key material is taken out, so that the quotes stay balanced.

A text that ends inside a block leaves an `OpenBlock`, with which the next piece of a stream goes on.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from spanfold.redact._names import TOKEN_START, token

PROBE: Final = r"BEGIN [A-Z0-9 ]*PRIVATE KEY|Private-Lines:"
"""Necessary condition of any block, for the pre-filter."""

_TOKEN: Final = token("private-key")
_END_WITHIN: Final = 64 * 1024


class OpenBlock(NamedTuple):
    """A block whose end has not been seen."""

    lines_left: int = 0
    """PuTTY: this many more lines belong to it. 0: it goes on until an end line."""
    budget: int = _END_WITHIN
    """Characters after which the end line is no longer waited for."""


class Cut(NamedTuple):
    """A text without its key material, and what is still open where it ends."""

    text: str
    block: OpenBlock | None = None


def redact_blocks(text: str) -> Cut:
    """Replace every block, each by one token."""
    if "PRIVATE KEY" not in text and "Private-Lines:" not in text:
        return Cut(text)
    pieces: list[str] = []
    done = 0
    block: OpenBlock | None = None
    end_line = _end().search(text)
    while (begin := _begin().search(text, done)) is not None:
        pieces.append(text[done : begin.start()])
        if begin["lines"] is not None:
            material, done, block = _putty(text, begin)
        else:
            if end_line is not None and end_line.start() < begin.end():
                end_line = _end().search(text, begin.end())
            material, done, block = _armour(text, begin.end(), end_line)
        pieces.append(material)
    if not pieces:
        return Cut(text)
    pieces.append(text[done:])
    return Cut("".join(pieces), block)


def resume_block(text: str, block: OpenBlock) -> Cut:
    """Take out of `text`, the next whole lines of a stream, what still belongs to `block`.

    Lines that are no key material, such as a log prefix before each line, stay; the key material in them does not.
    """
    if block.lines_left:
        end, still_open = _line_end(text, 0, block.lines_left, "\n")
        return Cut(text[end:], still_open)
    limit = min(len(text), block.budget)
    ending = _end().search(text, 0, limit)
    if ending is not None:
        limit = ending.start()
    again = _begin().search(text, 0, limit)
    if again is not None:
        limit = again.start()
    body = _body(0).match(text, 0, limit)
    rest = _key_run().sub(_TOKEN, text[body.end() if body else 0 : limit])
    if not rest.strip():
        rest = ""
    if again is not None:
        return Cut(rest + text[limit:])
    if ending is not None:
        return Cut(rest + text[ending.end() :])
    return Cut(rest + text[limit:], OpenBlock(budget=block.budget - limit) if limit < block.budget else None)


def _armour(text: str, begin: int, end_line: re.Match[str] | None) -> tuple[str, int, OpenBlock | None]:
    if end_line is not None and end_line.start() - begin <= _END_WITHIN:
        end = end_line.start()
        if _begin().search(text, begin, end) is None:
            if _quote().search(text, begin, end) is None:
                return _TOKEN, end_line.end(), None
            return _TOKEN + _key_run().sub(_TOKEN, text[begin:end]), end, None
    body = _body(1).match(text, begin)
    done = body.end() if body else begin
    budget = _END_WITHIN - (len(text) - begin)
    return _TOKEN, done, OpenBlock(budget=budget) if budget > 0 else None


def _putty(text: str, begin: re.Match[str]) -> tuple[str, int, OpenBlock | None]:
    if text.startswith(TOKEN_START, begin.end()):
        return begin[0], begin.end(), None
    end, block = _line_end(text, begin.end(), int(begin["lines"]), begin["break"])
    return begin[0] + _TOKEN, end, block


def _line_end(text: str, begin: int, count: int, line_break: str) -> tuple[int, OpenBlock | None]:
    """Return where the `count`-th line from `begin` ends, before its line break."""
    escaped = line_break.startswith("\\")
    end = begin
    for number in range(count):
        start = end + len(line_break) if number else begin
        end = text.find(line_break, start)
        if escaped:  # the lines stand in a quoted string, and end with it
            quote = _quote().search(text, start, len(text) if end < 0 else end)
            if quote is not None or end < 0:
                return quote.start() if quote is not None else len(text), None
        elif end < 0:
            return len(text), OpenBlock(lines_left=count - number)
    return end, None


@lru_cache(maxsize=1)
def _begin() -> re.Pattern[str]:
    return re.compile(
        r"-{4,5} ?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?(?: ?-{4,5})?"
        r"|Private-Lines: (?P<lines>[1-9][0-9]{0,3})(?P<break>\n|\r\n|(?:\\+r)?\\+n)"
    )


@lru_cache(maxsize=1)
def _end() -> re.Pattern[str]:
    return re.compile(r"-{4,5} ?END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?(?: ?-{4,5})?")


@lru_cache(maxsize=1)
def _quote() -> re.Pattern[str]:
    return re.compile(r"\\*[\"']")


@lru_cache(maxsize=2)
def _body(at_least: int) -> re.Pattern[str]:
    """Match lines of base64 or headers, `at_least` so many; the last of a key may be short if its line ends with it."""
    line_break = r"(?:[ \t]|\r?\n|(?:\\+r)?\\+n)"
    header = r"(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset): [^\r\n\\\"']*+"
    long = r"[A-Za-z0-9+/]{40,}+={0,3}"
    short = r"=?[A-Za-z0-9+/]{2,39}+={0,3}(?=[\"'\\\r\n]|\Z)"
    return re.compile(rf"(?:{line_break}*+(?:{header}|{long})){{{at_least},}}+(?:{line_break}*+{short}){{0,2}}+")


@lru_cache(maxsize=1)
def _key_run() -> re.Pattern[str]:
    # Not a digest, which is all hexadecimal.
    digest = r"(?:[0-9a-f]++|[0-9A-F]++)(?![A-Za-z0-9+/=])"
    return re.compile(
        rf"(?:(?<![A-Za-z0-9+/\\])|(?<=\\[nrt]))(?!{digest})(?:[A-Za-z0-9+/]{{24,}}+={{0,3}}|[A-Za-z0-9+/]{{2,}}+={{1,3}}(?![A-Za-z0-9+/=]))"
    )
