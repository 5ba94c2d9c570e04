"""What `run.json` remembers of the journal it was made from, which never held less than that.

Look before reading the journal: what a document says is then in what is read,
of a journal that grows meanwhile too.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from spanfold import names
from spanfold.errors import UnsafeEntryError
from spanfold.fs import SafeRoot
from spanfold.journal._chain import Head
from spanfold.journal._reader import FOLDER
from spanfold.journal._values import load
from spanfold.routing import RUN_DOCUMENT, RUN_FACTS

__all__ = ["documented_heads", "documented_run"]

_END_BYTES: Final = 64 * 1024
_RUN_KEY: Final = b'\n  "run": {'
"""Begins the last object but one of run.json. A line break inside text is escaped, so it stands nowhere else."""


def documented_run(run_dir: Path) -> Mapping[str, Any]:
    """Return `run` of a run's run.json, or of its spanfold.json; empty when there is none, or not of this format.

    It is found from the end, since the size of a run.json may be anything.

    Raises:
        UnsafeEntryError: It is a link, or no file.
        OSError: It cannot be read.
    """
    return _run_of(run_dir, RUN_DOCUMENT) or _run_of(run_dir, RUN_FACTS)


def _run_of(run_dir: Path, document_name: str) -> Mapping[str, Any]:
    try:
        with SafeRoot(run_dir.resolve()).open_read(document_name) as file:
            size = file.seek(0, os.SEEK_END)
            length = 0
            while length < size:
                length = min(size, max(_END_BYTES, 8 * length))
                file.seek(size - length)
                found = file.read(length)
                at = found.rfind(_RUN_KEY)
                if at >= 0:
                    break
            else:
                return {}
        document: Any = load(b"{" + found[at:])
    except (FileNotFoundError, ValueError):
        return {}
    run = _table(_table(document).get("run"))
    return run if run.get("schema") == names.RUN_SCHEMA else {}


def documented_heads(folder: Path) -> tuple[Mapping[str, Head], str]:
    """Return what the run.json beside a journal folder says of the seal: a head for each file, and the file it closed.

    Empty when run.json knows of no seal, or cannot be read: then it witnesses nothing.
    """
    run: Mapping[str, Any] = {}
    if folder.name == FOLDER:  # else it is a journal without a run directory
        with contextlib.suppress(UnsafeEntryError, OSError):
            run = documented_run(folder.parent)
    seal = _table(run.get("seal"))
    heads: dict[str, Head] = {}
    sealing = ""
    for name, found in _table(seal.get("files")).items():
        head = _table(found)
        seq, sha256, size = head.get("seq"), head.get("head"), head.get("size")
        if type(seq) is int and type(sha256) is str and type(size) is int:
            heads[name] = Head(seq, sha256, size)
            if (seq, sha256) == (seal.get("seq"), seal.get("head")):
                sealing = name
    return heads, sealing


def _table(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}
