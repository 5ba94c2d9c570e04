"""Facts about the process and the code it runs, read without starting a process or waiting for one."""

import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any

from spanfold.instrument._state import state, version


def host_facts() -> dict[str, Any]:
    """Return the fields every run starts with: versions, host, pid, redacted argv, git commit when found."""
    facts: dict[str, Any] = {
        "python_version": platform.python_version(),
        "spanfold_version": version(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "argv": state.redactor.redact_argv(list(sys.argv)),
    }
    commit = git_commit(Path.cwd())
    if commit:
        facts["git_commit"] = commit
    return facts


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
                return _head(git)
    except OSError:
        pass
    return ""


def _head(git: Path) -> str:
    head = (git / "HEAD").read_text("utf-8").strip()
    if not head.startswith("ref:"):
        return head
    ref = head[4:].strip()
    common = git / "commondir"
    folders = [git, (git / common.read_text("utf-8").strip()).resolve()] if common.is_file() else [git]
    for folder in folders:
        if (folder / ref).is_file():
            return (folder / ref).read_text("utf-8").strip()
        packed = folder / "packed-refs"
        if packed.is_file():
            for line in packed.read_text("utf-8").splitlines():
                if line.endswith(f" {ref}"):
                    return line.split(" ", 1)[0]
    return ""
