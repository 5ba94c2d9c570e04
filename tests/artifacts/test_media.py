import hashlib
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.artifacts import MEDIA_TYPES, store_media
from spanfold.fs import SafeRoot

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 100


@pytest.fixture
def image(tmp_path: Path) -> Path:
    folder = tmp_path / "cases"
    folder.mkdir()
    path = folder / "cat.png"
    path.write_bytes(PNG)
    return path


def files(root: SafeRoot) -> list[str]:
    return sorted(str(path.relative_to(root.path)) for path in root.path.rglob("*") if not path.is_dir())


@pytest.mark.contract("DL-087")
def test_a_file_is_copied_under_its_hash_and_name(root: SafeRoot, image: Path) -> None:
    stored = store_media(root, image, allowed_roots=[image.parent])
    digest = hashlib.sha256(PNG).hexdigest()
    assert (stored.name, stored.reason, stored.media_type) == ("cat.png", None, "image/png")
    assert (stored.path, stored.sha256, stored.size_bytes) == (f"media/{digest[:16]}_cat.png", digest, len(PNG))
    assert (root.path / str(stored.path)).read_bytes() == PNG


@pytest.mark.contract("DL-087")
@pytest.mark.case("C-032")
def test_the_same_content_and_name_is_stored_once_however_it_comes(root: SafeRoot, image: Path) -> None:
    big = PNG + os.urandom(2_000_000)
    image.write_bytes(big)
    for _ in range(5):
        store_media(root, image, allowed_roots=[image.parent])
        store_media(root, big, name="cat.png")
    (only,) = files(root)
    assert hashlib.sha256((root.path / only).read_bytes()).hexdigest().startswith(only.removeprefix("media/")[:16])
    inode = (root.path / only).stat().st_ino
    store_media(root, image, allowed_roots=[image.parent])
    assert (root.path / only).stat().st_ino == inode


@pytest.mark.parametrize("damage", ["cut", "emptied", "one byte", "link", "hard link", "FIFO"])
@pytest.mark.contract("DL-141")
def test_a_damaged_copy_is_found_and_repaired(root: SafeRoot, image: Path, tmp_path: Path, damage: str) -> None:
    copy = root.path / str(store_media(root, image, allowed_roots=[image.parent]).path)
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    match damage:
        case "cut":
            os.truncate(copy, len(PNG) - 1)
        case "emptied":
            os.truncate(copy, 0)
        case "one byte":
            copy.write_bytes(b"X" + PNG[1:])
        case "link":
            copy.unlink()
            copy.symlink_to(victim)
        case "hard link":
            copy.unlink()
            copy.hardlink_to(victim)
        case "FIFO":
            copy.unlink()
            os.mkfifo(copy)

    stored = store_media(root, image, allowed_roots=[image.parent])

    assert stored.path == str(copy.relative_to(root.path))
    assert not copy.is_symlink()
    assert copy.read_bytes() == PNG
    assert victim.read_bytes() == b"precious"


class TestWhereFilesMayComeFrom:
    def test_a_file_of_the_run_itself_may_always_be_copied(self, root: SafeRoot) -> None:
        (root.path / "inputs").mkdir()
        (root.path / "inputs" / "cat.png").write_bytes(PNG)
        assert store_media(root, root.path / "inputs" / "cat.png").reason is None

    @pytest.mark.contract("DL-088")
    def test_a_relative_path_is_looked_for_in_the_run_first(self, root: SafeRoot, image: Path) -> None:
        os.chdir(image.parent)
        assert store_media(root, "cat.png", allowed_roots=["."]).sha256 == hashlib.sha256(PNG).hexdigest()
        (root.path / "cat.png").write_bytes(b"of the run")
        assert store_media(root, "cat.png", allowed_roots=["."]).sha256 == hashlib.sha256(b"of the run").hexdigest()

    @pytest.mark.parametrize("source", ["{outside}/cat.png", "{allowed}/../outside/cat.png", "{allowed}/out/cat.png"])
    @pytest.mark.contract("DL-172")
    def test_a_file_outside_the_allowed_folders_is_refused(self, root: SafeRoot, tmp_path: Path, source: str) -> None:
        outside, allowed = tmp_path / "outside", tmp_path / "allowed"
        outside.mkdir()
        allowed.mkdir()
        (outside / "cat.png").write_bytes(PNG)
        (allowed / "out").symlink_to(outside)
        stored = store_media(root, source.format(outside=outside, allowed=allowed), allowed_roots=[allowed])
        assert stored.reason == "it is outside the folders that may be copied from"
        assert files(root) == []

    @pytest.mark.parametrize("kind", ["link inside", "link outside", "dangling link", "FIFO", "directory", "missing"])
    @pytest.mark.contract("DL-172")
    def test_what_is_no_file_there_is_refused_without_waiting(self, root: SafeRoot, image: Path, kind: str) -> None:
        source = image.parent / "source.png"
        match kind:
            case "link inside":
                source.symlink_to("cat.png")
            case "link outside":
                source.symlink_to("/etc/hostname")
            case "dangling link":
                source.symlink_to("nowhere.png")
            case "FIFO":
                os.mkfifo(source)
            case "directory":
                source.mkdir()
            case _:
                pass
        stored = store_media(root, source, allowed_roots=[image.parent])
        assert stored.path is None
        assert stored.reason == (
            "there is no such file"
            if kind == "missing"
            else "it, or a folder on the way to it, is a link or no regular file"
        )
        assert files(root) == []

    def test_a_folder_link_that_stays_inside_is_no_obstacle(self, root: SafeRoot, image: Path) -> None:
        (image.parent / "same").symlink_to(".")
        assert store_media(root, image.parent / "same" / "cat.png", allowed_roots=[image.parent]).reason is None

    @pytest.mark.parametrize("source", ["https://example.org/cat.png", "x" * 20_000 + ".png", "a\0.png", "/", ""])
    def test_what_is_no_path_is_no_file(self, root: SafeRoot, source: str) -> None:
        stored = store_media(root, source, allowed_roots=["/"])
        assert stored.path is None
        assert stored.reason

    def test_a_data_uri_taken_for_a_path_costs_nothing(self, root: SafeRoot) -> None:
        stored = store_media(root, "data:image/png;base64," + "AA/" * 5_000_000 + "x.png", allowed_roots=["/"])
        assert stored.reason == "there is no such file"


class TestWhatIsTaken:
    @pytest.mark.parametrize("suffix", [*MEDIA_TYPES, ".PNG", ".Mp4"])
    @pytest.mark.contract("DL-082")
    def test_media_suffixes_are_known_in_any_case(self, root: SafeRoot, suffix: str) -> None:
        stored = store_media(root, b"content", name=f"x{suffix}")
        assert stored.media_type == MEDIA_TYPES[suffix.lower()]
        assert str(stored.path).endswith(f"_x{suffix}")

    @pytest.mark.contract("DL-082")
    def test_there_are_fourteen_of_them(self) -> None:
        assert " ".join(MEDIA_TYPES) == ".npy .png .jpg .jpeg .gif .webp .bmp .wav .mp3 .flac .ogg .mp4 .avi .mov"

    @pytest.mark.parametrize("name", ["passwd", "x.txt", ".png", "png", "x.png.exe"])
    @pytest.mark.contract("DL-172")
    def test_a_file_that_is_no_media_is_refused_whatever_it_is_called_here(
        self, root: SafeRoot, image: Path, name: str
    ) -> None:
        source = image.parent / name
        source.write_bytes(b"secret")
        stored = store_media(root, source, name="cat.png", allowed_roots=[image.parent])
        assert "kinds" in str(stored.reason)
        assert files(root) == []

    @pytest.mark.contract("DL-172")
    def test_other_kinds_can_be_allowed(self, root: SafeRoot) -> None:
        assert store_media(root, b"x", name="x.txt", kinds={".txt"}).path
        assert store_media(root, b"x", name="x.png", kinds={".txt"}).reason

    @pytest.mark.parametrize(("limit", "taken"), [(len(PNG), True), (len(PNG) - 1, False)])
    @pytest.mark.contract("DL-172")
    def test_the_size_limit_is_exact_for_files_and_bytes(
        self, root: SafeRoot, image: Path, limit: int, taken: bool
    ) -> None:
        for stored in (
            store_media(root, image, allowed_roots=[image.parent], max_bytes=limit),
            store_media(root, PNG, name="cat.png", max_bytes=limit),
        ):
            assert (stored.path is not None) == taken
            assert (stored.reason is None) == taken

    def test_a_huge_sparse_file_is_refused_without_reading_it(self, root: SafeRoot, image: Path) -> None:
        os.truncate(image, 1 << 40)
        assert "bytes" in str(store_media(root, image, allowed_roots=[image.parent]).reason)

    @pytest.mark.parametrize(
        ("data", "suffix"),
        [
            (PNG, ".png"),
            (b"\xff\xd8\xff\xe0 jpeg", ".jpg"),
            (b"GIF89a", ".gif"),
            (b"RIFF\0\0\0\0WEBPVP8 ", ".webp"),
            (b"RIFF\0\0\0\0WAVEfmt ", ".wav"),
            (b"\0\0\0\x20ftypisom", ".mp4"),
            (b"\0\0\0\x14ftypqt  ", ".mov"),
            (b"ID3\x04\0", ".mp3"),
        ],
    )
    def test_bytes_without_a_name_are_named_by_what_they_begin_with(
        self, root: SafeRoot, data: bytes, suffix: str
    ) -> None:
        assert str(store_media(root, data).path).endswith(f"_media{suffix}")

    def test_bytes_that_are_nothing_we_know_are_refused(self, root: SafeRoot) -> None:
        assert store_media(root, b"who knows").reason == "no suffix is none of the kinds that are copied"


@given(name=st.text(st.characters(exclude_categories=())), data=st.binary(max_size=100))
@pytest.mark.contract("DL-173", "DL-151")
def test_any_name_stays_in_the_media_folder(tmp_path_factory: pytest.TempPathFactory, name: str, data: bytes) -> None:
    root = SafeRoot(tmp_path_factory.mktemp("out") / "run", create=True)
    stored = store_media(root, data, name=f"{name}x.png")
    assert stored.reason is None
    (file,) = (root.path / "media").iterdir()
    assert stored.path == f"media/{file.name}"
    assert file.name.isascii()
    assert file.name.endswith(".png")
    assert file.read_bytes() == data
    assert list(root.path.parent.iterdir()) == [root.path]


def test_a_file_that_changes_while_it_is_copied_is_not_kept_under_a_false_hash(root: SafeRoot, tmp_path: Path) -> None:
    source = tmp_path / "film.mp4"
    source.write_bytes(b"\0" * 3_000_000)
    stop = threading.Event()

    def change() -> None:
        with source.open("r+b") as file:
            n = 0
            while not stop.is_set():
                n = (n + 1) % 256
                file.seek(0)
                file.write(bytes([n]))
                file.seek(2_999_999)
                file.write(bytes([n]))
                file.flush()

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for _ in range(20):
            stored = store_media(root, source, allowed_roots=[tmp_path])
            assert (stored.path is None) == (stored.reason == "it was changed while it was copied")
    finally:
        stop.set()
        changer.join()
    for path in (root.path / "media").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest()[:16] == path.name[:16]
