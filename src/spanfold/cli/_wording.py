"""Say an error of the library in the words of the shell: with options for arguments, and with what was typed."""

import argparse
import errno
import os
from pathlib import Path
from typing import Final

from spanfold.cli._places import find_run, is_ours, near
from spanfold.errors import JournalMissing, LockedError, SpanfoldError
from spanfold.fs import is_temporary

_OPTIONS: Final = {"(allow_open)": "(--allow-open)", "(assume_dead)": "(--assume-dead)"}


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
    """Say where the system refused something, what was expected there, and what to do."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    place = _place(Path(name), arguments) if name else None
    output = getattr(arguments, "output", None)
    if place == Path() and output is not None:
        place = Path(output)  # the folder we are in has no name to tell it by
    said = error.strerror or str(error)
    where = f"{place}: " if place is not None else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}expected room to write, found {said}. Free some there{_or_elsewhere(arguments)}."
    if place is not None and error.errno in (errno.EEXIST, errno.ENOTDIR):
        return f"{where}expected a folder or nothing, found a file ({said}). Give another name."
    if place is not None and error.errno == errno.ENOENT:
        return f"{where}expected it to be there, found nothing ({said}). Check the name{_or_elsewhere(arguments)}."
    if place is None or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{where}{said}"
    if error.errno != errno.EROFS and not _is_readable(place):
        return f"{where}expected what you may read, found {said}. Ask its owner, or be the user who recorded it."
    return f"{where}expected a place that is writable for you, found {said}. Be the user it belongs to{_or_elsewhere(arguments)}."


def _place(path: Path, arguments: argparse.Namespace | None) -> Path:
    """Return what a user knows of a path: the folder around files of ours that are hidden."""
    if is_ours(str(path)):
        return _target(arguments) or path
    if is_temporary(path.name):
        path = path.parent
    for number, part in enumerate(path.parts):
        if number and is_ours(part):
            path = Path(*path.parts[:number])
            return near(path.parent if path.name == "journal" else path)
    return near(path)


def _is_readable(path: Path) -> bool:
    """Whether something may be read; what is not there yet may, if its folder may be entered."""
    if not os.path.lexists(path):
        return os.access(path.parent, os.X_OK)
    return os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK)


def _or_elsewhere(arguments: argparse.Namespace | None) -> str:
    options = {
        "run_fold": "--into DIR",
        "bundle_export": "-o FILE",
        "timings_plot": "-o FILE",
        "demo": "DIR",
    }
    option = options.get(getattr(arguments, "module", ""))
    return f", or choose another place with {option}" if option else ""


def _target(arguments: argparse.Namespace | None) -> Path | None:
    """Return the folder that a command writes a file into: that of its output, else the one beside the run."""
    output = getattr(arguments, "output", None)
    if output is not None:
        return Path(output) if Path(output).is_dir() else Path(output).parent
    if (into := getattr(arguments, "into", None)) is not None:
        return Path(into)
    try:
        run_dir = find_run(getattr(arguments, "run", ""))
    except SpanfoldError:
        return None
    return run_dir.parent if getattr(arguments, "module", "") == "bundle_export" else run_dir
