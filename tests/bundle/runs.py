"""Real runs to bundle, made with the public names, in this process and in processes that are killed."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import spanfold

DEATH = """
import os, signal, sys, spanfold
spanfold.configure(otlp=False, langfuse=False)
run = spanfold.run("killed", dir=sys.argv[1])
run.__enter__()
with spanfold.stage("M1", cycle=0):
    spanfold.score("accuracy", 0.5)
spanfold.flush()
stage = spanfold.stage("M2", cycle=0)
stage.__enter__()
with spanfold.model_call("m", provider="p", operation="chat", input=[]) as call:
    call.output("last words")
os.kill(os.getpid(), signal.SIGKILL)
"""

ALIVE = """
import sys, spanfold
spanfold.configure(otlp=False, langfuse=False)
with spanfold.run("alive", dir=sys.argv[1]):
    with spanfold.stage("M1", cycle=0):
        pass
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        spanfold.event("tick", number=number)
        print("ticked", flush=True)
spanfold.shutdown()
"""

OUTLIVING = """
import sys, spanfold
spanfold.configure(otlp=False, langfuse=False)
with spanfold.stage("M2"):
    spanfold.event("begun")
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        spanfold.event("tick", number=number)
        print("ticked", flush=True)
spanfold.shutdown()
"""

CHILD = """
import sys, spanfold
spanfold.configure(otlp=False, langfuse=False)
with spanfold.stage("M2", cycle=int(sys.argv[1])):
    with spanfold.tool("grep", arguments={"pattern": sys.argv[1]}) as tool:
        pass
spanfold.shutdown()
"""


def record(run_dir: Path, name: str = "digits") -> Path:
    """Record a run with everything that leaves a file: stages, calls, scores, events, arrays with figures, texts."""
    import numpy as np

    spanfold.configure(otlp=False, langfuse=False)
    with spanfold.run(name, dir=run_dir, data="digits"):
        with spanfold.stage("M1", cycle=0) as stage:
            stage.set(severity="high")
            with spanfold.model_call("some-model", provider="openai", operation="chat", input="wie groß?") as call:
                call.output("so groß")
                call.usage(input_tokens=12, output_tokens=3)
            spanfold.artifact("attn_map", np.arange(16.0).reshape(4, 4))
            spanfold.artifact("notes", "as they came\n")
        with spanfold.stage("warm up"), spanfold.timed("load"):
            spanfold.event("loaded", rows=1797)
        spanfold.artifact("config", {"batch": 8})
        spanfold.score("accuracy", 0.93, comment="held out")
    spanfold.shutdown()
    return run_dir


def record_small(run_dir: Path) -> Path:
    """Record about the smallest run there is."""
    spanfold.configure(otlp=False, langfuse=False)
    with spanfold.run("small", dir=run_dir), spanfold.stage("M1"):
        spanfold.artifact("word", "yes")
    spanfold.shutdown()
    return run_dir


def record_with_children(run_dir: Path, count: int = 3) -> Path:
    """Record a run of several processes, each with a journal file of its own."""
    spanfold.configure(otlp=False, langfuse=False)
    with spanfold.run("family", dir=run_dir), spanfold.stage("M1", cycle=0):
        for number in range(count):
            subprocess.run([sys.executable, "-c", CHILD, str(number)], env=spanfold.child_env(), check=True, timeout=60)
    spanfold.shutdown()
    assert len(list((run_dir / "journal").glob("*.jsonl"))) == count + 1
    return run_dir


def on_host(name: str) -> str:
    """Return the beginning of a program that runs on a machine of this name, as far as Python can tell."""
    return f"import socket; socket.gethostname = lambda: {name!r}"


def record_killed(run_dir: Path, *, host: str | None = None) -> Path:
    """Record a run whose process was killed inside a stage."""
    program = f"{on_host(host)}\n{DEATH}" if host else DEATH
    done = subprocess.run([sys.executable, "-c", program, str(run_dir)], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return run_dir


def start_alive(run_dir: Path) -> "subprocess.Popen[str]":
    """Start a run that goes on until its standard input is closed; a line there makes it record an event."""
    return _started(ALIVE, str(run_dir))


def record_outlived(run_dir: Path) -> "subprocess.Popen[str]":
    """Record a run that ends before a child process of it does, which is returned and records as `start_alive`."""
    spanfold.configure(otlp=False, langfuse=False)
    with spanfold.run("parent", dir=run_dir):
        process = _started(OUTLIVING, env=spanfold.child_env())
    spanfold.shutdown()
    return process


def _started(program: str, *args: str, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", program, *args], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def tick(process: "subprocess.Popen[str]") -> None:
    """Have the run record an event, and wait until it did."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("now\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ticked\n"


def moved(run_dir: Path, to: Path) -> Path:
    """Copy a run the way somebody does who thinks of bytes only: no times, no modes."""
    shutil.copytree(run_dir, to, copy_function=shutil.copyfile)
    return to


def look(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return everything of a folder that an export might change."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        st = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(folder))] = (st.st_mode, st.st_mtime_ns, st.st_size, data)
    return found


def files(folder: Path) -> dict[str, bytes]:
    """Return path -> bytes of every plain file of a run directory that is not hidden."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def environment(**more: str) -> dict[str, str]:
    """Return the environment of this process with other variables."""
    return {**os.environ, **more}
