"""Files of the fold in progress: one for each part of a document, and the checkpoint.

Nothing here is the truth. Whatever is missing, too short or from another
version or start of the machine is thrown away and folded again.
"""

from collections.abc import Mapping
from typing import Any, BinaryIO, Final, cast

from spanfold.fold._drafts import Part
from spanfold.fs import FileSpan, SafeRoot
from spanfold.journal import dump, load

CHECKPOINT: Final = "checkpoint.json"
SEEN_NUMBER: Final = 0
"""Number of the part that holds which spans were folded."""


class SpoolLost(Exception):
    """A spool file is not what it must be: somebody removed or changed it."""


class Spool:
    """The spool files of one fold. Holds no descriptor between two calls.

    Args:
        root: The fold's folder.
    """

    def __init__(self, root: SafeRoot) -> None:
        self.root = root

    def append(self, part: Part) -> None:
        """Write the pending bytes of a part behind its stored ones.

        Raises:
            SpoolLost: The file does not end where the part does.
            OSError: As the system says; none of the bytes were taken.
        """
        with self.root.open_append(_name(part.number)) as handle:
            if handle.size != part.stored:
                raise SpoolLost(_name(part.number))
            handle.append(bytes(part.pending))

    def open(self, part: Part) -> BinaryIO:
        """Open the stored bytes of a part for reading.

        Raises:
            SpoolLost: They are not all there.
        """
        try:
            file = self.root.open_read(_name(part.number))
        except FileNotFoundError:
            raise SpoolLost(_name(part.number)) from None
        if file.seek(0, 2) < part.stored:
            file.close()
            raise SpoolLost(_name(part.number))
        file.seek(0)
        return file

    def trim(self, part: Part) -> None:
        """Cut off what stands behind the stored bytes: written after the checkpoint that is gone on from.

        Raises:
            SpoolLost: There are fewer bytes than the checkpoint says.
        """
        if not part.stored:
            return
        with self.open(part) as file:
            if file.seek(0, 2) > part.stored:
                pieces = [FileSpan(file.fileno(), 0, part.stored)]
                self.root.replace_atomic(_name(part.number), pieces, durable=False)

    def save(self, state: Mapping[str, Any]) -> int:
        """Write the checkpoint; returns its size in bytes."""
        return self.root.replace_atomic(CHECKPOINT, dump(state).encode(), durable=False)

    def load(self) -> Mapping[str, Any] | None:
        """Return the checkpoint; None when there is none that can be read."""
        try:
            found = load(self.root.read_bytes(CHECKPOINT))
        except (FileNotFoundError, ValueError):
            return None
        return cast("Mapping[str, Any]", found) if type(found) is dict else None

    def clear(self) -> None:
        """Remove everything but the owner and the lock: the checkpoint first, since it refers to the rest."""
        names: list[str] = []
        for entry in self.root.walk():
            entry.skip = True
            if not entry.is_dir:
                names.append(entry.name)
        for name in sorted(names, key=lambda name: name != CHECKPOINT):
            if name == CHECKPOINT or name.startswith(_PREFIX) or name.endswith(".tmp"):
                self.root.unlink(name)


_PREFIX: Final = "part-"


def _name(number: int) -> str:
    return f"{_PREFIX}{number:05d}"
