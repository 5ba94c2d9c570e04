"""Roots of both kinds, a victim outside of them, and an ordinary user."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spanfold.fs import SafeRoot
from spanfold.fs._folders import DescriptorFolder, Folder, PathFolder

NOBODY = 65534


@pytest.fixture(params=[DescriptorFolder, PathFolder], ids=["descriptor", "path"])
def folder_type(request: pytest.FixtureRequest) -> type[Folder]:
    """Each way of holding a directory; both keep one contract."""
    return request.param


@pytest.fixture
def root(tmp_path: Path, folder_type: type[Folder]) -> SafeRoot:
    return SafeRoot(tmp_path / "run", create=True, folder_type=folder_type)


class Victim:
    """A file outside the root that no attack may make us touch."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.path = folder / "victim"
        self.path.write_bytes(b"precious\n")
        self.path.chmod(0o640)
        self._before = self._look()

    def _look(self) -> tuple[object, ...]:
        st = self.path.stat()
        return (self.path.read_bytes(), st.st_mode, st.st_uid, st.st_mtime_ns, sorted(os.listdir(self.path.parent)))

    def assert_untouched(self) -> None:
        assert self._look() == self._before


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return Victim(tmp_path / "elsewhere")


@pytest.fixture
def ordinary_folder() -> Iterator[Path]:
    """A folder in which the user of `as_ordinary_user` owns everything."""
    folder = Path(tempfile.mkdtemp(prefix="sf-user-", dir=Path(tempfile.gettempdir()).parent))
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Drop the rights of root, to which permissions mean nothing, for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
