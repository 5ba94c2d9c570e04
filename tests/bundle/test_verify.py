"""Every changed byte is found, and named with member and range."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.bundle import BundleFinding, BundleVerdict, export, read_manifest, verify
from spanfold.errors import BundleCorrupt, SpanfoldError
from tests.bundle import runs
from tests.bundle.archives import unpack


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return export(runs.record_small(tmp_path_factory.mktemp("runs") / "001")).path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("changed") / "x.spanfold.tar.zst"


def verdict_on(data: bytes, path: Path) -> BundleVerdict:
    path.write_bytes(data)
    return verify(path)


def errors(verdict: BundleVerdict) -> list[BundleFinding]:
    return [finding for finding in verdict.findings if finding.severity == "error"]


def frames(bundle: bytes, path: Path) -> dict[str, tuple[int, int]]:
    """Return member -> range of its bytes in a bundle whose members are of one frame each."""
    path.write_bytes(bundle)
    found: dict[str, tuple[int, int]] = {}
    at = 0
    for name in [*unpack(path), ""]:
        end = bundle.index(b"\x28\xb5\x2f\xfd", at + 1) if name else bundle.index(b"\x53\x2a\x4d\x18", at)
        found[name] = at, end
        at = end
    return found


def test_an_untouched_bundle_has_no_finding(small: bytes, scratch: Path) -> None:
    verdict = verdict_on(small, scratch)

    assert (verdict.ok, verdict.findings, verdict.status) == (True, (), "completed")
    assert [entry.member for entry in verdict.entries] == list(unpack(scratch))[1:]
    assert verdict.manifest == read_manifest(scratch)
    assert verdict.manifest is not None
    assert verdict.head == verdict.manifest.head


@given(data=st.data())
def test_one_changed_byte_is_one_finding_with_its_member_and_range(
    small: bytes, scratch: Path, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(small) - 1), "at")
    byte = data.draw(st.integers(1, 255), "xor")
    where = frames(small, scratch)
    [finding] = errors(verdict_on(small[:at] + bytes([small[at] ^ byte]) + small[at + 1 :], scratch))

    member = next((name for name, (begin, end) in where.items() if begin <= at < end), "")
    assert (finding.entry, finding.place, finding.code) == (member, "bundle", "edited")
    is_index = at >= where[""][1]
    assert (finding.offset, finding.length) == (
        (at, 1) if is_index else (where[member][0], where[member][1] - where[member][0])
    )


@given(data=st.data())
def test_bytes_that_were_cut_off_are_found_where_they_began(small: bytes, scratch: Path, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(small) - 1))
    verdict = verdict_on(small[:size], scratch)
    first = errors(verdict)[0]

    assert (first.code, first.place) == ("truncated", "bundle")
    assert first.offset + first.length == size
    # Everything that was to come behind it is named as missing.
    if verdict.manifest is not None:
        names = [entry.member for entry in verdict.entries]
        read = names.index(first.entry) if first.entry else len(names)
        assert [finding.entry for finding in errors(verdict)[1:]] == names[read + 1 :]


@given(at=st.integers(0, 1 << 20), more=st.binary(min_size=1, max_size=200))
def test_bytes_that_were_put_in_are_one_finding_around_their_place(
    small: bytes, scratch: Path, at: int, more: bytes
) -> None:
    at %= len(small) + 1
    [finding] = errors(verdict_on(small[:at] + more + small[at:], scratch))

    assert finding.place == "bundle"
    assert finding.offset <= at + len(more)
    assert finding.offset + finding.length >= at


@given(at=st.integers(0, 1 << 20), length=st.integers(1, 300))
def test_bytes_that_were_taken_out_are_found(small: bytes, scratch: Path, at: int, length: int) -> None:
    at %= len(small)
    found = errors(verdict_on(small[:at] + small[at + length :], scratch))

    assert found
    assert any(
        finding.offset <= at <= finding.offset + finding.length for finding in found if finding.place == "bundle"
    )


@given(edits=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=2, max_size=6))
def test_several_changed_bytes_never_pass(small: bytes, scratch: Path, edits: list[tuple[int, int]]) -> None:
    changed = bytearray(small)
    for at, byte in edits:
        changed[at % len(small)] ^= byte
    if changed == small:
        return

    assert not verdict_on(bytes(changed), scratch).ok


@given(junk=st.one_of(st.binary(max_size=300), st.just(b"\x28\xb5\x2f\xfd"), st.just(b"\0" * 4096)))
def test_bytes_that_are_no_bundle_are_never_a_crash(scratch: Path, junk: bytes) -> None:
    verdict = verdict_on(junk, scratch)

    assert (verdict.ok, verdict.manifest, verdict.entries) == (False, None, ())
    with pytest.raises(BundleCorrupt):
        read_manifest(scratch)


@pytest.mark.slow
def test_every_single_byte_of_a_bundle_counts(small: bytes, scratch: Path) -> None:
    for at in range(0, len(small), 3):
        changed = bytearray(small)
        changed[at] ^= 1 << at % 8
        verdict = verdict_on(bytes(changed), scratch)
        assert len(errors(verdict)) == 1, (at, verdict.findings)


def test_what_is_not_damaged_is_still_read(small: bytes, scratch: Path) -> None:
    begin, end = frames(small, scratch)["run/run.json"]
    verdict = verdict_on(small[:begin] + bytes(end - begin) + small[end:], scratch)

    assert [(f.entry, f.severity) for f in verdict.findings] == [("run/run.json", "error")]


def test_a_damaged_journal_keeps_the_rest_from_being_compared_and_says_so(small: bytes, scratch: Path) -> None:
    [(name, (begin, _))] = [(n, r) for n, r in frames(small, scratch).items() if n.startswith("run/journal/")]
    verdict = verdict_on(small[: begin + 40] + b"!" + small[begin + 41 :], scratch)

    assert [(f.code, f.entry) for f in verdict.findings] == [("edited", name), ("unchecked", "")]


def test_a_damaged_manifest_is_named_and_so_is_other_damage(small: bytes, scratch: Path) -> None:
    where = frames(small, scratch)
    changed = bytearray(small)
    changed[where["manifest.json"][0] + 50] ^= 1
    changed[where["run/run.json"][0] + 50] ^= 1
    verdict = verdict_on(bytes(changed), scratch)

    assert verdict.manifest is None
    assert [finding.entry for finding in verdict.findings] == ["manifest.json", ""]
    begin, end = where["run/run.json"]
    assert (verdict.findings[1].offset, verdict.findings[1].length) == (begin, end - begin)
    with pytest.raises(BundleCorrupt, match="expected the frame that was written"):
        read_manifest(scratch)


def test_two_bundles_one_behind_the_other_are_no_bundle(small: bytes, scratch: Path, tmp_path: Path) -> None:
    other = export(runs.record_small(tmp_path / "002")).path.read_bytes()
    [finding] = errors(verdict_on(other + small, scratch))

    assert (finding.code, finding.place, finding.offset, finding.length) == ("foreign", "bundle", 0, len(other))


def test_large_files_are_named_by_the_part_that_changed(tmp_path: Path) -> None:
    run_dir = runs.record_small(tmp_path / "001")
    (run_dir / "large.bin").write_bytes(os.urandom(5 << 20))
    bundle = export(run_dir).path
    data = bytearray(bundle.read_bytes())
    at = len(data) // 2
    data[at] ^= 1
    [finding] = errors(verdict_on(bytes(data), bundle))

    assert finding.entry == "run/large.bin"
    assert finding.offset <= at < finding.offset + finding.length
    assert finding.length < (1 << 20) + 100


def test_a_link_to_a_bundle_is_followed(small: bytes, scratch: Path, tmp_path: Path) -> None:
    scratch.write_bytes(small)
    (tmp_path / "link").symlink_to(scratch)

    assert verify(tmp_path / "link").ok


def test_verifying_needs_only_the_bundle_and_leaves_nothing(
    small: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    bundle = tmp_path / "x.zst"
    bundle.write_bytes(small)
    bundle.chmod(0o400)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))

    assert verify(bundle).ok
    assert os.listdir(tmp_path / "tmp") == []
    assert sorted(os.listdir(tmp_path)) == ["tmp", "x.zst"]


@pytest.mark.case("C-073")
@pytest.mark.parametrize(
    ("data", "dialect"),
    [
        (b'{"resourceSpans":[]}\n', "otlp-json-lines"),
        (b'{"data":[{"traceID":"5b8aa5a2d2c872e8321cf37308d69df2","spans":[]}]}', "jaeger-json"),
        (b"", "only its beginning"),
        (b"\x1f\x8b\x08\x00", "a damaged archive"),
    ],
)
def test_another_trace_file_is_named_by_its_dialect(scratch: Path, data: bytes, dialect: str) -> None:
    [finding] = verdict_on(data, scratch).findings

    assert dialect in finding.detail
    with pytest.raises(SpanfoldError, match=dialect):
        read_manifest(scratch)


@pytest.mark.case("C-073")
def test_the_journal_in_a_bundle_is_otlp_json_that_other_tools_read(tmp_path: Path) -> None:
    contents = unpack(export(runs.record(tmp_path / "001")).path)
    [journal] = [data for name, data in contents.items() if name.startswith("run/journal/")]

    assert journal.endswith(b"\n")
    for line in journal.splitlines():
        request = json.loads(line)
        [(kind, [resource])] = request.items()
        scope = resource["scopeSpans" if kind == "resourceSpans" else "scopeLogs"][0]
        for record in scope.get("spans", []) + scope.get("logRecords", []):
            # The seal belongs to no span; an absent id is empty text, never zeros.
            assert record["traceId"] == "" or (len(record["traceId"]) == 32 and int(record["traceId"], 16))
            assert record["spanId"] == "" or (len(record["spanId"]) == 16 and int(record["spanId"], 16))
            assert all(type(value) is str for key, value in record.items() if key.endswith("UnixNano"))
