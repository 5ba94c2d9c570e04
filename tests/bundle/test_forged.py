"""Bundles that somebody wrote who knows the format: sizes, hashes and index fit, and still nothing false passes."""

import hashlib
import json
import os
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from spanfold.bundle import BundleFinding, export, read_manifest, verify
from spanfold.errors import BundleCorrupt, BundleError
from tests.bundle import runs
from tests.bundle.archives import Content, edit_manifest, forge, index, info_of, member, members, pack

pytestmark = pytest.mark.slow


@pytest.fixture
def bundle(tmp_path: Path, whole: bytes) -> Path:
    path = tmp_path / "001.spanfold.tar.zst"
    path.write_bytes(whole)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return export(runs.record(tmp_path_factory.mktemp("runs") / "001")).path.read_bytes()


def found_in(bundle: Path) -> list[BundleFinding]:
    verdict = verify(bundle)
    assert verdict.ok == (not verdict.findings)
    return list(verdict.findings)


def replace(name: str, old: bytes, new: bytes) -> Callable[[dict[str, bytes]], None]:
    def edit(found: dict[str, bytes]) -> None:
        [path] = [path for path in found if path.startswith(name)]
        assert old in found[path]
        found[path] = found[path].replace(old, new, 1)

    return edit


def test_our_own_writer_and_the_one_of_these_tests_agree(bundle: Path) -> None:
    assert pack(members(bundle)) == bundle.read_bytes()


def test_forging_nothing_passes(bundle: Path) -> None:
    forge(bundle, lambda found: None)

    assert found_in(bundle) == []


# -- false content with hashes that fit


def test_a_changed_record_is_named_by_the_chain_of_the_journal(bundle: Path) -> None:
    forge(bundle, replace("run/journal/", b'"stringValue":"high"', b'"stringValue":"none"'))
    findings = found_in(bundle)

    assert {f.entry.partition("/journal/")[0] for f in findings if f.code == "edited"} >= {"run"}
    first = findings[0]
    [(journal, data)] = [(i.name, d) for i, d in members(bundle) if i.name.startswith("run/journal/")]
    assert (first.entry, first.place) == (journal, "entry")
    assert b'"none"' in data[first.offset : first.offset + first.length]
    assert data[first.offset : first.offset + first.length].count(b"\n") == 1


def test_a_changed_document_is_named_by_making_it_again(bundle: Path) -> None:
    forge(bundle, replace("run/M1/log.json", b'"high"', b'"none"'))
    [finding] = found_in(bundle)
    data = {info.name: data for info, data in members(bundle)}["run/M1/log.json"]

    assert (finding.code, finding.entry, finding.place) == ("edited", "run/M1/log.json", "entry")
    assert data[finding.offset : finding.offset + finding.length] in b"none"
    assert finding.offset == data.index(b"none")


def test_a_changed_artifact_is_named_by_the_hash_in_the_journal(bundle: Path) -> None:
    forge(bundle, replace("run/M1/artifacts/c0_notes.txt", b"came", b"went"))
    [finding] = found_in(bundle)

    assert (finding.code, finding.entry) == ("edited", "run/M1/artifacts/c0_notes.txt")
    assert "hash the journal has" in finding.detail


def test_content_that_the_manifest_does_not_vouch_for_is_named(bundle: Path) -> None:
    forge(bundle, replace("run/M1/artifacts/c0_attn_map.png", b"IDAT", b"IDOT"), rehash=False)
    [finding] = found_in(bundle)

    assert (finding.code, finding.entry, finding.place) == ("edited", "run/M1/artifacts/c0_attn_map.png", "entry")


@pytest.mark.parametrize("name", ["run/M1/log.json", "run/run.json", "run/M1/artifacts/c0_notes.txt"])
def test_a_file_that_the_journal_needs_is_missed(bundle: Path, name: str) -> None:
    forge(bundle, lambda found: found.pop(name) and None)
    [finding] = found_in(bundle)

    assert (finding.code, finding.entry) == ("missing", name)


def test_a_journal_that_is_gone_is_missed(bundle: Path) -> None:
    forge(bundle, lambda found: found.pop(next(name for name in found if "/journal/" in name)) and None)
    [finding] = found_in(bundle)

    assert (finding.code, finding.entry) == ("missing", "run/journal")


def test_one_of_several_journal_files_that_is_gone_is_missed(tmp_path: Path) -> None:
    bundle = export(runs.record_with_children(tmp_path / "001")).path
    gone = max(entry.member for entry in read_manifest(bundle).entries if entry.kind == "journal")

    def edit(found: dict[str, bytes]) -> None:
        del found[gone]
        manifest = json.loads(found["manifest.json"])
        del manifest["journal"]["files"][gone.removeprefix("run/journal/")]
        found["manifest.json"] = json.dumps(manifest).encode()

    forge(bundle, edit)

    assert ("missing", gone) in {(finding.code, finding.entry) for finding in found_in(bundle)}


def test_a_document_of_another_run_is_foreign(bundle: Path) -> None:
    def edit(found: dict[str, bytes]) -> None:
        found["run/M3/log.json"] = b"{}"

    forge(bundle, edit)
    edit_manifest(bundle, lambda manifest: manifest["entries"][-1].update(kind="document"))

    assert [(f.code, f.entry) for f in found_in(bundle)] == [("foreign", "run/M3/log.json")]


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("run", "name", "another"),
        ("run", "trace_id", "0" * 31 + "1"),
        ("run", "status", "failed"),
        ("run", "status", "interrupted"),
        ("run", "status", "running"),
        ("run", "start", "2020-01-01T00:00:00.000000Z"),
        ("run", "end", None),
        ("journal", "sealed", False),
        ("journal", "head", "0" * 64),
        ("journal", "files", {}),
        (None, "recorded_by", "99"),
    ],
)
def test_a_manifest_that_says_of_the_run_what_its_journal_does_not_is_named(
    bundle: Path, part: str | None, key: str, value: object
) -> None:
    edit_manifest(bundle, lambda manifest: (manifest[part] if part else manifest).update({key: value}))
    [finding] = found_in(bundle)

    assert (finding.code, finding.entry) == ("contradiction", "manifest.json")
    assert key in finding.detail
    assert str(value) not in finding.detail.replace("another value", "")


def test_an_unfinished_run_cannot_be_called_complete(tmp_path: Path) -> None:
    bundle = export(runs.record_killed(tmp_path / "001")).path
    edit_manifest(bundle, lambda manifest: manifest["run"].update(status="completed"))

    assert [finding.code for finding in found_in(bundle)] == ["contradiction"]


def test_documents_of_another_version_are_not_compared_and_it_says_so(bundle: Path) -> None:
    forge(bundle, replace("run/M1/log.json", b'"high"', b'"none"'))
    edit_manifest(bundle, lambda manifest: manifest.update(fold="spanfold.fold/999"))
    verdict = verify(bundle)

    assert verdict.ok
    [finding] = verdict.findings
    assert (finding.code, finding.severity) == ("unchecked", "info")
    assert "spanfold.fold/999" in finding.detail


def test_a_bundle_of_another_version_is_refused_with_advice(bundle: Path) -> None:
    edit_manifest(bundle, lambda manifest: manifest.update(schema="spanfold.bundle/2"))

    for read in (verify, read_manifest):
        with pytest.raises(BundleError, match="or a newer one"):
            read(bundle)


def test_fields_that_are_not_known_are_passed_over(bundle: Path) -> None:
    edit_manifest(bundle, lambda manifest: manifest.update(later={"x": 1}))
    edit_manifest(bundle, lambda manifest: manifest["entries"][0].update(later=1))

    assert found_in(bundle) == []


# -- members that do not belong there


def with_members(bundle: Path, edit: Callable[[list[Content]], None]) -> None:
    contents = members(bundle)
    edit(contents)
    bundle.write_bytes(pack(contents))


UNSAFE: list[tuple[str, dict[str, Any]]] = [
    ("run/link", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
    ("run/hard", {"type": tarfile.LNKTYPE, "linkname": "run/run.json"}),
    ("run/device", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
    ("run/disk", {"type": tarfile.BLKTYPE}),
    ("run/pipe", {"type": tarfile.FIFOTYPE}),
    ("run/M1", {"type": tarfile.DIRTYPE}),
    ("/etc/cron.d/x", {}),
    ("../x", {}),
    ("run/../../x", {}),
    ("x", {}),
]


@pytest.mark.parametrize(("name", "fields"), UNSAFE)
@pytest.mark.parametrize("place", ["after the manifest", "in the middle", "at the end"])
def test_a_member_that_leads_out_of_the_bundle_is_named_and_never_made(
    bundle: Path, name: str, fields: dict[str, Any], place: str
) -> None:
    at = {"after the manifest": 1, "in the middle": 4, "at the end": 1000}[place]
    with_members(bundle, lambda contents: contents.insert(at, (info_of(name, **fields), b"" if fields else b"boo")))
    [finding] = found_in(bundle)

    assert (finding.code, finding.entry, finding.place) == ("unsafe", name, "bundle")
    assert finding.length > 0


def test_a_file_that_the_manifest_does_not_name_is_foreign(bundle: Path) -> None:
    with_members(bundle, lambda contents: contents.insert(3, (info_of("run/extra"), b"x" * (3 << 20))))
    findings = found_in(bundle)

    assert {finding.code for finding in findings} == {"foreign"}
    assert findings[0].entry == "run/extra"


def test_a_file_that_comes_twice_is_named(bundle: Path) -> None:
    with_members(bundle, lambda contents: contents.append(contents[2]))
    [finding] = found_in(bundle)

    assert (finding.code, finding.entry) == ("duplicate", members(bundle)[2][0].name)


def test_a_second_manifest_is_foreign(bundle: Path) -> None:
    with_members(bundle, lambda contents: contents.append(contents[0]))

    assert [finding.entry for finding in found_in(bundle)] == ["manifest.json"]


def test_a_member_that_is_missing_is_named_and_the_rest_is_read(bundle: Path) -> None:
    gone = members(bundle)[-2][0].name
    with_members(bundle, lambda contents: contents.pop(-2) and None)
    [finding] = found_in(bundle)

    assert (finding.code, finding.entry) == ("missing", gone)


def test_a_member_missing_before_one_with_a_long_name_is_named(tmp_path: Path) -> None:
    run_dir = runs.record_small(tmp_path / "001")
    for name in ("a.txt", "b" * 200, "c" * 200):
        (run_dir / name).write_text(name)
    bundle = export(run_dir).path
    with_members(bundle, lambda contents: contents.pop(-2) and None)

    assert [(f.code, f.entry) for f in found_in(bundle)] == [("missing", "run/" + "b" * 200)]


def test_a_link_in_the_place_of_a_file_is_named(bundle: Path) -> None:
    name = members(bundle)[-1][0].name
    link = info_of(name, type=tarfile.SYMTYPE, linkname="/etc/passwd"), b""
    with_members(bundle, lambda contents: contents.__setitem__(-1, link))

    assert ("unsafe", name) in {(finding.code, finding.entry) for finding in found_in(bundle)}


@pytest.mark.parametrize("field", ["mode", "uid", "mtime"])
def test_another_header_is_named(bundle: Path, field: str) -> None:
    with_members(bundle, lambda contents: setattr(contents[-1][0], field, 0o777))
    [finding] = found_in(bundle)

    assert (finding.code, finding.entry) == ("edited", members(bundle)[-1][0].name)


def test_bytes_hidden_behind_a_file_are_named(bundle: Path) -> None:
    contents = members(bundle)
    name = contents[-1][0].name
    part = bytearray(member(*contents[-1]))
    assert part[-1] == 0
    part[-1] = 1
    plain = pack(contents[:-1], end=b"")
    bundle.write_bytes(_with(plain, [bytes(part), bytes(1024)]))
    [finding] = found_in(bundle)

    assert (finding.code, finding.entry) == ("edited", name)
    assert "zeros behind it" in finding.detail


def test_an_archive_without_an_end_and_one_with_two_are_named(bundle: Path) -> None:
    contents = members(bundle)
    bundle.write_bytes(pack(contents, end=b""))
    assert [finding.code for finding in found_in(bundle)] == ["truncated"]

    bundle.write_bytes(_with(pack(contents), [bytes(1024)]))
    assert [finding.code for finding in found_in(bundle)] == ["foreign"]


def _with(bundle: bytes, parts: list[bytes]) -> bytes:
    """Return a bundle with more frames behind those it has."""
    count = struct.unpack("<I", bundle[-20:-16])[0]
    frames, records = bundle[: -(60 + 40 * count)], bundle[-(52 + 40 * count) : -52]
    for part in parts:
        frame = zstandard.ZstdCompressor(write_checksum=True).compress(part)
        frames += frame
        records += struct.pack("<II", len(frame), len(part)) + hashlib.sha256(frame).digest()
    return frames + index(records)


# -- manifests that no export writes


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"path": "../x"}, "the component '..'"),
        ({"path": "/etc/passwd"}, "an empty component"),
        ({"path": "a//b"}, "an empty component"),
        ({"path": "a\x00b"}, "NUL"),
        ({"path": ""}, "an empty component"),
        ({"path": "x" * 300}, "300 bytes"),
        ({"path": "run.json"}, "'run.json' twice"),
        ({"path": "run.json/x"}, "'run.json' as file and folder"),
        ({"path": "journal/x.otlp.jsonl"}, "other for 'journal/x.otlp.jsonl'"),
        ({"path": "x", "kind": "journal"}, "journal for 'x'"),
        ({"path": "x", "kind": "strange"}, "a field that is not"),
        ({"path": 1}, "a field that is not"),
        ({"path": "x", "size_bytes": -1}, "a field that is not"),
        ({"path": "x", "size_bytes": True}, "a field that is not"),
        ({"path": "x", "sha256": "0" * 63}, "a field that is not"),
        ({"path": "x", "sha256": "G" * 64}, "a field that is not"),
    ],
)
def test_an_entry_that_no_export_writes_is_refused(bundle: Path, entry: dict[str, Any], problem: str) -> None:
    whole = {"size_bytes": 0, "sha256": hashlib.sha256(b"").hexdigest(), "kind": "other", **entry}
    edit_manifest(bundle, lambda manifest: manifest["entries"].append(whole))

    with pytest.raises(BundleCorrupt) as caught:
        read_manifest(bundle)
    assert problem in str(caught.value)
    [finding] = found_in(bundle)
    assert (finding.entry, verify(bundle).entries) == ("manifest.json", ())


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b'{"schema":1}', b'{"schema":"spanfold.bundle/1"}', b"\xff" * 9])
def test_a_manifest_of_another_form_is_refused(bundle: Path, data: bytes) -> None:
    contents = members(bundle)
    bundle.write_bytes(pack([(info_of("manifest.json"), data), *contents[1:]]))

    with pytest.raises(BundleError):
        read_manifest(bundle)


def test_an_archive_without_a_manifest_is_no_bundle(bundle: Path) -> None:
    with_members(bundle, lambda contents: contents.pop(0) and None)
    [finding] = found_in(bundle)

    assert (finding.code, finding.entry) == ("missing", "manifest.json")


# -- bombs


def test_a_manifest_that_promises_more_than_is_allowed_is_refused(bundle: Path) -> None:
    with pytest.raises(BundleError, match="expected at most 1000 bytes"):
        verify(bundle, max_unpacked_bytes=1000)
    edit_manifest(bundle, lambda manifest: manifest["entries"][-1].update(size_bytes=1 << 50))
    with pytest.raises(BundleError, match="unpacks to"):
        verify(bundle)


def frame_that_says(size: int) -> bytes:
    """A frame of zeros whose header promises another size than it has."""
    frame = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(bytes(1 << 20)))
    assert frame[4] >> 6 == 2, "a content size of four bytes"
    frame[5:9] = struct.pack("<I", size)
    return bytes(frame)


def long_frame() -> bytes:
    """A well-formed frame of 4 GiB in 100 kB or so."""
    compressor = zstandard.ZstdCompressor(write_checksum=True).compressobj(size=4 << 30)
    return b"".join(compressor.compress(bytes(1 << 24)) for _ in range(256)) + compressor.flush()


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param(frame_that_says(1 << 31), id="promises more"),
        pytest.param(frame_that_says(10), id="promises less"),
        pytest.param(None, id="is long", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("has_index", [True, False])
def test_a_frame_that_unpacks_to_more_than_it_may_costs_no_memory(
    tmp_path: Path, whole: bytes, bomb: bytes | None, has_index: bool
) -> None:
    bomb = long_frame() if bomb is None else bomb
    records = struct.pack("<II", len(bomb), 1 << 20) + hashlib.sha256(bomb).digest()
    bundle = tmp_path / "bomb.zst"
    bundle.write_bytes(bomb + (index(records) if has_index else whole))
    program = """
import resource, sys
from spanfold.bundle import verify
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert not verify(sys.argv[1]).ok
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(bundle)], capture_output=True, text=True, check=True, timeout=60
    )

    assert int(done.stdout) < 60


def test_an_index_that_promises_more_than_there_is_is_not_believed(bundle: Path) -> None:
    data = bundle.read_bytes()
    bundle.write_bytes(data[:-20] + struct.pack("<I", 0xFFFFFFFF) + data[-16:])
    [finding] = found_in(bundle)

    assert (finding.entry, finding.place) == ("", "bundle")
    assert (finding.offset, finding.length) == (len(data) - 20, 4)


def test_nothing_is_written_anywhere_but_in_the_private_folder(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp" / "deep").mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp" / "deep"))
    with_members(bundle, lambda contents: contents.insert(1, (info_of("../../planted"), b"boo")))
    with_members(bundle, lambda contents: contents.insert(1, (info_of("run/M1/../../../planted"), b"boo")))
    before = sorted(str(path) for path in tmp_path.rglob("*"))

    assert not verify(bundle).ok
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    assert os.listdir(tmp_path / "tmp" / "deep") == []
