"""An open run of this process: its root span, what it says of itself, and how it ends."""

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from opentelemetry import trace

from spanfold import names
from spanfold.instrument import _ids, _signals
from spanfold.instrument._bridge import bridge
from spanfold.instrument._guard import losing_only, losses, lost
from spanfold.instrument._host import host_facts
from spanfold.instrument._joining import env_parent
from spanfold.instrument._recording import Recording, tell_outcome
from spanfold.instrument._run_folder import claim, default_folder
from spanfold.instrument._span import RecordedSpan, fork_generation
from spanfold.instrument._state import state
from spanfold.instrument._unfinished import finish_unfinished, keep_unfinished
from spanfold.journal import combined_head, file_heads

log = logging.getLogger("spanfold")

_FINISH_S: Final = 5.0


class RunPlace(NamedTuple):
    """Where a run is recorded, when its recorder decides that itself and has taken the places."""

    dir: Path
    """The run directory, absolute."""
    journal: Path
    """The journal folder, which may stand elsewhere."""
    trace_hex: bytes
    """Trace id, 32 hex digits."""


class Run(Recording):
    """One run. A context manager: the root span is current inside, the run is sealed at the end.

    Attributes:
        name: As given.
        dir: The run directory; `<dir>-2` ... when the one asked for already holds a run.
        trace_id: 32 hex digits, the trace in Jaeger or Langfuse.
    """

    is_offline = False
    """Whether nothing of it is sent anywhere."""
    may_be_left_open = False
    """Whether the end of the program is as good an end of it as any other."""

    def __init__(
        self, name: str, folder: Path | None, fields: Mapping[str, Any], *, place: RunPlace | None = None
    ) -> None:
        inherited = env_parent() if place is None else None
        if inherited is not None and not state.claim(inherited.trace_hex):
            inherited = None  # one open run for each trace: records are sorted into runs by it
        if place is None:
            durable = state.ready().durability == "machine"
            super().__init__(
                claim(folder or default_folder(name), durable=durable),
                inherited.trace_hex if inherited else _ids.trace_id(),
            )
        else:
            super().__init__(place.dir, place.trace_hex, place.journal)
        self.name = name
        self._losses_before = losses.copy()
        # Whoever closes second waits until it is done; re-entrant for a signal handler in the middle of it.
        self._closing = threading.RLock()
        if state.connector is not None:
            with losing_only("documents and delivery"):
                self.hooks = state.connector.open(self)
                self.is_watched = True
        self.span = RecordedSpan(self, name, "run", parent_id=inherited.span_id if inherited else b"")
        self.span.set_attribute(names.RUN_ID, name)
        self.span.set_attribute(names.RUN_DIR, self.dir.name)
        self.span.set(**{**fields, **host_facts()})
        current = trace.get_current_span().get_span_context()
        if current.is_valid and f"{current.trace_id:032x}" != self.trace_id:
            self.span.add_link(current, {"spanfold.link": "started_in"})
        self.span.announce()
        state.add(self)
        _signals.install()
        bridge.join()
        bridge.mirror_start(self.span)

    def __enter__(self) -> Self:
        self.span.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.span.failed(error)
        self.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    @property
    def span_id(self) -> str:
        """16 hex digits of the root span."""
        return self.span.span_id

    @property
    def losses(self) -> dict[str, int]:
        """What was lost in this process -> how often; empty when nothing was."""
        found = dict(losses)
        if self.stats.lost:
            found["journal records"] = self.stats.lost
        return found

    def set(self, /, **fields: Any) -> Self:
        """Set fields of the run."""
        self.span.set(**fields)
        return self

    def event(self, name: str, /, **fields: Any) -> None:
        """Record a moment of the run."""
        self.span.event(name, **fields)

    def end_root(self, outcome: str) -> None:
        """End a run nobody closed, with an outcome."""
        if not self.closed and self.span._generation == fork_generation():  # pyright: ignore[reportPrivateUsage]  # same room
            tell_outcome(self.span, outcome)
            if outcome == "abandoned" and not self.may_be_left_open:
                log.warning(
                    "%s: the program ended while this run was open, so its status is interrupted. Use `with spanfold.run(...)`, "
                    "and `with` for its stages and calls: only then they end where their work ends.",
                    self.dir,
                )
        self.close()

    def view(self) -> Path:
        """Bring every document up to date and return the run directory."""
        self.journal.sync()
        if self.hooks is not None:
            self.hooks.flush(5.0)
        return self.dir

    def close(self) -> None:
        """End the root span, seal the journal, finish the documents. Harmless when repeated; never raises."""
        if self.span._generation != fork_generation():  # pyright: ignore[reportPrivateUsage]  # same room
            self.span.end()  # in a forked child: only leaves the context
            return
        # Not for ever: a signal handler may have interrupted what the thread that closes the run waits for.
        if not self._closing.acquire(timeout=_FINISH_S):
            return
        try:
            if self.closed:
                self.span.leave()
                return
            self.closed = True
            try:
                self._end()
            except BaseException:  # Ctrl-C in the middle of it: the end of the process goes on here
                self.closed = False
                raise
        finally:
            self._closing.release()
        self._tell_end()

    def _tell_end(self) -> None:
        """See to it that what the disk refused is not forgotten."""
        if self.journal.is_sealed:
            finish_unfinished()
        else:
            keep_unfinished(self)
        if self.stats.lost:
            log.warning(
                "%s: the run ended with %d records lost%s.",
                self.dir,
                self.stats.lost,
                f", which could not be written ({self.stats.problem})" if self.stats.problem else "",
            )
        if not self.journal.is_sealed:
            log.warning(
                "%s: the run ended with %d records and its seal in memory only (%s). They are written with the next flush, at the "
                "end of another run, or when the process exits, if that is possible then.",
                self.dir,
                self.stats.held,
                self.stats.problem or "it could not be sealed",
            )

    def _end(self) -> None:
        """Bring the run to its end; each step may be done already."""
        others: dict[str, dict[str, Any]] = {}
        with losing_only("the end of a run"):
            self.end_open_spans("left_open", keep=self.span)
            others = self._other_heads()
            heads = {
                name: (int(head["seq"]), str(head["head"])) for name, head in {**others, **self.journal.heads()}.items()
            }
            self.span.set_attribute(names.SEAL_HEAD, combined_head(heads))
            self.span.set_attribute(names.SEAL_SEQ, sum(seq for seq, _ in heads.values()))
            if found := losses - self._losses_before:
                self.span.set(**{names.RUN_LOSSES: dict(found)})
        self.span.end()
        with losing_only("the seal"):
            self.journal.seal(others)
        with losing_only("documents"):
            if self.hooks is not None:
                self.hooks.close()
        with losing_only("the journal's last sync"):
            self.journal.close()
        state.remove(self)

    def finish(self) -> bool:
        """Do what could not be done at the end, because the disk refused it; whether it is done or given up."""
        try:
            is_sealed = self.journal.seal(self._other_heads())
            if is_sealed and self.hooks is not None:
                self.hooks.flush(_FINISH_S)
                self.hooks.close()
            self.journal.close()
        except Exception as error:  # a fault of ours, which more tries do not mend
            lost("the end of a run", error)
            return True
        return is_sealed

    def _other_heads(self) -> dict[str, dict[str, Any]]:
        """Return where the files of other processes end."""
        heads = file_heads(self.journal.folder)
        for mine in self.journal.heads():
            heads.pop(mine, None)
        return heads


def _after_fork_in_child() -> None:
    for run in state.runs.values():
        run.hooks = None  # documents and deliveries are the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
