"""Tell whether the process that wrote a journal file still lives.

A process id alone says little: ids are used again, and in a container the
first process has the same one at every start. So the time it started is
compared too, where the system tells it.
"""

import os
import re
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

_WRITER: Final = re.compile(r"(\d{8}T\d{6}Z)-(\d{1,10})-[0-9a-f]{8}\Z")
_SLACK_S: Final = 2.0
"""The times compared are whole seconds of the wall clock, rounded differently."""


def host_name() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def is_owner_alive(owner: Mapping[str, Any]) -> bool:
    """Whether the process an owner record names (pid, started) still lives, on this machine."""
    pid = owner.get("pid")
    if type(pid) is not int or pid <= 0:
        return False
    started = process_start(pid)
    return started is not None and owner.get("started") in (None, started)


def live_writer(writer: str) -> int | None:
    """Return the id of the process that wrote under this name, if it still lives; None also for other names."""
    match = _WRITER.match(writer)
    if match is None:
        return None
    pid = int(match[2])
    if pid <= 0 or process_start(pid) is None:
        return None
    try:
        named = datetime.strptime(match[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
    began = _start_time(pid)
    # The name is given when the first record is written; a process that began later has only the same id.
    return pid if began is None or began <= named + _SLACK_S else None


def process_start(pid: int) -> str | None:
    """Return what tells a process from a later one of the same id; None when there is no such process."""
    ticks = _start_ticks(pid)
    if ticks is not None:
        return f"{ticks}@{boot_id()}"
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass  # it is there, and belongs to somebody else
    return "unknown"


def _start_ticks(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            found = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    # The name in parentheses may hold anything; behind it the state is field 3, the start time field 22 (proc(5)).
    # A zombie has ended, whether or not its parent has asked for it.
    return int(found[19]) if len(found) > 19 and found[0] not in (b"Z", b"X") else None


def _start_time(pid: int) -> float | None:
    """Return when a process started, seconds since the epoch; None where the system does not say."""
    ticks = _start_ticks(pid)
    try:
        with open("/proc/stat", "rb") as file:
            boot = next(int(line.split()[1]) for line in file if line.startswith(b"btime "))
        return None if ticks is None else boot + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, StopIteration):
        return None


def boot_id() -> str:
    """Return what tells this start of the machine from another; empty where the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip().decode("ascii")
    except (OSError, ValueError):
        return ""
