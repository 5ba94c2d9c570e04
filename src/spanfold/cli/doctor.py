"""`spanfold doctor`: what is configured, what is reachable, what was lost."""

import argparse
import os
import platform
from typing import Final

from spanfold.cli._check_runs import RECENT
from spanfold.cli._checks import Examination, examine
from spanfold.cli._console import Console
from spanfold.cli._exits import Exit
from spanfold.cli._places import run_folder
from spanfold.cli._table import Cell, Column, Row, Style
from spanfold.cli._text import shown, size

SCHEMA: Final = "spanfold.doctor/1"

_SETTING_COLUMNS: Final = (Column("setting"), Column("value", least=16), Column("from", least=12))
_EXTRA_COLUMNS: Final = (Column("extra"), Column("state"), Column("packages", least=20))
_DESTINATION_COLUMNS: Final = (Column("destination", least=12), Column("state", least=16, wrap=True))
_STYLES: Final[dict[str, Style]] = {"reachable": "green", "unreachable": "red", "installed": "green", "unusable": "red"}


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Examine this installation."""
    found = examine(os.environ, run_folder(), timeout_s=arguments.timeout)
    if console.as_json:
        console.document(SCHEMA, {name: getattr(found, name) for name in found.__dataclass_fields__} | {"ok": found.ok})
    else:
        _print(found, console)
    return Exit.DONE if found.ok else Exit.FAILED


def _print(found: Examination, console: Console) -> None:
    console.line(
        f"{console.paint(f'spanfold {shown(found.spanfold_version)}', 'bold')}  Python {platform.python_version()}, "
        f"OpenTelemetry {shown(found.opentelemetry_version)}"
    )
    console.prose(f"  core: {found.core.language}, {found.core.told}", indent="    ")
    console.heading("Settings")
    console.table(_SETTING_COLUMNS, [(s.name, s.value, s.source) for s in found.settings])
    console.prose(f"  provider: {found.provider}", indent="    ")
    console.heading("Extras")
    rows: list[Row] = [
        (
            extra.name,
            Cell("installed" if not extra.missing else "not installed", "green" if not extra.missing else "dim"),
            ", ".join(
                [
                    *(f"{name} {version}" for name, version in extra.installed.items()),
                    *(f"no {m}" for m in extra.missing),
                ]
            ),
        )
        for extra in found.extras
    ]
    console.table(_EXTRA_COLUMNS, rows)
    console.heading("Destinations")
    rows = [(d.label, Cell(d.told, _STYLES.get(d.state, "dim"))) for d in found.destinations]
    console.table(_DESTINATION_COLUMNS, rows)
    console.heading("Run folder")
    console.pairs(_folder_rows(found))
    console.heading("Verdict")
    for note in found.notes:
        console.prose(f"  · {note}", indent="    ")
    for problem in found.problems:
        console.prose(f"  ✗ {problem}", indent="    ", style="red")
    if found.ok:
        console.line("  " + console.paint("Nothing is wrong.", "green"))


def _folder_rows(found: Examination) -> list[Row]:
    folder = found.folder
    state = "writable" if folder.writable else "not writable"
    rows: list[Row] = [
        ("folder", f"{folder.path}: {state if folder.exists else f'not there yet, its place is {state}'}")
    ]
    rows.append(("free", size(folder.free_bytes)))
    rows.append(
        ("runs", f"{folder.n_runs:,}" + (f", {folder.n_interrupted:,} interrupted" if folder.n_interrupted else ""))
    )
    refused = sum(found.refused for found in folder.undelivered)
    waiting = sum(found.waiting for found in folder.undelivered)
    if refused or waiting:
        rows.append(
            (
                "deliveries",
                f"{refused:,} records refused, {waiting:,} waiting, of the newest {min(RECENT, folder.n_runs)} runs",
            )
        )
    if folder.lost_records:
        rows.append(("lost", f"{folder.lost_records:,} records"))
    return rows
