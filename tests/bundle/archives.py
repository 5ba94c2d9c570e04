"""Read and write bundles by other means than the code under test: tarfile, zstandard, and the page on the format."""

import hashlib
import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

FRAME_BYTES = 1 << 20
END = bytes(1024)

Content = tuple[tarfile.TarInfo, bytes]


def unpack(bundle: Path) -> dict[str, bytes]:
    """Return name -> bytes of every member, in order."""
    return {info.name: data for info, data in members(bundle)}


def members(bundle: Path) -> list[Content]:
    """Return header and bytes of every member, in order."""
    with bundle.open("rb") as file:
        tar = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        found: list[Content] = []
        for info in archive:
            opened = archive.extractfile(info)
            found.append((info, opened.read() if opened else b""))
    return found


def pack(contents: list[Content], *, end: bytes = END) -> bytes:
    """Write a bundle of any members, consistent in itself."""
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
    out, records = b"", b""
    for part in [*(member(info, data) for info, data in contents), end]:
        for at in range(0, len(part), FRAME_BYTES):
            content = part[at : at + FRAME_BYTES]
            frame = compressor.compress(content)
            out += frame
            records += struct.pack("<II", len(frame), len(content)) + hashlib.sha256(frame).digest()
    return out + index(records)


def index(records: bytes) -> bytes:
    """Write an index of these records."""
    payload = records + hashlib.sha256(records).digest() + struct.pack("<I", len(records) // 40) + b"spanfold-index/1"
    return struct.pack("<II", 0x184D2A53, len(payload)) + payload


def member(info: tarfile.TarInfo, data: bytes) -> bytes:
    """Write one member as tar bytes."""
    info.size = len(data) if info.isreg() else 0
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") + data + bytes(-len(data) % 512)


def info_of(name: str, mtime: int = 0, **fields: Any) -> tarfile.TarInfo:
    """Make a header."""
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = 0o600, mtime
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def forge(bundle: Path, edit: Callable[[dict[str, bytes]], None], *, rehash: bool = True) -> None:
    """Change a bundle the way somebody does who can write them: all sizes, hashes and the index fit again.

    Args:
        bundle: Changed in place.
        edit: Changes name -> bytes of the members; `manifest.json` is among them.
        rehash: Make the hashes in the manifest those of the members.
    """
    contents = members(bundle)
    mtime = int(contents[0][0].mtime)
    found = {info.name: data for info, data in contents}
    edit(found)
    manifest = json.loads(found.pop("manifest.json"))
    if rehash:
        kinds = {entry["path"]: entry["kind"] for entry in manifest["entries"]}
        manifest["entries"] = [
            {
                "path": name.removeprefix("run/"),
                "size_bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "kind": kinds.get(name.removeprefix("run/"), "other"),
            }
            for name, data in found.items()
        ]
    text = json.dumps(manifest, indent=2, ensure_ascii=False).encode() + b"\n"
    bundle.write_bytes(pack([(info_of(name, mtime), data) for name, data in {"manifest.json": text, **found}.items()]))


def edit_manifest(bundle: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest of a bundle and nothing else."""

    def change(found: dict[str, bytes]) -> None:
        manifest = json.loads(found["manifest.json"])
        edit(manifest)
        found["manifest.json"] = json.dumps(manifest).encode()

    forge(bundle, change, rehash=False)
