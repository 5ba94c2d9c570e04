"""What `spanfold run deliver --dry-run` shows: what a destination would be sent of a run."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from spanfold.cli._console import Console
from spanfold.cli._exits import Exit
from spanfold.cli._table import Column, Row
from spanfold.cli._text import count, size
from spanfold.deliver import Destination, waiting_records

SCHEMA: Final = "spanfold.run_deliver_dry/1"
_NAMED_BY: Final = {
    "otlp": "name a collector with OTEL_EXPORTER_OTLP_ENDPOINT",
    "langfuse": "name a Langfuse server with LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY and LANGFUSE_BASE_URL",
}
"""Destination -> how it is configured, in the imperative."""
_COLUMNS: Final = (
    Column("would be sent", least=20),
    Column("kind"),
    Column("stage", if_any=True),
    Column("records", ">"),
    Column("size", ">"),
)

_Group = tuple[str, str, str]


def show_planned(run_dir: Path, found: Sequence[tuple[Destination, str]], console: Console) -> int:
    """Show, for each destination and its label, the records that wait, by name, kind and stage."""
    documents: list[dict[str, Any]] = []
    for destination, label in found:
        number: Counter[_Group] = Counter()
        sizes: Counter[_Group] = Counter()
        for record in waiting_records(run_dir, destination):
            group = record.name, record.kind, record.stage
            number[group] += 1
            sizes[group] += record.size_bytes
        if console.as_json:
            documents.append(_as_dict(destination, label, number, sizes))
            continue
        console.prose(f"{label}: {count(number.total(), 'record')}, {size(sizes.total())}")
        rows: list[Row] = [(*group, f"{number[group]:,}", size(sizes[group])) for group in number]
        console.table(_COLUMNS, rows)
    if console.as_json:
        console.document(SCHEMA, {"run_dir": run_dir, "destinations": documents})
    else:
        unconfigured = [destination.name for destination, _ in found if not destination.url]
        console.say(f"Nothing was sent. {_how_to_send(unconfigured)}")
    return Exit.DONE


def _how_to_send(unconfigured: Sequence[str]) -> str:
    if not unconfigured:
        return "Without --dry-run the same command sends it."
    return f"To send it, {_NAMED_BY[unconfigured[0]]}, and leave out --dry-run."


def _as_dict(destination: Destination, label: str, number: Counter[_Group], sizes: Counter[_Group]) -> dict[str, Any]:
    return {
        "destination": destination.name,
        "label": label,
        "waiting": number.total(),
        "size_bytes": sizes.total(),
        "records": [
            {"name": name, "kind": kind, "stage": stage, "count": number[group], "size_bytes": sizes[group]}
            for group in number
            for name, kind, stage in (group,)
        ],
    }
