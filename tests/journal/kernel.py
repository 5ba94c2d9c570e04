"""Real disks that refuse: a small file system of one's own, and system calls that the kernel refuses to one thread."""

import ctypes
import errno
import fcntl
import os
import platform
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import pytest

_T = TypeVar("_T")

# asm/unistd.h; seccomp is the call that installs the filter.
_CALLS: Final = {
    "x86_64": {"seccomp": 317, "write": 1, "fsync": 74, "ftruncate": 77, "linkat": 265, "openat": 257},
    "aarch64": {"seccomp": 277, "write": 64, "fsync": 82, "ftruncate": 46, "linkat": 37, "openat": 56},
}
LEAST_DESCRIPTOR: Final = 200
"""Journal files have a descriptor of at least this number, other files of a test do not."""


def refused(calls: list[str], error: int, act: Callable[[], _T]) -> _T:
    """Act in a thread to which the kernel refuses these system calls, `write` and `ftruncate` only on a journal's descriptor.

    The filter (seccomp, `man 2 seccomp`) goes with the thread: what runs elsewhere or later is not refused.
    """
    numbers = _numbers()
    answer = 0x00050000 | error  # SECCOMP_RET_ERRNO
    return _in_thread(lambda: _install(numbers, calls, answer, flags=0), act)


def _numbers() -> dict[str, int]:
    numbers = _CALLS.get(platform.machine())
    if numbers is None or platform.system() != "Linux":
        pytest.skip("needs the seccomp filters of Linux on x86_64 or aarch64")
    return numbers


class Flush(NamedTuple):
    """One call of fsync."""

    path: Path
    """What is flushed."""
    size: int
    """Its size when the flush begins."""


def watched(act: Callable[[list[Flush]], _T], *, delay_s: float = 0.0) -> _T:
    """Act in a thread whose calls of fsync, and those of threads it starts, are noted before they begin.

    Args:
        act: Called with the list of flushes, which grows meanwhile.
        delay_s: How much slower the device is made.
    """
    numbers = _numbers()
    flushes: list[Flush] = []
    listener: list[int] = []

    def install() -> None:
        # SECCOMP_RET_USER_NOTIF, SECCOMP_FILTER_FLAG_NEW_LISTENER
        listener.append(_install(numbers, ["fsync"], 0x7FC00000, flags=1 << 3))
        threading.Thread(target=_watch, args=(listener[0], flushes, delay_s), daemon=True).start()

    return _in_thread(install, lambda: act(flushes))


def _watch(listener: int, flushes: list[Flush], delay_s: float) -> None:
    # struct seccomp_notif is 80 bytes (id, pid, flags, call, architecture, instruction, six arguments), the answer 24.
    while True:
        notice = bytearray(80)
        try:
            fcntl.ioctl(listener, 0xC0502100, notice)  # SECCOMP_IOCTL_NOTIF_RECV
        except OSError:
            return os.close(listener)  # the last thread has ended
        number, _, _, _, _, _, fd = struct.unpack_from("QIIiIQQ", notice)
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        flushes.append(Flush(path, os.fstat(fd).st_size))
        time.sleep(delay_s)
        # SECCOMP_IOCTL_NOTIF_SEND, SECCOMP_USER_NOTIF_FLAG_CONTINUE
        fcntl.ioctl(listener, 0xC0182101, struct.pack("QqiI", number, 0, 0, 1))


def _in_thread(prepare: Callable[[], object], act: Callable[[], _T]) -> _T:
    outcome: list[tuple[bool, object]] = []

    def run() -> None:
        try:
            prepare()
            outcome.append((True, act()))
        except BaseException as raised:
            outcome.append((False, raised))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    succeeded, result = outcome[0]
    if not succeeded:
        assert isinstance(result, BaseException)
        raise result
    return result  # type: ignore[return-value]


def _install(numbers: dict[str, int], calls: list[str], refuse: int, *, flags: int) -> int:
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06  # BPF_LD+W+ABS, BPF_JEQ+K, BPF_JGE+K, BPF_RET+K
    allow = 0x7FFF0000  # SECCOMP_RET_ALLOW
    code = [(load, 0, 0, 0)]  # the number of the call
    for call in calls:
        if call not in ("write", "ftruncate"):
            code += [(equal, 0, 1, numbers[call]), (answer, 0, 0, refuse)]
        else:
            code += [
                (equal, 0, 4, numbers[call]),
                (load, 0, 0, 16),  # its first argument, lower half
                (at_least, 0, 1, LEAST_DESCRIPTOR),
                (answer, 0, 0, refuse),
                (answer, 0, 0, allow),
            ]
    code.append((answer, 0, 0, allow))
    program = b"".join(struct.pack("HBBI", *step) for step in code)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP" if struct.calcsize("P") == 8 else "HxxP", len(code), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    made: int = libc.syscall(numbers["seccomp"], 1, flags, ctypes.create_string_buffer(header, len(header)))
    if made < 0:
        pytest.skip(f"needs a kernel that takes seccomp filters, found {errno.errorcode[ctypes.get_errno()]}")
    return made


@contextmanager
def small_disk(folder: Path, size: str = "64k") -> Iterator[Path]:
    """Mount a file system of this size."""
    folder.mkdir(exist_ok=True)
    if os.geteuid() != 0 or not _mount("-t", "tmpfs", "-o", f"size={size}", "none", str(folder)):
        pytest.skip("needs root, and the right to mount: a small tmpfs is the disk that gets full")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def change_disk(folder: Path, option: str) -> None:
    """Change a mounted file system: `size=1m`, `ro`, `rw`."""
    assert _mount("-o", f"remount,{option}", str(folder))


def _mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


def fill(folder: Path) -> Path:
    """Take all the room there is; remove the file to give it back."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError as refusal:
            assert refusal.errno == errno.ENOSPC
    return path
