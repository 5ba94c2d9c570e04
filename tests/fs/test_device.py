import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.errors import UnsafeEntryError
from spanfold.fs import fsync_folder, sha256_file


@given(st.binary(max_size=100_000))
def test_the_hash_of_a_file_is_the_hash_of_its_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("files") / "file"
    path.write_bytes(data)
    assert sha256_file(path) == hashlib.sha256(data).hexdigest()


def test_what_is_no_regular_file_is_not_hashed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    with pytest.raises(UnsafeEntryError, match="FIFO"):
        sha256_file(tmp_path / "fifo")
    with pytest.raises(UnsafeEntryError, match="directory"):
        sha256_file(tmp_path)
    with pytest.raises(UnsafeEntryError, match="symbolic link"):
        sha256_file(tmp_path / "link")


def test_a_folder_is_flushed_and_a_link_to_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    fsync_folder(tmp_path / "real")
    with pytest.raises(UnsafeEntryError, match="symbolic link"):
        fsync_folder(tmp_path / "link")
