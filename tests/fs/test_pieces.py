import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.errors import UnsafeEntryError
from spanfold.fs import FileSpan, SafeRoot, SpanTooShort

SPOOL = bytes(range(256)) * 8_192


@st.composite
def pieces(draw: st.DrawFn) -> list[bytes | tuple[int, int]]:
    begin = st.integers(0, len(SPOOL))
    spans = begin.flatmap(lambda b: st.tuples(st.just(b), st.integers(0, len(SPOOL) - b)))
    return draw(
        st.lists(st.binary(max_size=300) | st.sampled_from([b"y" * 262_144, b"z" * 262_145]) | spans, max_size=8)
    )


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spool") / "spool"
    path.write_bytes(SPOOL)
    return path


@given(plan=pieces(), by_path=st.booleans())
def test_a_document_put_together_from_spans_equals_the_same_bytes_joined(
    spool: Path, tmp_path_factory: pytest.TempPathFactory, plan: list[bytes | tuple[int, int]], by_path: bool
) -> None:
    root = SafeRoot(tmp_path_factory.mktemp("root"))
    expected = b"".join(p if isinstance(p, bytes) else SPOOL[p[0] : p[0] + p[1]] for p in plan)
    fd = os.open(spool, os.O_RDONLY)
    try:
        source = spool if by_path else fd
        built = [p if isinstance(p, bytes) else FileSpan(source, *p) for p in plan]
        assert root.replace_atomic("doc", built, durable=False) == len(expected)
        assert os.lseek(fd, 0, os.SEEK_CUR) == 0
    finally:
        os.close(fd)
    assert (root.path / "doc").read_bytes() == expected


def test_what_an_open_handle_has_appended_can_be_copied_from_it(tmp_path: Path) -> None:
    root = SafeRoot(tmp_path)
    with root.open_append("spool") as spool:
        at = spool.append(b"a record\n")
        root.replace_atomic("doc", [b"[", FileSpan(spool.fileno(), at, 8), memoryview(b"]")], durable=False)
        spool.append(b"another\n")
    assert root.read_bytes("doc") == b"[a record]"
    assert root.read_bytes("spool") == b"a record\nanother\n"


def test_spans_of_another_file_system_are_copied_too(tmp_path: Path) -> None:
    # A file in /proc belongs to another file system than any folder, and its size is not known beforehand.
    expected = Path("/proc/version").read_bytes()
    root = SafeRoot(tmp_path)
    root.replace_atomic("doc", [FileSpan("/proc/version", 0, len(expected))], durable=False)
    assert root.read_bytes("doc") == expected


def test_a_span_longer_than_its_source_is_an_error_and_changes_nothing(tmp_path: Path, spool: Path) -> None:
    root = SafeRoot(tmp_path)
    root.replace_atomic("doc", b"old", durable=False)
    with pytest.raises(SpanTooShort):
        root.replace_atomic("doc", [b"new", FileSpan(spool, 10, len(SPOOL))], durable=False)
    assert os.listdir(tmp_path) == ["doc"]
    assert root.read_bytes("doc") == b"old"


def test_a_span_is_not_read_through_a_link_or_from_a_fifo(tmp_path: Path, spool: Path) -> None:
    root = SafeRoot(tmp_path)
    (tmp_path / "link").symlink_to(spool)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UnsafeEntryError, match="symbolic link"):
        root.replace_atomic("doc", [FileSpan(tmp_path / "link", 0, 1)], durable=False)
    with pytest.raises(UnsafeEntryError, match="FIFO"):
        root.replace_atomic("doc", [FileSpan(tmp_path / "fifo", 0, 1)], durable=False)
    assert sorted(os.listdir(tmp_path)) == ["fifo", "link"]
