"""Removing an empty directory, and nothing else."""

import os

import pytest

from spanfold.errors import UnsafePathError
from spanfold.fs import SafeRoot


def test_an_empty_directory_is_removed_and_a_filled_one_stays(tmp_path):
    root = SafeRoot(tmp_path)
    root.ensure_dir("a/empty")
    root.ensure_dir("a/filled")
    root.create_exclusive("a/filled/file", b"x")

    root.remove_dir("a/empty")
    with pytest.raises(OSError, match="not empty"):
        root.remove_dir("a/filled")

    assert sorted(os.listdir(tmp_path / "a")) == ["filled"]


def test_a_link_to_a_directory_is_not_followed(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(OSError):
        SafeRoot(tmp_path).remove_dir("link")
    with pytest.raises(UnsafePathError):
        SafeRoot(tmp_path).remove_dir("../x")
    assert (tmp_path / "target").is_dir()
