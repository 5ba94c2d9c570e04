"""Find a file its name, and never take one from earlier evidence.

The first file of a name gets the name. Later ones with the same bytes are the
same file; ones with other bytes get `-` and the first 12 hex digits of their
SHA-256 behind the stem, so that the thousandth use of a name costs what the
second did.
"""

import errno
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from spanfold.errors import UnsafeEntryError
from spanfold.fs import Piece, SafeRoot, safe_name

STEM_LIMIT: Final = 150
"""int, characters. Longest stem; a hash, a suffix and a temporary name still fit into 255 bytes."""
_NO_HARD_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})

Chunks = Callable[[], Iterable[bytes]]
"""Gives the bytes of a file anew each time it is called."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A file that holds the bytes."""

    stem: str
    """File name without suffix, as it is on disk."""
    path: str
    """Relative to the root."""
    sha256: str
    size_bytes: int


def place(root: SafeRoot, folder: str, stem: str, suffix: str, chunks: Chunks) -> Placed:
    """Write bytes into a folder, under the stem or a variant of it.

    Args:
        root: The run directory.
        folder: Relative folder, made when missing.
        stem: Any text; made safe.
        suffix: End of the file name, dot included.
        chunks: The bytes; asked for once, and again when the name is taken.

    Raises:
        OSError: The disk does not take the file; no part of it stays.
        UnsafePathError: `folder` is no safe relative path.
        UnsafeEntryError: Something planted is in the way.
    """
    root.ensure_dir(folder)
    stem = safe_name(stem, limit=STEM_LIMIT)
    path = f"{folder}/{stem}{suffix}"
    try:
        return Placed(stem, path, *_create(root, path, chunks))
    except FileExistsError:
        pass
    digest, size = digest_of(chunks())
    # Only a planted file, or one changed since, can be in the way of the second and third.
    for name in (stem, f"{stem}-{digest[:12]}", f"{stem}-{digest}"):
        path = f"{folder}/{name}{suffix}"
        try:
            return Placed(name, path, *_create(root, path, chunks))
        except FileExistsError:
            if holds(root, path, digest, size):
                return Placed(name, path, digest, size)
    raise UnsafeEntryError(f"{path}: expected a free name, found another file. Move it aside.")


def digest_of(chunks: Iterable[bytes]) -> tuple[str, int]:
    """Return SHA-256 in hex and the number of bytes."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


def holds(root: SafeRoot, path: str, digest: str, size: int) -> bool:
    """Tell whether a file has these bytes; False as well for what is no file."""
    try:
        if root.stat(path).st_size != size:
            return False
        with root.open_read(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except (FileNotFoundError, UnsafeEntryError):
        return False


def _is_taken(root: SafeRoot, path: str) -> bool:
    try:
        root.stat(path)
    except FileNotFoundError:
        return False
    return True


def _create(root: SafeRoot, path: str, chunks: Chunks) -> tuple[str, int]:
    if _is_taken(root, path):
        raise FileExistsError(errno.EEXIST, "File exists", path)
    try:
        return _write(root.create_exclusive, path, chunks)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
    # Without hard links two writers of one name at one instant end as one of the two; both would have had the name.
    return _write(partial(root.replace_atomic, durable=root.durable), path, chunks)


def _write(write: Callable[[str, Iterable[Piece]], int], path: str, chunks: Chunks) -> tuple[str, int]:
    # Hashed while it is written: the hash is of the bytes in the file even if the object changes meanwhile.
    digest = hashlib.sha256()

    def hashed() -> Iterator[bytes]:
        for chunk in chunks():
            digest.update(chunk)
            yield chunk

    size = write(path, hashed())
    return digest.hexdigest(), size
