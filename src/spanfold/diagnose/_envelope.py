"""The delivery envelope of an event: what it is, where it belongs, and which files it speaks of (DL 10.5). Pure but for files.

Equal events have equal ids wherever and whenever they are sent.
"""

import hashlib
import mimetypes
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from spanfold import names
from spanfold.errors import SpanfoldError
from spanfold.fs import SafeRoot
from spanfold.routing import STAGES

SCHEMA_VERSION: Final = 1
NAMESPACE: Final = uuid.UUID("3a09f2ed-28b1-4dd4-914f-b8da031edab2")
_STAGES: Final[Mapping[str, str]] = {
    "probe_search": "PRE_M1",
    "probe": "M1",
    "analysis": "M2",
    "explore": "M2",
    "diagnosis": "M3",
    "surgery": "M4",
    "fix": "M5",
    "experiment": "M5",
    "case_record": "DATA",
    "report_published": "REPORT",
}
_FAILED: Final = frozenset({"failed", "error"})
# What says that a string is a path: the key it stands under, or the last key above it.
_PATH_KEYS: Final = ("path", "_paths")
_FILE_LISTS: Final = frozenset({"record", "figures", "media", "media_files"})


def event_id(trace_id: str, event_seq: int, event_type: str) -> str:
    """Return the id of an event: a UUID of its trace, sequence number and name."""
    return str(uuid.uuid5(NAMESPACE, f"{trace_id}:{event_seq}:{event_type}"))


def service_trace_id(trace_id: str) -> str:
    """Return a trace id as services take it, 32 hex digits: without its dashes, or a hash of what is no such id."""
    plain = trace_id.replace("-", "").lower()
    if len(plain) == 32 and set(plain) <= set("0123456789abcdef") and set(plain) != {"0"}:
        return plain
    return hashlib.sha256(trace_id.encode("utf-8", "replace")).hexdigest()[:32]


def stage_of(event: Mapping[str, Any]) -> str:
    """Return the stage an event is shown under: its own, else what its name says."""
    given = event.get("stage")
    if given in STAGES or event.get("event") == "stage_skipped":
        return str(given)
    return _STAGES.get(str(event.get("event")), "RUN")


def make_envelope(
    event: Mapping[str, Any], *, trace_id: str, event_seq: int, artifact_refs: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the envelope of an event.

    Args:
        event: The record.
        trace_id: Trace id of its documents.
        event_seq: Its number.
        artifact_refs: From `artifact_refs`.
    """
    event_type = str(event.get("event") or "event")
    failed = event.get("ok") is False or event.get("status") in _FAILED
    return {
        "schema_version": SCHEMA_VERSION,
        "event_id": event_id(trace_id, event_seq, event_type),
        "trace_id": trace_id,
        "event_seq": event_seq,
        "timestamp": event.get("ts"),
        "event_type": event_type,
        "stage": stage_of(event),
        "cycle": event.get("cycle"),
        "parent_id": event.get("span_id"),
        "status": "failed" if failed else "completed",
        "payload": dict(event),
        "artifact_refs": list(artifact_refs or ()),
    }


def artifact_refs(event: Mapping[str, Any], run_dir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return a manifest of each file of the run that an event refers to, each file once.

    Files outside of the run directory, and whatever is reached by a link, are not referred to.

    Args:
        event: The record. Strings under keys that end in `path` or `_paths`, and in lists of figures and media, are paths.
        run_dir: The run directory.
    """
    base = os.path.realpath(run_dir)
    roles: dict[str, str] = {}
    for role, text in _paths(event):
        relative = _inside(base, text)
        if relative:
            roles.setdefault(relative, role)
    if not roles:
        return []
    root = SafeRoot(base)
    return [ref for relative, role in roles.items() if (ref := _manifest(root, relative, role))]


def _paths(event: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each string that is a path, with the key it stands under, in order."""
    waiting: list[tuple[Any, str, bool]] = [(event, "", False)]
    seen: set[tuple[int, bool]] = set()  # a container may hold itself
    while waiting:
        item, role, is_path = waiting.pop()
        if isinstance(item, Mapping | list | tuple):
            if (id(cast("object", item)), is_path) in seen:
                continue
            seen.add((id(cast("object", item)), is_path))
        if isinstance(item, Mapping):
            pairs = [(str(key), inner) for key, inner in cast("Mapping[Any, Any]", item).items()]
            waiting += [(inner, key, _is_path_key(key, is_path)) for key, inner in reversed(pairs)]
        elif isinstance(item, list | tuple):
            waiting += [(inner, role, is_path) for inner in reversed(cast("list[Any]", item))]
        elif isinstance(item, str) and is_path:
            yield role, item


def _is_path_key(key: str, is_inherited: bool) -> bool:
    return (
        key.endswith(_PATH_KEYS) or key.removeprefix(names.DL_FIELD) in _FILE_LISTS or (is_inherited and key != "files")
    )


def _inside(base: str, text: str) -> str:
    """Return a path relative to the run directory; empty when it leads elsewhere."""
    if not text or len(text) > 4096 or "\0" in text or "\n" in text:
        return ""
    path = os.path.normpath(os.path.join(base, text))
    return Path(path).relative_to(base).as_posix() if Path(path).is_relative_to(base) and path != base else ""


def _manifest(root: SafeRoot, relative: str, role: str) -> dict[str, Any] | None:
    try:
        with root.open_read(relative) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = os.fstat(file.fileno()).st_size
    except (OSError, SpanfoldError):
        return None
    name = relative.rpartition("/")[2]
    return {
        "artifact_id": f"sha256:{digest}",
        "role": role,
        "path": relative,
        "filename": name,
        "mime_type": mimetypes.guess_type(name, strict=False)[0] or "application/octet-stream",
        "size_bytes": size,
    }
