"""Which artifacts are media that Langfuse shows, and how a text refers to one (facts 2.8)."""

import base64
from collections.abc import Mapping
from typing import Any, Final

MEDIA_TYPES: Final = frozenset(
    {
        *("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/svg+xml"),
        *("audio/mpeg", "audio/wav", "audio/ogg", "audio/flac", "video/mp4", "video/quicktime", "video/x-msvideo"),
        *("text/plain", "text/html", "text/csv", "text/markdown", "application/pdf", "application/json"),
    }
)
"""Media types that both we and Langfuse know."""


def media_of(artifact: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the file of an artifact that Langfuse can show: itself, or the figure made of an array; None when there is none."""
    name = str(artifact.get("artifact") or artifact.get("name") or "")
    figure, figure_hash = artifact.get("figure"), artifact.get("figure_sha256")
    if isinstance(figure, str) and isinstance(figure_hash, str):
        return _media(name, figure, figure_hash, "image/png")
    path, digest = artifact.get("path"), artifact.get("sha256")
    kind = str(artifact.get("media_type")).partition(";")[0]  # Langfuse's list has no character sets
    if isinstance(path, str) and isinstance(digest, str) and kind in MEDIA_TYPES:
        return _media(name, path, digest, kind)
    return None


def _media(name: str, path: str, digest: str, kind: str) -> dict[str, Any] | None:
    try:
        raw = bytes.fromhex(digest)
    except ValueError:
        return None
    # How the server names content: the first 22 characters of its hash (facts 2.8).
    media_id = base64.urlsafe_b64encode(raw).decode("ascii")[:22]
    return {"name": name, "path": path, "sha256": digest, "contentType": kind, "mediaId": media_id}


def media_reference(media: Mapping[str, Any]) -> str:
    """Return the text that Langfuse shows a file in the place of."""
    return f"@@@langfuseMedia:type={media['contentType']}|id={media['mediaId']}|source=file@@@"
