"""Say an error of the library in the words of the shell: with options for arguments, and with what was typed."""

import argparse
import os
from pathlib import Path
from typing import Final

from spanfold.cli._places import find_run
from spanfold.errors import JournalMissing, LockedError, SpanfoldError

_OPTIONS: Final = {"(allow_open)": "(--allow-open)", "(assume_dead)": "(--assume-dead)"}
_SCRATCH: Final = ".spanfold-"
"""How the names of files begin that are renamed when they are whole."""


def sentence(error: SpanfoldError | OSError, arguments: argparse.Namespace | None) -> str:
    """Return one line about an error.

    Args:
        error: What went wrong.
        arguments: Of the command; None when it did not get that far.
    """
    if isinstance(error, OSError):
        return _of_system(error, arguments)
    if isinstance(error, JournalMissing) and (error.path / "run.json").is_file():
        return (
            f"{error.path}: expected journal/*.otlp.jsonl beside run.json, found none. The journal is what a run consists of, "
            "and run.json is made from it: bring the folder journal back from where it was left."
        )
    module = getattr(arguments, "module", None)
    if isinstance(error, LockedError) and module == "run_fold" and (told := _recorded_by(arguments)):
        return told
    text = str(error)
    for name, option in _OPTIONS.items():
        text = text.replace(name, option)
    return text


def _recorded_by(arguments: argparse.Namespace | None) -> str:
    """Say that a run is being recorded; empty when no process is seen that does it."""
    from spanfold.fold import show_run

    try:
        run_dir = find_run(getattr(arguments, "run", ""))
        writers = sorted({file.pid for file in show_run(run_dir).files if file.pid})
    except (SpanfoldError, OSError):
        return ""
    if not writers:
        return ""
    processes = f"process{'es' if len(writers) > 1 else ''} {', '.join(map(str, writers))}"
    return (
        f"{run_dir}: expected a run that has ended, found that it is being recorded by {processes}, which keeps its documents "
        "up to date. Wait for its end, or write documents of it elsewhere with --into DIR."
    )


def _of_system(error: OSError, arguments: argparse.Namespace | None) -> str:
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    folder = _target(arguments) if name.startswith(_SCRATCH) else None
    where = str(folder) if folder is not None else name
    return f"{where}: {error.strerror or error}" if where else str(error.strerror or error)


def _target(arguments: argparse.Namespace | None) -> Path | None:
    """Return the folder that a command writes a file into: that of its output, else the one beside the run."""
    output = getattr(arguments, "output", None)
    if output is not None:
        return Path(output) if Path(output).is_dir() else Path(output).parent
    try:
        run_dir = find_run(getattr(arguments, "run", ""))
    except SpanfoldError:
        return None
    return run_dir.parent if getattr(arguments, "module", "") == "bundle_export" else run_dir
