import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from spanfold.errors import LockedError, UnsafeEntryError
from spanfold.fs import FileLock, SafeRoot

HOLD = (
    "import sys, time\n"
    "from spanfold.fs import FileLock, SafeRoot\n"
    "with FileLock(SafeRoot(sys.argv[1]), 'lock'):\n"
    "    print('held', flush=True)\n"
    "    time.sleep(60)\n"
)


@pytest.fixture
def root(tmp_path: Path) -> SafeRoot:
    return SafeRoot(tmp_path)


def hold_elsewhere(root: SafeRoot) -> "subprocess.Popen[str]":
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(root.path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


def test_a_second_lock_of_the_same_process_is_refused_and_told_who_holds_it(root: SafeRoot) -> None:
    with FileLock(root, "lock") as first:
        assert first.is_held
        with pytest.raises(LockedError, match=f"process {os.getpid()} "):
            FileLock(root, "lock").acquire()
        with pytest.raises(LockedError):
            first.acquire()
    assert not first.is_held
    with FileLock(root, "lock"):
        pass


def test_a_lock_of_another_process_is_respected_until_that_process_is_killed(root: SafeRoot) -> None:
    holder = hold_elsewhere(root)
    try:
        with pytest.raises(LockedError, match=f"process {holder.pid} "):
            FileLock(root, "lock").acquire()
    finally:
        end(holder)
    with FileLock(root, "lock", timeout_s=10):
        pass


def test_a_waiting_lock_is_taken_as_soon_as_it_is_free(root: SafeRoot) -> None:
    first = FileLock(root, "lock")
    first.acquire()
    threading.Timer(0.1, first.release).start()
    with FileLock(root, "lock", timeout_s=30) as second:
        assert second.is_held


def test_waiting_ends_after_the_time_given(root: SafeRoot) -> None:
    begun = time.monotonic()
    with FileLock(root, "lock"), pytest.raises(LockedError, match=r"after waiting 0\.2 s"):
        FileLock(root, "lock", timeout_s=0.2).acquire()
    assert time.monotonic() - begun >= 0.2


@pytest.mark.slow
def test_one_holder_at_a_time_among_many_processes(root: SafeRoot) -> None:
    program = (
        "import sys\n"
        "from spanfold.fs import FileLock, SafeRoot\n"
        "root = SafeRoot(sys.argv[1])\n"
        "for _ in range(50):\n"
        "    with FileLock(root, 'lock', timeout_s=60):\n"
        "        root.replace_atomic('count', b'%d' % (int(root.read_bytes('count')) + 1), durable=False)\n"
    )
    root.replace_atomic("count", b"0", durable=False)
    workers = [subprocess.Popen([sys.executable, "-c", program, str(root.path)]) for _ in range(4)]
    assert [worker.wait(120) for worker in workers] == [0] * 4
    assert root.read_bytes("count") == b"200"


def test_a_forked_child_neither_holds_nor_ends_the_lock_of_its_parent(root: SafeRoot) -> None:
    lock = FileLock(root, "lock")
    lock.acquire()
    with warnings.catch_warnings():
        # Newer Pythons warn about any fork while other threads run.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        # Never back into pytest: the child says by its signal what it saw, and sleeps on with whatever it inherited.
        if lock.is_held:
            os._exit(1)
        lock.release()
        time.sleep(60)
        os._exit(0)
    try:
        with pytest.raises(LockedError):
            FileLock(root, "lock", timeout_s=0.3).acquire()
        assert lock.is_held
        lock.release()
        with FileLock(root, "lock", timeout_s=30):
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_file_removed_under_its_holder_does_not_hang_or_break_others(root: SafeRoot) -> None:
    with FileLock(root, "lock"):
        root.unlink("lock")
        with FileLock(root, "lock", timeout_s=5):
            assert root.stat("lock").st_size > 0


@pytest.mark.parametrize("kind", ["link", "FIFO", "directory"])
def test_a_planted_lock_file_is_refused(root: SafeRoot, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "lock"
    if kind == "link":
        target.symlink_to(tmp_path / "elsewhere")
    elif kind == "FIFO":
        os.mkfifo(target)
    else:
        target.mkdir()
    with pytest.raises(UnsafeEntryError):
        FileLock(root, "lock", timeout_s=5).acquire()
    assert not (tmp_path / "elsewhere").exists()
