"""`spanfold run fold`: documents from the journal."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from spanfold.cli._console import Console
from spanfold.cli._exits import Exit
from spanfold.cli._places import find_run
from spanfold.cli._table import Column
from spanfold.cli._text import count, size
from spanfold.fold import FoldResult, fold_run, follow, show_run

SCHEMA: Final = "spanfold.run_fold/1"

_COLUMNS: Final = (Column("document", least=24), Column("size", ">"))


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Fold a run."""
    run_dir = find_run(arguments.run)
    into = None if arguments.into is None else Path(arguments.into)
    if arguments.follow:
        result = follow(run_dir, stop=_telling(console, run_dir), into=into, force=arguments.force)
    else:
        result = fold_run(run_dir, into=into, force=arguments.force)
    if result.status == "running":
        result = replace(result, status=show_run(run_dir).status)  # who still writes is not in the journal
    place = run_dir if into is None else into
    if console.as_json:
        console.document(SCHEMA, {"run_dir": run_dir, "into": into, **as_dict(result, place)})
    else:
        console.table(_COLUMNS, [(name, size(n_bytes)) for name, n_bytes in documents(result, place)], indent=0)
    console.say(
        f"{count(len(result.documents), 'document')} in {place} from {count(result.records, 'record')}; "
        f"{told_status(result.status)}."
    )
    damaged = [damage for damage in result.damage if damage.kind != "torn"]
    for damage in result.damage:
        console.say(
            f"! {damage.path}, bytes {damage.offset} to {damage.offset + damage.length}: {damage.kind}, {damage.found}"
        )
    if damaged:
        console.say("! What could be read is in the documents, and nothing else.")
    return Exit.CORRUPT if damaged else Exit.DONE


def _telling(console: Console, run_dir: Path) -> Callable[[], bool]:
    """Return what never stops a fold, and says once that it goes on: when it has begun, and was not refused."""
    told: list[bool] = []

    def stop() -> bool:
        if not told:
            told.append(True)
            console.say(f"Following {run_dir} until it ends; Ctrl-C stops.")
        return False

    return stop


def as_dict(result: FoldResult, place: Path) -> dict[str, Any]:
    """Return what a fold made, as JSON data."""
    return {
        "status": result.status,
        "records": result.records,
        "duplicates": result.duplicates,
        "documents": [{"path": name, "size_bytes": n_bytes} for name, n_bytes in documents(result, place)],
        "damage": result.damage,
    }


def told_status(status: str) -> str:
    """Say how a run stands, in words that follow a semicolon."""
    return "the run failed" if status == "failed" else f"the run is {status}"


def documents(result: FoldResult, place: Path) -> list[tuple[str, int]]:
    """Return name and size of each document."""
    root = place.resolve()
    return [(path.relative_to(root).as_posix(), path.lstat().st_size) for path in result.documents]
