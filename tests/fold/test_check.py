"""check_documents names the document and the bytes that are not what the journal says."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold import names
from spanfold.errors import JournalMissing
from spanfold.fold import DocumentDifference, check_documents, fold_run
from tests.fold.journals import JournalFile, documents


@pytest.fixture
def folded(run_dir: Path, journal: JournalFile) -> Path:
    journal.run_started()
    for number in range(5):
        journal.model_call(10 + number, end=number)
        journal.stage("load", 20 + number, end=number)
    journal.event("e", at=7, attributes={names.STAGE: "M3"})
    journal.run_ended()
    fold_run(run_dir)
    return run_dir


def test_documents_that_were_just_folded_have_no_difference(folded: Path) -> None:
    assert check_documents(folded) == []


def test_checking_writes_nothing(folded: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in folded.rglob("*")}
    check_documents(folded)

    assert {p: p.stat().st_mtime_ns for p in folded.rglob("*")} == before


@pytest.mark.parametrize(
    "name", ["run.json", "M2/log.json", "stages/load/log.json", "timings.jsonl", "langfuse_trace.json"]
)
@pytest.mark.parametrize("where", ["start", "middle", "end"])
def test_every_changed_byte_is_found_and_named(folded: Path, name: str, where: str) -> None:
    path = folded / name
    whole = path.read_bytes()
    at = {"start": 0, "middle": len(whole) // 2, "end": len(whole) - 1}[where]
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])

    assert check_documents(folded) == [DocumentDifference(name, "edited", at, 1, len(whole), len(whole))]


def test_the_range_spans_from_the_first_to_the_last_changed_byte(folded: Path) -> None:
    path = folded / "M2" / "log.json"
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[100] ^= 1
    changed[2000] ^= 1
    path.write_bytes(changed)

    (difference,) = check_documents(folded)

    assert (difference.offset, difference.length) == (100, 1901)
    assert str(difference) == "M2/log.json: bytes 100 to 2001 are not what the journal says"


@pytest.mark.parametrize("name", ["run.json", "M2/log.json", "timings.jsonl"])
def test_inserted_removed_and_appended_bytes_are_found_where_they_are(folded: Path, name: str) -> None:
    path = folded / name
    whole = path.read_bytes()
    middle = len(whole) // 2

    path.write_bytes(whole[:middle] + b"\x01\x02\x03" + whole[middle:])
    assert check_documents(folded) == [DocumentDifference(name, "edited", middle, 3, len(whole), len(whole) + 3)]
    path.write_bytes(whole + b"\x01\x02")
    assert check_documents(folded) == [DocumentDifference(name, "edited", len(whole), 2, len(whole), len(whole) + 2)]
    path.write_bytes(b"\x01" + whole)
    assert check_documents(folded) == [DocumentDifference(name, "edited", 0, 1, len(whole), len(whole) + 1)]
    path.write_bytes(whole[:middle] + whole[middle + 4 :])
    (cut,) = check_documents(folded)
    assert cut.kind == "edited"
    assert cut.offset >= middle
    assert cut.length <= 4
    path.write_bytes(b"")
    assert check_documents(folded) == [DocumentDifference(name, "edited", 0, 0, len(whole), 0)]


def test_missing_and_foreign_documents_are_named(folded: Path) -> None:
    (folded / "timings.jsonl").unlink()
    (folded / "M5").mkdir()
    (folded / "M5" / "log.json").write_text("{}")
    (folded / "M5" / "notes.txt").write_text("mine")
    (folded / "run.json").unlink()
    (folded / "run.json").symlink_to(folded / "M2" / "log.json")

    found = [(d.path, d.kind) for d in check_documents(folded)]

    assert found == [("M5/log.json", "foreign"), ("run.json", "foreign"), ("timings.jsonl", "missing")]
    assert [str(d) for d in check_documents(folded)] == [
        "M5/log.json: not made from this journal",
        "run.json: not made from this journal",
        "timings.jsonl: missing; `spanfold run fold` makes it again",
    ]


def test_the_trace_of_a_run_that_has_not_ended_may_be_missing_but_not_wrong(
    run_dir: Path, journal: JournalFile
) -> None:
    journal.run_started()
    fold_run(run_dir)
    right = check_documents(run_dir)
    (run_dir / "langfuse_trace.json").unlink()
    missing = check_documents(run_dir)
    (run_dir / "langfuse_trace.json").write_text("{}")
    wrong = check_documents(run_dir)

    assert right == missing == []
    assert [d.kind for d in wrong] == ["edited"]


def test_without_a_journal_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    with pytest.raises(JournalMissing):
        check_documents(tmp_path)


@given(st.data())
def test_any_edit_is_inside_the_range_that_is_named(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run_dir = tmp_path_factory.mktemp("check")
    journal = JournalFile(run_dir / "journal")
    journal.run_started()
    for number in range(data.draw(st.integers(0, 3))):
        journal.model_call(10 + number, end=number)
    fold_run(run_dir)
    name = data.draw(st.sampled_from(sorted(documents(run_dir))))
    whole = (run_dir / name).read_bytes()
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(begin, len(whole)))
    edit = data.draw(st.binary(max_size=8))
    changed = whole[:begin] + edit + whole[end:]
    (run_dir / name).write_bytes(changed)

    found = check_documents(run_dir)

    if changed == whole:
        assert found == []
        return
    (difference,) = found
    assert difference.path == name
    assert begin <= difference.offset
    # Where bytes were taken out is not unique when those behind them begin alike.
    assert difference.length == 0 or difference.offset + difference.length <= begin + len(edit)
    # The named range is all there is to it: with the right bytes in its place the document is whole again.
    rest = len(changed) - difference.offset - difference.length
    assert changed[: difference.offset] == whole[: difference.offset]
    assert rest == 0 or changed[-rest:] == whole[-rest:] or difference.length == 0
