r"""The redactor: rules, registered literals, and the automaton that keeps both away from clean text.

A text is looked at in pieces of whole lines, each first by the automaton (`_prefilter`), about 2 ns per byte. Rules run
only on pieces it matches. They run until nothing changes any more, so redacting twice gives what redacting once gives;
a text that does not settle, or on which the engine fails in any way, is withheld as `(REDACTED-engine-failure)`.

Rules see one character per UTF-8 byte (an ASCII text as it is, any other through Latin-1): they speak of ASCII only,
offsets stay those of the automaton, and lone surrogates need no special care.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, cast

from spanfold.redact import _accelerator, _names, _prefilter, _structure
from spanfold.redact._assignments import redact_assignments, redact_pairs
from spanfold.redact._blocks import redact_blocks
from spanfold.redact._commands import redact_commands
from spanfold.redact._literals import Literals, escaped_forms
from spanfold.redact._names import ENGINE_FAILURE, token
from spanfold.redact._tokens import redact_tokens
from spanfold.redact._urls import redact_bearer, redact_urls

_PIECE: Final = 64 * 1024
"""Characters of whole lines that the automaton looks at together."""

_SMALL_PIECE: Final = 2 * 1024
"""Characters of whole lines to which the rules are confined when it finds something."""

_MOST_PASSES: Final = 8

_BYTES_BEFORE_FAST: Final = 4_000_000
"""What a process looks at before the faster automaton is worth building."""


class Redactor:
    """Finds secrets in texts, argument lists and nested data, and replaces each by `(REDACTED-<kind>)`.

    Thread-safe, and usable in a forked child. It reads nothing but what it is given.
    """

    def __init__(self, *, patterns: bool = True, literals_of: "Redactor | None" = None) -> None:
        """Make a redactor.

        Args:
            patterns: False leaves only registered literals and sensitive key names.
            literals_of: Share the registered literals of this redactor, now and later.
        """
        self.patterns = patterns
        """Whether the rules are on, not only registered literals and sensitive key names."""
        self._literals: Literals = Literals() if literals_of is None else literals_of._literals
        self._matcher: _prefilter.Matcher
        self._anchor: Any = None
        self._built_for: tuple[str, ...] | None = None
        self._fast: _accelerator.Scan | None = None
        self._bytes_to_fast = _BYTES_BEFORE_FAST
        # Held while the automaton is built, so that it is built once. Re-entrant: a signal handler may record something.
        self._lock = threading.RLock()
        _redactors.add(self)

    def suspects(self, data: bytes) -> bool:
        """Tell whether a string carried in `data` may have to be redacted. The hot path: one search, no copy.

        `data` is UTF-8: a text, or a serialised JSON line in which texts are escaped once or twice. False means that
        `redact` changes none of them and `redact_dict` nothing in the JSON document they make up. True means neither.
        """
        if self._built_for is not self._literals.spellings:
            self._build()
        fast = self._fast
        if fast is not None:
            try:
                fast.search(data, _accelerator.halt)
            except fast.found:
                pass
            else:
                return False
        elif self._bytes_to_fast > 0:
            self._bytes_to_fast -= len(data)
            if self._bytes_to_fast <= 0:
                _accelerator.in_background(self.accelerate)
        return self._matcher(self._anchor, data, 0, len(data))[0][0] >= 0

    def accelerate(self) -> bool:
        """Build the faster automaton now, where Hyperscan is installed; tell whether it is in use.

        Otherwise a process builds it in the background once it has looked at a few megabytes.
        """
        self._build()
        spellings = self._built_for
        assert spellings is not None
        fast = _accelerator.compile_scan(_prefilter.probes(patterns=self.patterns), escaped_forms(spellings))
        with self._lock:
            if self._built_for is spellings:  # else a literal was registered meanwhile, which it does not know
                self._fast = fast
        return self._fast is not None

    def redact(self, text: object) -> str:
        """Return `text` with every recognised secret replaced; the same object when there is none.

        None gives an empty text, bytes are decoded, anything else is turned into a text first. Never raises.
        """
        try:
            if type(text) is not str:
                text = _structure.as_text(text)
            return self._redact_text(text)
        except Exception:
            return ENGINE_FAILURE

    def redact_argv(self, argv: Iterable[object]) -> list[str]:
        """Return a new list of as many arguments, secrets replaced; an option decides about the argument after it."""
        return _structure.redact_argv(argv, self.redact)

    def redact_dict(self, mapping: Mapping[Any, Any]) -> dict[str, Any]:
        """Return a JSON-serialisable copy of `mapping`: texts and keys redacted, values under sensitive keys masked.

        A value under a sensitive key is masked whole when it is a text or a number, leaf by leaf when it is a
        container, and kept when it is a boolean or None. Odd values become JSON ones, and nesting over 64 levels,
        cycles and anything beyond 100,000 values become `[OMITTED:depth]`, `[OMITTED:cycle]`, `[OMITTED:nodes]`.
        """
        copy: object = _structure.redact_tree(mapping, self.redact)
        return cast("dict[str, Any]", copy) if isinstance(copy, dict) else {ENGINE_FAILURE: ENGINE_FAILURE}

    def register_literal(self, value: str) -> bool:
        """Look for `value` from now on: as it stands, JSON-escaped, percent-encoded, and in base64.

        Returns:
            Whether it will be found. A value shorter than 8 characters is not, since it would hit innocent text.
        """
        return self._literals.add(value)

    def on_registration(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a literal was registered: whoever remembers what passed has to ask again."""
        self._literals.listeners.append(listener)

    def register_environment(self, environ: Mapping[str, str]) -> int:
        """Register the values of variables with sensitive names, placeholders excepted; return how many."""
        return sum(
            self.register_literal(value)
            for name, value in environ.items()
            if _names.is_sensitive_name(name) and not _names.is_plain_value(value)
        )

    def is_sensitive_name(self, name: str) -> bool:
        """Tell whether a value called `name` is masked whatever it looks like. Memoised."""
        return _names.is_sensitive_name(name)

    def after_fork(self) -> None:
        """Drop what a thread of the parent may have held locked, in a forked child.

        RE2 searches without the GIL and holds locks of its own meanwhile; in the child those are never released. So
        the automaton is built anew, and the parent's is kept from being destroyed.
        """
        if self._built_for is not None:
            _of_parents.append((self._matcher, self._fast))
        self._built_for = self._fast = None
        self._bytes_to_fast = _BYTES_BEFORE_FAST
        self._lock = threading.RLock()
        self._literals.after_fork()

    def _build(self) -> None:
        with self._lock:
            spellings = self._literals.spellings
            if self._built_for is spellings:
                return
            probes = _prefilter.probes(patterns=self.patterns)
            self._fast, self._bytes_to_fast = None, _BYTES_BEFORE_FAST
            self._matcher, self._anchor = _prefilter.compile_matcher(probes, escaped_forms(spellings))
            self._built_for = spellings

    def _redact_text(self, text: str) -> str:
        once = self._pass(text)
        if once is text:
            return text
        for _ in range(_MOST_PASSES):
            again = self._pass(once)
            if again == once:
                return text if once == text else once
            once = again
        return ENGINE_FAILURE

    def _pass(self, text: str) -> str:
        cut = redact_blocks(text).text if self.patterns else text
        if len(cut) <= _PIECE:
            return self._piece(cut)
        whole = "".join(map(self._piece, _pieces(cut, _PIECE)))
        return text if whole == text else whole

    def _piece(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        if not self.suspects(data):
            return text
        if len(text) > _SMALL_PIECE:
            parts = list(_pieces(text, _SMALL_PIECE))
            if len(parts) > 1:
                whole = "".join(map(self._piece, parts))
                return text if whole == text else whole
        if text.isascii():
            return self._apply(text)
        view = data.decode("latin-1")
        changed = self._apply(view)
        return text if changed is view else changed.encode("latin-1").decode("utf-8", "surrogatepass")

    def _apply(self, text: str) -> str:
        for spelling in self._literals.spellings:
            if spelling in text:
                text = _replace_literal(text, spelling)
        if not self.patterns:
            return text
        for rule in (redact_tokens, redact_pairs, redact_assignments, redact_urls, redact_bearer, redact_commands):
            text = rule(text)
        return text


def _pieces(text: str, size: int) -> Iterator[str]:
    """Cut `text` behind line ends into pieces of about `size` characters; a longer line stays whole."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin + size) + 1
        yield text[begin : end or len(text)]
        begin = end or len(text)


def _replace_literal(text: str, spelling: str) -> str:
    # Never inside a replacement token, or a literal such as "REDACTED" would grow it for ever.
    parts = _names.TOKENS.split(text)
    parts[::2] = [part.replace(spelling, token("literal")) for part in parts[::2]]
    return "".join(parts)


_redactors: "weakref.WeakSet[Redactor]" = weakref.WeakSet()
_of_parents: Final[list[Any]] = []


def _after_fork_in_child() -> None:
    for redactor in list(_redactors):
        redactor.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)

default_redactor: Final = Redactor()
"""The redactor of the process. Its registered literals are shared by the redactors of all gates."""

redact = default_redactor.redact
redact_argv = default_redactor.redact_argv
redact_dict = default_redactor.redact_dict
register_literal = default_redactor.register_literal
