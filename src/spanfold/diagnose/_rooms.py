"""Reach the rooms to the right: this one knows neither delivery nor fold.

`spanfold._connect` gives the recorder its connector; it does for us what is
asked of it here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from spanfold.instrument import Run, state


class Delivered(Protocol):
    """What became of the records of a run at one destination."""

    @property
    def destination(self) -> str:
        """`langfuse` for spans, other names for what goes beside them."""
        ...

    @property
    def sent(self) -> int:
        """Records that have arrived with this call."""
        ...

    @property
    def refused(self) -> int:
        """Records that were refused for good."""
        ...

    @property
    def waiting(self) -> int:
        """Records that are neither there nor refused."""
        ...

    @property
    def reason(self) -> str:
        """Why records wait or were refused; empty when all have arrived."""
        ...


class Rooms(Protocol):
    """What `spanfold._connect` does for this room."""

    @property
    def has_langfuse(self) -> bool:
        """Whether runs are sent to Langfuse while they are recorded."""
        ...

    def deliver_to_langfuse(
        self, run_dir: Path, environ: Mapping[str, str], *, timeout_s: float
    ) -> Sequence[Delivered]:
        """Send what Langfuse has not acknowledged of a run; empty when the variables name no server."""
        ...

    def trace_bundle(self, run_dir: Path) -> dict[str, Any]:
        """Return `langfuse_trace.json` of a run, made anew from its journal as far as that goes."""
        ...


def rooms() -> Rooms:
    """Return the way to the other rooms."""
    return cast("Rooms", state.connector)


class _Hooks(Protocol):
    """What `spanfold._connect` does for one run, beside `RunHooks`."""

    def journal_came_home(self) -> None:
        """Go on sending from the run directory."""
        ...

    @property
    def problems(self) -> int:
        """How often documents could not be brought up to date."""
        ...

    def hold(self, documents: frozenset[str]) -> None:
        """Write these documents no more until the set is another one, or the run ends."""
        ...


def tell_home(run: Run) -> None:
    """Tell the other rooms that the journal of a run that has ended stands in its run directory now."""
    if run.hooks is not None:
        cast("_Hooks", run.hooks).journal_came_home()


def hold_back(run: Run, documents: frozenset[str]) -> None:
    """Have these documents of an open run not written until the set is another one, or the run ends."""
    if run.hooks is not None:
        cast("_Hooks", run.hooks).hold(documents)


def document_problems(run: Run) -> int:
    """Return how often the documents of a run could not be brought up to date."""
    return 0 if run.hooks is None else cast("_Hooks", run.hooks).problems
