"""`spanfold run deliver`: send what a destination has not acknowledged of a run."""

import argparse
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from spanfold.cli._console import Console
from spanfold.cli._exits import Exit, UsageError
from spanfold.cli._places import find_run
from spanfold.cli._planned import show_planned
from spanfold.cli._table import Cell, Column, Row
from spanfold.cli._text import count
from spanfold.deliver import Delivery, Destination, backlogs, deliver_run, destinations, refusals
from spanfold.errors import JournalMissing, LockedError
from spanfold.fs.scratch import scratch_folder
from spanfold.journal import journal_files
from spanfold.settings import resolve

SCHEMA: Final = "spanfold.run_deliver/1"
_PROGRESS_S: Final = 1.0
"""Seconds between two lines that say how far it is."""

_COLUMNS: Final = (
    Column("destination", least=20),
    Column("sent now", ">"),
    Column("refused", ">"),
    Column("refused before", ">", if_any=True),
    Column("waiting", ">"),
    Column("reason", least=12, if_any=True),
)


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Deliver a run to every destination that is configured, or say what would be sent."""
    run_dir = find_run(arguments.run)
    found = _chosen(arguments.to)
    if arguments.dry_run:
        named = [(one, one.label) for one in found] or _unconfigured(arguments.to)
        if named:
            return _show_planned(run_dir, named, console)
    if not found:
        raise UsageError(
            "expected a destination, found none configured. OTEL_EXPORTER_OTLP_ENDPOINT names a collector; "
            "LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY and LANGFUSE_BASE_URL name a Langfuse server."
        )
    run_dir = _with_journal(run_dir, console)
    delivered = [_deliver(run_dir, destination, arguments.timeout, console) for destination in found]
    if console.as_json:
        console.document(SCHEMA, {"run_dir": run_dir, "destinations": [one.as_dict() for one in delivered]})
    else:
        console.table(_COLUMNS, [one.row() for one in delivered], indent=0)
    _explain(run_dir, delivered, {destination.key for destination in found}, console)
    if any(one.is_locked for one in delivered):
        return Exit.LOCKED
    return Exit.DONE if all(one.is_all_there for one in delivered) else Exit.FAILED


def _chosen(to: str | None) -> list[Destination]:
    settings = resolve()
    if to is not None:
        # What is asked for by name is sent to, whatever the settings say of recording.
        settings = replace(
            settings, otlp="auto" if to == "otlp" else False, langfuse="auto" if to == "langfuse" else False
        )
    return destinations(settings, os.environ)


def _unconfigured(to: str | None) -> list[tuple[Destination, str]]:
    """Return a stand-in for a destination that was named and has no address: all of the run waits for it."""
    if to is None:
        return []
    return [(Destination(to, "http/protobuf", ""), f"{to} (no address is configured)")]


def _show_planned(run_dir: Path, named: "list[tuple[Destination, str]]", console: Console) -> int:
    if journal_files(run_dir):
        return show_planned(run_dir, named, console)
    from spanfold.diagnose import existing_outbox, needs_outbox, outbox_of

    if not needs_outbox(run_dir):
        raise JournalMissing(run_dir)
    there = existing_outbox(run_dir)
    if there is not None:
        return show_planned(there, named, console)
    with scratch_folder() as folder:
        return show_planned(outbox_of(run_dir, into=folder / "outbox").run_dir, named, console)


def _with_journal(run_dir: Path, console: Console) -> Path:
    """Return the directory to deliver: of a run that has only documents the one with a journal made of them."""
    if journal_files(run_dir):
        return run_dir
    from spanfold.diagnose import needs_outbox, outbox_of

    if not needs_outbox(run_dir):
        raise JournalMissing(run_dir)
    outbox = outbox_of(run_dir).run_dir
    console.say(f"{run_dir} has documents and no journal; what is sent is made of them, in {outbox}.")
    return outbox


def _deliver(run_dir: Path, destination: Destination, timeout_s: float, console: Console) -> "_Delivered":
    before, _ = refusals(run_dir, destination.key)
    console.say(f"sending to {destination.label} ...")
    next_line = time.monotonic() + _PROGRESS_S

    def tell(so_far: Delivery) -> None:
        nonlocal next_line
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + _PROGRESS_S
            reason = f" ({so_far.reason})" if so_far.reason else ""
            console.say(f"  {so_far.sent:,} sent, {so_far.refused:,} refused, {so_far.waiting:,} waiting{reason}")

    try:
        delivery = deliver_run(run_dir, destination, timeout_s=timeout_s, progress=tell)
    except LockedError as error:
        console.say(str(error))
        waiting = next((one.waiting for one in backlogs(run_dir) if one.key == destination.key), 0)
        delivery = Delivery(destination.name, 0, 0, waiting, "another process sends it")
        return _Delivered(destination.label, delivery, before, "", is_locked=True)
    return _Delivered(destination.label, delivery, before, refusals(run_dir, destination.key)[1])


def _explain(run_dir: Path, delivered: "list[_Delivered]", keys: set[str], console: Console) -> None:
    if any(one.delivery.refused or one.refused_before for one in delivered):
        console.say(
            "What was refused is not sent again; ids and reasons are in "
            f"{run_dir / 'journal' / '.deliver'}/*.refused.jsonl, and the journal keeps the records."
        )
    if any(one.delivery.waiting for one in delivered):
        console.say("What waits is in the journal; the same command sends it later.")
    for other in backlogs(run_dir):
        if other.waiting and other.key not in keys:
            console.say(
                f"{other.label} has not got {count(other.waiting, 'record')} either, and is not configured now."
            )


@dataclass(frozen=True, slots=True)
class _Delivered:
    """What a destination has of a run by now."""

    label: str
    delivery: Delivery
    refused_before: int
    """Records that it refused in earlier calls, or while the run was recorded."""
    last_refusal: str
    is_locked: bool = False
    """Whether another process was sending."""

    @property
    def reason(self) -> str:
        return self.delivery.reason or self.last_refusal

    @property
    def is_all_there(self) -> bool:
        return not (self.delivery.refused or self.refused_before or self.delivery.waiting)

    def row(self) -> Row:
        delivery = self.delivery
        return (
            self.label,
            f"{delivery.sent:,}",
            Cell(f"{delivery.refused:,}", "red" if delivery.refused else ""),
            Cell(f"{self.refused_before:,}" if self.refused_before else "", "red"),
            Cell(f"{delivery.waiting:,}", "yellow" if delivery.waiting else ""),
            self.reason,
        )

    def as_dict(self) -> dict[str, Any]:
        delivery = self.delivery
        return {
            "destination": delivery.destination,
            "label": self.label,
            "sent": delivery.sent,
            "refused": delivery.refused,
            "refused_before": self.refused_before,
            "waiting": delivery.waiting,
            "reason": self.reason,
        }
