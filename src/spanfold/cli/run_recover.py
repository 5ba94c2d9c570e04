"""`spanfold run recover`: finish a run whose process died."""

import argparse
from pathlib import Path
from typing import Any, Final

from spanfold.cli._console import Console
from spanfold.cli._exits import Exit
from spanfold.cli._places import find_run
from spanfold.cli._table import Column, Row
from spanfold.cli._text import count, size
from spanfold.cli.run_fold import as_dict as fold_as_dict
from spanfold.cli.run_fold import told_status
from spanfold.errors import JournalCorrupt
from spanfold.fold import FoldResult, fold_run, require_whole
from spanfold.journal import Recovery, recover_run
from spanfold.timings import format_duration

SCHEMA: Final = "spanfold.run_recover/1"

_COLUMNS: Final = (
    Column("ended as interrupted", least=16),
    Column("name", least=16),
    Column("after", ">"),
)


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Recover a run, then make its documents."""
    run_dir = find_run(arguments.run)
    require_whole(run_dir)
    done = recover_run(run_dir, dry_run=arguments.dry_run, assume_dead=arguments.assume_dead)
    folded = fold_run(run_dir) if done.changed and not arguments.dry_run else None
    if console.as_json:
        console.document(SCHEMA, {**_as_dict(done, dry_run=arguments.dry_run), "fold": _folded(folded, run_dir)})
    else:
        _print(done, console)
    _tell(done, folded, arguments.dry_run, console)
    return Exit.DONE if done.changed else Exit.NOTHING


def how_to_finish(run_dir: Path) -> str:
    """Say what finishes an interrupted run, or what tells why nothing can: `recover` refuses a journal that lost something."""
    try:
        require_whole(run_dir)
    except JournalCorrupt:
        return (
            f"Its journal is not as it was recorded, so it cannot be finished; `spanfold run verify {run_dir}` names what is "
            "changed or gone."
        )
    return f"`spanfold run recover {run_dir}` finishes this run."


def _print(done: Recovery, console: Console) -> None:
    rows: list[Row] = [
        (span.kind, span.name, format_duration((span.end_ns - span.start_ns) / 1e9)) for span in done.ended
    ]
    console.table(_COLUMNS, rows, indent=0)
    for torn in done.torn:
        console.text(
            f"{torn.path.name}: {size(torn.length)} of a torn line, from byte {torn.offset} on -> {torn.moved_to.name}"
        )
    if done.file is not None:
        console.text(f"ends and seal in {done.file.name}")


def _tell(done: Recovery, folded: FoldResult | None, dry_run: bool, console: Console) -> None:
    where = done.run_dir
    if not done.changed:
        console.say(f"{where}: nothing to recover; every span ended, and a seal covers every byte.")
    elif dry_run:
        console.say(f"{where}: this is what would be done; nothing was changed.")
    elif folded is not None:
        console.say(
            f"{where}: recovered. {count(len(done.ended), 'span')} ended as interrupted, "
            f"{count(len(folded.documents), 'document')} made from {count(folded.records, 'record')}; "
            f"{told_status(folded.status)}. `spanfold run show {where}` shows it."
        )


def _folded(folded: FoldResult | None, run_dir: Path) -> dict[str, Any] | None:
    return None if folded is None else fold_as_dict(folded, run_dir)


def _as_dict(done: Recovery, *, dry_run: bool) -> dict[str, Any]:
    return {
        "run_dir": done.run_dir,
        "dry_run": dry_run,
        "changed": done.changed,
        "ended": [
            {
                "trace_id": span.trace_id,
                "span_id": span.span_id,
                "kind": span.kind,
                "name": span.name,
                "seconds": round((span.end_ns - span.start_ns) / 1e9, 6),
            }
            for span in done.ended
        ],
        "set_aside": [
            {"path": torn.path, "offset": torn.offset, "length": torn.length, "moved_to": torn.moved_to}
            for torn in done.torn
        ],
        "sealed": done.sealed,
        "file": done.file,
    }
