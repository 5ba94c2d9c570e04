"""Workspace snapshots: what is kept, what is refused, and that they come back byte for byte."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.artifacts import (
    MEDIA_TYPES,
    TEXT_SUFFIXES,
    SnapshotLimits,
    WorkspaceSnapshot,
    restore_workspace,
    snapshot_workspace,
)
from spanfold.errors import UnsafePathError
from spanfold.fs import SafeRoot

FOLDER = "M5/artifacts"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A directory as an experiment leaves one."""
    place = tmp_path / "work"
    (place / "sub").mkdir(parents=True)
    (place / "main.py").write_bytes(b"x = 1\r\ny = 2")
    (place / "sub/plot.PNG").write_bytes(b"\x89PNG\r\n\x1a\n")
    (place / "noext").write_bytes(b"hello")
    (place / "model.bin").write_bytes(b"\0\1\2")
    (place / "sub/z.unknown").write_bytes(b"text")
    (place / "sub.txt").write_bytes(b"s")
    return place


def taken(root: SafeRoot, workspace: Path, **options: Any) -> WorkspaceSnapshot:
    snapshot = snapshot_workspace(root, FOLDER, workspace, **options)
    assert snapshot is not None
    return snapshot


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and not p.is_symlink()}


def copies(root: SafeRoot) -> dict[str, bytes]:
    return {f"{FOLDER}/{name}": data for name, data in tree(root.path / FOLDER).items()}


# -- what is kept


@pytest.mark.contract("DL-083")
def test_the_default_keeps_texts_and_media_and_notes_the_rest(root: SafeRoot, workspace: Path) -> None:
    record = taken(root, workspace).to_dict()

    assert record["files"] == {
        "main.py": "x = 1\r\ny = 2",
        "model.bin": "<skipped: .bin, not a recognised text type>",
        "noext": "<skipped: no extension, not a recognised text type>",
        "sub/z.unknown": "<skipped: .unknown, not a recognised text type>",
        "sub.txt": "s",
    }
    assert list(record["files"]) == ["main.py", "model.bin", "noext", "sub/z.unknown", "sub.txt"]
    assert record["skipped"] == 3
    assert list(record["media_files"]) == ["sub/plot.PNG"]
    assert record["media"] == list(record["media_files"].values())
    assert copies(root) == {record["media"][0]: b"\x89PNG\r\n\x1a\n"}


@pytest.mark.contract("DL-083")
def test_two_million_bytes_are_inline_and_one_more_is_a_note(root: SafeRoot, tmp_path: Path) -> None:
    place = tmp_path / "work"
    place.mkdir()
    (place / "edge.json").write_bytes(b"x" * 2_000_000)
    (place / "over.json").write_bytes(b"x" * 2_000_001)

    snapshot = taken(root, place)

    assert len(snapshot.files["edge.json"]) == 2_000_000
    assert snapshot.files["over.json"] == "<skipped: 2000001 bytes, over the inline cap>"
    assert snapshot.skipped == 1


@pytest.mark.contract("DL-082")
@pytest.mark.parametrize("suffix", [*sorted(TEXT_SUFFIXES), *sorted(MEDIA_TYPES)])
def test_each_suffix_counts_in_any_case(root: SafeRoot, tmp_path: Path, suffix: str) -> None:
    place = tmp_path / "work"
    place.mkdir()
    (place / f"a{suffix.upper()}").write_bytes(b"content")

    snapshot = taken(root, place)

    assert len(TEXT_SUFFIXES) == 10
    assert len(MEDIA_TYPES) == 14
    assert snapshot.skipped == 0
    if suffix in TEXT_SUFFIXES:
        assert snapshot.files == {f"a{suffix.upper()}": "content"}
    else:
        assert copies(root) == {snapshot.media_files[f"a{suffix.upper()}"]: b"content"}


@pytest.mark.contract("DL-084")
def test_keep_everything_inlines_unknown_text_and_copies_what_is_binary(root: SafeRoot, workspace: Path) -> None:
    (workspace / "big.json").write_bytes(b"x" * 2_000_001)

    snapshot = taken(root, workspace, keep_everything=True)

    assert snapshot.skipped == 0
    assert set(snapshot.files) == {"big.json", "main.py", "noext", "sub.txt", "sub/z.unknown"}
    assert len(snapshot.files["big.json"]) == 2_000_001
    assert set(snapshot.media_files) == {"model.bin", "sub/plot.PNG"}
    assert (root.path / snapshot.media_files["model.bin"]).read_bytes() == b"\0\1\2"


@pytest.mark.contract("DL-085")
def test_copies_are_named_after_source_and_content_and_made_once(root: SafeRoot, workspace: Path) -> None:
    source = workspace / "sub/plot.PNG"
    digest = hashlib.sha256(os.fsencode(source.resolve()) + source.read_bytes()).hexdigest()[:12]

    first = taken(root, workspace, keep_everything=True)
    before = {path: (root.path / path).stat().st_ino for path in first.media}
    second = taken(root, workspace, keep_everything=True)

    assert first.media_files["sub/plot.PNG"] == f"{FOLDER}/plot_{digest}.png"
    assert second.to_dict() == first.to_dict()
    assert {path: (root.path / path).stat().st_ino for path in second.media} == before
    assert set(copies(root)) == set(first.media)


@pytest.mark.contract("DL-141")
def test_a_copy_that_was_cut_short_is_repaired(root: SafeRoot, workspace: Path) -> None:
    copy = root.path / taken(root, workspace).media[0]
    copy.write_bytes(b"\x89P")

    taken(root, workspace)

    assert copy.read_bytes() == b"\x89PNG\r\n\x1a\n"


@pytest.mark.contract("DL-086")
def test_what_is_no_directory_gives_none(root: SafeRoot, workspace: Path) -> None:
    assert snapshot_workspace(root, FOLDER, workspace / "missing") is None
    assert snapshot_workspace(root, FOLDER, workspace / "main.py") is None
    assert snapshot_workspace(root, FOLDER, None) is None
    assert not (root.path / "M5").exists()


def test_a_workspace_around_the_run_does_not_copy_its_own_copies(tmp_path: Path) -> None:
    root = SafeRoot(tmp_path / "work/run", create=True)
    (tmp_path / "work/plot.png").write_bytes(b"p")
    for ours in ("journal/a.log", ".spanfold/backfill/b.txt"):
        (root.path / ours).parent.mkdir(parents=True)
        (root.path / ours).write_text("records of ours")

    first = taken(root, tmp_path / "work")
    second = taken(root, tmp_path / "work")

    assert second.to_dict() == first.to_dict()
    assert "records of ours" not in str(first.to_dict())
    assert len(copies(root)) == 1


# -- links, limits, attacks


@pytest.mark.contract("DL-171")
@pytest.mark.parametrize("keep_everything", [False, True])
def test_nothing_outside_is_reached_by_a_link(root: SafeRoot, tmp_path: Path, keep_everything: bool) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "key.txt").write_text("private")
    place = tmp_path / "work"
    place.mkdir()
    (place / "file.txt").symlink_to(outside / "key.txt")
    (place / "plot.png").symlink_to(outside / "key.txt")
    (place / "folder").symlink_to(outside)
    (place / "dangling").symlink_to("nowhere")

    snapshot = taken(root, place, keep_everything=keep_everything)

    assert "private" not in json.dumps(snapshot.to_dict())
    assert not (root.path / "M5").exists()
    assert snapshot.files == {}
    assert snapshot.links == {
        "dangling": "nowhere",
        "file.txt": str(outside / "key.txt"),
        "folder": str(outside),
        "plot.png": str(outside / "key.txt"),
    }


@pytest.mark.contract("DL-171")
def test_a_workspace_that_is_itself_a_link_is_noted_and_not_entered(root: SafeRoot, workspace: Path) -> None:
    link = workspace.parent / "link"
    link.symlink_to(workspace)

    snapshot = taken(root, link)

    assert snapshot.files == {}
    assert snapshot.links == {".": str(workspace)}
    assert snapshot.skipped == 1


def test_a_workspace_below_a_linked_folder_is_the_callers_own_way_there(root: SafeRoot, workspace: Path) -> None:
    link = workspace.parent.parent / f"{workspace.parent.name}-link"
    link.symlink_to(workspace.parent)

    assert taken(root, link / "work").files == taken(root, workspace).files


@pytest.mark.contract("DL-173")
def test_copies_stay_in_the_run_whatever_a_link_planted_there_says(root: SafeRoot, workspace: Path) -> None:
    outside = workspace.parent / "outside"
    outside.mkdir()
    (root.path / "M5").mkdir()
    (root.path / FOLDER).symlink_to(outside)

    snapshot = taken(root, workspace)

    assert list(outside.iterdir()) == []
    assert snapshot.files["sub/plot.PNG"] == "<could not copy: UnsafeEntryError>"
    with pytest.raises(UnsafePathError):
        snapshot_workspace(root, "../elsewhere", workspace)


@pytest.mark.contract("DL-171")
def test_nothing_outside_is_reached_while_somebody_swaps_folders_for_links(root: SafeRoot, tmp_path: Path) -> None:
    outside, place = tmp_path / "outside", tmp_path / "work"
    for folder, text in ((outside, "private"), (place / "sub", "ours")):
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text(text)
        (folder / "a.png").write_text(text)
    (place / "link").symlink_to(outside)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for old, new in (("sub", "real"), ("link", "sub"), ("sub", "link"), ("real", "sub")):
                (place / old).rename(place / new)

    attacker = threading.Thread(target=swap)
    attacker.start()
    try:
        records = [json.dumps(taken(root, place, keep_everything=True).to_dict()) for _ in range(100)]
    finally:
        over.set()
        attacker.join()

    assert any("ours" in record for record in records)
    assert "private" not in "".join(records)
    assert b"private" not in b"".join(copies(root).values())


def test_a_fifo_neither_hangs_the_snapshot_nor_is_lost(root: SafeRoot, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe.txt")

    snapshot = taken(root, workspace)

    assert snapshot.others == {"pipe.txt": "FIFO"}
    assert snapshot.files["main.py"] == "x = 1\r\ny = 2"


@pytest.mark.contract("DL-180")
def test_what_is_over_a_limit_is_marked(root: SafeRoot, workspace: Path) -> None:
    limits = SnapshotLimits(kept_inline_bytes=4, copy_bytes=7)

    snapshot = taken(root, workspace, keep_everything=True, limits=limits)

    assert snapshot.files["main.py"] == "<skipped: 12 bytes are more than the 7 that are copied>"
    assert snapshot.files["sub/plot.PNG"] == "<skipped: 8 bytes are more than the 7 that are copied>"
    assert snapshot.skipped == 2
    assert set(snapshot.media_files) == {"model.bin", "noext"}

    few = taken(root, workspace, limits=SnapshotLimits(entries=3))
    assert few.problem == "it holds more than 3 entries; the rest was not looked at"


@pytest.mark.contract("DL-084", "DL-133")
def test_a_full_disk_is_said_and_raises_nothing(workspace: Path) -> None:
    program = (
        "import json, resource, signal, sys\n"
        "from spanfold.artifacts import snapshot_workspace\n"
        "from spanfold.fs import SafeRoot\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))\n"
        "snapshot = snapshot_workspace(SafeRoot(sys.argv[1], create=True), 'M5/artifacts', sys.argv[2])\n"
        "print(json.dumps(snapshot.to_dict()))\n"
    )
    run = workspace.parent / "run"

    done = subprocess.run(
        [sys.executable, "-c", program, str(run), str(workspace)], capture_output=True, check=True, timeout=60
    )

    record = json.loads(done.stdout)
    assert record["files"]["sub/plot.PNG"] == "<could not copy: OSError: File too large>"
    assert record["files"]["main.py"] == "x = 1\r\ny = 2"
    assert tree(run) == {}


@pytest.mark.contract("DL-176")
def test_secrets_are_taken_out_of_texts_names_and_copies_and_that_is_noted(root: SafeRoot, workspace: Path) -> None:
    def scrub(text: str) -> str:
        return text.replace("hunter2", "(REDACTED)")

    (workspace / "env.txt").write_text("password hunter2")
    (workspace / "hunter2.bin").write_bytes(b"\0\xffhunter2\0")

    snapshot = taken(root, workspace, keep_everything=True, scrub=scrub)

    assert snapshot.files["env.txt"] == "password (REDACTED)"
    assert snapshot.redacted == ["env.txt", "hunter2.bin"]
    assert b"hunter2" not in b"".join(copies(root).values())
    assert "hunter2" not in "".join(copies(root))
    restored = restore_workspace(root, snapshot.to_dict(), workspace.parent / "back")
    assert restored.problems == dict.fromkeys(["env.txt", "hunter2.bin"], "secrets were taken out of it")


# -- back again

names = st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..")
)
contents = st.binary(max_size=64) | st.text(st.characters(exclude_categories=("Cs",)), max_size=64).map(str.encode)
suffixes = st.sampled_from(["", ".py", ".txt", ".PNG", ".bin", ".Json"])


@pytest.mark.contract("DL-152")
@given(files=st.dictionaries(st.tuples(st.lists(names, max_size=2).map(tuple), names, suffixes), contents, max_size=6))
def test_what_was_kept_whole_comes_back_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, files: dict[Any, bytes]
) -> None:
    place = tmp_path_factory.mktemp("s")
    work = place / "work"
    work.mkdir()
    for (folders, name, suffix), data in files.items():
        try:
            path = work.joinpath(*folders, name + suffix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue  # one name for a folder and a file
    root = SafeRoot(place / "run", create=True)

    record = json.loads(json.dumps(taken(root, work, keep_everything=True).to_dict()))
    restored = restore_workspace(root, record, place / "back")

    assert restored.problems == {}
    assert restored.is_exact
    assert tree(place / "back") == tree(work)
    assert sorted(p.relative_to(place / "back") for p in (place / "back").rglob("*")) == sorted(
        p.relative_to(work) for p in work.rglob("*")
    )


@pytest.mark.contract("DL-152")
def test_names_that_are_no_utf8_are_kept_apart(root: SafeRoot, workspace: Path) -> None:
    for name in (b"\xff.txt", b"\xfe.txt", b"\\xff.txt"):
        Path(os.fsdecode(os.fsencode(workspace) + b"/" + name)).write_bytes(name)

    snapshot = taken(root, workspace, keep_everything=True)

    json.dumps(snapshot.to_dict(), ensure_ascii=False).encode()
    assert {"\\xff.txt", "\\xfe.txt", "\\xff.txt_"} <= {*snapshot.files, *snapshot.media_files}


@pytest.mark.contract("DL-152")
def test_a_restoration_says_what_is_not_as_it_was(root: SafeRoot, workspace: Path, tmp_path: Path) -> None:
    (workspace / "bad.txt").write_bytes(b"\xff")
    (workspace / "link").symlink_to("x")
    snapshot = taken(root, workspace)
    (root.path / snapshot.media[0]).write_bytes(b"changed")

    restored = restore_workspace(root, snapshot.to_dict(), tmp_path / "back")

    assert restored.problems == {
        "bad.txt": "it is no UTF-8, and only its text was kept",
        "link": "a link, which is not restored",
        "model.bin": "skipped: .bin, not a recognised text type",
        "noext": "skipped: no extension, not a recognised text type",
        "sub/plot.PNG": "its bytes are not those it had",
        "sub/z.unknown": "skipped: .unknown, not a recognised text type",
    }
    assert not restored.is_exact
    assert restored.files == 2


@pytest.mark.contract("DL-173")
@pytest.mark.parametrize("path", ["../escaped.txt", "/tmp/escaped.txt", "a/../../escaped.txt", "link/escaped.txt"])
def test_a_forged_snapshot_writes_and_reads_nothing_elsewhere(root: SafeRoot, tmp_path: Path, path: str) -> None:
    (tmp_path / "private").write_text("private")
    back = tmp_path / "back"
    back.mkdir()
    (back / "link").symlink_to(tmp_path)
    (back / "there.txt").write_text("mine")
    forged = {
        "files": {path: "escaped", "there.txt": "theirs"},
        "media_files": {"stolen.txt": "../private"},
        "exact": {"empty_folders": ["../made"]},
    }

    restored = restore_workspace(root, forged, back)

    assert set(restored.problems) == {path, "there.txt", "stolen.txt", "../made"}
    assert (back / "there.txt").read_text() == "mine"
    assert not (back / "stolen.txt").exists()
    assert not list(tmp_path.glob("**/escaped.txt"))
    assert not (tmp_path / "made").exists()


def test_a_snapshot_of_another_logger_is_restored_too(root: SafeRoot, tmp_path: Path) -> None:
    root.ensure_dir(FOLDER)
    root.replace_atomic(f"{FOLDER}/p_0123456789ab.png", b"p", durable=False)
    record = {
        "files": {"a.py": "x", "b.bin": "<skipped: .bin, not a recognised text type>"},
        "media": [f"{FOLDER}/p_0123456789ab.png"],
        "media_files": {"sub/p.png": f"{FOLDER}/p_0123456789ab.png"},
        "skipped": 1,
    }

    restored = restore_workspace(root, record, tmp_path / "back")

    assert tree(tmp_path / "back") == {"a.py": b"x", "sub/p.png": b"p"}
    assert restored.problems == {"b.bin": "skipped: .bin, not a recognised text type"}
