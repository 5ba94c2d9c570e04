"""`spanfold bundle verify`: is a bundle as it was exported, and the run in it as it was recorded?"""

import argparse
from pathlib import Path
from typing import Any, Final

from spanfold.bundle import BundleFinding, BundleVerdict, verify
from spanfold.cli._console import Console
from spanfold.cli._exits import Exit, NotFound
from spanfold.cli._table import Cell, Column, Row, Style
from spanfold.cli._text import count, moment, shown, size
from spanfold.journal import dialect

SCHEMA: Final = "spanfold.bundle_verify/1"

MOST: Final = 6
"""Of more findings of one kind than these, the first are printed and the others counted. JSON has all."""
_NO_BUNDLE: Final = "expected a bundle of spanfold, found "
_DAMAGED: Final = "a damaged archive"

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
    other = _other_kind(path, verdict)
    if other:
        console.line(f"{console.paint(shown(path), 'bold')}  {console.paint('not a bundle', 'red')}")
        console.prose(f"  expected what `spanfold bundle export` makes, found {other}", indent="    ")
        return
    state = console.paint("intact", "green") if verdict.ok else console.paint("broken", "red")
    console.line(f"{console.paint(shown(path), 'bold')}  {state}")
    manifest = verdict.manifest
    if manifest is not None:
        total = sum(entry.size_bytes for entry in verdict.entries)
        rows: list[Row] = [
            ("run", f"{manifest.run_name or '(no name)'}, {manifest.status}, {moment(manifest.start)} UTC"),
            ("trace", manifest.trace_id or "(unknown)"),
            ("holds", f"{count(len(verdict.entries), 'file')}, {size(total)} unpacked"),
            ("journal", f"{'sealed' if manifest.sealed else 'not sealed'}{_since_then(verdict)}"),
        ]
        if verdict.head:
            rows.append(("anchor", f"{verdict.head} (spanfold.seal.head of the root span in a collector)"))
        rows += [("left out", f"{name}: {reason}") for name, reason in manifest.left_out.items()]
        console.pairs(rows)
    if not verdict.findings:
        return
    console.line("")
    console.table(_COLUMNS, _rows(verdict.findings))
    for (code, detail), alike in _alike(verdict.findings).items():
        many = f", {len(alike)} times" if len(alike) > 1 else ""
        console.prose(f"  {code}{many}: {detail}", indent="    ")


def _since_then(verdict: BundleVerdict) -> str:
    """Say that what was sealed is not what is there; empty when it is."""
    wrong = any(f.severity == "error" and f.entry.startswith("run/journal/") for f in verdict.findings)
    return ", and not as it was recorded" if wrong else ""


def _other_kind(path: Path, verdict: BundleVerdict) -> str:
    """Return what a file is that never was a bundle; empty for one that is, or that may be a damaged one."""
    details = [finding.detail for finding in verdict.findings]
    if verdict.manifest is not None or not any(detail.startswith(_NO_BUNDLE) for detail in details):
        return ""
    if any(detail.startswith(_NO_BUNDLE + _DAMAGED) for detail in details):
        return ""
    found = dialect(path)
    return "a file of another kind." if found.name == "unknown" else f"{found.name}. {found.detail}"


def _alike(findings: tuple[BundleFinding, ...]) -> dict[tuple[str, str], list[BundleFinding]]:
    groups: dict[tuple[str, str], list[BundleFinding]] = {}
    for finding in findings:
        groups.setdefault((finding.code, finding.detail), []).append(finding)
    return groups


def _rows(findings: tuple[BundleFinding, ...]) -> list[Row]:
    rows: list[Row] = []
    for (code, _), alike in _alike(findings).items():
        told = alike if len(alike) <= MOST + 1 else alike[:MOST]
        rows += [_row(finding) for finding in told]
        if len(told) < len(alike):
            rows.append((Cell(code, "dim"), Cell(f"… {len(alike) - len(told):,} more", "dim"), "", "", ""))
    return rows


def _row(finding: BundleFinding) -> Row:
    # What concerns no entry has no range either.
    begin, end, place = (
        (f"{finding.offset:,}", f"{finding.offset + finding.length:,}", finding.place)
        if finding.entry or finding.length
        else ("", "", "")
    )
    style: Style = "red" if finding.severity == "error" else "dim"
    return Cell(finding.code, style), finding.entry or "(the bundle)", begin, end, place


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
