"""Bundles that were exported once are verified by every later version."""

from pathlib import Path

import pytest
from zstandard import ZstdDecompressor

from spanfold.bundle import read_manifest, verify
from tests.bundle.archives import members, pack

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize(
    ("name", "status", "journals"),
    [("completed", "completed", 1), ("family", "completed", 2), ("interrupted", "interrupted", 1)],
)
def test_a_golden_bundle_is_verified(name: str, status: str, journals: int) -> None:
    verdict = verify(GOLDEN / f"{name}.spanfold.tar.zst")

    assert (verdict.ok, verdict.findings, verdict.status) == (True, (), status)
    assert sum(entry.kind == "journal" for entry in verdict.entries) == journals
    assert bool(verdict.head) == (status == "completed")


def test_a_golden_bundle_says_what_it_holds() -> None:
    manifest = read_manifest(GOLDEN / "completed.spanfold.tar.zst")

    assert (manifest.run_name, manifest.sealed) == ("digits", True)
    assert [entry.path for entry in manifest.entries if entry.kind != "journal"] == [
        "M1/log.json",
        "langfuse_trace.json",
        "run.json",
        "stages/warm_up-b61368bc/log.json",
        "timings.jsonl",
        "M1/artifacts/c0_attn_map.npy",
        "M1/artifacts/c0_attn_map.png",
        "M1/artifacts/c0_notes.txt",
        "artifacts/config.json",
    ]


@pytest.mark.parametrize("name", ["completed", "family", "interrupted"])
def test_the_archive_in_a_golden_bundle_is_made_the_same_today(name: str) -> None:
    """Byte for byte as a tar file; how well it is compressed is up to the version of zstd."""
    path = GOLDEN / f"{name}.spanfold.tar.zst"

    assert tar(pack(members(path))) == tar(path.read_bytes())


def tar(bundle: bytes) -> bytes:
    return ZstdDecompressor().stream_reader(bundle, read_across_frames=True).read()
