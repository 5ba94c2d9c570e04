"""`spanfold run deliver`: send what a destination has not acknowledged of a run."""

import argparse
import os
from typing import Final

from spanfold.cli._console import Console
from spanfold.cli._exits import Exit, UsageError
from spanfold.cli._places import find_run
from spanfold.cli._table import Cell, Column
from spanfold.deliver import Delivery, deliver_run, destinations
from spanfold.settings import resolve

SCHEMA: Final = "spanfold.run_deliver/1"

_COLUMNS: Final = (
    Column("destination", least=20),
    Column("sent now", ">"),
    Column("refused", ">"),
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
    delivered: list[tuple[str, Delivery]] = []
    for destination in found:
        console.say(f"sending to {destination.label} ...")
        delivered.append((destination.label, deliver_run(run_dir, destination, timeout_s=arguments.timeout)))
    if console.as_json:
        rows = [
            {
                "destination": delivery.destination,
                "label": label,
                "sent": delivery.sent,
                "refused": delivery.refused,
                "waiting": delivery.waiting,
                "reason": delivery.reason,
            }
            for label, delivery in delivered
        ]
        console.document(SCHEMA, {"run_dir": run_dir, "destinations": rows})
    else:
        console.table(
            _COLUMNS,
            [
                (
                    label,
                    f"{delivery.sent:,}",
                    Cell(f"{delivery.refused:,}", "red" if delivery.refused else ""),
                    Cell(f"{delivery.waiting:,}", "yellow" if delivery.waiting else ""),
                    delivery.reason,
                )
                for label, delivery in delivered
            ],
            indent=0,
        )
    is_all_there = not any(delivery.refused or delivery.waiting for _, delivery in delivered)
    return Exit.DONE if is_all_there else Exit.FAILED
