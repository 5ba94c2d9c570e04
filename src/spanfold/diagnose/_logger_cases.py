"""Copy the media of a case into the run (DL 9.5): inside of what may be read, and not of any size or kind."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from spanfold.artifacts import MAX_MEDIA_BYTES, store_media
from spanfold.diagnose._logger_values import as_path, attr
from spanfold.fs import SafeRoot

ROOTS: Final = "SPANFOLD_MEDIA_ROOTS"
"""Folders that media may be copied from, joined by the separator of paths; by default any."""
LIMIT: Final = "SPANFOLD_MEDIA_BYTES"
"""Largest file copied; by default 256 MiB."""
_SLOTS: Final = ("image", "audio", "video")


def case_media(run_dir: Path, case: object) -> tuple[list[str], list[dict[str, str]]]:
    """Return the copies of a case's image, audio and video, and which files were refused and why.

    What is no path, or names no file, is neither: it may be a URL.
    """
    inputs = attr(case, "inputs")
    if inputs is None and isinstance(case, Mapping):
        inputs = cast("Mapping[str, Any]", case).get("inputs")
    copies: list[str] = []
    refused: list[dict[str, str]] = []
    for slot in _SLOTS:
        source = cast("Mapping[str, Any]", inputs).get(slot) if isinstance(inputs, Mapping) else attr(inputs, slot)
        path = as_path(source)
        if path is None or not _is_file(run_dir, path):
            continue
        stored = store_media(SafeRoot(run_dir, create=True), path, allowed_roots=_allowed(), max_bytes=_limit())
        if stored.path is not None:
            copies.append(stored.path)
        else:
            refused.append({"slot": slot, "reason": stored.reason or "it could not be copied"})
    return copies, refused


def _is_file(run_dir: Path, source: str) -> bool:
    try:
        return os.path.isfile(run_dir / source) or os.path.isfile(source)
    except (OSError, ValueError):  # a text that is no path: too long, or with a NUL in it
        return False


def _allowed() -> list[str]:
    given = os.environ.get(ROOTS)
    return [root for root in given.split(os.pathsep) if root] if given else [os.path.abspath(os.sep)]


def _limit() -> int:
    given = os.environ.get(LIMIT, "")
    return int(given) if given.isdecimal() else MAX_MEDIA_BYTES
