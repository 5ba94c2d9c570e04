"""`bundle export` and `bundle verify`: one file to keep, and whether it is still what it was."""

import errno
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from spanfold.cli._commands import parse
from spanfold.cli._exits import Exit
from spanfold.cli._wording import sentence
from tests.cli.conftest import Spanfold
from tests.cli.test_streams import on_terminal

pytestmark = pytest.mark.slow


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_run_is_packed_beside_its_directory_and_verifies_anywhere(
    spanfold: Spanfold, runs: Path, tmp_path: Path
) -> None:
    exported = spanfold("bundle", "export", "ok")

    assert exported.code == Exit.DONE
    assert exported.lines == [f"{sha256(runs / 'ok.spanfold.tar.zst')}  runs/ok.spanfold.tar.zst"]
    assert "sha256" not in exported.err
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(runs / "ok.spanfold.tar.zst", elsewhere)
    shutil.rmtree(runs)
    verified = spanfold("bundle", "verify", "ok.spanfold.tar.zst", "--json", cwd=elsewhere)
    assert verified.code == Exit.DONE
    assert (verified.document["ok"], verified.document["findings"]) == (True, [])
    assert verified.document["manifest"]["run_name"] == "loop"
    assert "intact" in spanfold("bundle", "verify", "ok.spanfold.tar.zst", cwd=elsewhere).lines[0]


def test_a_name_that_ends_in_a_slash_is_a_folder(spanfold: Spanfold, runs: Path, tmp_path: Path) -> None:
    missing = spanfold("bundle", "export", "ok", "--output", "out/")

    assert (missing.code, missing.out) == (Exit.NOT_FOUND, "")
    assert missing.err == (
        "spanfold: out/: expected a folder, found nothing. Make it first, or name a file with -o FILE.\n"
    )
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    spanfold("bundle", "export", "ok", "--output", "out/")
    assert (tmp_path / "out" / "ok.spanfold.tar.zst").is_file()
    (tmp_path / "file").touch()
    assert "found a file" in spanfold("bundle", "export", "ok", "--output", "file/").err


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_a_bundle_where_a_run_is_expected_is_told_by_what_to_do(spanfold: Spanfold, runs: Path, verb: str) -> None:
    spanfold("bundle", "export", "ok")

    answer = spanfold("run", verb, "runs/ok.spanfold.tar.zst")

    assert (answer.code, answer.out) == (Exit.NOT_FOUND, "")
    assert "`spanfold bundle verify runs/ok.spanfold.tar.zst`" in answer.err


def test_the_status_of_an_exported_run_is_told_in_a_sentence(spanfold: Spanfold, runs: Path) -> None:
    assert " of a failed run (" in spanfold("bundle", "export", "fail").err
    assert " of an interrupted run (" in spanfold("bundle", "export", "kill", "--allow-open").err


def test_the_answer_is_whole_on_a_narrow_terminal(runs: Path, tmp_path: Path) -> None:
    _, sent = on_terminal("bundle", "export", "ok", cwd=tmp_path, columns=40)

    assert sent.splitlines() == [f"{sha256(runs / 'ok.spanfold.tar.zst')}  runs/ok.spanfold.tar.zst"]


def test_our_own_bookkeeping_is_nothing_to_warn_of(spanfold: Spanfold, runs: Path) -> None:
    spanfold("run", "deliver", "ok", "--timeout", "1", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    journal = runs / "ok" / "journal"
    (journal / ".fold").mkdir()
    (journal / ".recover.lock").touch()
    (runs / "ok" / ".run.json.4711.0123abcd.tmp").touch()
    (runs / "ok" / ".mine").touch()

    exported = spanfold("bundle", "export", "ok")
    verified = spanfold("bundle", "verify", "runs/ok.spanfold.tar.zst")

    assert [line for line in exported.err.splitlines() if "left out" in line] == ["! left out: .mine: hidden"]
    assert [line.split() for line in verified.lines if "left out" in line] == [["left", "out", ".mine:", "hidden"]]
    assert spanfold("bundle", "export", "ok", "--json").document["left_out"] == {".mine": "hidden"}


def test_a_run_that_was_sent_gives_the_bytes_it_gave_before(spanfold: Spanfold, runs: Path) -> None:
    before = spanfold("bundle", "export", "ok", "-o", "before.spanfold.tar.zst", "--json").document
    spanfold("run", "deliver", "ok", "--timeout", "1", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert (runs / "ok" / "journal" / ".deliver").is_dir()
    after = spanfold("bundle", "export", "ok", "-o", "after.spanfold.tar.zst", "--json").document

    assert after["sha256"] == before["sha256"]


def test_the_same_run_gives_the_same_bytes(spanfold: Spanfold, runs: Path, tmp_path: Path) -> None:
    one = spanfold("bundle", "export", "ok", "-o", "one.spanfold.tar.zst", "--json").document
    two = spanfold("bundle", "export", "ok", "-o", "two.spanfold.tar.zst", "--json").document

    assert one["sha256"] == two["sha256"]
    assert (tmp_path / "one.spanfold.tar.zst").stat().st_size == one["size_bytes"]


def test_a_changed_bundle_is_broken_and_the_place_is_named(spanfold: Spanfold, runs: Path) -> None:
    spanfold("bundle", "export", "ok")
    bundle = runs / "ok.spanfold.tar.zst"
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 1
    bundle.write_bytes(data)

    answer = spanfold("bundle", "verify", bundle, "--json")

    assert answer.code == Exit.CORRUPT
    assert answer.document["ok"] is False
    assert answer.document["findings"] != []
    assert "broken" in spanfold("bundle", "verify", bundle).lines[0]


def test_a_run_with_a_damaged_journal_is_packed_only_on_request_and_said_to_be_damaged(
    spanfold: Spanfold, runs: Path
) -> None:
    (journal,) = (runs / "ok" / "journal").glob("*.otlp.jsonl")
    journal.write_bytes(journal.read_bytes().replace(b"gpt-x", b"gpt-y", 1))

    refused = spanfold("bundle", "export", "ok")
    forced = spanfold("bundle", "export", "ok", "--force", "--json")

    assert (refused.code, refused.out) == (Exit.CORRUPT, "")
    assert "--force" in refused.err
    assert (forced.code, journal.name in forced.document["damage"]) == (Exit.DONE, True)
    assert "damaged" in forced.err
    verified = spanfold("bundle", "verify", forced.document["path"], "--json")
    assert (verified.code, verified.document["manifest"]["damage"]) == (Exit.CORRUPT, forced.document["damage"])
    assert "sealed, and not as it was recorded" in spanfold("bundle", "verify", forced.document["path"]).out


def test_a_run_that_is_recorded_is_packed_only_on_request(
    spanfold: Spanfold, live: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    refused = spanfold("bundle", "export", "live")
    allowed = spanfold("bundle", "export", "live", "--allow-open", "--json")

    assert refused.code == Exit.LOCKED
    assert (allowed.code, allowed.document["status"]) == (Exit.DONE, "running")


def test_files_that_the_run_did_not_record_can_be_left_out(spanfold: Spanfold, runs: Path) -> None:
    (runs / "ok" / "mine.txt").write_text("put there by hand")

    whole = spanfold("bundle", "export", "ok", "--json").document
    recorded = spanfold("bundle", "export", "ok", "--recorded-only", "--json").document

    assert "mine.txt" in {entry["path"] for entry in whole["entries"]}
    assert "mine.txt" not in {entry["path"] for entry in recorded["entries"]}
    assert "mine.txt" in recorded["left_out"]


@pytest.mark.parametrize("name", ["nowhere.spanfold.tar.zst", "runs/ok"])
def test_what_is_no_bundle_is_not_found(spanfold: Spanfold, runs: Path, name: str) -> None:
    answer = spanfold("bundle", "verify", name)

    assert answer.code == Exit.NOT_FOUND
    assert len(answer.err.splitlines()) == 1


def test_a_file_that_is_no_archive_is_broken(spanfold: Spanfold, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no bundle at all")

    answer = spanfold("bundle", "verify", "notes.txt")

    assert answer.code == Exit.CORRUPT
    assert "Traceback" not in answer.err


def test_a_file_of_another_kind_is_said_to_be_no_bundle(spanfold: Spanfold, tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text("x = 1\n")

    answer = spanfold("bundle", "verify", "k.py")

    assert answer.code == Exit.CORRUPT
    assert answer.lines[0] == "k.py  not a bundle"
    assert "protobuf" not in answer.out


def test_a_truncated_bundle_is_told_without_saying_anything_twice(spanfold: Spanfold, runs: Path) -> None:
    for number in range(20):
        (runs / "ok" / f"mine{number}.txt").write_text(f"{number}" * 100)
    spanfold("bundle", "export", "ok")
    bundle = runs / "ok.spanfold.tar.zst"
    bundle.write_bytes(bundle.read_bytes()[: bundle.stat().st_size // 3])

    shown, document = spanfold("bundle", "verify", bundle), spanfold("bundle", "verify", bundle, "--json").document

    assert shown.code == Exit.CORRUPT
    missing = [finding for finding in document["findings"] if finding["code"] == "missing"]
    assert len(missing) > 20
    assert f"… {len(missing) - 6} more" in shown.out
    assert shown.out.count("found no member for it") == 1
    assert f"missing, {len(missing)} times: " in shown.out
    assert not [line for line in shown.lines if line.strip().startswith(",")]


def test_what_to_do_about_an_open_run_is_said_with_the_option_of_the_shell(
    spanfold: Spanfold, live: subprocess.Popen[bytes]
) -> None:
    answer = spanfold("bundle", "export", "live")

    assert "(--allow-open)" in answer.err
    assert "allow_open" not in answer.err


def test_a_folder_that_takes_no_bundle_is_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.parent)
    error = PermissionError(errno.EACCES, "Permission denied", ".spanfold-1a2b3c4d")

    def told(*words: str) -> str:
        return sentence(error, parse(["bundle", "export", *words]))

    assert told("runs/ok").startswith("runs: expected a place that is writable for you, found Permission denied.")
    assert told("runs/ok", "-o", "elsewhere/ok.tar.zst").startswith("elsewhere: ")
    assert told("ok", "-o", "runs").startswith("runs: ")
    assert told("ok").endswith("or choose another place with -o FILE.")
    assert told("ok", "-o", "ok.tar.zst").startswith("ok.tar.zst: expected a place that is writable for you, ")
    full = OSError(errno.ENOSPC, "No space left on device", f"{runs}/.spanfold-1a2b3c4d/documents/.fold/part-00001")
    assert sentence(full, parse(["bundle", "export", "ok"])) == (
        "runs: expected room to write, found No space left on device. Free some there, or choose another place with -o FILE."
    )
    lock = PermissionError(errno.EACCES, "Permission denied", f"{runs}/ok/journal/.fold")
    assert sentence(lock, parse(["run", "fold", "ok"])).startswith(
        "runs/ok: expected a place that is writable for you, "
    )
