"""Tell whether the processes that write a run still live, as far as this machine can see.

Look before reading the journal: what a process that is dead by now had to say is
then in what is read, so a run that ends meanwhile is never taken for one whose
process died.
"""

from pathlib import Path
from typing import Literal

from spanfold.journal import SUFFIX, host_name, journal_files, live_writer

Presence = Literal["alive", "dead", "unknown"]
"""`unknown`: recorded on another machine, whose processes cannot be seen from here."""


class Writers:
    """Who was at work on a run when this was made."""

    def __init__(self, run_dir: Path) -> None:
        self._dead: set[str] = set()
        self.living: dict[str, int] = {}
        """Journal file -> process id of its writer, if that lives."""
        for path in journal_files(run_dir):
            pid = live_writer(path.name.removesuffix(SUFFIX))
            if pid is None:
                self._dead.add(path.name)
            else:
                self.living[path.name] = pid

    def presence(self, file_name: str, host: str | None) -> Presence:
        """Return what has become of the writer of a journal file.

        Args:
            file_name: Name of the file. One that was not there yet is alive.
            host: Machine the run was recorded on, None when the run does not say.
        """
        if host is not None and host != host_name():
            return "unknown"
        return "dead" if file_name in self._dead else "alive"
