"""`spanfold run deliver`: send what a destination has not acknowledged of a run."""

import argparse
import os
from dataclasses import dataclass
from typing import Any, Final

from spanfold.cli._console import Console
from spanfold.cli._exits import Exit, UsageError
from spanfold.cli._outboxes import refusals
from spanfold.cli._places import find_run
from spanfold.cli._table import Cell, Column, Row
from spanfold.deliver import Delivery, deliver_run, destinations
from spanfold.settings import resolve

SCHEMA: Final = "spanfold.run_deliver/1"

_COLUMNS: Final = (
    Column("destination", least=20),
    Column("sent now", ">"),
    Column("refused", ">"),
    Column("refused before", ">", if_any=True),
    Column("waiting", ">"),
    Column("reason", least=20, if_any=True),
)


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Deliver a run to every destination that is configured."""
    run_dir = find_run(arguments.run)
    found = destinations(resolve(), os.environ)
    if not found:
        raise UsageError(
            "expected a destination, found none configured. OTEL_EXPORTER_OTLP_ENDPOINT names a collector; "
            "LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY and LANGFUSE_BASE_URL name a Langfuse server."
        )
    delivered: list[_Delivered] = []
    for destination in found:
        before = refusals(run_dir, destination.key)
        console.say(f"sending to {destination.label} ...")
        delivery = deliver_run(run_dir, destination, timeout_s=arguments.timeout)
        delivered.append(_Delivered(destination.label, delivery, before[0], refusals(run_dir, destination.key)[1]))
    if console.as_json:
        console.document(SCHEMA, {"run_dir": run_dir, "destinations": [one.as_dict() for one in delivered]})
    else:
        console.table(_COLUMNS, [one.row() for one in delivered], indent=0)
    if any(one.delivery.refused or one.refused_before for one in delivered):
        console.say(
            "What was refused is not sent again; ids and reasons are in "
            f"{run_dir / 'journal' / '.deliver'}/*.refused.jsonl, and the journal keeps the records."
        )
    if any(one.delivery.waiting for one in delivered):
        console.say("What waits is in the journal; the same command sends it later.")
    return Exit.DONE if all(one.is_all_there for one in delivered) else Exit.FAILED


@dataclass(frozen=True, slots=True)
class _Delivered:
    """What a destination has of a run by now."""

    label: str
    delivery: Delivery
    refused_before: int
    """Spans that it refused in earlier calls, or while the run was recorded."""
    last_refusal: str

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
