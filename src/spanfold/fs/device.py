"""Flush a folder to the device, and hash a file, by path."""

import hashlib
import os

from spanfold.fs._folders import open_regular, platform_folder


def fsync_folder(path: str | os.PathLike[str]) -> None:
    """Flush the names in a folder to the device, where the platform can.

    Raises:
        UnsafeEntryError: The path is a link or no directory.
    """
    with platform_folder().open(os.fspath(path)) as folder:
        folder.sync()


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Hash a regular file without holding it in memory.

    Returns:
        SHA-256 in 64 lower-case hex digits.

    Raises:
        UnsafeEntryError: It is a link or no regular file.
        OSError: It is missing or cannot be read.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
