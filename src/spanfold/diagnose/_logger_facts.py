"""What a run start says of the program beside its configuration (DL 7.1), found without starting a process."""

import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from spanfold.instrument import git_commit

CODE_DIR: Final = "SPANFOLD_CODE_DIR"
"""Folder whose repository a run start names; by default the working directory."""
_SHORT: Final = 7


def run_facts(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return python_version, evalrx_version and git_commit, as far as they are known and not given."""
    facts: dict[str, Any] = {}
    if "python_version" not in given:
        facts["python_version"] = platform.python_version()
    if "evalrx_version" not in given and (version := _evalrx_version()):
        facts["evalrx_version"] = version
    if "git_commit" not in given and (commit := _commit()):
        facts["git_commit"] = commit
    return facts


def _evalrx_version() -> str | None:
    loaded = getattr(sys.modules.get("evalrx"), "__version__", None)
    if isinstance(loaded, str):
        return loaded
    try:
        return metadata.version("evalrx")
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    try:
        commit = git_commit(Path(os.environ.get(CODE_DIR) or Path.cwd()))
    except OSError:  # the working directory was removed
        commit = ""
    return commit[:_SHORT] or os.environ.get("EVALRX_GIT_COMMIT") or None
