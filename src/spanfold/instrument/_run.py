"""An open run: its directory, its journal, its root span, and how it ends.

`Run` is what `spanfold.run(...)` gives. `JoinedRun` is the same run seen from
a child process that found it in its environment: it writes a journal file of
its own into the same folder and leaves documents and seal to the owner.
"""

import logging
import os
import re
import threading
import weakref
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from opentelemetry import trace

from spanfold import names
from spanfold.errors import SpanfoldError, UnsafeEntryError
from spanfold.fs import SafeRoot, fsync_folder, safe_name
from spanfold.instrument import _ids, _signals
from spanfold.instrument._bridge import bridge
from spanfold.instrument._guard import losing_only, losses, lost
from spanfold.instrument._host import host_facts
from spanfold.instrument._near import Anchor, OfThisProcess
from spanfold.instrument._span import RecordedSpan, fork_generation
from spanfold.instrument._state import RunHooks, process_resource, state, version
from spanfold.journal import AttributeValue, Journal, Stats, combined_head, file_heads

log = logging.getLogger("spanfold")

JOURNAL_FOLDER: Final = "journal"
_MAX_SUFFIX: Final = 1_000
_FINISH_S: Final = 5.0
_MAX_UNFINISHED: Final = 8
"""Ended runs that wait in memory for the disk; each may hold `journal.MAX_HELD_BYTES`."""


_recordings: "weakref.WeakSet[Recording]" = weakref.WeakSet()


def _judge_again() -> None:
    """Forget what passed the gate before a secret was registered."""
    for recording in tuple(_recordings):
        # Replaced, not cleared: a verdict that another thread is just getting goes into the old one.
        recording.memo = {}
        recording.journal.encoder.forget()


state.redactor.on_registration(_judge_again)


class Recording(OfThisProcess):
    """What a span needs of its run (`_span.Recorder`), for the owner and for a joined child."""

    closed = False
    """Whether the run is over, so that nothing belongs to it any more."""
    is_late_told = False
    """Whether it was told already that work goes on after it."""

    def __init__(self, folder: Path, trace_hex: bytes, journal_folder: Path | None = None) -> None:
        settings = state.ready()
        assert state.gate is not None
        self.dir = folder
        self.content: str = settings.content
        self.trace_hex = trace_hex
        self.open_spans: dict[bytes, RecordedSpan] = {}
        self.memo: dict[Any, Any] = {}
        _recordings.add(self)
        self.hooks: RunHooks | None = None
        self.is_watched = settings.durability == "machine"
        """Whether anybody wants to be told after each line."""
        self.journal = Journal(
            journal_folder or folder / JOURNAL_FOLDER,
            gate=state.gate,
            resource=process_resource,
            durable=settings.durability == "machine",
            scope_version=version(),
        )
        self.is_durable = settings.durability == "machine"

    @property
    def trace_id(self) -> str:
        """32 lower-case hex digits."""
        return self.trace_hex.decode()

    @property
    def stats(self) -> Stats:
        """What the journal of this process wrote, holds and lost."""
        return self.journal.stats

    def recorded(self, kind: str) -> None:
        """Told after each line: control records are synced and shown in the documents at once."""
        if self.is_durable and kind in CONTROL:
            self.journal.sync()
        if self.hooks is not None:
            self.hooks.recorded(kind)

    @property
    def is_mirrored(self) -> bool:
        """Whether the host has a provider that is shown our spans."""
        return bridge.provider is not None

    def mirror_end(self, span: RecordedSpan, end_ns: int, attributes: Mapping[str, AttributeValue]) -> None:
        """Show an ended span to the host's provider."""
        bridge.mirror_end(span, end_ns, attributes)

    def end_open_spans(self, outcome: str, *, keep: RecordedSpan | None = None) -> None:
        """End every span that is current somewhere, innermost first, with an outcome."""
        for span in sorted(self.open_spans.values(), key=lambda s: -s.depth):
            if span is keep or span.ended:
                continue
            with losing_only("open spans at the end"):
                span.set_attribute(names.OUTCOME, outcome)
                if outcome == "terminated":
                    span.set_status(trace.StatusCode.ERROR, outcome)
                    span.set_attribute(names.ERROR_TYPE, outcome)
                span.end()


CONTROL: Final = frozenset(
    {"run", "stage", "agent", "event", "score", "artifact", "cell", "pass", "batch", "closeout", "tick", "step"}
)
"""Kinds of record that are synced (with `durability="machine"`) and in their document when the call returns."""


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
        from spanfold.instrument._process import env_parent

        inherited = env_parent() if place is None else None
        if inherited is not None and not state.claim(inherited.trace_hex):
            inherited = None  # one open run for each trace: records are sorted into runs by it
        if place is None:
            durable = state.ready().durability == "machine"
            super().__init__(
                _claim(folder or _default_folder(name), durable=durable),
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
            self.span.set_attribute(names.OUTCOME, outcome)
            if outcome == "terminated":
                self.span.set_status(trace.StatusCode.ERROR, outcome)
                self.span.set_attribute(names.ERROR_TYPE, outcome)
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
            _unfinished.append(self)
            for given_up in _unfinished[:-_MAX_UNFINISHED]:
                _unfinished.remove(given_up)
                tell_unfinished([given_up])
                lost("the last records of a run, which the disk never took")
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


_unfinished: list[Run] = []
"""Runs that ended while the disk refused their last records."""


def finish_unfinished() -> tuple[Run, ...]:
    """Try again to write the end of runs that ended while the disk refused it; return those that still wait."""
    for run in list(_unfinished):
        if run.finish() and run in _unfinished:
            _unfinished.remove(run)
    return tuple(_unfinished)


def tell_unfinished(recordings: Iterable[Recording]) -> None:
    """Say what is lost of recordings that nobody tries to write any more."""
    for recording in recordings:
        stats = recording.stats
        if stats.held:
            log.error(
                "%s: %d records of this run are lost for good; they could not be written (%s).",
                recording.dir,
                stats.held + stats.lost,
                stats.problem or "the reason was logged",
            )
        elif recording.closed and not recording.journal.is_sealed:
            log.error(
                "%s: the seal of this run could not be written (%s). Its records are; `spanfold run recover` seals it.",
                recording.dir,
                stats.problem or "the reason was logged",
            )


def unfinished() -> tuple[Recording, ...]:
    """Return the recordings of this process that may have something in memory when it exits, after the last try."""
    return tuple(found for found in (*_unfinished, *state.runs.values(), state.joined) if found is not None)


class JoinedRun(Recording):
    """A run of a parent process, joined by this one through its environment."""

    anchor: Anchor
    """The span of the parent process under which this one works."""

    def __init__(self, folder: Path, name: str, trace_hex: bytes, journal_folder: Path | None = None) -> None:
        super().__init__(folder, trace_hex, journal_folder)
        self.name = name


def _default_folder(name: str) -> Path:
    settings = state.ready()
    assert state.gate is not None
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    folder = f"{safe_name(state.gate.scrub_text(name), limit=48)}-{stamp}-{os.urandom(2).hex()}"
    return (settings.run_dir or Path("runs")) / folder


def _claim(folder: Path, *, durable: bool) -> Path:
    """Make the run directory and take it, or the next free name beside it when it already holds a run.

    A used directory is never written to again: its journal is sealed. Making
    the journal folder is atomic, so two processes cannot take the same one. A
    link or file in its place is left alone like a used directory: where it
    leads to, nobody has asked us to write.
    """
    try:
        folder = Path(os.path.abspath(folder))
    except OSError as error:
        lost("the run directory: there is no working directory any more; records are kept in memory only", error)
        return folder
    for number in range(1, _MAX_SUFFIX):
        candidate = folder if number == 1 else folder.parent / f"{folder.name}-{number}"
        try:
            _make(candidate, durable=durable)
        except (FileExistsError, UnsafeEntryError) as error:
            if folder.parent.is_dir():
                continue
            return _memory_only(candidate, error)
        except (OSError, SpanfoldError, ValueError) as error:  # ValueError: no path at all, such as one with NUL in it
            return _memory_only(candidate, error)
        if number > 1:
            log.warning(
                "%s already holds a run or is no plain directory, and is left as it is; this run is recorded in %s.",
                folder,
                candidate,
            )
        return candidate
    lost(f"the run directory {folder}: {_MAX_SUFFIX} names beside it are taken; records are kept in memory only")
    return folder


def _memory_only(folder: Path, error: Exception) -> Path:
    lost(f"the run directory {folder}, which cannot be made; records are kept in memory until it can", error)
    return folder


def _make(folder: Path, *, durable: bool) -> None:
    new = [above for above in (folder, *folder.parents) if durable and not above.exists()]
    SafeRoot(folder, create=True, durable=durable).make_dir_exclusive(JOURNAL_FOLDER)
    with losing_only("the flush of a new folder"):
        for made in new:
            fsync_folder(os.path.realpath(made.parent))


_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?\Z")


def parse_traceparent(text: str) -> tuple[bytes, bytes] | None:
    """Return trace and span id of a W3C traceparent, None when it is not valid (Trace Context, section 3.2)."""
    match = _TRACEPARENT.match(text.strip())
    if match is None or (text.startswith("00-") and match[3]):
        return None
    trace_hex, span_hex = match[1].encode(), match[2].encode()
    return None if not trace_hex.strip(b"0") or not span_hex.strip(b"0") else (trace_hex, span_hex)


def _after_fork_in_child() -> None:
    _unfinished.clear()
    for run in state.runs.values():
        run.hooks = None  # documents and deliveries are the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
