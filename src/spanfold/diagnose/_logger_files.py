"""Files of a run beside its documents: workspaces, JSON artifacts, and the list of everything (DL 7.5, 7.22, 9.4)."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

from spanfold.artifacts import SnapshotLimits, snapshot_workspace
from spanfold.diagnose._logger_values import as_path, text, tree
from spanfold.errors import UnsafePathError
from spanfold.fs import SafeRoot, split_relative
from spanfold.instrument import state
from spanfold.routing import RUN_DOCUMENT

ARTIFACTS: Final = "artifacts"
_HASHED_BYTES: Final = 1 << 30
"""Larger files are listed with their size only."""


def scrub(value: str) -> str:
    """Take the secrets out of a text."""
    state.ready()
    assert state.gate is not None
    return state.gate.scrub_text(value)


def scrub_tree(value: Any) -> Any:
    """Take the secrets out of JSON data."""
    state.ready()
    assert state.gate is not None
    return state.gate.scrub_value(value)


def snapshot(run_dir: Path, stage: str, workspace: Any, *, keep_everything: bool = False) -> dict[str, Any] | None:
    """Return the snapshot of a workspace; None when it is no directory."""
    path = as_path(workspace)
    if path is None or not os.path.lexists(path):
        return None
    kept = snapshot_workspace(
        SafeRoot(run_dir, create=True),
        f"{stage}/{ARTIFACTS}",
        path,
        keep_everything=keep_everything,
        limits=SnapshotLimits(),
        scrub=scrub,
    )
    return None if kept is None else kept.to_dict()


def portable(run_dir: Path, path: str) -> str:
    """Return a path relative to the run directory if it lies inside, else as it was given (DL 8.5)."""
    try:
        return str(Path(path).resolve().relative_to(run_dir.resolve()))
    except (OSError, ValueError):
        return path


def store_artifact_json(run_dir: Path, stem: str, obj: Any) -> str:
    """Keep data as `artifacts/<stem>` and return that path.

    Raises:
        UnsafePathError: The name would leave the folder.
        OSError, SpanfoldError: As the disk says.
    """
    name = text(stem)
    parts = split_relative(name)
    if any(part.startswith("..") for part in parts):
        raise UnsafePathError(f"expected a file name, found one of {len(name)} characters that leaves its folder")
    data = json.dumps(scrub_tree(tree(obj)[0]), indent=2, allow_nan=False).encode("ascii")
    root = SafeRoot(run_dir, create=True)
    path = f"{ARTIFACTS}/{name}"
    root.ensure_dir(path.rpartition("/")[0])
    root.replace_atomic(path, data, durable=False)
    return path


def manifest_files(run_dir: Path) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Return the files of a run directory sorted by the parts of their paths, and size and SHA-256 of each (DL 7.5).

    Left out are files whose own name begins with a dot. `run.json` is listed
    without a hash: what is returned here goes into it.
    """
    root = SafeRoot(run_dir, create=True)
    paths = [entry.path for entry in root.walk() if not entry.is_dir and not entry.name.startswith(".")]
    paths.sort(key=lambda path: path.split("/"))
    facts: dict[str, dict[str, Any]] = {}
    for path in paths:
        try:
            size = root.stat(path).st_size
            facts[path] = {"size_bytes": size}
            if path != RUN_DOCUMENT and size <= _HASHED_BYTES:
                with root.open_read(path) as file:
                    facts[path]["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
        except Exception:
            facts.pop(path, None)  # gone, or a link: it is listed, and nothing is said of it
    return [scrub(path.replace("/", os.sep)) for path in paths], facts
