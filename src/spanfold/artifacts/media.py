"""Copy media into the run, once for each content, under a name made of it.

`media/<first 16 hex digits of SHA-256>_<name>`: the same content under the
same name is stored once, and a copy that was cut short is found and repaired.
A source is read only inside the folders the caller allows, when it is a
regular file and no link, has a media suffix and is not too large.
"""

import hashlib
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final

from spanfold.artifacts.placing import STEM_LIMIT, Chunks, digest_of, holds
from spanfold.artifacts.results import StoredMedia, why
from spanfold.errors import SpanfoldError, UnsafeEntryError
from spanfold.fs import SafeRoot, safe_name

MEDIA_TYPES: Final = MappingProxyType(
    {
        ".npy": "application/x-npy",
        ".png": "image/png",
        ".jpg": "image/jpeg",
        ".jpeg": "image/jpeg",
        ".gif": "image/gif",
        ".webp": "image/webp",
        ".bmp": "image/bmp",
        ".wav": "audio/wav",
        ".mp3": "audio/mpeg",
        ".flac": "audio/flac",
        ".ogg": "audio/ogg",
        ".mp4": "video/mp4",
        ".avi": "video/x-msvideo",
        ".mov": "video/quicktime",
    }
)
"""Suffixes taken for media, in lower case, and their media types."""
MAX_MEDIA_BYTES: Final = 256 * 1024 * 1024
"""int, bytes. Largest file copied by default."""

_FOLDER: Final = "media"
_CHUNK_BYTES: Final = 1 << 20
_LONGEST_PATH: Final = 4_096
_SUFFIX: Final = re.compile(r"\.[A-Za-z0-9]{1,12}")
# What files begin with: bytes that must be there, where, and the suffix they mean.
_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", 0, ".png"),
    (b"\xff\xd8\xff", 0, ".jpg"),
    (b"GIF87a", 0, ".gif"),
    (b"GIF89a", 0, ".gif"),
    (b"WEBP", 8, ".webp"),
    (b"WAVEfmt ", 8, ".wav"),
    (b"AVI LIST", 8, ".avi"),
    (b"fLaC\0", 0, ".flac"),
    (b"OggS\0", 0, ".ogg"),
    (b"ID3\x03\0", 0, ".mp3"),
    (b"ID3\x04\0", 0, ".mp3"),
    (b"ftypqt  ", 4, ".mov"),
    (b"ftyp", 4, ".mp4"),
    (b"\x93NUMPY", 0, ".npy"),
)


class NotCopied(SpanfoldError):
    """A source that is not taken; the message is the reason."""


def store_media(
    root: SafeRoot,
    source: str | os.PathLike[str] | bytes,
    *,
    name: str | None = None,
    allowed_roots: Sequence[str | os.PathLike[str]] = (),
    max_bytes: int = MAX_MEDIA_BYTES,
    kinds: Collection[str] = MEDIA_TYPES.keys(),
) -> StoredMedia:
    """Copy a file, or bytes, to `media/<16 hex>_<name>`.

    Args:
        root: The run directory.
        source: Bytes; or a path, which, when relative, is looked for in the
            run directory first and in the working directory then.
        name: Of the original; default the last part of the path.
        allowed_roots: Folders from which files may be taken, beside the run directory.
        max_bytes: Largest file taken.
        kinds: Suffixes taken, in lower case with their dot.

    Returns:
        The copy, or why there is none. Nothing is raised for a source that
        cannot be taken or a disk that takes no more.
    """
    data = source if isinstance(source, bytes) else None
    path = "" if isinstance(source, bytes) else os.fspath(source)
    label = name or os.path.basename(path) or "media"
    try:
        if data is not None:
            label = label if os.path.splitext(label)[1] else label + sniffed_suffix(data)
            _require_kind(label, kinds)
            _require_size(len(data), max_bytes)
            return _keep(root, label, lambda: (data,))
        # The kind of the file itself counts, not that of the name it is given here.
        _require_kind(os.path.basename(path), kinds)
        with _open_allowed(root, path, allowed_roots) as file:
            return _keep(root, label, lambda: read_chunks(file, max_bytes))
    except NotCopied as error:
        return StoredMedia(label, reason=str(error))
    except UnsafeEntryError:
        return StoredMedia(label, reason="it, or a folder on the way to it, is a link or no regular file")
    except Exception as error:
        return StoredMedia(label, reason=why(error))


def _require_kind(label: str, kinds: Collection[str]) -> None:
    suffix = os.path.splitext(label)[1].lower()
    if suffix not in kinds:
        raise NotCopied(f"{suffix or 'no suffix'} is none of the kinds that are copied")


def _require_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise NotCopied(f"{size} bytes are more than the {max_bytes} that are copied")


def _open_allowed(root: SafeRoot, path: str, allowed_roots: Sequence[str | os.PathLike[str]]) -> BinaryIO:
    found_outside = False
    # A data URI is no path, and asking the system about one part by part would take minutes.
    for place in (root.path / path, Path.cwd() / path) if len(path) <= _LONGEST_PATH else ():
        # Links to folders are resolved here and judged by where they lead; the open below follows none.
        real = Path(os.path.realpath(place.parent), place.name)
        found_outside = found_outside or os.path.lexists(real)
        for allowed in (root.path, *allowed_roots):
            base = os.path.realpath(allowed)
            if real.is_relative_to(base) and real.name:
                try:
                    return SafeRoot(base).open_read(real.relative_to(base).as_posix())
                except FileNotFoundError:
                    continue
    raise NotCopied("it is outside the folders that may be copied from" if found_outside else "there is no such file")


def _keep(root: SafeRoot, label: str, chunks: Chunks) -> StoredMedia:
    digest, size = digest_of(chunks())
    path = f"{_FOLDER}/{digest[:16]}_{file_name(label)}"
    if not holds(root, path, digest, size):
        root.ensure_dir(_FOLDER)
        root.replace_atomic(path, verified(chunks, digest), durable=root.durable)
    media_type = MEDIA_TYPES.get(os.path.splitext(label)[1].lower(), "application/octet-stream")
    return StoredMedia(label, path, media_type, digest, size)


def verified(chunks: Chunks, digest: str) -> Iterator[bytes]:
    """Yield the bytes again, and fail before the file appears if they are not what the name says."""
    seen = hashlib.sha256()
    for chunk in chunks():
        seen.update(chunk)
        yield chunk
    if seen.hexdigest() != digest:
        raise NotCopied("it was changed while it was copied")


def read_chunks(file: BinaryIO, max_bytes: int) -> Iterator[bytes]:
    """Yield a file from its start, unless it is larger than `max_bytes` or becomes so.

    Raises:
        NotCopied: It is.
    """
    _require_size(os.fstat(file.fileno()).st_size, max_bytes)
    file.seek(0)
    left = max_bytes
    while chunk := file.read(_CHUNK_BYTES):
        left -= len(chunk)
        if left < 0:
            raise NotCopied(f"it has grown over the {max_bytes} bytes that are copied")
        yield chunk


def file_name(name: str) -> str:
    """Make one safe file name of a name from elsewhere, its suffix kept where it is plain."""
    stem, suffix = os.path.splitext(re.split(r"[/\\]", name)[-1])
    if not _SUFFIX.fullmatch(suffix):
        stem, suffix = stem + suffix, ""
    return safe_name(stem, limit=STEM_LIMIT) + suffix


def sniffed_suffix(data: bytes) -> str:
    """Return the suffix that the first bytes of a file mean; empty when they mean none we know."""
    return next((suffix for magic, at, suffix in _SIGNATURES if data.startswith(magic, at)), "")
