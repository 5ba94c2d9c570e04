"""`spanfold bundle export`: a run in one file."""

import argparse
from collections import Counter
from typing import Any, Final

from spanfold.bundle import Exported, export
from spanfold.cli._console import Console
from spanfold.cli._exits import Exit
from spanfold.cli._places import find_run, near
from spanfold.cli._text import count, size

SCHEMA: Final = "spanfold.bundle_export/1"


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Export a run."""
    exported = export(
        find_run(arguments.run),
        arguments.output,
        allow_open=arguments.allow_open,
        include_other=not arguments.recorded_only,
        force=arguments.force,
    )
    if console.as_json:
        console.document(SCHEMA, as_dict(exported))
    else:
        console.text(str(near(exported.path)))
    kinds = Counter(entry.kind for entry in exported.entries)
    told = ", ".join(f"{number:,} {kind}" for kind, number in kinds.items())
    console.say(
        f"{count(len(exported.entries), 'file')} of a run that is {exported.status} ({told}) in {size(exported.size_bytes)}."
    )
    console.say(f"sha256 {exported.sha256}")
    if exported.refolded:
        console.say(f"Made again from the journal, because they differed from it: {', '.join(exported.refolded)}.")
    for path, reason in exported.left_out.items():
        console.say(f"! left out: {path}: {reason}")
    if exported.damage:
        console.say(f"! The journal is damaged, and the bundle and its manifest say so: {exported.damage}.")
    console.say(f"`spanfold bundle verify {near(exported.path)}` checks it, anywhere.")
    return Exit.DONE


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
