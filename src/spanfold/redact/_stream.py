r"""Redaction of text that arrives in pieces: output of a subprocess, progress lines.

However a text is cut into pieces, what comes out holds no secret that `Redactor.redact` would have replaced in the
whole text, provided the secret with the name or prefix that gives it away is at most 8 KiB long; private-key blocks may
have any length. Whole lines come out at once, since no other rule looks beyond a line. Held back are the unfinished
line, a line that ends inside a token (it may go on in the next line, hard-wrapped), and of an endless line the last
8 KiB.
"""

import re
from functools import lru_cache
from typing import Final

from spanfold.redact._blocks import OpenBlock, redact_blocks, resume_block
from spanfold.redact._engine import Redactor, default_redactor
from spanfold.redact._names import token
from spanfold.redact._tokens import partial_token, whole_token

_LONGEST_SECRET: Final = 8 * 1024
_LONG_LINE: Final = 2 * _LONGEST_SECRET
"""An unfinished line of so many characters is cut, rather than kept."""


class StreamRedactor:
    """Redacts one stream. Not thread-safe: one per stream."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        """Make a stream redactor that uses `redactor`, or the one of the process."""
        self._redactor = default_redactor if redactor is None else redactor
        self._held: list[str] = []
        self._held_size = 0
        self._cut_at = _LONG_LINE
        self._block: OpenBlock | None = None

    def feed(self, text: str) -> str:
        """Take the next piece; return what is safe to show so far, possibly nothing."""
        self._held.append(text)
        self._held_size += len(text)
        if "\n" not in text and self._held_size < self._cut_at:
            return ""
        held = "".join(self._held)
        cut = self._before_wrapped_end(held, held.rfind("\n") + 1) or self._cut_in_line(held)
        self._hold(held[cut:])
        return self._scrub(held[:cut])

    def flush(self) -> str:
        """Return the rest and forget the stream. A token unfinished at the end becomes `(REDACTED-partial)`."""
        rest = self._scrub("".join(self._held))
        self._hold("")
        self._block = None
        line = rest.rstrip("\r\n")
        start = partial_token(line, len(line)) if self._redactor.patterns else None
        return rest if start is None else line[:start] + token("partial") + rest[len(line) :]

    def _hold(self, rest: str) -> None:
        self._held = [rest] if rest else []
        self._held_size = len(rest)
        self._cut_at = max(_LONG_LINE, 2 * len(rest))

    def _scrub(self, text: str) -> str:
        if self._redactor.patterns:
            if self._block is not None and text:
                text, self._block = resume_block(text, self._block)
            text, opened = redact_blocks(text)
            self._block = opened or self._block
            text = _mask_wrapped(text)
        return self._redactor.redact(text)

    def _before_wrapped_end(self, held: str, cut: int) -> int:
        """Return `cut`, or where its last line begins if that line ends inside a token and may go on in the next."""
        end = cut - 2 if held[cut - 2 : cut] == "\r\n" else cut - 1
        if end <= 0 or not self._redactor.patterns or partial_token(held, end) is None:
            return cut
        begin = held.rfind("\n", 0, end) + 1
        line = self._redactor.redact(held[begin:end])
        if partial_token(line, len(line)) is None or len(held) - begin >= _LONG_LINE:
            return cut
        return begin

    def _cut_in_line(self, held: str) -> int:
        """Return where a long line may be cut: where redacting both parts gives what redacting the whole gives."""
        limit = len(held) - _LONGEST_SECRET
        if self._block is not None or len(held) < self._cut_at:
            return 0
        redact = self._redactor.redact
        whole = redact(held)
        for candidate in (held.rfind(" ", 0, limit) + 1, limit, limit - 1024, limit - 4096):
            if candidate > 0 and redact(held[:candidate]) + redact(held[candidate:]) == whole:
                return candidate
        return 0


@lru_cache(maxsize=1)
def _wrap() -> re.Pattern[str]:
    return re.compile(r"[A-Za-z0-9_.=-](?P<break>\r?\n)(?P<rest>[A-Za-z0-9_.=+/-]+)")


def _mask_wrapped(text: str) -> str:
    """Replace both halves of a token that a line break cuts in two."""
    pieces: list[str] = []
    done = 0
    for match in _wrap().finditer(text):
        end = match.start("break")
        start = partial_token(text, end)
        if start is None or start < done:
            continue
        head = text[start:end]
        found = whole_token(head + match["rest"])
        if found is not None and found[1] > len(head) and whole_token(head) is None:
            mask = token(found[0])
            pieces += (text[done:start], mask, match["break"], mask)
            done = match.start("rest") + found[1] - len(head)
    if not pieces:
        return text
    pieces.append(text[done:])
    return "".join(pieces)
