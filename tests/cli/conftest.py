"""Real runs made by real programs, and the real command line in a process of its own."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.langfuse import langfuse  # noqa: F401 - a fixture

ROOT = Path(__file__).resolve().parent.parent.parent
HANG_S = 120

PROGRAM = """
import os, signal, sys, time
import spanfold

mode, where = sys.argv[1:]
with spanfold.run("loop", dir=where, lr=0.1, tags=["a", "b"], deep={"inner": None}) as run:
    for cycle in range(2):
        with spanfold.stage("M1", cycle=cycle):
            with spanfold.model_call("gpt-x", provider="openai", input=[{"role": "user", "content": "what is this?"}]) as call:
                call.output("yo")
                call.usage(input_tokens=12, output_tokens=3)
            with spanfold.tool("grep", arguments={"q": 1}) as tool:
                tool.result("x")
            spanfold.score("accuracy", 0.5 + cycle / 10, comment="held out")
            spanfold.event("note", why="just so")
            spanfold.artifact("data", {"cycle": cycle})
            try:
                with spanfold.tool("broken"):
                    raise ValueError("no such thing")
            except ValueError:
                pass
    if mode == "evil":
        with spanfold.stage("\\x1b[2J\\x1b]0;owned\\x07", cycle=0), spanfold.model_call("m\\r\\nodel \\u202eevil"):
            spanfold.score("bell\\x07", 1, comment="\\x1b[31mred")
            spanfold.event("event\\nwith a line", text="\\x9b31m")
    if mode == "fail":
        with spanfold.stage("M2"), spanfold.agent("helper"):
            raise RuntimeError("no luck")
    if mode in ("kill", "wait"):
        with spanfold.stage("inner work", cycle=7), spanfold.agent("helper"), spanfold.model_call("gpt-y"):
            print("ready", flush=True)
            if mode == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.stdin.readline()
    run.set(verdict="good")
"""

DOCUMENTED = json.loads((ROOT / "docs" / "cli.schema.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Answer:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def document(self) -> dict[str, Any]:
        """Its JSON document, after it was checked against docs/cli.schema.json."""
        found = json.loads(self.out, parse_constant=_no_constant)
        check(found)
        return found

    @property
    def items(self) -> list[dict[str, Any]]:
        """The objects of its stream, each checked."""
        found = [json.loads(line, parse_constant=_no_constant) for line in self.lines]
        for item in found:
            check(item)
        return found


def _no_constant(text: str) -> Any:
    raise AssertionError(f"{text} is no JSON")


def check(document: dict[str, Any]) -> None:
    """Fail when a document has a key that is not documented, or lacks one that is."""
    schema = _strict(DOCUMENTED["$defs"][document["schema"]])
    errors = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(document)]
    assert errors == []


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _strict(value) for key, value in schema.items()}
    if "properties" in found and found.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


Spanfold = Callable[..., Answer]


# Importing spanfold takes most of the time of most commands. So it is imported once, and each command is a fork of that.
READY = """
import gc, importlib, json, os, pkgutil, runpy, sys
import spanfold.cli
for module in pkgutil.iter_modules(spanfold.cli.__path__):
    importlib.import_module(f"spanfold.cli.{module.name}")
gc.freeze()  # so that a child does not copy what it only looks at
for line in sys.stdin:
    call = json.loads(line)
    child = os.fork()
    if not child:
        for number, name in enumerate((os.devnull, call["out"], call["err"])):
            os.dup2(os.open(name, os.O_RDWR), number)
        os.chdir(call["cwd"])
        os.environ.clear()
        os.environ.update(call["environment"])
        sys.argv[1:] = call["words"]
        runpy.run_module("spanfold", run_name="__main__", alter_sys=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Ready:
    """A process that has imported every command and waits for one to run in a fork of itself."""

    def __init__(self, folder: Path) -> None:
        self._streams = folder / "out", folder / "err"
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", READY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, words: list[str], cwd: Path, environment: dict[str, str]) -> tuple[int, bytes, bytes]:
        out, err = self._streams
        out.write_bytes(b"")
        err.write_bytes(b"")
        call = {"words": words, "cwd": str(cwd), "environment": environment, "out": str(out), "err": str(err)}
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(call) + "\n")
        stdin.flush()
        assert select.select([stdout], [], [], HANG_S)[0], f"{words} hangs"
        return int(stdout.readline()), out.read_bytes(), err.read_bytes()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ready]:
    found = Ready(tmp_path_factory.mktemp("ready"))
    yield found
    found.end()


@pytest.fixture
def spanfold(tmp_path: Path, ready: Ready) -> Spanfold:
    """Run a command in `tmp_path` with warnings as errors, and return what it did."""

    def run(*words: object, cwd: Path = tmp_path, strict: bool = True, **environment: str) -> Answer:
        texts, whole = list(map(str, words)), {**os.environ, **environment}
        if strict and not any(name.startswith("PYTHON") for name in environment):
            code, out, err = ready.run(texts, cwd, whole)
        else:
            done = subprocess.run(
                [sys.executable, *(["-W", "error"] if strict else []), "-m", "spanfold", *texts],
                cwd=cwd,
                env=whole,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=HANG_S,
                check=False,
            )
            code, out, err = done.returncode, done.stdout, done.stderr
        answer = Answer(code, out.decode(), err.decode())
        assert "Traceback" not in answer.err, answer.err
        return answer

    return run


def record(mode: str, where: Path) -> subprocess.Popen[bytes]:
    """Start a program that records a run."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, mode, str(where)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of each kind, made once; to be copied, not touched."""
    folder = tmp_path_factory.mktemp("recorded")
    expected = {"ok": 0, "fail": 1, "kill": -signal.SIGKILL, "evil": 0}
    for mode, code in expected.items():
        program = record(mode, folder / mode)
        _, err = program.communicate(timeout=HANG_S)
        assert program.returncode == code, err.decode()
    return folder


@pytest.fixture
def runs(recorded: Path, tmp_path: Path) -> Path:
    """A folder `runs` in the working folder with one run of each kind."""
    return Path(shutil.copytree(recorded, tmp_path / "runs", symlinks=True))


@pytest.fixture
def live(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run `runs/live` whose program waits for a line on its stdin."""
    program = record("wait", tmp_path / "runs" / "live")
    assert program.stdout is not None
    assert program.stdout.readline() == b"ready\n"
    yield program
    program.kill()
    program.communicate()


def finish(program: subprocess.Popen[bytes]) -> None:
    """Let a waiting program go on, and wait until it has ended."""
    program.communicate(b"\n", timeout=HANG_S)
    assert program.returncode == 0
