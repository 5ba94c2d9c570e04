"""`run fold`, `run recover`, `run verify`: from the journal, and back to what was recorded."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spanfold.cli._exits import Exit
from tests.cli.conftest import HANG_S, Spanfold, finish
from tests.cli.test_run_show import fingerprint

pytestmark = pytest.mark.slow

DOCUMENTS = ("M1/log.json", "langfuse_trace.json", "run.json", "timings.jsonl")


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in DOCUMENTS}


# --- fold


def test_documents_that_were_thrown_away_come_back_byte_for_byte(spanfold: Spanfold, runs: Path) -> None:
    before = contents(runs / "ok")
    for name in DOCUMENTS:
        (runs / "ok" / name).unlink()

    document = spanfold("run", "fold", "ok", "--json").document

    assert contents(runs / "ok") == before
    assert [(d["path"], d["size_bytes"]) for d in document["documents"]] == [(n, len(before[n])) for n in DOCUMENTS]
    assert document["status"] == "completed"


def test_into_writes_elsewhere_and_leaves_the_run_alone(spanfold: Spanfold, runs: Path, tmp_path: Path) -> None:
    before = fingerprint(runs)

    answer = spanfold("run", "fold", "ok", "--into", "view")

    assert answer.code == Exit.DONE
    assert fingerprint(runs) == before
    assert contents(tmp_path / "view") == contents(runs / "ok")
    assert [line.split()[0] for line in answer.lines] == ["document", *DOCUMENTS]


def test_follow_keeps_documents_up_to_date_until_the_run_ends(live: subprocess.Popen[bytes], tmp_path: Path) -> None:
    follower = subprocess.Popen(
        [sys.executable, "-m", "spanfold", "run", "fold", "live", "--follow", "--into", "view", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follower.stderr is not None
    assert "Ctrl-C stops" in follower.stderr.readline()

    finish(live)
    out, _ = follower.communicate(timeout=HANG_S)

    assert follower.returncode == Exit.DONE
    assert json.loads(out)["status"] == "completed"
    assert contents(tmp_path / "view") == contents(tmp_path / "runs" / "live")


def test_ctrl_c_ends_following_and_another_call_goes_on(
    spanfold: Spanfold, live: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "spanfold", "run", "fold", "live", "--follow", "--into", "view"]
    follower = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert follower.stderr is not None
    follower.stderr.readline()
    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate(timeout=HANG_S)
    assert (follower.returncode, err.splitlines()[-1]) == (Exit.INTERRUPTED, "interrupted")

    finish(live)

    assert spanfold("run", "fold", "live", "--follow", "--into", "view").code == Exit.DONE
    assert contents(tmp_path / "view") == contents(tmp_path / "runs" / "live")


@pytest.mark.parametrize("options", [(), ("--follow",)], ids=["once", "follow"])
def test_a_run_that_is_being_recorded_is_not_folded_in_place(
    spanfold: Spanfold, live: subprocess.Popen[bytes], options: tuple[str, ...]
) -> None:
    answer = spanfold("run", "fold", "live", *options)

    assert answer.code == Exit.LOCKED
    assert f"process {live.pid}" in answer.err
    assert "Following" not in answer.err


@pytest.mark.case("C-050")
def test_a_damaged_journal_is_folded_as_far_as_it_goes_and_said_to_be_damaged(spanfold: Spanfold, runs: Path) -> None:
    (journal,) = (runs / "ok" / "journal").glob("*.otlp.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:9]) + b"\0" * 200_000 + b"{broken\n" + b"".join(lines[9:]))

    answer = spanfold("run", "fold", "ok", "--into", "view", "--json")

    assert answer.code == Exit.CORRUPT
    assert answer.document["records"] == len(lines)
    assert sum(damage["length"] for damage in answer.document["damage"]) == 200_000 + len(b"{broken\n")


def cut(run_dir: Path, n_lines: int) -> Path:
    """Take the last lines from the only journal file of a run, and return it."""
    (journal,) = (run_dir / "journal").glob("*.otlp.jsonl")
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-n_lines]))
    return journal


@pytest.mark.parametrize("name", ["ok", "kill"])
def test_documents_that_hold_more_than_a_cut_journal_are_not_replaced(
    spanfold: Spanfold, runs: Path, tmp_path: Path, name: str
) -> None:
    journal = cut(runs / name, 10)
    before = fingerprint(runs)

    for words in (("fold",), ("fold", "--follow"), ("recover",), ("recover", "--dry-run")):
        refused = spanfold("run", words[0], name, *words[1:])
        assert (refused.code, refused.out) == (Exit.CORRUPT, "")
        assert journal.name in refused.err
        assert "truncated" in refused.err
    assert fingerprint(runs) == before

    assert spanfold("run", "fold", name, "--into", "view").code == Exit.DONE
    assert fingerprint(runs) == before
    assert spanfold("run", "fold", name, "--force").code == Exit.DONE
    assert (runs / name / "run.json").read_bytes() == (tmp_path / "view" / "run.json").read_bytes()


# --- recover


def test_a_killed_run_is_recovered_once(spanfold: Spanfold, runs: Path) -> None:
    before = fingerprint(runs / "kill")
    plan = spanfold("run", "recover", "kill", "--dry-run", "--json")
    assert plan.code == Exit.DONE
    assert fingerprint(runs / "kill") == before

    done = spanfold("run", "recover", "kill", "--json")

    kinds = ["model_call", "agent", "stage", "run"]
    assert (
        [span["kind"] for span in plan.document["ended"]] == [span["kind"] for span in done.document["ended"]] == kinds
    )
    assert (plan.document["fold"], done.document["fold"]["status"]) == (None, "interrupted")
    assert json.loads((runs / "kill" / "run.json").read_text())["run"]["status"] == "interrupted"
    assert spanfold("run", "verify", "kill", "--json").document["state"] == "intact"
    again = spanfold("run", "recover", "kill", "--json")
    assert (again.code, again.document["changed"]) == (Exit.NOTHING, False)
    shown = spanfold("run", "show", "kill")
    assert "interrupted" in shown.lines[0]
    assert "recover` finishes" not in shown.err
    assert "recover" not in spanfold("run", "list").err


def test_a_torn_last_line_is_set_aside(spanfold: Spanfold, runs: Path) -> None:
    (journal,) = (runs / "kill" / "journal").glob("*.otlp.jsonl")
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"resourceSpans":[{"res')

    document = spanfold("run", "recover", "kill", "--json").document

    (torn,) = document["set_aside"]
    assert (torn["offset"], torn["length"]) == (len(whole), 23)
    assert Path(torn["moved_to"]).name.endswith(f".torn-{len(whole)}")
    assert (runs.parent / torn["moved_to"]).read_bytes() == b'{"resourceSpans":[{"res'


def test_a_run_at_work_is_not_recovered(spanfold: Spanfold, live: subprocess.Popen[bytes], tmp_path: Path) -> None:
    answer = spanfold("run", "recover", "live")

    assert answer.code == Exit.LOCKED
    assert f"process {live.pid} still alive" in answer.err


def test_a_completed_run_has_nothing_to_recover(spanfold: Spanfold, runs: Path) -> None:
    answer = spanfold("run", "recover", "ok")

    assert answer.code == Exit.NOTHING
    assert answer.out == ""
    assert "nothing to recover" in answer.err


# --- verify


def test_an_untouched_run_is_intact(spanfold: Spanfold, runs: Path) -> None:
    answer = spanfold("run", "verify", "ok", "--json")

    assert answer.code == Exit.DONE
    assert (answer.document["state"], answer.document["n_artifacts"]) == ("intact", 2)


def test_a_changed_journal_byte_is_named(spanfold: Spanfold, runs: Path) -> None:
    (journal,) = (runs / "ok" / "journal").glob("*.otlp.jsonl")
    data = bytearray(journal.read_bytes())
    at = data.index(b"gpt-x")
    data[at] = ord("G")
    journal.write_bytes(data)

    answer = spanfold("run", "verify", "ok", "--json")

    assert answer.code == Exit.CORRUPT
    (finding,) = answer.document["journal"]["findings"]
    assert (finding["code"], finding["severity"]) == ("edited", "error")
    assert finding["offset"] <= at < finding["offset"] + finding["length"]


@pytest.mark.parametrize(("name", "witness"), [("ok", "run.json"), ("kill", "timings.jsonl")])
@pytest.mark.parametrize("n_lines", [1, 2, 10])
def test_a_journal_that_holds_less_than_the_documents_made_from_it_was_cut(
    spanfold: Spanfold, runs: Path, name: str, witness: str, n_lines: int
) -> None:
    # The last lines of a killed run only began something, which no row of timings tells.
    journal = cut(runs / name, n_lines + 3 * (name == "kill"))

    answer = spanfold("run", "verify", name, "--json")

    assert (answer.code, answer.document["state"]) == (Exit.CORRUPT, "broken")
    assert "restore the run from a bundle or a copy" in answer.err
    (finding,) = [f for f in answer.document["journal"]["findings"] if witness in f["detail"]]
    assert (finding["code"], Path(finding["path"]).name) == ("truncated", journal.name)
    told = spanfold("run", "verify", name)
    assert "recover" not in told.err
    assert f"{len(journal.read_bytes().splitlines())} lines in 1 file" in told.out


@pytest.mark.parametrize("where", ["behind", "between"])
def test_nothing_is_said_to_be_gone_when_bytes_were_only_added(spanfold: Spanfold, runs: Path, where: str) -> None:
    (journal,) = (runs / "ok" / "journal").glob("*.otlp.jsonl")
    whole = journal.read_bytes()
    at, added = (len(whole), b"x") if where == "behind" else (whole.index(b"\n") + 1, b"{}\n")
    journal.write_bytes(whole[:at] + added + whole[at:])

    answer = spanfold("run", "verify", "ok")

    assert answer.code == Exit.CORRUPT
    assert "all that was sealed, and bytes that were added" in answer.out
    assert answer.err.startswith("What was recorded is all there, as it was sealed.")
    assert spanfold("run", "verify", "ok", "--json").document["journal"]["only_added"] is True
    assert "gone" not in answer.err
    assert "1 bytes" not in answer.out


def test_a_seal_that_was_never_written_is_no_loss_and_recover_writes_it(spanfold: Spanfold, runs: Path) -> None:
    cut(runs / "ok", 1)
    (runs / "ok" / "run.json").unlink()  # which tells whether there was one

    answer = spanfold("run", "verify", "ok")

    assert answer.code == Exit.CORRUPT
    assert answer.err.startswith("No recorded byte is changed or gone")
    assert spanfold("run", "recover", "ok").code == Exit.DONE
    assert spanfold("run", "verify", "ok").code == Exit.DONE


def test_deleting_a_line_is_seen_in_the_number_of_lines(spanfold: Spanfold, runs: Path) -> None:
    (journal,) = (runs / "ok" / "journal").glob("*.otlp.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:9] + lines[10:]))

    assert f"{len(lines) - 1} lines in 1 file: changed" in spanfold("run", "verify", "ok").out


def test_documents_that_were_left_behind_are_no_proof(spanfold: Spanfold, runs: Path) -> None:
    (runs / "kill" / "timings.jsonl").unlink()
    run_document = runs / "kill" / "run.json"
    run_document.write_bytes(run_document.read_bytes()[:-100])

    assert spanfold("run", "verify", "kill", "--json").document["state"] == "open"


@pytest.mark.parametrize("change", ["edited", "missing"])
def test_a_changed_document_is_named_and_can_be_made_again(spanfold: Spanfold, runs: Path, change: str) -> None:
    path = runs / "ok" / "M1" / "log.json"
    text = path.read_text()
    if change == "edited":
        path.write_text(text.replace('"held out"', '"held 0ut"', 1))
    else:
        path.unlink()

    answer = spanfold("run", "verify", "ok", "--json")

    assert answer.code == Exit.CORRUPT
    (document,) = answer.document["documents"]
    assert (document["path"], document["kind"]) == ("M1/log.json", change)
    if change == "edited":
        assert (document["offset"], document["length"]) == (text.index('"held out"') + 6, 1)
    assert "`spanfold run fold runs/ok` makes the documents again" in answer.err
    assert spanfold("run", "fold", "ok").code == Exit.DONE
    assert spanfold("run", "verify", "ok").code == Exit.DONE


@pytest.mark.parametrize("change", ["edited", "missing", "foreign"])
def test_a_changed_artifact_is_named(spanfold: Spanfold, runs: Path, change: str) -> None:
    path = runs / "ok" / "M1" / "artifacts" / "c1_data.json"
    path.unlink()
    if change == "edited":
        path.write_bytes(b"{}")
    elif change == "foreign":
        path.symlink_to(runs / "fail" / "M1" / "artifacts" / "c1_data.json")

    answer = spanfold("run", "verify", "ok", "--json")

    assert answer.code == Exit.CORRUPT
    (artifact,) = answer.document["artifacts"]
    assert (artifact["path"], artifact["kind"]) == ("M1/artifacts/c1_data.json", change)
    assert change in spanfold("run", "verify", "ok").out


def test_a_run_that_was_never_sealed_is_open_and_not_broken(
    spanfold: Spanfold, runs: Path, live: subprocess.Popen[bytes]
) -> None:
    killed = spanfold("run", "verify", "kill", "--json")
    recorded = spanfold("run", "verify", "live", "--json")

    assert [(a.code, a.document["state"]) for a in (killed, recorded)] == [(Exit.DONE, "open")] * 2
    assert (killed.document["is_recorded"], recorded.document["is_recorded"]) == (False, True)
    assert "spanfold run recover runs/kill" in killed.err


def test_verify_changes_nothing(spanfold: Spanfold, runs: Path) -> None:
    before = fingerprint(runs)

    for name in ("ok", "kill"):
        spanfold("run", "verify", name)

    assert fingerprint(runs) == before


def test_a_copy_elsewhere_verifies_the_same(spanfold: Spanfold, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "ok", tmp_path / "copy of it")

    assert spanfold("run", "verify", "copy of it").code == Exit.DONE


def test_folding_a_run_that_is_recorded_names_the_process_that_records_it(
    spanfold: Spanfold, live: subprocess.Popen[bytes]
) -> None:
    answer = spanfold("run", "fold", "live")

    assert answer.code == Exit.LOCKED
    assert f"being recorded by process {live.pid}" in answer.err
    assert "--into DIR" in answer.err
    assert "owner.json" not in answer.err


def test_folding_a_run_whose_process_died_does_not_say_that_it_is_running(spanfold: Spanfold, runs: Path) -> None:
    assert "the run is interrupted." in spanfold("run", "fold", "kill").err
    assert "the run failed." in spanfold("run", "fold", "fail").err
    assert spanfold("run", "fold", "kill", "--json").document["status"] == "interrupted"
