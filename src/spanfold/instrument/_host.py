"""Facts about the process and the code it runs, read without starting a process or waiting for one."""

import os
import platform
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from spanfold.instrument._guard import lost
from spanfold.instrument._state import state, version

_COMMIT: Final = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?\Z")


def host_facts() -> dict[str, Any]:
    """Return the fields every run starts with: versions, host, pid, redacted argv, git commit when found."""
    found: dict[str, Callable[[], Any]] = {
        "python_version": platform.python_version,
        "spanfold_version": version,
        "host": socket.gethostname,
        "pid": os.getpid,
        "argv": lambda: state.redactor.redact_argv(list(sys.argv)),
        "git_commit": lambda: git_commit(Path.cwd()),
    }
    facts: dict[str, Any] = {}
    for name, ask in found.items():
        try:
            facts[name] = ask()
        except FileNotFoundError:
            pass  # the working directory was removed
        except Exception as error:
            lost(f"the fact {name}", error)
    return {name: fact for name, fact in facts.items() if fact != ""}


def git_commit(folder: Path) -> str:
    """Return the commit checked out in the repository around `folder`, empty when there is none.

    Read from the repository's own files: a `git` process could wait for a lock
    or a network file system, and the run would wait with it.
    """
    try:
        for parent in (folder, *folder.parents):
            git = parent / ".git"
            if git.is_file():  # a worktree or submodule names its folder
                git = (parent / git.read_text("utf-8").partition(":")[2].strip()).resolve()
            if git.is_dir():
                commit = _head(git)
                # Whatever else a file there may hold does not belong into a record.
                return commit if _COMMIT.match(commit) else ""
    except (OSError, ValueError):
        pass
    return ""


def _head(git: Path) -> str:
    head = _text(git / "HEAD")
    if not head.startswith("ref:"):
        return head
    ref = head[4:].strip()
    common = _text(git / "commondir")
    for folder in (git, (git / common).resolve()) if common else (git,):
        if found := _text(folder / ref):
            return found
        for line in _text(folder / "packed-refs").splitlines():
            if line.endswith(f" {ref}"):
                return line.split(" ", 1)[0]
    return ""


def _text(path: Path) -> str:
    # Only regular files: opening a FIFO would wait for somebody to write.
    return path.read_text("utf-8").strip() if path.is_file() else ""
