"""Registered literals: secrets the program knows, in every spelling they are likely to leave it in.

A literal is looked for as it stands, escaped as a JSON string (once or twice), percent-encoded, and in base64 at each of
the three alignments it can have inside a longer encoded text. One that has several lines is looked for line by line, so
that masking it never joins lines.
"""

import base64
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from urllib.parse import quote, quote_plus

SHORTEST: Final = 8
"""Characters a literal must have; a shorter one would hit innocent text."""

_SHORTEST_CORE: Final = 10
"""Characters of a base64 spelling; eight bytes give at least as many at every alignment."""


class Literals:
    """A growing set of literals, shared by the redactors that look for them. Safe to use from several threads."""

    spellings: tuple[str, ...]
    """What to look for, longest first, as text of one character per UTF-8 byte. Replaced as a whole, never changed."""

    def __init__(self) -> None:
        self.spellings = ()
        self.listeners: list[Callable[[], None]] = []
        """Called after a literal was added: what passed before may not pass any more."""
        self._values: set[str] = set()
        # Guards the set and the tuple made from it. Re-entrant: a signal handler may register something.
        self._lock = threading.RLock()

    def add(self, value: str) -> bool:
        """Add `value`, or each of its lines when it has several; tell whether anything in it was long enough."""
        lines = {line for line in map(str.strip, value.splitlines()) if len(line) >= SHORTEST and line[:5] != "-----"}
        with self._lock:
            fresh = lines - self._values
            if fresh:
                self._values |= fresh
                found = {spelling for line in fresh for spelling in _spellings(line)}
                self.spellings = tuple(sorted(found.union(self.spellings), key=lambda text: (-len(text), text)))
        if fresh:
            for listener in self.listeners:
                listener()
        return bool(lines)

    def after_fork(self) -> None:
        """Replace the lock, which another thread of the parent may have held."""
        self._lock = threading.RLock()


def escaped_forms(spellings: Iterable[str]) -> Iterator[bytes]:
    """Yield each spelling as it stands in a serialised line: as it is, and escaped once or twice."""
    for spelling in spellings:
        text = spelling.encode("latin-1").decode("utf-8", "surrogatepass")
        for form in {text, *_json_escaped(text)}:
            yield form.encode("utf-8", "surrogatepass")


def _json_escaped(text: str) -> set[str]:
    once = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    twice = {json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in once for ascii_only in (True, False)}
    return once | twice


def _spellings(value: str) -> set[str]:
    raw = value.encode("utf-8", "surrogatepass")
    texts = {value, *_json_escaped(value), value.replace("/", "\\/")}
    percent = {quote(raw, safe=""), quote(raw, safe="/"), quote_plus(raw)}
    lower = {_lower_percent(text) for text in percent}
    encoded = {text.encode("utf-8", "surrogatepass").decode("latin-1") for text in texts}
    return encoded | percent | lower | set(_base64_forms(raw))


def _lower_percent(text: str) -> str:
    first, *rest = text.split("%")
    return "%".join((first, *(part[:2].lower() + part[2:] for part in rest)))


def _base64_forms(raw: bytes) -> Iterator[str]:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(raw).decode("ascii")
        yield whole
        yield whole.rstrip("=")
        for offset in range(3):
            # Only the characters all of whose bits belong to the literal.
            begin, end = -(-offset * 8 // 6), (offset + len(raw)) * 8 // 6
            core = encode(bytes(offset) + raw).decode("ascii")[begin:end]
            if len(core) >= _SHORTEST_CORE:
                yield core
