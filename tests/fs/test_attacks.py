"""What may be planted in a tree by a process of the same user, and what must come of it (docs/safe-paths.md)."""

import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spanfold.errors import UnsafeEntryError
from spanfold.fs import SafeRoot, WalkBudgetExceeded, entry_kind
from spanfold.fs._folders import Folder
from tests.fs.conftest import Victim, as_ordinary_user

CALLS: dict[str, Callable[[SafeRoot, str], object]] = {
    "open_append": lambda root, rel: root.open_append(rel),
    "open_read": lambda root, rel: root.open_read(rel),
    "read_bytes": lambda root, rel: root.read_bytes(rel),
    "create_exclusive": lambda root, rel: root.create_exclusive(rel, b"ours"),
    "replace_atomic": lambda root, rel: root.replace_atomic(rel, b"ours", durable=False),
    "unlink": lambda root, rel: root.unlink(rel),
    "stat": lambda root, rel: root.stat(rel),
    "ensure_dir": lambda root, rel: root.ensure_dir(rel),
    "make_dir_exclusive": lambda root, rel: root.make_dir_exclusive(rel),
    "subroot": lambda root, rel: root.subroot(rel, create=True),
}


@pytest.fixture(autouse=True)
def nothing_outside_changes(victim: Victim) -> Iterator[None]:
    yield
    victim.assert_untouched()


class Plant:
    """Put an entry of some kind at a path."""

    def __init__(self, victim: Victim) -> None:
        self._victim = victim

    def __call__(self, kind: str, path: Path) -> None:
        match kind:
            case "link to a directory":
                path.symlink_to(self._victim.path.parent)
            case "link to a file":
                path.symlink_to(self._victim.path)
            case "dangling link":
                path.symlink_to(self._victim.path.parent / "new")
            case "hard link":
                path.hardlink_to(self._victim.path)
            case "FIFO":
                os.mkfifo(path)
            case "socket":
                # Bound by its short name: a whole path may be longer than a socket address.
                os.chdir(path.parent)
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.bind(path.name)
            case "directory":
                path.mkdir()
            case "file":
                path.write_bytes(b"forged")


@pytest.fixture
def plant(victim: Victim) -> Plant:
    return Plant(victim)


class TestPathsThroughPlantedEntries:
    @pytest.mark.slow
    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("kind", ["link to a directory", "dangling link", "FIFO", "socket", "file"])
    @pytest.mark.parametrize("depth", [0, 1, 2])
    @pytest.mark.contract("AI-075", "AI-088")
    def test_no_call_passes_a_component_that_is_no_real_directory(
        self, root: SafeRoot, plant: Plant, kind: str, depth: int, call: str
    ) -> None:
        parts = ["a", "b", "c"][: depth + 1]
        root.path.joinpath(*parts[:-1]).mkdir(parents=True, exist_ok=True)
        plant(kind, root.path.joinpath(*parts))

        with pytest.raises(UnsafeEntryError, match="Move it aside") as caught:
            CALLS[call](root, "/".join([*parts, "victim"]))
        assert str(root.path.joinpath(*parts)) in str(caught.value)

    @pytest.mark.parametrize("kind", ["link to a directory", "link to a file", "dangling link", "FIFO", "file"])
    @pytest.mark.parametrize("create", [False, True])
    @pytest.mark.contract("AI-075", "AI-081", "AI-088")
    def test_a_root_that_is_no_real_directory_is_refused(
        self, tmp_path: Path, folder_type: type[Folder], plant: Plant, kind: str, create: bool
    ) -> None:
        plant(kind, tmp_path / "run")
        with pytest.raises(UnsafeEntryError, match="expected a directory, found a"):
            SafeRoot(tmp_path / "run", create=create, folder_type=folder_type)

    @pytest.mark.parametrize("held", [False, True])
    def test_a_root_that_was_displaced_is_not_taken_for_the_one_in_its_place(
        self, root: SafeRoot, victim: Victim, held: bool
    ) -> None:
        if held:
            root.__enter__()
        root.path.rename(root.path.with_name("moved"))
        root.path.mkdir()
        try:
            root.replace_atomic("file", b"ours", durable=False)
        except UnsafeEntryError:
            written = []
        else:
            written = ["file"]
        # Only a descriptor still knows the directory; in any case the new one stays empty.
        assert os.listdir(root.path.with_name("moved")) == written
        assert list(root.path.iterdir()) == []
        root.path.rmdir()
        root.path.symlink_to(victim.path.parent)
        if held:
            root.close()
        with pytest.raises(UnsafeEntryError):
            root.replace_atomic("file", b"ours", durable=False)

    def test_a_held_root_goes_on_in_the_directory_that_was_moved_away(self, tmp_path: Path) -> None:
        with SafeRoot(tmp_path / "run", create=True) as root, root.subroot("step", create=True) as step:
            root.path.rename(tmp_path / "moved")
            root.path.mkdir()
            step.replace_atomic("file", b"ours", durable=False)
        assert (tmp_path / "moved" / "step" / "file").read_bytes() == b"ours"
        assert list(root.path.iterdir()) == []

    def test_a_subroot_replaced_by_a_link_is_refused(self, root: SafeRoot, plant: Plant) -> None:
        step = root.subroot("step", create=True)
        step.path.rmdir()
        plant("link to a directory", step.path)
        with pytest.raises(UnsafeEntryError):
            step.replace_atomic("file", b"ours", durable=False)


class TestPlantedNames:
    @pytest.mark.parametrize("kind", ["link to a file", "dangling link", "FIFO", "socket", "directory", "hard link"])
    @pytest.mark.contract("AI-081", "AI-088")
    def test_nothing_is_appended_to_an_entry_that_is_no_file_of_ours(
        self, root: SafeRoot, plant: Plant, kind: str
    ) -> None:
        plant(kind, root.path / "log")
        with pytest.raises(UnsafeEntryError):
            root.open_append("log")

    @pytest.mark.parametrize(
        "kind", ["link to a file", "link to a directory", "dangling link", "FIFO", "socket", "directory"]
    )
    def test_nothing_is_read_from_an_entry_that_is_no_regular_file(
        self, root: SafeRoot, plant: Plant, kind: str
    ) -> None:
        plant(kind, root.path / "doc")
        with pytest.raises(UnsafeEntryError, match="regular file"):
            root.read_bytes("doc")

    def test_a_waiting_reader_of_a_planted_fifo_receives_nothing(self, root: SafeRoot) -> None:
        os.mkfifo(root.path / "log")
        reader = os.open(root.path / "log", os.O_RDONLY | os.O_NONBLOCK)
        try:
            with pytest.raises(UnsafeEntryError, match="FIFO"):
                root.open_append("log")
            assert os.read(reader, 100) == b""
        finally:
            os.close(reader)

    def test_a_device_is_refused(self, root: SafeRoot) -> None:
        # Making a device node needs root, so the devices of the machine are looked at instead.
        devices = SafeRoot("/dev")
        for call in (devices.open_append, devices.open_read):
            with pytest.raises(UnsafeEntryError, match="character device"):
                call("full")

    @pytest.mark.parametrize(
        "kind", ["link to a file", "link to a directory", "dangling link", "FIFO", "socket", "hard link", "file"]
    )
    def test_a_replacement_takes_the_name_and_leaves_what_it_pointed_to(
        self, root: SafeRoot, plant: Plant, kind: str, victim: Victim
    ) -> None:
        plant(kind, root.path / "doc")
        root.replace_atomic("doc", b"ours", durable=False)
        assert stat.S_ISREG((root.path / "doc").lstat().st_mode)
        assert (root.path / "doc").read_bytes() == b"ours"
        assert victim.path.stat().st_nlink == 1

    @pytest.mark.parametrize(
        "kind",
        ["link to a file", "link to a directory", "dangling link", "FIFO", "socket", "hard link", "file", "directory"],
    )
    @pytest.mark.contract("AI-077", "AI-088")
    def test_an_exclusive_file_takes_no_name_that_is_taken(self, root: SafeRoot, plant: Plant, kind: str) -> None:
        plant(kind, root.path / "doc")
        before = (root.path / "doc").lstat()
        with pytest.raises(FileExistsError):
            root.create_exclusive("doc", b"ours")
        assert (root.path / "doc").lstat().st_ino == before.st_ino
        assert os.listdir(root.path) == ["doc"]
        if kind == "hard link":
            (root.path / "doc").unlink()

    def test_unlink_removes_a_link_and_not_its_target(self, root: SafeRoot, plant: Plant) -> None:
        plant("link to a file", root.path / "link")
        root.unlink("link")
        assert list(root.path.iterdir()) == []

    def test_a_walk_does_not_follow_links_out_of_the_root_or_in_a_circle(self, root: SafeRoot, plant: Plant) -> None:
        root.ensure_dir("a")
        (root.path / "a" / "loop").symlink_to("..")
        plant("link to a directory", root.path / "out")
        plant("FIFO", root.path / "fifo")
        assert [(entry.path, entry_kind(entry.st.st_mode)) for entry in root.walk()] == [
            ("a", "directory"),
            ("a/loop", "symbolic link"),
            ("fifo", "FIFO"),
            ("out", "symbolic link"),
        ]

    def test_a_directory_replaced_by_a_link_during_a_walk_is_refused(self, root: SafeRoot, plant: Plant) -> None:
        root.ensure_dir("a")
        walk = root.walk()
        assert next(walk).path == "a"
        (root.path / "a").rmdir()
        plant("link to a directory", root.path / "a")
        with pytest.raises(UnsafeEntryError):
            next(walk)

    def test_a_flood_of_planted_entries_ends_the_walk_at_the_budget(self, root: SafeRoot) -> None:
        for i in range(1_000):
            (root.path / f"{i}").touch()
        with pytest.raises(WalkBudgetExceeded):
            next(root.walk(100))

    def test_a_file_name_that_is_no_text_can_be_met_and_removed(self, tmp_path: Path) -> None:
        root = SafeRoot(tmp_path / "run", create=True)
        (root.path / os.fsdecode(b"bad\xff\n")).touch()
        (entry,) = root.walk()
        root.unlink(entry.path)
        assert list(root.path.iterdir()) == []


class TestRaces:
    """An agent that sees names as they appear."""

    @pytest.mark.parametrize("swap", ["link", "file"])
    def test_a_temporary_name_swapped_before_publishing_is_not_published(
        self, root: SafeRoot, victim: Victim, swap: str
    ) -> None:
        root.replace_atomic("doc", b"old", durable=False)

        def pieces() -> Iterator[bytes]:
            yield b"ours"
            (temporary,) = (path for path in root.path.iterdir() if path.name != "doc")
            temporary.unlink()
            if swap == "link":
                temporary.symlink_to(victim.path)
            else:
                temporary.write_bytes(b"forged")

        with pytest.raises(UnsafeEntryError, match="the file just written"):
            root.replace_atomic("doc", pieces(), durable=False)
        assert root.read_bytes("doc") == b"old"

    @pytest.mark.parametrize("swap", ["link", "file"])
    @pytest.mark.contract("AI-079", "AI-088")
    def test_a_swapped_temporary_name_is_refused_by_exclusive_creation(
        self, root: SafeRoot, victim: Victim, swap: str
    ) -> None:
        def pieces() -> Iterator[bytes]:
            yield b"ours"
            (temporary,) = root.path.iterdir()
            temporary.unlink()
            if swap == "link":
                temporary.symlink_to(victim.path)
            else:
                temporary.write_bytes(b"forged")

        with pytest.raises(UnsafeEntryError, match="the file just written"):
            root.create_exclusive("doc", pieces())

    def test_directories_swapped_for_links_while_we_write_never_lead_outside(
        self, tmp_path: Path, victim: Victim
    ) -> None:
        root = SafeRoot(tmp_path / "run", create=True)
        root.ensure_dir("step")
        stop = threading.Event()

        def swap() -> None:
            real, aside = root.path / "step", root.path / "aside"
            while not stop.is_set():
                real.rename(aside)
                real.symlink_to(victim.path.parent)
                real.unlink()
                aside.rename(real)

        attacker = threading.Thread(target=swap)
        attacker.start()
        outcomes = set()
        try:
            for i in range(300):
                try:
                    root.replace_atomic("step/victim", b"ours", durable=False)
                    with root.open_append("step/log") as log:
                        log.append(b"%d\n" % i)
                    outcomes.add("written")
                except (UnsafeEntryError, FileNotFoundError):
                    outcomes.add("refused")
        finally:
            stop.set()
            attacker.join()
        assert outcomes


class TestPermissions:
    @pytest.mark.case("C-052")
    def test_a_read_only_folder_gives_the_error_of_the_system_with_the_path(self, ordinary_folder: Path) -> None:
        with as_ordinary_user():
            root = SafeRoot(ordinary_folder / "run", create=True)
            root.replace_atomic("doc", b"old", durable=False)
            root.path.chmod(0o500)
            for name in ("replace_atomic", "create_exclusive", "ensure_dir", "make_dir_exclusive", "open_append"):
                with pytest.raises(PermissionError) as caught:
                    CALLS[name](root, "new")
                assert str(root.path) in str(caught.value)
            assert root.read_bytes("doc") == b"old"
            assert os.listdir(root.path) == ["doc"]
            root.path.chmod(0o700)

    def test_a_file_without_permission_is_not_appended_to(self, ordinary_folder: Path) -> None:
        with as_ordinary_user():
            root = SafeRoot(ordinary_folder / "run", create=True)
            root.replace_atomic("log", b"old\n", durable=False)
            (root.path / "log").chmod(0o400)
            with pytest.raises(PermissionError):
                root.open_append("log")
            assert root.read_bytes("log") == b"old\n"
