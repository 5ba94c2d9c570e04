"""`spanfold bundle export`: a run in one file."""

import argparse
import os
from collections import Counter
from pathlib import Path
from typing import Any, Final

from spanfold.bundle import Exported, export
from spanfold.cli._console import Console
from spanfold.cli._exits import Exit, NotFound
from spanfold.cli._places import find_run, near
from spanfold.cli._text import count, shown, size

SCHEMA: Final = "spanfold.bundle_export/1"


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Export a run."""
    run_dir = find_run(arguments.run)
    _require_folder(arguments.output)
    exported = export(
        run_dir,
        arguments.output,
        allow_open=arguments.allow_open,
        include_other=not arguments.recorded_only,
        force=arguments.force,
    )
    if console.as_json:
        console.document(SCHEMA, as_dict(exported))
    else:
        # As sha256sum prints it and takes it, so never cut to a terminal.
        console.line(f"{exported.sha256}  {shown(near(exported.path))}")
    kinds = Counter(entry.kind for entry in exported.entries)
    told = ", ".join(f"{number:,} {kind}" for kind, number in kinds.items())
    console.say(
        f"{count(len(exported.entries), 'file')} of {_a_run(exported.status)} ({told}) in {size(exported.size_bytes)}."
    )
    if exported.refolded:
        console.say(f"Made again from the journal, because they differed from it: {', '.join(exported.refolded)}.")
    for path, reason in exported.left_out.items():
        console.say(f"! left out: {path}: {reason}")
    if exported.damage:
        console.say(f"! The journal is damaged, and the bundle and its manifest say so: {exported.damage}.")
    console.say(f"`spanfold bundle verify {near(exported.path)}` checks it, anywhere.")
    return Exit.DONE


def _a_run(status: str) -> str:
    return f"a{'n' * (status[:1] in 'aeiou')} {status} run"


def _require_folder(output: str | None) -> None:
    """Refuse a name that ends as that of a folder and is none: a path would lose the slash and become a file."""
    if output is not None and output.endswith(os.sep) and not Path(output).is_dir():
        found = "a file" if Path(output).exists() else "nothing"
        raise NotFound(f"{output}: expected a folder, found {found}. Make it first, or name a file with -o FILE.")


def as_dict(exported: Exported) -> dict[str, Any]:
    """Return what was exported, as JSON data."""
    return {
        "path": exported.path,
        "size_bytes": exported.size_bytes,
        "sha256": exported.sha256,
        "status": exported.status,
        "head": exported.head,
        "entries": exported.entries,
        "left_out": exported.left_out,
        "refolded": exported.refolded,
        "damage": exported.damage,
    }
