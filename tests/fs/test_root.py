"""What a root does when nobody attacks it, for both ways of holding a directory."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.errors import UnsafeEntryError, UnsafePathError
from spanfold.fs import SafeRoot, WalkBudgetExceeded, WalkEntry
from spanfold.fs._folders import Folder, PathFolder, platform_folder, retry_sharing
from tests.fs.conftest import as_ordinary_user


def tree(root: SafeRoot) -> dict[str, bytes | None]:
    """Every entry below, read without the code under test."""
    return {
        str(path.relative_to(root.path)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.path.rglob("*"))
    }


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o7777


class TestDirectories:
    def test_a_missing_directory_is_made_only_when_asked(self, tmp_path: Path, folder_type: type[Folder]) -> None:
        with pytest.raises(FileNotFoundError):
            SafeRoot(tmp_path / "a" / "b", folder_type=folder_type)
        assert not (tmp_path / "a").exists()

        SafeRoot(tmp_path / "a" / "b", create=True, folder_type=folder_type)
        assert (tmp_path / "a" / "b").is_dir()

    def test_ensure_dir_makes_what_is_missing_and_accepts_what_is_there(self, root: SafeRoot) -> None:
        for _ in range(2):
            root.ensure_dir("M1/artifacts")
        assert tree(root) == {"M1": None, "M1/artifacts": None}

    def test_an_exclusive_directory_is_made_once(self, root: SafeRoot) -> None:
        root.make_dir_exclusive("001")
        with pytest.raises(FileExistsError):
            root.make_dir_exclusive("001")
        with pytest.raises(FileNotFoundError):
            root.make_dir_exclusive("missing/001")

    def test_a_subroot_is_a_root_of_its_own(self, root: SafeRoot) -> None:
        with pytest.raises(FileNotFoundError):
            root.subroot("cells/c1")
        with root.subroot("cells/c1", create=True) as cell:
            cell.replace_atomic("log", b"x", durable=False)
            cell.subroot("deep", create=True).replace_atomic("log", b"y", durable=False)
        assert cell.path == root.path / "cells" / "c1"
        assert cell.read_bytes("deep/log") == b"y"
        with pytest.raises(UnsafePathError):
            cell.read_bytes("../log")

    def test_a_relative_root_stays_where_it_was_when_the_working_folder_changes(
        self, tmp_path: Path, folder_type: type[Folder]
    ) -> None:
        os.chdir(tmp_path)
        root = SafeRoot("run", create=True, folder_type=folder_type)
        (tmp_path / "other").mkdir()
        os.chdir(tmp_path / "other")
        root.replace_atomic("file", b"x", durable=False)
        assert (tmp_path / "run" / "file").read_bytes() == b"x"

    def test_links_on_the_way_to_the_root_are_allowed(self, tmp_path: Path, folder_type: type[Folder]) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        SafeRoot(tmp_path / "link" / "run", create=True, folder_type=folder_type).ensure_dir("a")
        assert (tmp_path / "real" / "run" / "a").is_dir()


class TestModes:
    # 0o777 takes even our own access away.
    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
    @pytest.mark.contract("DL-175", "AI-009")
    def test_everything_is_private_whatever_the_umask(self, ordinary_folder: Path, umask: int) -> None:
        with as_ordinary_user():
            before = os.umask(umask)
            try:
                root = SafeRoot(ordinary_folder / "run", create=True)
                root.ensure_dir("a/b")
                root.make_dir_exclusive("c")
                root.create_exclusive("a/b/created", b"x")
                root.replace_atomic("replaced", b"x", durable=True)
                root.open_append("appended").close()
            finally:
                os.umask(before)
        assert mode(root.path) == 0o700
        assert {str(p.relative_to(root.path)): mode(p) for p in root.path.rglob("*")} == {
            **dict.fromkeys(["a", "a/b", "c"], 0o700),
            **dict.fromkeys(["a/b/created", "replaced", "appended"], 0o600),
        }


class TestCreateExclusive:
    def test_a_created_file_is_whole_and_alone(self, root: SafeRoot) -> None:
        assert root.create_exclusive("file", b"bytes") == 5
        assert tree(root) == {"file": b"bytes"}
        assert (root.path / "file").stat().st_nlink == 1

    @pytest.mark.parametrize("occupant", ["file", "directory", "dangling link"])
    def test_a_name_that_is_taken_stays_what_it_was(self, root: SafeRoot, occupant: str) -> None:
        target = root.path / "taken"
        if occupant == "file":
            target.write_bytes(b"old")
        elif occupant == "directory":
            target.mkdir()
        else:
            target.symlink_to("nowhere")
        before = target.lstat()

        with pytest.raises(FileExistsError) as caught:
            root.create_exclusive("taken", b"new")

        assert caught.value.filename == str(target)
        assert target.lstat() == before
        assert os.listdir(root.path) == ["taken"]


class TestReplaceAtomic:
    @given(versions=st.lists(st.lists(st.binary(max_size=400_000), max_size=4), min_size=1, max_size=4))
    def test_the_newest_pieces_are_the_file(
        self, tmp_path_factory: pytest.TempPathFactory, versions: list[list[bytes]]
    ) -> None:
        root = SafeRoot(tmp_path_factory.mktemp("root"))
        for pieces in versions:
            assert root.replace_atomic("doc", iter(pieces), durable=False) == sum(map(len, pieces))
            assert tree(root) == {"doc": b"".join(pieces)}

    @pytest.mark.parametrize("durable", [False, True])
    @pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
    @pytest.mark.contract("DL-140")
    def test_when_the_pieces_stop_with_an_error_the_old_file_stays_and_no_other(
        self, root: SafeRoot, failure: type[BaseException], durable: bool
    ) -> None:
        def pieces() -> Iterator[bytes]:
            yield b"x" * 1_000_000
            raise failure

        root.replace_atomic("doc", b"old", durable=durable)
        with pytest.raises(failure):
            root.replace_atomic("doc", pieces(), durable=durable)
        assert tree(root) == {"doc": b"old"}

    @pytest.mark.slow
    def test_a_reader_sees_a_whole_version_at_every_instant(self, root: SafeRoot) -> None:
        versions = [bytes([65 + i]) * (50_000 * (i + 1)) for i in range(4)]
        root.replace_atomic("doc", versions[0], durable=False)
        stop = threading.Event()
        seen: set[bytes] = set()

        def read() -> None:
            while not stop.is_set():
                seen.add(root.read_bytes("doc"))

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for _ in range(50):
            for version in versions:
                root.replace_atomic("doc", version, durable=False)
        stop.set()
        for reader in readers:
            reader.join()
        assert seen
        assert seen <= set(versions)

    def test_many_writers_of_one_file_leave_one_whole_version(self, root: SafeRoot) -> None:
        versions = [bytes([65 + i]) * 100_000 for i in range(4)]

        def write(version: bytes) -> None:
            for _ in range(25):
                root.replace_atomic("doc", version, durable=False)

        writers = [threading.Thread(target=write, args=(version,)) for version in versions]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert set(tree(root)) == {"doc"}
        assert root.read_bytes("doc") in versions

    def test_a_killed_writer_leaves_the_old_file_and_a_name_that_readers_know(self, root: SafeRoot) -> None:
        root.replace_atomic("doc", b"old", durable=False)
        program = (
            "import os, sys\n"
            "from spanfold.fs import SafeRoot\n"
            "def pieces():\n"
            "    yield b'x' * 1_000_000\n"
            "    os.kill(os.getpid(), 9)\n"
            "SafeRoot(sys.argv[1]).replace_atomic('doc', pieces(), durable=True)\n"
        )
        assert subprocess.run([sys.executable, "-c", program, str(root.path)], check=False).returncode == -9

        left = [name for name in os.listdir(root.path) if name != "doc"]
        assert len(left) == 1
        assert re.fullmatch(r"\.doc\.\d+\.[0-9a-f]{8}\.tmp", left[0])
        assert root.read_bytes("doc") == b"old"

    def test_a_directory_of_this_name_is_refused_and_kept(self, root: SafeRoot) -> None:
        root.ensure_dir("doc/inside")
        with pytest.raises(UnsafeEntryError, match="directory"):
            root.replace_atomic("doc", b"x", durable=False)
        assert tree(root) == {"doc": None, "doc/inside": None}

    @pytest.mark.case("C-054")
    def test_a_file_that_a_reader_holds_open_is_replaced_under_it(self, root: SafeRoot) -> None:
        root.replace_atomic("doc", b"old", durable=False)
        with root.open_read("doc") as reader:
            root.replace_atomic("doc", b"new", durable=False)
            assert reader.read() == b"old"
        assert root.read_bytes("doc") == b"new"

    @pytest.mark.case("C-054")
    def test_a_sharing_violation_is_tried_again_and_then_reported(self) -> None:
        calls = 0

        def busy_until(attempt: int) -> None:
            nonlocal calls
            calls += 1
            if calls < attempt:
                raise PermissionError(13, "in use by another process")

        retry_sharing(lambda: busy_until(4), transient=True, pause_s=0)
        assert calls == 4
        calls = 0
        with pytest.raises(PermissionError):
            retry_sharing(lambda: busy_until(10**9), transient=True, pause_s=0)
        assert calls == 10
        calls = 0
        with pytest.raises(PermissionError):
            retry_sharing(lambda: busy_until(4), transient=False, pause_s=0)
        assert calls == 1


class TestReading:
    def test_a_file_is_read_back(self, root: SafeRoot) -> None:
        (root.path / "file").write_bytes(b"bytes")
        assert root.read_bytes("file") == b"bytes"
        with root.open_read("file") as file:
            assert file.read(2) == b"by"
        assert root.stat("file").st_size == 5
        assert root.stat().st_ino == root.path.stat().st_ino

    @pytest.mark.parametrize("rel", ["missing", "missing/file"])
    def test_a_missing_file_is_reported_with_its_whole_path(self, root: SafeRoot, rel: str) -> None:
        for call in (root.read_bytes, root.stat, root.unlink):
            with pytest.raises(FileNotFoundError) as caught:
                call(rel)
            assert str(root.path) in str(caught.value)

    def test_unlink_removes_a_name_but_never_a_directory(self, root: SafeRoot) -> None:
        root.ensure_dir("folder")
        root.replace_atomic("file", b"x", durable=False)
        root.unlink("file")
        with pytest.raises(FileNotFoundError):
            root.unlink("file")
        with pytest.raises((UnsafeEntryError, PermissionError)):
            root.unlink("folder")
        assert tree(root) == {"folder": None}


class TestWalk:
    def test_every_entry_is_met_once_parents_first_in_order(self, root: SafeRoot) -> None:
        for rel in ("b/y/deep", "b/x", "a"):
            root.ensure_dir(rel)
        for rel in ("b/y/deep/file", "b/0", "c"):
            root.replace_atomic(rel, b"x", durable=False)
        (root.path / "link").symlink_to("b")

        entries = list(root.walk())

        assert [entry.path for entry in entries] == [
            "a", "b", "b/0", "b/x", "b/y", "b/y/deep", "b/y/deep/file", "c", "link",
        ]  # fmt: skip
        assert [entry.name for entry in entries if entry.is_dir] == ["a", "b", "x", "y", "deep"]

    def test_a_directory_marked_skip_is_not_entered(self, root: SafeRoot) -> None:
        root.ensure_dir("a/inside")
        root.ensure_dir("b/inside")

        def walk() -> Iterator[WalkEntry]:
            for entry in root.walk():
                entry.skip = entry.path == "a"
                yield entry

        assert [entry.path for entry in walk()] == ["a", "b", "b/inside"]

    @pytest.mark.parametrize("budget", [0, 1, 3, 4])
    def test_a_walk_stops_when_more_entries_are_met_than_allowed(self, root: SafeRoot, budget: int) -> None:
        for rel in ("a", "b/c", "b/d"):
            root.ensure_dir(rel)
        if budget >= 4:
            assert len(list(root.walk(budget))) == 4
            return
        with pytest.raises(WalkBudgetExceeded) as caught:
            list(root.walk(budget))
        assert caught.value.limit == budget

    def test_entries_that_vanish_during_the_walk_are_left_out(self, root: SafeRoot) -> None:
        root.ensure_dir("a/b")
        walk = root.walk()
        assert next(walk).path == "a"
        (root.path / "a" / "b").rmdir()
        (root.path / "a").rmdir()
        assert list(walk) == []


class TestDescriptors:
    def test_a_root_that_is_not_held_holds_no_descriptor(self, tmp_path: Path, folder_type: type[Folder]) -> None:
        before = len(os.listdir("/proc/self/fd"))
        roots = [SafeRoot(tmp_path / f"run{i}", create=True, folder_type=folder_type) for i in range(20)]
        for root in roots:
            root.subroot("M1", create=True).replace_atomic("log", b"x", durable=True)
            list(root.walk())
        assert len(os.listdir("/proc/self/fd")) == before

    @pytest.mark.slow
    def test_two_thousand_roots_work_under_a_limit_of_256_descriptors(self, tmp_path: Path) -> None:
        program = (
            "import resource, sys\n"
            "from spanfold.fs import SafeRoot\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
            "roots = [SafeRoot(f'{sys.argv[1]}/{i}', create=True) for i in range(2000)]\n"
            "for root in roots:\n"
            "    root.subroot('M1', create=True).replace_atomic('log.json', b'{}', durable=False)\n"
            "print(sum(len(list(root.walk())) for root in roots))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True, text=True, timeout=120
        )
        assert done.stdout.strip() == "4000"

    def test_a_held_root_gives_its_descriptor_back(self, tmp_path: Path) -> None:
        before = len(os.listdir("/proc/self/fd"))
        root = SafeRoot.open(tmp_path)
        assert len(os.listdir("/proc/self/fd")) == before + 1
        for _ in range(2):
            root.close()
        assert len(os.listdir("/proc/self/fd")) == before
        root.replace_atomic("still", b"usable", durable=False)

    def test_closing_a_root_does_not_disturb_a_thread_that_is_using_it(self, tmp_path: Path) -> None:
        root = SafeRoot(tmp_path)
        entered, go_on = threading.Event(), threading.Event()

        def pieces() -> Iterator[bytes]:
            entered.set()
            go_on.wait(10)
            yield b"whole"

        with root:
            writer = threading.Thread(target=lambda: root.replace_atomic("doc", pieces(), durable=True))
            writer.start()
            entered.wait(10)
        go_on.set()
        writer.join()
        assert root.read_bytes("doc") == b"whole"

    @pytest.mark.contract("AI-085")
    def test_no_child_inherits_a_descriptor(self, tmp_path: Path) -> None:
        program = "import os; print(sorted(os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')))"
        with SafeRoot(tmp_path) as root, root.open_append("log"), root.subroot("M1", create=True):
            done = subprocess.run(
                [sys.executable, "-c", program], check=True, capture_output=True, text=True, close_fds=False
            )
        assert str(tmp_path) not in done.stdout

    def test_a_failed_call_leaks_no_descriptor(self, root: SafeRoot) -> None:
        root.ensure_dir("folder")
        before = len(os.listdir("/proc/self/fd"))
        for call in (
            lambda: root.open_append("folder"),
            lambda: root.open_read("folder"),
            lambda: root.replace_atomic("folder", b"x", durable=False),
            lambda: root.subroot("folder/missing/deep"),
            lambda: root.create_exclusive("folder", b"x"),
        ):
            with pytest.raises((OSError, UnsafeEntryError)):
                call()
        assert len(os.listdir("/proc/self/fd")) == before


def test_this_platform_gets_the_strongest_folder() -> None:
    assert platform_folder() is not PathFolder
