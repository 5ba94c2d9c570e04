"""A sealed journal in which anything was changed is named, file and place."""

import hashlib
import itertools
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.errors import JournalMissing
from spanfold.journal._verify import JournalVerdict, verify_journal
from tests.journal.samples import CHILD, OWNER, START, File, line, small_run, span, started


def codes(verdict: JournalVerdict) -> list[str]:
    return [finding.code for finding in verdict.findings]


def names(verdict: JournalVerdict, path: Path, at: int) -> bool:
    """Whether some finding names the file and a range that holds, or touches, the position."""
    return any(
        f.severity == "error" and f.path == path and f.offset <= at <= f.offset + f.length for f in verdict.findings
    )


def test_a_sealed_journal_as_it_was_written_has_no_finding(tmp_path: Path) -> None:
    files = small_run(tmp_path)

    verdict = verify_journal(tmp_path)

    assert (verdict.findings, verdict.state, verdict.sealed, verdict.ok) == ((), "intact", True, True)
    assert {n: h._asdict() for n, h in verdict.files.items()} == {f.path.name: f.position() for f in files}


def test_the_anchor_is_the_head_that_stands_on_the_root_span(tmp_path: Path) -> None:
    owner, _ = small_run(tmp_path)

    assert f'"spanfold.seal.head","value":{{"stringValue":"{verify_journal(tmp_path).anchor}"' in owner.path.read_text()


def test_the_journal_folder_itself_can_be_verified(tmp_path: Path) -> None:
    small_run(tmp_path)

    assert verify_journal(tmp_path / "journal") == verify_journal(tmp_path)


def test_a_folder_without_a_journal_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalMissing, match="journal"):
        verify_journal(tmp_path)


EDITS = ("change", "remove", "insert", "newline", "swap")


def edited(data: bytes, at: int, edit: str) -> tuple[int, bytes]:
    """Return the result of one change at a byte, and where it is."""
    before, byte, behind = data[:at], data[at : at + 1], data[at + 1 :]
    if edit == "change":
        return at, before + bytes([byte[0] ^ 1]) + behind
    if edit == "remove":
        return at, before + behind
    if edit == "insert":
        return at, before + b"0" + byte + behind
    if edit == "newline":
        # Of two newlines side by side the second is the empty line.
        return at + (byte == b"\n"), before + b"\n" + byte + behind
    return at, before + behind[:1] + byte + behind[1:]


@pytest.mark.slow
@pytest.mark.contract("EP-020")
def test_every_change_of_a_single_byte_is_named_by_file_and_place(tmp_path: Path) -> None:
    owner, child = File(tmp_path / "journal", a="b"), File(tmp_path / "journal", CHILD, a="b")
    owner.add(started("00000000000000a1", kind="run", name="r"))
    child.add(span("00000000000000b1", "00000000000000a1", spanfold__kind="timing"))
    owner.end_run("00000000000000a1", child, name="r")
    missed: list[str] = []
    for file in (owner, child):
        data = file.path.read_bytes()
        for at, edit in itertools.product(range(len(data)), EDITS):
            where, changed = edited(data, at, edit)
            if changed != data:
                file.path.write_bytes(changed)
                if not names(verify_journal(tmp_path), file.path, where):
                    missed.append(f"{edit} {at} of {file.path.name}")
        file.path.write_bytes(data)

    assert not missed


@given(number=st.integers(0, 1), position=st.floats(0, 1, exclude_max=True), edit=st.sampled_from(EDITS))
def test_a_changed_byte_is_named_by_file_and_place(
    tmp_path_factory: pytest.TempPathFactory, number: int, position: float, edit: str
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    file = small_run(run_dir)[number]
    data = file.path.read_bytes()
    where, changed = edited(data, int(position * len(data)), edit)
    file.path.write_bytes(changed)

    assert changed == data or names(verify_journal(run_dir), file.path, where)
    shutil.rmtree(run_dir)


def lines_of(file: File) -> list[bytes]:
    return file.path.read_bytes().split(b"\n")[:-1]


def rewrite(file: File, lines: list[bytes]) -> None:
    file.path.write_bytes(b"".join(part + b"\n" for part in lines))


@pytest.mark.contract("EP-020")
def test_every_removed_line_is_named(tmp_path: Path) -> None:
    for file in small_run(tmp_path):
        whole = lines_of(file)
        for index in range(len(whole)):
            rewrite(file, whole[:index] + whole[index + 1 :])
            at = sum(len(part) + 1 for part in whole[:index])
            assert names(verify_journal(tmp_path), file.path, at), (file.path.name, index)
        rewrite(file, whole)


@pytest.mark.contract("EP-020")
def test_every_repeated_line_is_named_as_foreign(tmp_path: Path) -> None:
    for file in small_run(tmp_path):
        whole = lines_of(file)
        for index in range(len(whole)):
            for copy in range(len(whole)):
                rewrite(file, [*whole[:index], whole[copy], *whole[index:]])
                # Of two equal lines side by side either may be called the copy.
                at = sum(len(part) + 1 for part in whole[: index + (copy == index)])
                verdict = verify_journal(tmp_path)
                assert names(verdict, file.path, at), (file.path.name, index, copy, verdict.findings)
        rewrite(file, whole)


def test_every_pair_of_swapped_lines_is_named(tmp_path: Path) -> None:
    for file in small_run(tmp_path):
        whole = lines_of(file)
        for one in range(len(whole)):
            for other in range(one + 1, len(whole)):
                swapped = list(whole)
                swapped[one], swapped[other] = whole[other], whole[one]
                rewrite(file, swapped)
                begin = sum(len(part) + 1 for part in swapped[:one])
                end = sum(len(part) + 1 for part in swapped[: other + 1])
                found = [f for f in verify_journal(tmp_path).findings if f.path == file.path]
                assert any(f.offset <= end and f.offset + f.length >= begin for f in found), (one, other)
        rewrite(file, whole)


def test_a_line_that_the_chain_leaves_out_is_named_exactly(tmp_path: Path) -> None:
    owner, _ = small_run(tmp_path)
    whole = lines_of(owner)
    strange = line(span("00000000000000ff", name="never happened"))[:-1]
    rewrite(owner, [*whole[:3], strange, *whole[3:]])

    (finding,) = verify_journal(tmp_path).findings

    assert (finding.code, finding.path) == ("foreign_bytes", owner.path)
    assert (finding.offset, finding.length) == (sum(len(part) + 1 for part in whole[:3]), len(strange) + 1)


@pytest.mark.contract("EP-020")
def test_an_edited_line_is_named_exactly_and_once(tmp_path: Path) -> None:
    owner, _ = small_run(tmp_path)
    whole = lines_of(owner)
    rewrite(owner, [*whole[:2], whole[2].replace(b'"load"', b'"lead"'), *whole[3:]])

    (finding,) = verify_journal(tmp_path).findings

    assert (finding.code, finding.path) == ("edited", owner.path)
    assert (finding.offset, finding.length) == (sum(len(part) + 1 for part in whole[:2]), len(whole[2]) + 1)
    assert "lead" not in finding.detail


@pytest.mark.case("C-050")
def test_nul_bytes_and_a_broken_line_in_the_middle_fail_verification(tmp_path: Path) -> None:
    owner, _ = small_run(tmp_path)
    whole = owner.path.read_bytes()
    cut = whole.index(b"\n") + 1
    owner.path.write_bytes(whole[:cut] + bytes(200_000) + b'{"broken":\n' + whole[cut:])

    verdict = verify_journal(tmp_path)

    assert verdict.state == "broken"
    assert [(f.code, f.path, f.offset, f.length) for f in verdict.findings] == [
        ("foreign_bytes", owner.path, cut, 200_011)
    ]


@pytest.mark.contract("EP-020")
def test_a_removed_file_is_named(tmp_path: Path) -> None:
    _, child = small_run(tmp_path)
    child.path.unlink()

    (finding,) = verify_journal(tmp_path).findings

    assert (finding.code, finding.path, finding.length) == ("missing_file", child.path, child.size)


def test_a_file_no_seal_knows_is_foreign(tmp_path: Path) -> None:
    small_run(tmp_path)
    extra = File(tmp_path / "journal", "20260301T130000Z-1-ffffffff")
    extra.add(span("00000000000000cc"))

    (finding,) = verify_journal(tmp_path).findings

    assert (finding.code, finding.path, finding.offset, finding.length) == ("foreign_bytes", extra.path, 0, extra.size)


def test_lines_written_after_the_seal_are_named(tmp_path: Path) -> None:
    owner, child = small_run(tmp_path)
    sealed = {f.path: f.size for f in (owner, child)}
    for file in (owner, child):
        file.add(span(f"{file.size:016x}"))

    findings = verify_journal(tmp_path).findings

    assert [(f.code, f.path, f.offset, f.length) for f in findings] == [
        ("foreign_bytes", f.path, sealed[f.path], f.size - sealed[f.path]) for f in (owner, child)
    ]


def test_a_journal_that_was_only_added_to_is_told_from_one_that_lost_something(tmp_path: Path) -> None:
    files = small_run(tmp_path)
    strange = line(span("00000000000000ff", name="never happened"))[:-1]
    for file in files:
        whole = lines_of(file)
        for index in range(1, len(whole) + 1):
            added = [*whole[:index], strange, *whole[index:]]
            rewrite(file, added)
            assert verify_journal(tmp_path).only_added, (file.path.name, index)
            for lost in range(len(added)):
                rewrite(file, [*added[:lost], *added[lost + 1 :]])
                assert not verify_journal(tmp_path).only_added, (file.path.name, index, lost)
                rewrite(file, [*added[:lost], added[lost].replace(b'"', b"'", 1), *added[lost + 1 :]])
                assert verify_journal(tmp_path).only_added == (added[lost] is strange), (file.path.name, index, lost)
        rewrite(file, whole)
    assert not verify_journal(tmp_path).only_added


def test_a_lost_first_line_is_damage_though_a_line_without_a_chain_stands_behind_the_others(tmp_path: Path) -> None:
    for file in small_run(tmp_path):
        whole = lines_of(file)
        rewrite(file, [*whole[1:], b"{}"])
        damage = verify_journal(tmp_path).damage
        assert damage is not None
        assert damage.path == file.path
        rewrite(file, whole)


@pytest.mark.contract("EP-020")
def test_a_file_cut_at_any_line_is_truncated_from_there(tmp_path: Path) -> None:
    _, child = small_run(tmp_path)
    data = child.path.read_bytes()
    for cut in (0, 100, data.index(b"\n") + 1, len(data) - 1):
        child.path.write_bytes(data[:cut])
        kept = data.rindex(b"\n", 0, cut) + 1 if b"\n" in data[:cut] else 0

        (finding,) = verify_journal(tmp_path).findings

        assert (finding.code, finding.path, finding.offset, finding.length) == (
            "truncated",
            child.path,
            kept,
            len(data) - kept,
        )


def test_a_renamed_file_is_named_under_both_names(tmp_path: Path) -> None:
    _, child = small_run(tmp_path)
    other = child.path.with_name(child.path.name.replace("4243", "4244"))
    child.path.rename(other)

    found = {(f.code, f.path.name) for f in verify_journal(tmp_path).findings}

    assert ("missing_file", child.path.name) in found
    assert ("seal_broken", other.name) in found or ("foreign_bytes", other.name) in found


def test_an_unsealed_run_is_open_and_not_broken(tmp_path: Path) -> None:
    owner = File(tmp_path / "journal")
    owner.add(started("00000000000000a1", kind="run", name="sample"), span("00000000000000a2", "00000000000000a1"))
    with owner.path.open("ab") as file:
        file.write(b'{"resourceSpans":[')

    verdict = verify_journal(tmp_path)

    assert (verdict.state, verdict.ok, verdict.sealed, verdict.findings) == ("open", True, False, ())
    assert [(d.path, d.offset, d.length, d.kind) for d in verdict.torn] == [(owner.path, owner.size, 18, "torn")]
    assert verdict.anchor == ""


_WRITES_ALL_THE_TIME = """
import pathlib, sys
from tests.journal.samples import File, span

file = File(pathlib.Path(sys.argv[1]))
print("ready", flush=True)
while True:
    file.add(span("00000000000000a2", "00000000000000a1"))
"""


def test_whole_lines_of_a_journal_that_is_written_all_the_time_are_not_called_torn(tmp_path: Path) -> None:
    """Half a line may be read while it is written; what is called unfinished must not have an end of line."""
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITES_ALL_THE_TIME, str(tmp_path / "journal")],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        verdicts = [verify_journal(tmp_path)]
        while len(verdicts) < 30 or verdicts[0].n_lines == verdicts[-1].n_lines:
            assert writer.poll() is None, "it writes until it is killed"
            verdicts.append(verify_journal(tmp_path))
    finally:
        writer.kill()
        writer.communicate()

    (path,) = (tmp_path / "journal").iterdir()
    data = path.read_bytes()
    assert verdicts[0].n_lines < verdicts[-1].n_lines
    assert [t for v in verdicts for t in v.torn if b"\n" in data[t.offset : t.offset + t.length - 1]] == []


def test_a_seal_removed_behind_the_root_span_is_named(tmp_path: Path) -> None:
    owner, _ = small_run(tmp_path)
    whole = lines_of(owner)
    rewrite(owner, whole[:-1])

    (finding,) = verify_journal(tmp_path).findings

    assert (finding.code, finding.path, finding.offset) == ("truncated", owner.path, owner.path.stat().st_size)


def test_a_journal_sealed_again_after_an_edit_contradicts_its_root_span(tmp_path: Path) -> None:
    """The forger rewrote chain and seal, but kept the root span's head because a collector has a copy of it."""
    owner, child = small_run(tmp_path)
    records = child.path.read_bytes().replace(b'"part"', b'"PART"').split(b"\n")[:-1]
    assert len(records) == 2
    forged = File(child.path.parent, CHILD)
    forged.path.write_bytes(b"")
    forged.add(span("00000000000000b1", "00000000000000a2", name="PART", spanfold__kind="timing"))
    forged.add(span("00000000000000b2", "00000000000000a2", name="PART", end=START + 1, spanfold__kind="timing"))
    kept = lines_of(owner)[:-1]
    rewrite(owner, kept)
    owner.seq -= 1
    owner.size = owner.path.stat().st_size
    owner.head = hashlib.sha256(kept[-1] + b"\n").hexdigest()
    owner.seal(forged)

    (finding,) = verify_journal(tmp_path).findings

    assert (finding.code, finding.path) == ("seal_broken", owner.path)
    assert b"spanfold.seal.head" in owner.path.read_bytes()[finding.offset : finding.offset + finding.length]


def test_lines_a_later_seal_took_up_are_information_only(tmp_path: Path) -> None:
    owner, child = small_run(tmp_path)
    before = child.size
    child.add(span("00000000000000b9"))
    later = File(tmp_path / "journal", "20260302T000000Z-99-0badcafe")
    later.add(started("00000000000000d1", kind="run", name="sample", time=START + 10**12))
    later.seal(owner, child, time=START + 2 * 10**12)

    verdict = verify_journal(tmp_path)

    assert verdict.state == "intact"
    assert [(f.code, f.severity, f.path, f.offset, f.length) for f in verdict.findings] == [
        ("adopted", "info", child.path, before, child.size - before)
    ]


def test_what_the_recorder_writes_from_threads_and_a_child_process_verifies(tmp_path: Path) -> None:
    import spanfold

    with spanfold.run("sample", dir=tmp_path / "run") as run, spanfold.stage("M2"):

        def work(number: int) -> None:
            with spanfold.timed(f"part{number}"):
                spanfold.event("note", number=number)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        child = subprocess.run(
            [sys.executable, "-c", "import spanfold\nwith spanfold.timed('child'): pass"],
            env=spanfold.child_env(),
            check=False,
        )
        for thread in threads:
            thread.join()
    assert child.returncode == 0

    verdict = verify_journal(run.dir)

    assert (verdict.findings, verdict.state, len(verdict.files)) == ((), "intact", 2)
    (seal,) = (f for f in (run.dir / "journal").glob("*.jsonl") if b"spanfold.journal.sealed" in f.read_bytes())
    data = seal.read_bytes()
    at = data.index(b'"M2"')
    seal.write_bytes(data.replace(b'"M2"', b'"M3"', 1))
    assert names(verify_journal(run.dir), seal, at)


def test_file_names_in_a_seal_never_become_paths(tmp_path: Path) -> None:
    owner = File(tmp_path / "run" / "journal", OWNER)
    (tmp_path / "secret").write_text("x")
    owner.add(started("00000000000000a1", kind="run", name="sample"))
    stranger = File(tmp_path / "elsewhere")
    stranger.path = Path("../../secret")
    owner.add(span("00000000000000a1", spanfold__kind="run"))

    class Outside:
        path = type("P", (), {"name": "../../secret"})

        def position(self) -> dict[str, object]:
            return {"head": "0" * 64, "seq": 1, "size": 1}

    owner.seal(Outside())  # type: ignore[arg-type]  # a seal that names a file outside

    (finding,) = verify_journal(tmp_path / "run").findings

    assert (finding.code, finding.path) == ("missing_file", owner.path.parent)
