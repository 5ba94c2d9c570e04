"""Tell whether the process that writes a journal file still lives, as far as this machine can see."""

from typing import Literal

from spanfold.journal import SUFFIX, host_name, live_writer

Presence = Literal["alive", "dead", "unknown"]
"""`unknown`: recorded on another machine, whose processes cannot be seen from here."""


def presence(file_name: str, host: str | None) -> Presence:
    """Return what has become of the process that wrote a journal file.

    Args:
        file_name: Name of the file; it holds the id of the process and when it began to write.
        host: Machine the run was recorded on, None when the run does not say.
    """
    if host is not None and host != host_name():
        return "unknown"
    return "dead" if live_writer(file_name.removesuffix(SUFFIX)) is None else "alive"
