"""`spanfold run verify`: what of a run is not as it was recorded."""

import argparse
from typing import Any, Final

from spanfold.cli._console import Console
from spanfold.cli._exits import Exit
from spanfold.cli._places import find_run
from spanfold.cli._table import Cell, Column, Row, Style
from spanfold.cli._text import count, shown
from spanfold.fold import RunVerdict, verify_run

SCHEMA: Final = "spanfold.run_verify/1"

STATE_STYLES: Final[dict[str, Style]] = {"intact": "green", "open": "yellow", "broken": "red"}
_COLUMNS: Final = (
    Column("finding"),
    Column("file", least=24),
    Column("from byte", ">"),
    Column("to byte", ">"),
)


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Verify a run."""
    verdict = verify_run(find_run(arguments.run))
    if console.as_json:
        console.document(SCHEMA, _as_dict(verdict))
    else:
        _print(verdict, console)
    _tell(verdict, console)
    return Exit.DONE if verdict.ok else Exit.CORRUPT


def _print(verdict: RunVerdict, console: Console) -> None:
    state = console.paint(verdict.state, STATE_STYLES[verdict.state])
    console.line(f"{console.paint(shown(verdict.run_dir), 'bold')}  {state}")
    journal = verdict.journal
    told = {"intact": "chain and seal hold", "open": "chain holds, not sealed", "broken": "changed"}[journal.state]
    told = "all that was sealed, and bytes that were added" if journal.only_added else told
    rows: list[Row] = [("journal", f"{count(journal.n_lines, 'line')} in {count(len(journal.files), 'file')}: {told}")]
    rows.append(("documents", _documents(verdict)))
    if verdict.n_artifacts:
        wrong = len(verdict.artifacts)
        found = f"{wrong} of {verdict.n_artifacts:,} changed or missing" if wrong else "as recorded"
        rows.append(("artifacts", f"{count(verdict.n_artifacts, 'file')}: {found}"))
    if journal.anchor:
        rows.append(("anchor", f"{journal.anchor} (spanfold.seal.head of the root span in a collector)"))
    console.pairs(rows)
    findings = _rows(verdict)
    if findings:
        console.line("")
        console.table(_COLUMNS, findings)
    for finding in journal.findings:
        console.prose(f"  {finding.path.name}: {finding.detail}", indent="    ")


def _documents(verdict: RunVerdict) -> str:
    if verdict.documents_problem:
        return f"not compared: {verdict.documents_problem}"
    if not verdict.documents:
        return "as the journal says"
    differ = f"{count(len(verdict.documents), 'document')} not as the journal says"
    return f"{differ}, which is no proof before the seal: they lag behind" if verdict.state == "open" else differ


def _rows(verdict: RunVerdict) -> list[Row]:
    rows: list[Row] = []
    for finding in verdict.journal.findings:
        style: Style = "red" if finding.severity == "error" else "dim"
        end = finding.offset + finding.length
        rows.append((Cell(finding.code, style), f"journal/{finding.path.name}", f"{finding.offset:,}", f"{end:,}"))
    for torn in verdict.journal.torn:
        end = torn.offset + torn.length
        rows.append((Cell("torn", "yellow"), f"journal/{torn.path.name}", f"{torn.offset:,}", f"{end:,}"))
    style = "yellow" if verdict.state == "open" else "red"
    for document in verdict.documents:
        differs = document.kind in ("edited", "behind")
        ends = (f"{document.offset:,}", f"{document.offset + document.length:,}") if differs else ("", "")
        rows.append((Cell(document.kind, style), document.path, *ends))
    for artifact in verdict.artifacts:
        ends = ("0", f"{artifact.found_bytes:,}") if artifact.kind == "edited" else ("", "")
        rows.append((Cell(artifact.kind, "red"), artifact.path, *ends))
    return rows


def _tell(verdict: RunVerdict, console: Console) -> None:
    if verdict.is_recorded:
        console.say("The run is still recorded: its documents lag, and its last line may be half written.")
    elif verdict.state == "open":
        console.say(
            f"Nobody sealed this run; `spanfold run recover {verdict.run_dir}` does, after which nothing can change unseen."
        )
    elif verdict.documents and verdict.journal.ok:
        console.say(f"The journal is intact; `spanfold run fold {verdict.run_dir}` makes the documents again.")
    elif not verdict.journal.ok and verdict.journal.damage is None:
        console.say(
            "No recorded byte is changed or gone: a process died before it sealed the run, or wrote behind the seal. "
            f"`spanfold run recover {verdict.run_dir}` sets aside what is torn and seals the rest."
        )
    elif verdict.journal.only_added:
        console.say(
            "What was recorded is all there, as it was sealed. The bytes named above were added, and not by the recorder; without "
            "them the journal is intact: take them out, or put back a copy of it."
        )
    elif not verdict.journal.ok:
        console.say(
            "The journal is not as it was recorded, and nothing can bring back what is gone: restore the run from a bundle or "
            f"a copy. `spanfold run show {verdict.run_dir}` shows what can be read of it, and "
            f"`spanfold run fold {verdict.run_dir} --into DIR` makes documents of that."
        )
    elif verdict.artifacts:
        console.say(
            "The journal is intact; restore the files of artifacts that are named above from a bundle or a copy."
        )


def _as_dict(verdict: RunVerdict) -> dict[str, Any]:
    journal = verdict.journal
    return {
        "run_dir": verdict.run_dir,
        "state": verdict.state,
        "ok": verdict.ok,
        "is_recorded": verdict.is_recorded,
        "journal": {
            "state": journal.state,
            "sealed": journal.sealed,
            "only_added": journal.only_added,
            "anchor": journal.anchor,
            "files": {name: head._asdict() for name, head in journal.files.items()},
            "findings": [
                {
                    "code": finding.code,
                    "severity": finding.severity,
                    "path": finding.path,
                    "offset": finding.offset,
                    "length": finding.length,
                    "detail": finding.detail,
                }
                for finding in journal.findings
            ],
            "torn": journal.torn,
        },
        "documents": verdict.documents,
        "documents_problem": verdict.documents_problem,
        "artifacts": verdict.artifacts,
        "n_artifacts": verdict.n_artifacts,
    }
