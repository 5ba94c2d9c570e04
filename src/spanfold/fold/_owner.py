"""Who folds a run: `owner.json` in the fold's folder, so that no descriptor has to hold a lock.

The lock file is held only while the owner is looked at and written. An owner
that was killed is known by its process id and start time, so its place can be
taken without asking anybody.
"""

import os
import weakref
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

from spanfold.errors import LockedError, SpanfoldError
from spanfold.fs import FileLock, SafeRoot
from spanfold.journal import host_name, is_owner_alive, process_start

OWNER: Final = "owner.json"
LOCK: Final = "lock"
_LOCK_S: Final = 2.0

_claims: "weakref.WeakValueDictionary[str, Owner]" = weakref.WeakValueDictionary()
"""Claims of this process, so that one whose engine is gone does not count as living."""


class Owner:
    """A claim on one folder."""

    def __init__(self) -> None:
        self._token = os.urandom(8).hex()
        self._root: SafeRoot | None = None

    def claim(self, root: SafeRoot) -> None:
        """Become the owner.

        Raises:
            LockedError: A living process, or another engine of this one, is the owner.
        """
        with FileLock(root, LOCK, timeout_s=_LOCK_S):
            found = _read(root)
            if found is not None and found.get("token") != self._token and _is_living(found):
                raise LockedError(
                    f"{root.path / OWNER}: expected no other fold of this run, found one in process {found.get('pid')} on "
                    f"host {found.get('host')}. Wait for it or stop it, or fold into another folder; remove the file if "
                    "that process is known to be gone."
                )
            mine = {
                "pid": os.getpid(),
                "started": process_start(os.getpid()),
                "host": host_name(),
                "token": self._token,
            }
            root.replace_atomic(OWNER, orjson.dumps(mine), durable=False)
        self._root = root
        _claims[self._token] = self

    def is_held(self) -> bool:
        """Whether the claim still stands: nobody took it over, and nobody removed the folder."""
        if self._root is None:
            return False
        try:
            found = _read(self._root)
        except (OSError, SpanfoldError):
            return False
        return found is not None and found.get("token") == self._token

    def release(self) -> None:
        """Let go; harmless when the claim does not stand any more."""
        root = self._root
        if root is not None and self.is_held():
            with FileLock(root, LOCK, timeout_s=_LOCK_S):
                if self.is_held():
                    root.unlink(OWNER)
                # Whoever waits for the lock sees that its file lost its name, and makes a new one.
                root.unlink(LOCK)
        self._root = None
        _claims.pop(self._token, None)


def _read(root: SafeRoot) -> Mapping[str, Any] | None:
    try:
        found = orjson.loads(root.read_bytes(OWNER))
    except (FileNotFoundError, ValueError):
        return None
    return cast("Mapping[str, Any]", found) if type(found) is dict else None


def _is_living(owner: Mapping[str, Any]) -> bool:
    pid = owner.get("pid")
    if type(pid) is int and pid > 0 and owner.get("host") != host_name():
        return True  # another machine's processes cannot be seen from here
    return is_owner_alive(owner) and (pid != os.getpid() or owner.get("token") in _claims)
