"""What is in a bundle, what is not, and that exporting changes nothing else."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import spanfold
from spanfold.bundle import export, read_manifest, verify
from spanfold.errors import BundleError, JournalCorrupt, JournalMissing, LockedError, UnsafeEntryError
from spanfold.fold import fold_run
from spanfold.journal import recover_run
from tests.bundle import runs
from tests.bundle.archives import members, unpack

pytestmark = pytest.mark.slow


def inside(bundle: Path) -> dict[str, bytes]:
    """Return path in the run directory -> bytes of every file in a bundle."""
    return {name.removeprefix("run/"): data for name, data in unpack(bundle).items() if name != "manifest.json"}


def test_a_bundle_holds_every_file_of_the_run_and_the_manifest_before_them(tmp_path: Path) -> None:
    run_dir = runs.record(tmp_path / "001")
    exported = export(run_dir)

    assert exported.path == tmp_path / "001.spanfold.tar.zst"
    assert next(iter(unpack(exported.path))) == "manifest.json"
    assert inside(exported.path) == runs.files(run_dir)
    assert (exported.left_out, exported.refolded) == ({}, ())
    assert verify(exported.path).findings == ()


def test_what_is_returned_is_what_was_written(tmp_path: Path) -> None:
    run_dir = runs.record(tmp_path / "001")
    exported = export(run_dir)
    data = exported.path.read_bytes()

    assert (exported.size_bytes, exported.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert {e.path: (e.size_bytes, e.sha256) for e in exported.entries} == {
        path: (len(found), hashlib.sha256(found).hexdigest()) for path, found in runs.files(run_dir).items()
    }
    assert exported.status == "completed"
    run = json.loads((run_dir / "run.json").read_bytes())["run"]
    manifest = read_manifest(exported.path)
    assert manifest.entries == exported.entries
    assert (manifest.run_name, manifest.trace_id, manifest.status) == (run["name"], run["otel_trace_id"], run["status"])
    assert (manifest.start, manifest.end, manifest.recorded_by) == (run["start"], run["end"], run["spanfold_version"])
    assert manifest.sealed


def test_the_head_is_the_one_on_the_span_of_the_run(tmp_path: Path) -> None:
    exported = export(runs.record(tmp_path / "001"))
    [journal] = [data for name, data in inside(exported.path).items() if name.startswith("journal/")]

    assert len(exported.head) == 64
    assert b'{"key":"spanfold.seal.head","value":{"stringValue":"%b"}}' % exported.head.encode() in journal


def test_the_kind_of_a_file_says_where_it_came_from(tmp_path: Path) -> None:
    run_dir = runs.record(tmp_path / "001")
    (run_dir / "mine.txt").write_text("not spanfold's")
    kinds = {entry.path: entry.kind for entry in export(run_dir).entries}
    [journal] = [path for path in kinds if path.startswith("journal/")]

    assert kinds == {
        journal: "journal",
        "M1/log.json": "document",
        "langfuse_trace.json": "document",
        "run.json": "document",
        "stages/warm_up-b61368bc/log.json": "document",
        "timings.jsonl": "document",
        "M1/artifacts/c0_attn_map.npy": "artifact",
        "M1/artifacts/c0_attn_map.png": "artifact",
        "M1/artifacts/c0_notes.txt": "artifact",
        "artifacts/config.json": "artifact",
        "mine.txt": "other",
    }


def test_a_bundle_unpacks_with_ordinary_tools_to_a_private_run_directory(tmp_path: Path) -> None:
    run_dir = runs.record(tmp_path / "001")
    contents = members(export(run_dir).path)

    start = read_manifest(tmp_path / "001.spanfold.tar.zst").mtime_s
    for info, _ in contents:
        assert (info.isreg(), info.mode, info.uid, info.gid, info.uname, info.gname) == (True, 0o600, 0, 0, "", "")
        assert info.mtime == start
    assert time.time() - 600 < start <= time.time()


def test_exporting_changes_nothing_in_the_run_directory_and_leaves_only_the_bundle(tmp_path: Path) -> None:
    run_dir = runs.record(tmp_path / "runs" / "001")
    (run_dir / "run.json").write_bytes(b"{}")
    before = runs.look(run_dir)
    export(run_dir)
    verify(tmp_path / "runs" / "001.spanfold.tar.zst")

    assert runs.look(run_dir) == before
    assert sorted(os.listdir(tmp_path / "runs")) == ["001", "001.spanfold.tar.zst"]


@pytest.mark.parametrize("out", ["elsewhere.zst", "folder", "folder/x.spanfold.tar.zst"])
def test_a_bundle_goes_where_it_is_asked_to(tmp_path: Path, out: str) -> None:
    (tmp_path / "folder").mkdir()
    exported = export(runs.record_small(tmp_path / "001"), tmp_path / out)

    expected = tmp_path / ("folder/001.spanfold.tar.zst" if out == "folder" else out)
    assert exported.path == expected
    assert expected.stat().st_mode & 0o777 == 0o600
    assert verify(expected).ok


def test_a_bundle_never_becomes_part_of_its_own_run(tmp_path: Path) -> None:
    run_dir = runs.record_small(tmp_path / "001")
    before = runs.look(run_dir)

    for out in (run_dir, run_dir / "M1", run_dir / "x.zst"):
        with pytest.raises(BundleError, match="outside the run directory"):
            export(run_dir, out)
    assert runs.look(run_dir) == before


def test_a_run_directory_may_be_reached_through_a_link(tmp_path: Path) -> None:
    run_dir = runs.record_small(tmp_path / "001")
    (tmp_path / "latest").symlink_to(run_dir)

    assert export(tmp_path / "latest").path == tmp_path / "001.spanfold.tar.zst"


def test_a_folder_without_a_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(JournalMissing):
        export(tmp_path / "empty")
    assert os.listdir(tmp_path) == ["empty"]


# -- documents


def test_missing_documents_are_made_again_and_the_bundle_is_the_same(tmp_path: Path) -> None:
    run_dir = runs.record(tmp_path / "001")
    whole = export(run_dir).path.read_bytes()
    for path in ("run.json", "M1/log.json", "timings.jsonl", "langfuse_trace.json", "stages/warm_up-b61368bc/log.json"):
        (run_dir / path).unlink()
    exported = export(run_dir)

    assert exported.path.read_bytes() == whole
    assert len(exported.refolded) == 5
    assert exported.left_out == {}
    assert not (run_dir / "run.json").exists()


def test_an_edited_document_is_named_and_the_bundle_holds_what_the_journal_says(tmp_path: Path) -> None:
    run_dir = runs.record(tmp_path / "001")
    true = (run_dir / "M1/log.json").read_bytes()
    (run_dir / "M1/log.json").write_bytes(true.replace(b"high", b"none"))
    exported = export(run_dir)

    assert exported.refolded == ("M1/log.json",)
    assert "other bytes than the journal gives" in exported.left_out["M1/log.json"]
    assert read_manifest(exported.path).left_out == exported.left_out
    assert inside(exported.path)["M1/log.json"] == true
    assert b"none" in (run_dir / "M1/log.json").read_bytes()
    assert verify(exported.path).findings == ()


def test_what_stands_in_the_place_of_a_document_is_left_out_and_named(tmp_path: Path) -> None:
    run_dir = runs.record(tmp_path / "001")
    true = runs.files(run_dir)
    (run_dir / "run.json").unlink()
    (run_dir / "run.json").mkdir()
    (run_dir / "run.json" / "x").write_text("x")
    (run_dir / "timings.jsonl").unlink()
    (run_dir / "timings.jsonl").symlink_to("/etc/hostname")
    exported = export(run_dir)

    assert inside(exported.path) == true
    assert exported.refolded == ("run.json", "timings.jsonl")
    assert exported.left_out["run.json"] == "stands where a document or a folder of documents belongs"
    assert exported.left_out["timings.jsonl"] == "a symbolic link"
    assert verify(exported.path).ok


# -- runs that did not end


def test_a_killed_run_is_exported_as_it_is_and_said_to_be_interrupted(tmp_path: Path) -> None:
    run_dir = runs.record_killed(tmp_path / "001")
    before = runs.look(run_dir)
    exported = export(run_dir)
    found = inside(exported.path)

    assert runs.look(run_dir) == before
    assert (exported.status, exported.head) == ("interrupted", "")
    assert not read_manifest(exported.path).sealed
    assert b"last words" in found["M2/log.json"]
    [(path, journal)] = [(p, d) for p, d in found.items() if p.startswith("journal/")]
    assert journal == (run_dir / path).read_bytes()
    verdict = verify(exported.path)
    assert (verdict.findings, verdict.status) == ((), "interrupted")


def test_a_torn_last_line_is_kept_and_is_no_finding(tmp_path: Path) -> None:
    run_dir = runs.record_killed(tmp_path / "001")
    [journal] = (run_dir / "journal").glob("*.jsonl")
    journal.write_bytes(journal.read_bytes()[:-7])
    exported = export(run_dir)

    assert inside(exported.path)[f"journal/{journal.name}"] == journal.read_bytes()
    assert verify(exported.path).findings == ()


def test_a_recovered_run_is_interrupted_sealed_and_keeps_what_recovery_set_aside(tmp_path: Path) -> None:
    run_dir = runs.record_killed(tmp_path / "001")
    [journal] = (run_dir / "journal").glob("*.jsonl")
    journal.write_bytes(journal.read_bytes()[:-7])
    recover_run(run_dir)
    fold_run(run_dir)
    exported = export(run_dir)

    assert (exported.status, len(exported.head)) == ("interrupted", 64)
    kinds = {entry.path: entry.kind for entry in exported.entries}
    [torn] = [path for path in kinds if ".torn-" in path]
    assert kinds[torn] == "journal"
    assert inside(exported.path)[torn] == (run_dir / torn).read_bytes()
    assert verify(exported.path).ok


def test_a_failed_run_says_so(tmp_path: Path) -> None:
    spanfold.configure(otlp=False, langfuse=False)
    with pytest.raises(RuntimeError), spanfold.run("failing", dir=tmp_path / "001"):
        raise RuntimeError("no")
    spanfold.shutdown()

    assert export(tmp_path / "001").status == "failed"
    assert verify(tmp_path / "001.spanfold.tar.zst").status == "failed"


def test_an_open_run_is_refused_while_its_process_lives(tmp_path: Path) -> None:
    process = runs.start_alive(tmp_path / "001")
    with process:
        with pytest.raises(LockedError, match=rf"process {process.pid} still writes"):
            export(tmp_path / "001")
        assert os.listdir(tmp_path) == ["001"]
        assert process.stdin
        process.stdin.close()

    assert export(tmp_path / "001").status == "completed"


def test_an_open_run_is_exported_as_of_one_moment_when_asked_to(tmp_path: Path) -> None:
    process = runs.start_alive(tmp_path / "001")
    with process:
        runs.tick(process)
        exported = export(tmp_path / "001", allow_open=True)
        runs.tick(process)
        verdict = verify(exported.path)
        assert process.stdin
        process.stdin.close()

    assert (exported.status, verdict.status, verdict.findings) == ("running", "running", ())
    assert inside(exported.path)["run.json"].count(b'"tick"') == 1
    assert verify(exported.path).findings == ()


def test_a_run_that_is_written_all_the_time_is_exported_whole(tmp_path: Path) -> None:
    program = """
import sys, time, spanfold
spanfold.configure(otlp=False, langfuse=False)
with spanfold.run("busy", dir=sys.argv[1]):
    print("ready", flush=True)
    while True:
        with spanfold.stage("M1", cycle=0), spanfold.tool("grep", arguments={}):
            spanfold.event("tick", text="x" * 1000)
        time.sleep(0.001)
"""
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "001")], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            for _ in range(3):
                exported = export(tmp_path / "001", allow_open=True)
                assert verify(exported.path).findings == ()
        finally:
            process.kill()  # else what fails here would wait for it for ever


def test_a_run_of_another_machine_that_never_ended_is_refused_unless_asked_for(tmp_path: Path) -> None:
    run_dir = runs.record_killed(tmp_path / "001", host="elsewhere-42")
    with pytest.raises(LockedError, match="recorded on host elsewhere-42, whose processes cannot be seen from here"):
        export(run_dir)
    exported = export(run_dir, allow_open=True)

    assert (exported.status, verify(exported.path).findings) == ("interrupted", ())
    there = f"{runs.on_host('elsewhere-42')}\nimport sys; from spanfold.bundle import export; export(*sys.argv[1:])"
    subprocess.run([sys.executable, "-c", there, str(run_dir), str(tmp_path / "there.zst")], check=True, timeout=60)
    assert (tmp_path / "there.zst").read_bytes() == exported.path.read_bytes()


def test_a_process_that_writes_on_after_its_run_was_sealed_spoils_no_bundle(tmp_path: Path) -> None:
    process = runs.record_outlived(tmp_path / "001")
    stop = threading.Event()

    def write_on() -> None:
        while not stop.is_set():
            runs.tick(process)

    with process:
        runs.tick(process)
        exported = export(tmp_path / "001")
        thread = threading.Thread(target=write_on)
        thread.start()
        try:
            with pytest.raises(BundleError, match="expected a file that stays as it is"):
                export(tmp_path / "001")
            frozen = export(tmp_path / "001", tmp_path / "frozen.zst", allow_open=True)
        finally:
            stop.set()
            thread.join()
        assert process.stdin
        process.stdin.close()

    for bundle in (exported, frozen):
        assert bundle.status == "completed"
        # That it wrote after the seal is true, and all there is to say.
        assert {finding.code for finding in verify(bundle.path).findings} == {"foreign"}


@pytest.mark.case("C-049")
def test_the_files_of_all_processes_of_a_run_are_in_its_bundle(tmp_path: Path) -> None:
    run_dir = runs.record_with_children(tmp_path / "001")
    exported = export(run_dir)

    assert sum(entry.kind == "journal" for entry in exported.entries) == 4
    assert inside(exported.path) == runs.files(run_dir)
    assert set(read_manifest(exported.path).heads) == {p.name for p in (run_dir / "journal").glob("*.jsonl")}
    assert verify(exported.path).findings == ()


@pytest.mark.case("C-050")
def test_a_damaged_journal_is_exported_as_it_is_and_verifying_names_the_place(tmp_path: Path) -> None:
    run_dir = runs.record(tmp_path / "001")
    [journal] = (run_dir / "journal").glob("*.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    gap = b"\0" * 200_000 + b'{"resourceSpans": broken\n'
    begin = sum(map(len, lines[:3]))
    journal.write_bytes(b"".join(lines[:3]) + gap + b"".join(lines[3:]))
    verdict = verify(export(run_dir, force=True).path)

    assert not verdict.ok
    [finding] = verdict.findings
    assert (finding.entry, finding.place) == (f"run/journal/{journal.name}", "entry")
    assert (finding.offset, finding.length) == (begin, len(gap))


def sealed_and_cut(run_dir: Path) -> Path:
    """Record a run, and cut its seal off: only its documents know that there was one."""
    [journal] = (runs.record_small(run_dir) / "journal").glob("*.jsonl")
    journal.write_bytes(journal.read_bytes()[:-400])
    return journal


def test_a_run_whose_journal_was_cut_is_not_exported_unasked(tmp_path: Path) -> None:
    journal = sealed_and_cut(tmp_path / "001")
    before = runs.look(tmp_path / "001")
    with pytest.raises(JournalCorrupt, match=rf"{journal.name}.*truncated.*run.json.*--force"):
        export(tmp_path / "001")

    assert os.listdir(tmp_path) == ["001"]
    assert runs.look(tmp_path / "001") == before


def test_a_cut_journal_that_is_exported_on_request_is_told_by_result_manifest_and_verdict(tmp_path: Path) -> None:
    journal = sealed_and_cut(tmp_path / "001")
    exported = export(tmp_path / "001", force=True, allow_open=True)  # this process could still write it

    assert journal.name in exported.damage
    assert "truncated" in exported.damage
    assert read_manifest(exported.path).damage == exported.damage
    [finding] = [found for found in verify(exported.path).findings if found.entry == "manifest.json"]
    assert (finding.code, exported.damage in finding.detail) == ("truncated", True)


# -- what is left out


def test_links_devices_and_hidden_names_are_left_out_with_their_reason(tmp_path: Path) -> None:
    run_dir = runs.record_small(tmp_path / "001")
    (run_dir / "link").symlink_to("/etc/passwd")
    (run_dir / "folder").symlink_to("/etc")
    os.mkfifo(run_dir / "pipe")
    (run_dir / ".env").write_text("SECRET=1")
    (run_dir / "journal" / ".fold").mkdir()
    (run_dir / "M1" / ".cache").mkdir()
    (run_dir / "M1" / ".cache" / "x").write_text("x")
    (run_dir / "deep").mkdir()
    os.mkfifo(run_dir / "deep" / "pipe")
    with open(os.fsencode(run_dir) + b"/caf\xe9", "w") as file:
        file.write("x")
    exported = export(run_dir)

    assert exported.left_out == {
        "link": "a symbolic link",
        "folder": "a symbolic link",
        "pipe": "a FIFO",
        ".env": "hidden",
        "M1/.cache": "hidden",
        "deep/pipe": "a FIFO",
        "caf\\xe9": "a name that is not UTF-8",
    }
    assert read_manifest(exported.path).left_out == exported.left_out
    assert not {"link", "pipe", ".env"} & set(inside(exported.path))
    assert verify(exported.path).ok


def test_large_files_are_left_out_when_asked_and_journal_and_documents_never(tmp_path: Path) -> None:
    run_dir = runs.record(tmp_path / "001")
    exported = export(run_dir, max_file_bytes=200)

    assert set(exported.left_out) == {"M1/artifacts/c0_attn_map.npy", "M1/artifacts/c0_attn_map.png"}
    assert exported.left_out["M1/artifacts/c0_attn_map.npy"] == "256 bytes, more than the 200 asked for"
    assert max(e.size_bytes for e in exported.entries if e.kind == "journal") > 200
    assert verify(exported.path).findings == ()


def test_files_the_journal_does_not_name_are_left_out_when_asked(tmp_path: Path) -> None:
    run_dir = runs.record(tmp_path / "001")
    (run_dir / "mine.txt").write_text("not spanfold's")
    exported = export(run_dir, include_other=False)

    assert exported.left_out["mine.txt"] == "the journal does not name it"
    assert "M1/artifacts/c0_attn_map.png" in inside(exported.path)
    assert {entry.kind for entry in exported.entries} == {"journal", "document", "artifact"}


def test_a_journal_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    run_dir = runs.record_small(tmp_path / "001")
    [journal] = (run_dir / "journal").glob("*.jsonl")
    journal.rename(tmp_path / "elsewhere")
    journal.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UnsafeEntryError):
        export(run_dir)
    assert sorted(os.listdir(tmp_path)) == ["001", "elsewhere"]


def test_names_of_any_kind_are_kept(tmp_path: Path) -> None:
    run_dir = runs.record_small(tmp_path / "001")
    names = ["manifest.json", "a\nb", "ünïcode ☃", "deep/" * 40 + "x" * 200, "-rf", "back\\slash", "x" * 255, "run/x"]
    for name in names:
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / name).write_text(name)
    exported = export(run_dir)

    assert inside(exported.path) == runs.files(run_dir)
    assert verify(exported.path).findings == ()


# -- failures


def test_a_file_that_changes_meanwhile_is_an_error_and_the_old_bundle_stays(tmp_path: Path) -> None:
    run_dir = runs.record_small(tmp_path / "001")
    old = export(run_dir).path.read_bytes()
    (run_dir / "a.bin").write_bytes(os.urandom(5_000_000))  # takes a while to compress
    (run_dir / "changes.txt").write_bytes(bytes(8))
    stop = threading.Event()

    def change() -> None:
        with (run_dir / "changes.txt").open("r+b", buffering=0) as file:
            number = 0
            while not stop.wait(0.001):
                number += 1
                os.pwrite(file.fileno(), number.to_bytes(8, "big"), 0)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        with pytest.raises(BundleError, match=r"changes\.txt: expected a file that stays as it is"):
            export(run_dir)
    finally:
        stop.set()
        thread.join()

    assert (tmp_path / "001.spanfold.tar.zst").read_bytes() == old
    assert sorted(os.listdir(tmp_path)) == ["001", "001.spanfold.tar.zst"]


@pytest.mark.case("C-051")
def test_a_disk_that_is_full_leaves_no_half_bundle(tmp_path: Path) -> None:
    run_dir = runs.record_small(tmp_path / "001")
    old = export(run_dir).path.read_bytes()
    (run_dir / "large.bin").write_bytes(os.urandom(3_000_000))
    program = """
import resource, signal, sys
from spanfold.bundle import export
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    export(sys.argv[1])
except OSError as error:
    print(type(error).__name__, error.filename)
"""
    done = subprocess.run([sys.executable, "-c", program, str(run_dir)], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("OSError ")
    assert "001.spanfold.tar.zst" in done.stdout
    assert (tmp_path / "001.spanfold.tar.zst").read_bytes() == old
    assert sorted(os.listdir(tmp_path)) == ["001", "001.spanfold.tar.zst"]


def test_an_export_killed_at_any_moment_leaves_the_old_bundle_or_the_new_one(tmp_path: Path) -> None:
    run_dir = runs.record_small(tmp_path / "001")
    old = export(run_dir).path.read_bytes()
    (run_dir / "large.bin").write_bytes(os.urandom(20_000_000))
    new = export(run_dir, tmp_path / "new.zst").path.read_bytes()
    program = "import sys; from spanfold.bundle import export; print('go', flush=True); export(sys.argv[1])"
    for wait_s in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4):
        with subprocess.Popen([sys.executable, "-c", program, str(run_dir)], stdout=subprocess.PIPE) as process:
            assert process.stdout
            process.stdout.readline()
            time.sleep(wait_s)
            process.send_signal(signal.SIGKILL)
        assert (tmp_path / "001.spanfold.tar.zst").read_bytes() in (old, new)
    for name in set(os.listdir(tmp_path)) - {"001", "001.spanfold.tar.zst", "new.zst"}:
        assert name.startswith("."), "what is left is hidden"


def test_memory_does_not_grow_with_the_size_of_the_run(tmp_path: Path) -> None:
    run_dir = runs.record_small(tmp_path / "001")
    program = """
import resource, sys
from spanfold.bundle import export, verify
assert verify(export(sys.argv[1]).path).ok
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""

    def peak_mb() -> int:
        done = subprocess.run([sys.executable, "-c", program, str(run_dir)], capture_output=True, text=True, check=True)
        return int(done.stdout)

    small = peak_mb()
    with (run_dir / "large.bin").open("wb") as file:
        for _ in range(300):
            file.write(os.urandom(1 << 10) * (1 << 10))
    assert peak_mb() < small + 40


@pytest.mark.parametrize("kind", ["none", "a file"])
def test_a_folder_that_is_not_there_is_named_with_what_to_do(tmp_path: Path, kind: str) -> None:
    run_dir = runs.record(tmp_path / "001")
    if kind == "a file":
        (tmp_path / "nowhere").write_text("a note")

    with pytest.raises(BundleError, match=f"nowhere: expected a folder .* found {kind}. Make the folder") as caught:
        export(run_dir, tmp_path / "nowhere" / "x.spanfold.tar.zst")

    assert ".spanfold-" not in str(caught.value)
    done = subprocess.run(
        [sys.executable, "-m", "spanfold", "bundle", "export", "001", "-o", "nowhere/x.spanfold.tar.zst"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode != 0
    assert f"{tmp_path / 'nowhere'}: expected a folder" in done.stderr
    assert "Traceback" not in done.stderr
