"""Count model calls and tokens once, however many libraries recorded the same call.

Two spans can stand for one call: a `model_call` of ours around an instrumented
client, or a framework's span around its provider's. Then one of them is
`wrapped` and left out of the totals:

- the foreign span inside a model call of ours;
- the outer one of two foreign spans, since the inner one, recorded first, was
  counted already.

The usage of an agent is shown on the agent and never added to that of its calls.
"""

from collections.abc import Mapping
from typing import Any, Final

from spanfold import names
from spanfold.fold.entry import Entry

MAX_INNER: Final = 10_000
"""Foreign parents remembered until they end; of more, the oldest are forgotten."""


class Totals:
    """What all model calls of a run come to."""

    def __init__(self) -> None:
        self.calls = 0
        self.failed = 0
        self.wrapped = 0
        self.usage: dict[str, int | float] = {}
        self._inner: dict[str, None] = {}
        """Ids of spans not ended yet in which a foreign model call was counted."""

    def ended(self, entry: Entry, open_kinds: Mapping[str, str]) -> None:
        """Take in an ended span, and mark it when it stands for a call that is counted elsewhere.

        Args:
            entry: The span.
            open_kinds: Span id -> kind of every span of ours that has not ended.
        """
        span = entry.span
        if span is None:
            return
        if entry.kind == "model_call":
            entry.wrapped = entry.is_foreign and (
                self._is_inside_ours(entry, open_kinds) or span.span_id in self._inner
            )
            self._count(entry)
        if not entry.is_foreign:
            self._inner.pop(span.span_id, None)
            return
        counted_inside = self._inner.pop(span.span_id, _ABSENT) is None
        if counted_inside or (entry.kind == "model_call" and not entry.wrapped):
            self._remember(_parent(entry), open_kinds)

    def _is_inside_ours(self, entry: Entry, open_kinds: Mapping[str, str]) -> bool:
        # The parent token of a foreign span is that of the innermost span of ours around it.
        return open_kinds.get(_parent(entry)) == "model_call" or entry.attributes.get(names.PARENT) == "model_call"

    def _count(self, entry: Entry) -> None:
        if entry.wrapped:
            self.wrapped += 1
            return
        self.calls += 1
        self.failed += entry.span is not None and entry.span.status_code == 2
        for name, count in entry.usage.items():
            self.usage[name] = self.usage.get(name, 0) + count

    def _remember(self, parent: str, open_kinds: Mapping[str, str]) -> None:
        if not parent or parent in open_kinds:
            return
        self._inner[parent] = None
        if len(self._inner) > MAX_INNER:
            del self._inner[next(iter(self._inner))]

    def shown(self) -> dict[str, Any]:
        """Return the totals as `run.json` shows them."""
        return {"model_calls": self.calls, "failed": self.failed, "wrapped": self.wrapped, "usage": self.usage}

    def state(self) -> dict[str, Any]:
        """Return everything remembered, as JSON data."""
        return {**self.shown(), "inner": list(self._inner)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.calls, self.failed, self.wrapped = state["model_calls"], state["failed"], state["wrapped"]
        self.usage = dict(state["usage"])
        self._inner = dict.fromkeys(state["inner"])


def _parent(entry: Entry) -> str:
    recorded = entry.attributes.get(names.RECORDED_PARENT)
    if type(recorded) is str:
        return recorded
    return entry.span.parent_span_id if entry.span else ""


_ABSENT: Final = object()
