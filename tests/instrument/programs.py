"""Run programs that use spanfold in processes of their own: what kills them must not kill the tests."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parent.parent.parent
HANG_GUARD_S = 120


class Program:
    """A running program. What it writes to standard output is read line by line, its errors when it has ended."""

    def __init__(self, text: str, *args: object, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(text), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **(env or {})},
        )
        self._ends = time.monotonic() + HANG_GUARD_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def says(self, expected: str) -> None:
        """Wait until the program prints this line."""
        line = self.line()
        assert line == expected, f"expected {expected!r}, found {line!r}: {self.end()}"

    def line(self) -> str:
        """Return the next line the program prints."""
        assert self.process.stdout is not None
        data = b""
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, self._ends - time.monotonic()))
            assert ready, "the program hangs"
            byte = os.read(self.process.stdout.fileno(), 1)
            if not byte:
                break
            data += byte
        return data.decode().rstrip("\n")

    def tell(self) -> None:
        """Let a program go on that reads a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, given: str = "") -> "Ended":
        """Wait for the end of the program."""
        out, err = self.process.communicate(
            f"{given}\n".encode() if given else None, timeout=max(1.0, self._ends - time.monotonic())
        )
        return Ended(self.process.returncode, out.decode(), err.decode())


class Ended:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    def __repr__(self) -> str:
        return f"status {self.status}\n{self.out}\n{self.err}"


def run(
    text: str,
    *args: object,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    status: int = 0,
    given: str = "",
) -> Ended:
    """Run a program to its end, which must have this status; `given` is a line for its standard input."""
    with Program(text, *args, env=env, cwd=cwd) as program:
        ended = program.end(given)
    assert ended.status == status, ended
    return ended
