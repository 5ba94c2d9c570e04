"""Send a diagnose run to Langfuse after the fact, whoever wrote its documents (DL 11.2).

A run of spanfold has its journal, and that is the outbox; for a directory that
has only documents a journal is made of them (`_outbox`). What was delivered is
not delivered again.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from spanfold.diagnose._documents import read_documents
from spanfold.diagnose._outbox import OutboxOfRun, write_outbox
from spanfold.diagnose._rooms import Delivered, rooms

TIMEOUT_S: Final = 60.0


def backfill(
    run_dir: str | Path,
    *,
    dry_run: bool = False,
    timeout_s: float = TIMEOUT_S,
    environ: Mapping[str, str] | None = None,
) -> dict[str, int | str]:
    """Send what Langfuse has not got of a diagnose run.

    Run it as often as you like: what has arrived is not sent again.

    Args:
        run_dir: The directory with `run.json` and `M1/log.json` ..., or one with them in `logs`.
        dry_run: Only count.
        timeout_s: Seconds after which what has not arrived waits for the next call.
        environ: Variables that name the server; default those of the process.

    Returns:
        `trace_id` of the documents, their `events`, and how many of these are `pending` and were `published` now. Without
        keys and host of a server everything is pending.

    Raises:
        FileNotFoundError: There is no run.
        LockedError: Another process backfills this run, or sends it.
        JournalError: The outbox cannot be written.
        OSError: The same, as the system says.
    """
    documents = read_documents(run_dir)
    found: dict[str, int | str] = {"trace_id": documents.trace_id, "events": len(documents.events)}
    if not documents.events:
        return {**found, "trace_id": "", "pending": 0, "published": 0}
    if dry_run:
        return {**found, "pending": len(documents.events), "published": 0}
    outbox = write_outbox(documents)
    spans = next((one for one in _send(outbox, environ, timeout_s) if one.destination == "langfuse"), None)
    if spans is None:
        return {**found, "pending": len(documents.events), "published": 0}
    pending = outbox.events_in(spans.waiting)
    published = outbox.events_in(spans.sent + spans.refused + spans.waiting) - pending - spans.refused
    # In a journal of our own spans are more or fewer than events: some events are moments, and there are stages of stages.
    pending = min(pending, len(documents.events))
    return {**found, "pending": pending, "published": min(max(0, published), len(documents.events) - pending)}


def send_all(run_dir: str | Path, *, environ: Mapping[str, str] | None, timeout_s: float) -> str:
    """Send all of a run, scores and media too, and return why not all of it is there; empty when it is.

    Raises:
        FileNotFoundError, LockedError, JournalError, OSError: As `backfill`.
    """
    documents = read_documents(run_dir)
    if not documents.events:
        return "it has no events"
    settled = _send(write_outbox(documents), environ, timeout_s)
    if not settled:
        return "no server is named: set LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY and LANGFUSE_BASE_URL"
    left = [
        f"{one.destination}: {one.waiting} waiting, {one.refused} refused"
        for one in settled
        if one.waiting or one.refused
    ]
    return "; ".join(left)


def _send(outbox: OutboxOfRun, environ: Mapping[str, str] | None, timeout_s: float) -> Sequence[Delivered]:
    variables = os.environ if environ is None else environ
    return rooms().deliver_to_langfuse(outbox.run_dir, variables, timeout_s=timeout_s)
