"""`spanfold bundle verify`: is a bundle as it was exported, and the run in it as it was recorded?"""

import argparse
from pathlib import Path
from typing import Any, Final

from spanfold.bundle import BundleVerdict, verify
from spanfold.cli._console import Console
from spanfold.cli._exits import Exit, NotFound
from spanfold.cli._table import Cell, Column, Row
from spanfold.cli._text import count, moment, shown, size

SCHEMA: Final = "spanfold.bundle_verify/1"

_COLUMNS: Final = (
    Column("finding"),
    Column("in", least=24),
    Column("from byte", ">"),
    Column("to byte", ">"),
    Column("of the", drop=1),
)


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Verify a bundle."""
    path = Path(arguments.file)
    if not path.is_file():
        raise NotFound(
            f"{path}: expected a bundle, found {'a directory' if path.is_dir() else 'nothing'}. `spanfold bundle export` makes "
            "one; `spanfold run verify` checks a run directory."
        )
    verdict = verify(path)
    if console.as_json:
        console.document(SCHEMA, {"path": path, **_as_dict(verdict)})
    else:
        _print(path, verdict, console)
    return Exit.DONE if verdict.ok else Exit.CORRUPT


def _print(path: Path, verdict: BundleVerdict, console: Console) -> None:
    state = console.paint("intact", "green") if verdict.ok else console.paint("broken", "red")
    console.line(f"{console.paint(shown(path), 'bold')}  {state}")
    manifest = verdict.manifest
    if manifest is not None:
        total = sum(entry.size_bytes for entry in verdict.entries)
        rows: list[Row] = [
            ("run", f"{manifest.run_name or '(no name)'}, {manifest.status}, {moment(manifest.start)} UTC"),
            ("trace", manifest.trace_id or "(unknown)"),
            ("holds", f"{count(len(verdict.entries), 'file')}, {size(total)} unpacked"),
            ("journal", "sealed" if manifest.sealed else "not sealed"),
        ]
        if verdict.head:
            rows.append(("anchor", f"{verdict.head} (spanfold.seal.head of the root span in a collector)"))
        rows += [("left out", f"{name}: {reason}") for name, reason in manifest.left_out.items()]
        console.pairs(rows)
    if not verdict.findings:
        return
    console.line("")
    console.table(
        _COLUMNS,
        [
            (
                Cell(finding.code, "red" if finding.severity == "error" else "dim"),
                finding.entry or "(the bundle)",
                f"{finding.offset:,}",
                f"{finding.offset + finding.length:,}",
                finding.place,
            )
            for finding in verdict.findings
        ],
    )
    for finding in verdict.findings:
        console.prose(f"  {finding}", indent="    ")


def _as_dict(verdict: BundleVerdict) -> dict[str, Any]:
    return {
        "ok": verdict.ok,
        "findings": [
            {
                "code": finding.code,
                "severity": finding.severity,
                "entry": finding.entry,
                "place": finding.place,
                "offset": finding.offset,
                "length": finding.length,
                "detail": finding.detail,
            }
            for finding in verdict.findings
        ],
        "status": verdict.status,
        "head": verdict.head,
        "manifest": verdict.manifest,
    }
