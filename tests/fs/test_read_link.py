"""What a link says is read without following it."""

from pathlib import Path

import pytest

from spanfold.errors import UnsafeEntryError, UnsafePathError
from spanfold.fs import SafeRoot


def test_a_link_is_read_whatever_it_leads_to(root: SafeRoot, tmp_path: Path) -> None:
    root.ensure_dir("below")
    (root.path / "dangling").symlink_to("nowhere/../at all")
    (root.path / "below/out").symlink_to(tmp_path)

    assert root.read_link("dangling") == "nowhere/../at all"
    assert root.read_link("below/out") == str(tmp_path)


def test_what_is_no_link_or_not_there_is_said(root: SafeRoot) -> None:
    (root.path / "file").write_text("x")

    with pytest.raises(OSError, match="file"):
        root.read_link("file")
    with pytest.raises(FileNotFoundError):
        root.read_link("missing")


def test_a_link_behind_another_or_outside_is_not_read(root: SafeRoot, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/link").symlink_to("private")
    (root.path / "way").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UnsafeEntryError):
        root.read_link("way/link")
    with pytest.raises(UnsafePathError):
        root.read_link("../elsewhere/link")
