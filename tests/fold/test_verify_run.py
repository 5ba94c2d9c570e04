"""`verify_run` holds artifacts against their recorded hashes, and never leaves the run directory for it."""

import hashlib
from pathlib import Path

import pytest

import spanfold
from spanfold import names
from spanfold.fold import fold_run, verify_run
from tests.fold.journals import JournalFile, set_fields

DATA = b"some bytes"


def recorded(journal: JournalFile, path: str, data: bytes = DATA) -> None:
    fields = {"artifact": "a", "path": path, "sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
    journal.event(names.EVENT_ARTIFACT, attributes=set_fields(fields))


@pytest.fixture
def kept(run_dir: Path, journal: JournalFile) -> Path:
    journal.run_started()
    recorded(journal, "artifacts/a.bin")
    (run_dir / "artifacts").mkdir()
    (run_dir / "artifacts" / "a.bin").write_bytes(DATA)
    fold_run(run_dir)
    return run_dir / "artifacts" / "a.bin"


def test_a_file_as_recorded_is_no_difference(run_dir: Path, kept: Path) -> None:
    verdict = verify_run(run_dir)

    assert (verdict.artifacts, verdict.n_artifacts, verdict.state, verdict.documents) == ((), 1, "open", ())


def test_an_edited_a_missing_and_a_replaced_file_are_told_apart(run_dir: Path, kept: Path, tmp_path: Path) -> None:
    kept.write_bytes(DATA + b"!")
    assert [(d.kind, d.expected_bytes, d.found_bytes) for d in verify_run(run_dir).artifacts] == [("edited", 10, 11)]
    kept.unlink()
    assert [d.kind for d in verify_run(run_dir).artifacts] == ["missing"]
    (tmp_path / "same.bin").write_bytes(DATA)
    kept.symlink_to(tmp_path / "same.bin")
    verdict = verify_run(run_dir)
    assert [d.kind for d in verdict.artifacts] == ["foreign"]
    assert (verdict.ok, verdict.state) == (False, "broken")


@pytest.mark.parametrize("path", ["../outside.bin", "/etc/hostname", "artifacts/../../outside.bin", "", "a\0b"])
def test_a_recorded_path_that_leads_outside_is_never_opened(
    run_dir: Path, journal: JournalFile, tmp_path: Path, path: str
) -> None:
    (tmp_path / "outside.bin").write_bytes(DATA)
    journal.run_started()
    recorded(journal, path)
    fold_run(run_dir)

    assert [(d.path, d.kind) for d in verify_run(run_dir).artifacts] == [(path, "foreign")]


def test_what_is_wrong_is_said_in_a_sentence(run_dir: Path, kept: Path) -> None:
    kept.write_bytes(b"")

    (difference,) = verify_run(run_dir).artifacts

    assert str(difference) == "artifacts/a.bin: 0 bytes whose hash is not the one recorded"


def test_a_document_of_a_run_without_a_seal_is_behind(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.stage("M1", 2)
    fold_run(run_dir)
    journal.stage("M1", 3)

    verdict = verify_run(run_dir)

    assert verdict.state == "open"
    assert {d.path for d in verdict.documents} >= {"M1/log.json", "timings.jsonl"}
    assert {d.kind for d in verdict.documents} == {"behind"}
    assert all("spanfold run fold" in str(d) for d in verdict.documents)


def test_a_document_of_a_sealed_run_is_edited(run_dir: Path) -> None:
    with spanfold.run("sealed", dir=run_dir), spanfold.stage("M1"):
        pass
    with (run_dir / "M1" / "log.json").open("ab") as file:
        file.write(b" ")

    verdict = verify_run(run_dir)

    assert verdict.state == "broken"
    assert [(d.path, d.kind) for d in verdict.documents] == [("M1/log.json", "edited")]
