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
    if isinstance(error, JournalMissing) and (told := _of_loop(error.path)):
        return told
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


def _of_loop(run_dir: Path) -> str:
    """Say where the journal of a diagnose loop was looked for, or that there never was one; empty for other directories."""
    from spanfold.diagnose import existing_outbox, needs_outbox, recorder_of
    from spanfold.journal import state_folders

    try:
        recorder = recorder_of(run_dir)
        if not recorder:
            return ""
        if recorder == "spanfold":
            places = ", ".join(str(folder / "open") for folder in state_folders())
            return (
                f"{run_dir}: expected the journal of this diagnose loop, found none in it and none of it in {places}, where it "
                "stands until its logger is closed. Name the directory in which it was recorded, not a copy, as the user and "
                "with the SPANFOLD_STATE_DIR, XDG_STATE_HOME and HOME of the process that recorded it; or bring the folder "
                "journal back."
            )
        has_stages = needs_outbox(run_dir)
        outbox = existing_outbox(run_dir) if has_stages else None
    except (SpanfoldError, OSError):
        return ""
    found = (
        f"{run_dir}: expected a run recorded by spanfold, found documents of a diagnose loop that another logger wrote, which "
        "keeps no journal."
    )
    if outbox is not None:
        return f"{found} `spanfold run show {outbox}` shows the one that was made of them to be sent."
    if not has_stages:
        return f"{found} One can be made of them and sent when there is a log.json of M1 to M5 too; now there is none."
    return f"{found} `spanfold run deliver {run_dir}` or spanfold.diagnose.backfill() makes one of them and sends it."


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
