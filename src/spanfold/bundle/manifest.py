"""What a bundle says of itself: `manifest.json`, the first member (docs/formats/bundle-v1.md)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import orjson

from spanfold.bundle._members import FOLDER, is_journal
from spanfold.errors import BundleCorrupt, BundleError, UnsafePathError
from spanfold.fs import split_relative
from spanfold.journal import Head

SCHEMA: Final = "spanfold.bundle/1"
MAX_MANIFEST_BYTES: Final = 1 << 28
"""A longer manifest, of about a million files, is not read."""

EntryKind = Literal["journal", "document", "artifact", "other"]
Status = Literal["running", "completed", "failed", "interrupted"]

_SHA256_HEX: Final = frozenset("0123456789abcdef")
_SHA256_DIGITS: Final = hashlib.sha256().digest_size * 2
_MAX_MTIME_S: Final = 1 << 33


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the run."""

    path: str
    """In the run directory, joined by `/`; in the archive `run/` stands before it."""
    size_bytes: int
    sha256: str
    """64 lower-case hex digits."""
    kind: EntryKind
    """`journal`; `document`: made from the journal; `artifact`: the journal names it; `other`: it does not."""

    @property
    def member(self) -> str:
        """Name in the archive."""
        return FOLDER + self.path


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle holds and where it came from."""

    run_name: str | None
    trace_id: str | None
    """Of the run's own span, 32 hex digits."""
    status: Status
    """`running`: it was exported while its process lived. `interrupted`: its process died, or it was recovered."""
    start: str | None
    """`2026-11-30T17:52:26.819391Z`."""
    end: str | None
    """None when the run never ended."""
    recorded_by: str | None
    """Version of spanfold that recorded the run."""
    exported_by: str
    """Version of spanfold that made the bundle."""
    fold: str
    """Version of the documents: another one may write the same journal down in other bytes."""
    sealed: bool
    """Whether the journal has its seal."""
    head: str
    """`spanfold.seal.head` as the run's own span must carry it, 64 hex; empty before the run has ended."""
    heads: Mapping[str, Head]
    """Journal file -> its last whole line, the hash of it, and the bytes up to its end."""
    left_out: Mapping[str, str]
    """Path in the run directory -> why it is not in the bundle."""
    mtime_s: int
    """Time of every member, seconds since the epoch: the start of the run."""
    entries: tuple[Entry, ...]
    """In the order of the archive."""
    damage: str = ""
    """What the journal had lost when the run was exported, in a sentence; empty when nothing."""


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of `manifest.json`; the same for the same manifest."""
    document = {
        "schema": SCHEMA,
        "run": {
            "name": manifest.run_name,
            "trace_id": manifest.trace_id,
            "status": manifest.status,
            "start": manifest.start,
            "end": manifest.end,
        },
        "recorded_by": manifest.recorded_by,
        "exported_by": manifest.exported_by,
        "fold": manifest.fold,
        "journal": {
            "sealed": manifest.sealed,
            "head": manifest.head,
            "files": {name: head._asdict() for name, head in sorted(manifest.heads.items())},
            **({"damage": manifest.damage} if manifest.damage else {}),
        },
        "left_out": dict(sorted(manifest.left_out.items())),
        "mtime_s": manifest.mtime_s,
        "entries": [
            {"path": e.path, "size_bytes": e.size_bytes, "sha256": e.sha256, "kind": e.kind} for e in manifest.entries
        ],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def decode_manifest(data: bytes, where: Path) -> Manifest:
    """Read the bytes of `manifest.json`. Fields that are not known are passed over.

    Args:
        data: The bytes.
        where: The bundle, for messages.

    Raises:
        BundleCorrupt: They are no manifest, or one that no export makes.
        BundleError: The bundle is of another version.
    """
    try:
        document: Any = orjson.loads(data)
        schema = document["schema"]
    except (ValueError, TypeError, LookupError):
        raise _corrupt(where, "JSON with a schema", "something else") from None
    if schema != SCHEMA:
        raise BundleError(
            f"{where}: expected a bundle of schema {SCHEMA}, found another one. "
            "Read it with the version of spanfold that exported it, or a newer one."
        )
    try:
        manifest = _manifest(document)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise _corrupt(where, "every field of its type", f"a field that is not ({type(error).__name__})") from None
    _check_paths(manifest, where)
    return manifest


def _manifest(document: dict[str, Any]) -> Manifest:
    run, journal = document["run"], document["journal"]
    return Manifest(
        run_name=_text_or_none(run["name"]),
        trace_id=_text_or_none(run["trace_id"]),
        status=_one_of(Status, run["status"]),
        start=_text_or_none(run["start"]),
        end=_text_or_none(run["end"]),
        recorded_by=_text_or_none(document["recorded_by"]),
        exported_by=_text(document["exported_by"]),
        fold=_text(document["fold"]),
        sealed=_boolean(journal["sealed"]),
        head=_text(journal["head"]),
        heads={
            name: Head(_size(head["seq"]), _text(head["head"]), _size(head["size"]))
            for name, head in journal["files"].items()
        },
        left_out={path: _text(reason) for path, reason in document["left_out"].items()},
        mtime_s=_size(document["mtime_s"], limit=_MAX_MTIME_S),
        entries=tuple(
            Entry(_text(e["path"]), _size(e["size_bytes"]), _sha256(e["sha256"]), _one_of(EntryKind, e["kind"]))
            for e in document["entries"]
        ),
        damage=_text(journal.get("damage", "")),
    )


def _check_paths(manifest: Manifest, where: Path) -> None:
    """Refuse names that no run directory can hold together, or that could reach out of one."""
    files: set[str] = set()
    folders: set[str] = set()
    for entry in manifest.entries:
        try:
            parts = split_relative(entry.path)
        except UnsafePathError as error:
            raise BundleCorrupt(f"{where}, manifest.json: {error}") from None
        if entry.path in files:
            raise _corrupt(where, "every path once", f"{entry.path!a} twice")
        if (entry.kind == "journal") != is_journal(entry.path):
            raise _corrupt(where, "the kind that belongs to each path", f"{entry.kind} for {entry.path!a}")
        files.add(entry.path)
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    if both := files & folders:
        raise _corrupt(where, "paths of files", f"{min(both)!a} as file and folder")


def _corrupt(where: Path, expected: str, found: str) -> BundleCorrupt:
    return BundleCorrupt(
        f"{where}, manifest.json: expected {expected}, found {found}. Export the run again, or take another copy."
    )


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError
    return value


def _size(value: Any, limit: int = 1 << 63) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise TypeError
    return value


def _sha256(value: Any) -> str:
    if len(_text(value)) != _SHA256_DIGITS or not _SHA256_HEX.issuperset(value):
        raise ValueError
    return cast("str", value)


def _one_of(choices: Any, value: Any) -> Any:
    if value not in get_args(choices):
        raise ValueError
    return value
