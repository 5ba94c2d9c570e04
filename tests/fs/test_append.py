import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.errors import UnsafeEntryError
from spanfold.fs import SafeRoot, SizeLimitExceeded

# Appends under a file size limit: the kernel takes a part of the bytes, then refuses the rest, as on a full disk.
APPEND_UNDER_LIMIT = """
import resource, sys
from spanfold.fs import SafeRoot
root, limit, mend = SafeRoot(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "mend"
handle = root.open_append("log", mend_tail=mend)
print(handle.append(b"first\\n"))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    handle.append(b"x" * 5_000 + b"\\n")
except OSError as error:
    print(type(error).__name__, error.errno, error.filename == str(root.path / "log"))
print(handle.size)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(handle.append(b"last\\n"))
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@given(data=st.lists(st.binary(max_size=2_000), max_size=12), reopen_at=st.integers(0, 12))
def test_appended_bytes_are_found_at_the_offset_that_append_returned(
    tmp_path_factory: pytest.TempPathFactory, data: list[bytes], reopen_at: int
) -> None:
    root = SafeRoot(tmp_path_factory.mktemp("root"))
    handle = root.open_append("log")
    offsets = []
    for i, piece in enumerate(data):
        if i == reopen_at:
            handle.close()
            handle = root.open_append("log")
        offsets.append(handle.append(piece))
    handle.sync()
    assert handle.size == sum(map(len, data))
    handle.close()

    content = (root.path / "log").read_bytes()
    assert content == b"".join(data)
    assert [content[at : at + len(piece)] for at, piece in zip(offsets, data, strict=True)] == data


@given(
    before=st.binary(max_size=50), lines=st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"") + b"\n"))
)
@pytest.mark.contract("EP-010")
def test_a_torn_line_is_ended_before_the_next_append_and_damages_only_itself(
    tmp_path_factory: pytest.TempPathFactory, before: bytes, lines: list[bytes]
) -> None:
    root = SafeRoot(tmp_path_factory.mktemp("root"))
    (root.path / "log").write_bytes(before)
    with root.open_append("log", mend_tail=True) as handle:
        offsets = [handle.append(line) for line in lines]

    torn = bool(before) and not before.endswith(b"\n") and bool(lines)
    content = (root.path / "log").read_bytes()
    assert content == before + b"\n" * torn + b"".join(lines)
    assert all(content[at : at + len(line)] == line for at, line in zip(offsets, lines, strict=True))


def test_without_mending_the_bytes_follow_each_other(tmp_path: Path, log: Path) -> None:
    log.write_bytes(b"torn")
    with SafeRoot(tmp_path).open_append("log") as handle:
        assert handle.append(b"x") == 4
    assert log.read_bytes() == b"tornx"


@pytest.mark.slow
@pytest.mark.parametrize("limit", [7, 100, 4096, 5006])
@pytest.mark.parametrize("mend", ["mend", "plain"])
@pytest.mark.case("C-051")
def test_an_append_the_disk_cuts_short_leaves_nothing_of_itself_and_later_ones_work(
    tmp_path: Path, log: Path, limit: int, mend: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", APPEND_UNDER_LIMIT, str(tmp_path), str(limit), mend],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["0", "OSError 27 True", "6", "6"]
    assert log.read_bytes() == b"first\nlast\n"


def test_appending_is_not_stopped_by_a_device_that_is_full_only_named_so(tmp_path: Path) -> None:
    # /dev/full answers "no space" to every write; it is no regular file and refused before any.
    with pytest.raises(UnsafeEntryError, match="character device"):
        SafeRoot("/dev").open_append("full")


@pytest.mark.slow
def test_lines_of_several_processes_and_threads_stay_whole(tmp_path: Path, log: Path) -> None:
    program = (
        "import sys\n"
        "from spanfold.fs import SafeRoot\n"
        "with SafeRoot(sys.argv[1]).open_append('log', mend_tail=True) as handle:\n"
        "    for i in range(500):\n"
        "        line = f'{sys.argv[2]} {i} '.encode() + b'x' * 300 + b'\\n'\n"
        "        at = handle.append(line)\n"
        "        import os\n"
        "        assert os.pread(handle.fileno(), len(line), at) == line\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(n)]) for n in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]

    lines = log.read_bytes().splitlines()
    assert len(lines) == len(set(lines)) == 1_500
    assert {len(line.rsplit(b" ", 1)[1]) for line in lines} == {300}


def test_a_killed_process_loses_no_append_that_returned(tmp_path: Path, log: Path) -> None:
    program = (
        "import os, sys\n"
        "from spanfold.fs import SafeRoot\n"
        "handle = SafeRoot(sys.argv[1]).open_append('log')\n"
        "for i in range(100):\n"
        "    handle.append(b'%d\\n' % i)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == -9
    assert log.read_bytes() == b"".join(b"%d\n" % i for i in range(100))


class TestLimit:
    def test_a_file_over_its_limit_is_not_opened(self, tmp_path: Path, log: Path) -> None:
        log.write_bytes(b"12345")
        root = SafeRoot(tmp_path)
        root.open_append("log", 5).close()
        with pytest.raises(SizeLimitExceeded) as caught:
            root.open_append("log", 4)
        assert (caught.value.size_bytes, caught.value.limit_bytes) == (5, 4)

    def test_the_size_before_an_append_is_what_the_limit_judges(self, tmp_path: Path, log: Path) -> None:
        with SafeRoot(tmp_path).open_append("log", 5) as handle:
            handle.append(b"12345")
            handle.append(b"6")
            with pytest.raises(SizeLimitExceeded):
                handle.append(b"7")
        assert log.read_bytes() == b"123456"

    @pytest.mark.contract("AI-084")
    def test_a_large_sparse_file_is_refused_without_reading_it(self, tmp_path: Path, log: Path) -> None:
        log.touch()
        os.truncate(log, 1 << 40)
        with pytest.raises(SizeLimitExceeded):
            SafeRoot(tmp_path).open_append("log", 64 << 20, mend_tail=True)


class TestCheck:
    @pytest.mark.parametrize("held", [False, True])
    def test_an_untouched_file_passes_however_often(self, tmp_path: Path, held: bool) -> None:
        root = SafeRoot(tmp_path)
        if held:
            root.__enter__()
        with root.open_append("log", 100) as handle:
            handle.check()
            handle.append(b"x\n")
            handle.check()
        root.close()

    @pytest.mark.parametrize(
        "attack", ["unlinked", "unlinked and made again", "renamed over", "link", "second name", "folder moved"]
    )
    def test_a_file_that_lost_its_name_or_got_another_is_told(self, tmp_path: Path, attack: str) -> None:
        root = SafeRoot(tmp_path / "run", create=True)
        root.ensure_dir("logs")
        path = root.path / "logs" / "log"
        with root.open_append("logs/log") as handle:
            handle.append(b"ours\n")
            match attack:
                case "unlinked":
                    path.unlink()
                case "unlinked and made again":
                    path.unlink()
                    path.touch()
                case "renamed over":
                    (tmp_path / "other").write_bytes(b"foreign")
                    (tmp_path / "other").rename(path)
                case "link":
                    path.rename(tmp_path / "moved")
                    path.symlink_to(tmp_path / "moved")
                case "second name":
                    (tmp_path / "second").hardlink_to(path)
                case "folder moved":
                    path.parent.rename(tmp_path / "moved")
            with pytest.raises(UnsafeEntryError):
                handle.check()

    def test_a_file_enlarged_over_its_limit_is_told(self, tmp_path: Path, log: Path) -> None:
        with SafeRoot(tmp_path).open_append("log", 10) as handle:
            log.write_bytes(b"x" * 11)
            with pytest.raises(SizeLimitExceeded):
                handle.check()


@pytest.mark.case("C-055")
def test_a_file_truncated_by_another_tool_continues_without_a_gap(tmp_path: Path, log: Path) -> None:
    with SafeRoot(tmp_path).open_append("log") as handle:
        handle.append(b"a" * 1_000 + b"\n")
        os.truncate(log, 0)
        assert handle.append(b"next\n") == 0
    assert log.read_bytes() == b"next\n"


@pytest.mark.case("C-055")
def test_a_file_renamed_by_another_tool_gets_the_rest_of_this_handle_and_no_part_is_lost(
    tmp_path: Path, log: Path
) -> None:
    root = SafeRoot(tmp_path)
    with root.open_append("log") as handle:
        handle.append(b"one\n")
        log.rename(tmp_path / "log.1")
        handle.append(b"two\n")
        with pytest.raises(UnsafeEntryError):
            handle.check()
    with root.open_append("log") as handle:
        handle.append(b"three\n")
    assert (tmp_path / "log.1").read_bytes() + log.read_bytes() == b"one\ntwo\nthree\n"


def test_a_closed_handle_says_so(tmp_path: Path) -> None:
    handle = SafeRoot(tmp_path).open_append("log")
    handle.close()
    handle.close()
    for call in (lambda: handle.append(b"x"), handle.sync, handle.check, handle.fileno):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_two_openers_of_a_missing_file_get_the_same_one(tmp_path: Path) -> None:
    root = SafeRoot(tmp_path)
    barrier = threading.Barrier(8)

    def append(n: int) -> None:
        barrier.wait()
        with root.open_append("log") as handle:
            handle.append(b"%d\n" % n)

    threads = [threading.Thread(target=append, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted((tmp_path / "log").read_bytes().split()) == [b"%d" % n for n in range(8)]
