"""The one gate before the journal: a redactor, and the user's own callback where there is one.

The gate never raises and fails closed: what it could not judge becomes `(REDACTED-engine-failure)`, is counted in
`Gate.failures`, and is reported once by the logger `spanfold`, without the value. A callback runs on a helper thread
under a time limit. One that passes it is abandoned: it cannot be stopped, so it is never asked again, and everything
it would have seen from then on is withheld.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from spanfold.redact._engine import Redactor
from spanfold.redact._names import ENGINE_FAILURE
from spanfold.redact._structure import redact_tree

Callback = Callable[[str], str]

_logger: Final = logging.getLogger("spanfold")


class Gate:
    """Decides whether a serialised record is clean, and scrubs the strings of one that is not."""

    failures: int
    """Texts withheld because the redactor or the callback failed on them."""

    def __init__(self, redactor: Redactor, redact: bool | Callback = True, *, timeout_s: float = 1.0) -> None:
        """Make a gate.

        Args:
            redactor: Whose rules and registered literals are applied.
            redact: The setting of `configure()`: True applies all rules; False only registered literals (environment
                values among them) and sensitive key names; a callable is applied to every string besides the rules.
            timeout_s: How long the callback may take for one string.

        Raises:
            TypeError: `redact` is neither a boolean nor callable.
        """
        if not isinstance(redact, bool) and not callable(redact):
            raise TypeError(f"redact= must be True, False or a callable, not a {type(redact).__name__}")
        self.failures = 0
        self._redactor = Redactor(patterns=False, literals_of=redactor) if redact is False else redactor
        self._callback = None if isinstance(redact, bool) else _Guarded(redact, timeout_s)
        self._warned = False
        # Guards the counter and the flag. Re-entrant: a signal handler may record something.
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def is_clean(self, line: bytes) -> bool:
        """Tell whether nothing in a serialised record has to be redacted; False also means "cannot tell"."""
        return self._callback is None and not self._redactor.suspects(line)

    def is_sensitive_name(self, name: str) -> bool:
        """Tell whether a value called `name` is secret whatever it looks like."""
        return self._redactor.is_sensitive_name(name)

    def scrub_text(self, text: str) -> str:
        """Return `text` with every secret replaced; never raises."""
        clean = self._redactor.redact(text)
        if clean == ENGINE_FAILURE and text != ENGINE_FAILURE:
            return self._withheld("the redactor failed")
        if self._callback is None:
            return clean
        answer, failure = self._callback.ask(clean)
        if failure:
            return self._withheld(failure)
        # The rules have the last word: a callback may have put back what they took out.
        return clean if answer == clean else self._redactor.redact(answer)

    def scrub_name(self, name: str) -> str:
        """Return `name`, the key of an attribute, with every secret replaced by the rules; no callback sees it.

        Keys are what a reader finds its values by; a callback that fails must not take them away.
        """
        return self._redactor.redact(name)

    def scrub_value(self, value: Any) -> Any:
        """Return a copy of a JSON tree with every secret replaced, in keys and leaves, of any depth; never raises."""
        try:
            return redact_tree(value, self.scrub_text, max_depth=None, max_nodes=None)
        except Exception:
            return self._withheld("the redactor failed on a nested value")

    def _withheld(self, reason: str) -> str:
        if os.getpid() != self._pid:  # a forked child: another thread of the parent may have held the lock
            self._lock, self._pid = threading.RLock(), os.getpid()
        with self._lock:
            self.failures += 1
            first, self._warned = not self._warned, True
        if first:
            _logger.warning("redaction: %s; the value was withheld. Further failures are counted, not logged.", reason)
        return ENGINE_FAILURE


class _Guarded:
    """The user's callback, run on helper threads under a time limit."""

    def __init__(self, callback: Callback, timeout_s: float) -> None:
        self._callback = callback
        self._timeout_s = timeout_s
        self._abandoned = False
        # Helpers nobody waits for. As many exist as threads have been inside the gate at once.
        self._idle: deque[_Helper] = deque()

    def ask(self, text: str) -> tuple[str, str]:
        """Return the callback's answer, or why there is none."""
        if self._abandoned:
            return "", "the redact callback was abandoned after it passed its time limit"
        if isinstance(threading.current_thread(), _Helper):
            return "", "the redact callback recorded something itself"
        try:
            helper = self._helper()
            helper.questions.put(text)
            answer = helper.answers.get(timeout=self._timeout_s)
        except Empty:
            self._abandoned = True
            return "", f"the redact callback took longer than {self._timeout_s:g} s and was abandoned"
        except Exception as error:
            return "", f"no thread for the redact callback ({type(error).__name__})"
        self._idle.append(helper)
        if isinstance(answer, BaseException):
            return "", f"the redact callback raised {type(answer).__name__}"
        if not isinstance(answer, str):
            return "", f"the redact callback returned a {type(answer).__name__} instead of a str"
        return str.__str__(answer), ""

    def _helper(self) -> "_Helper":
        while self._idle:
            try:
                helper = self._idle.pop()
            except IndexError:  # another thread took it
                break
            if helper.pid == os.getpid():  # else it is the parent's, and does not run here
                return helper
        helper = _Helper(self._callback)
        helper.start()
        return helper


class _Helper(threading.Thread):
    """A daemon thread that answers one question at a time."""

    def __init__(self, callback: Callback) -> None:
        super().__init__(name="spanfold-redact", daemon=True)
        self.pid = os.getpid()
        self.questions: SimpleQueue[str] = SimpleQueue()
        self.answers: SimpleQueue[object] = SimpleQueue()
        self._ask = callback

    def run(self) -> None:
        while True:
            question = self.questions.get()
            try:
                self.answers.put(self._ask(question))
            except BaseException as error:  # SystemExit too: it would end the helper and leave the host waiting
                self.answers.put(error)
