"""Streams: data on stdout, prose on stderr, colour only where it is wanted, and readers that go away."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from spanfold.cli._exits import Exit
from tests.cli.conftest import HANG_S, Spanfold

pytestmark = pytest.mark.slow

COLOUR = re.compile(r"\x1b\[\d+m")


def on_terminal(*words: str, cwd: Path, columns: int = 80, prose: bool = False, **environment: str) -> tuple[int, str]:
    """Run a command on a terminal and return its exit code and what the terminal was sent, on request its prose too."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "spanfold", *words],
        cwd=cwd,
        env={**os.environ, "TERM": "xterm", **environment},
        stdin=follower,
        stdout=follower,
        stderr=follower if prose else subprocess.DEVNULL,
        close_fds=True,
    )
    os.close(follower)
    sent = b""
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        if select.select([leader], [], [], 1)[0]:
            try:
                block = os.read(leader, 65536)
            except OSError:  # Linux says so when the other side is closed
                break
            if not block:
                break
            sent += block
    os.close(leader)
    return process.wait(HANG_S), sent.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_and_a_file_does_not(spanfold: Spanfold, runs: Path, tmp_path: Path) -> None:
    code, sent = on_terminal("run", "list", cwd=tmp_path, columns=120)

    assert code == Exit.DONE
    assert COLOUR.search(sent)
    assert COLOUR.sub("", sent).splitlines()[0].split() == "run name status started (UTC) duration records".split()
    assert "\x1b" not in spanfold("run", "list").out


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour_where_it_is_not_wanted(runs: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    code, sent = on_terminal("run", "show", "fail", cwd=tmp_path, **environment)

    assert code == Exit.DONE
    assert "\x1b" not in sent
    assert "RuntimeError" in sent


def test_json_on_a_terminal_has_no_colours(runs: Path, tmp_path: Path) -> None:
    code, sent = on_terminal("run", "list", "--json", cwd=tmp_path)

    assert code == Exit.DONE
    assert json.loads(sent)["schema"] == "spanfold.run_list/1"


@pytest.mark.parametrize("columns", [40, 80, 160])
@pytest.mark.parametrize(
    "words",
    [
        ("run", "list"),
        ("run", "show", "ok"),
        ("run", "show", "kill"),
        ("run", "verify", "ok"),
        ("timings", "plot", "ok"),
        ("timings", "compare", "ok", "fail"),
    ],
)
def test_no_line_is_wider_than_the_terminal(runs: Path, tmp_path: Path, columns: int, words: tuple[str, ...]) -> None:
    code, sent = on_terminal(*words, cwd=tmp_path, columns=columns)

    assert code == Exit.DONE
    wide = [line for line in COLOUR.sub("", sent).splitlines() if len(line) > columns]
    assert wide == []


@pytest.mark.parametrize("columns", [50, 80])
def test_what_doctor_says_of_a_destination_is_wrapped_and_not_cut(tmp_path: Path, columns: int) -> None:
    unset = dict.fromkeys(("OTEL_EXPORTER_OTLP_ENDPOINT", "LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"), "")

    _, sent = on_terminal("doctor", cwd=tmp_path, columns=columns, **unset)

    section = COLOUR.sub("", sent).split("Destinations\n")[1].split("\n\n")[0]
    words = " ".join(section.split())
    assert "not configured (OTEL_EXPORTER_OTLP_ENDPOINT names a collector)" in words
    assert "(LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY and LANGFUSE_BASE_URL name a server)" in words
    assert max(map(len, section.splitlines())) <= columns


@pytest.mark.parametrize("words", [("timings", "plot", "ok"), ("timings", "compare", "ok", "fail", "--all")])
def test_stages_keep_their_names_on_a_narrow_terminal(runs: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    _, sent = on_terminal(*words, cwd=tmp_path, columns=40)

    table = COLOUR.sub("", sent).split("stage", 1)[1]
    assert {"(run)", "m1", "m1/tool", "m1/model_call"} <= {word for line in table.splitlines() for word in line.split()}


def test_prose_is_wrapped_on_a_terminal_and_commands_in_it_stay_whole(runs: Path, tmp_path: Path) -> None:
    (journal,) = (runs / "ok" / "journal").glob("*.jsonl")
    journal.write_bytes(journal.read_bytes().replace(b"held out", b"held 0ut", 1))

    code, sent = on_terminal("run", "verify", "ok", cwd=tmp_path, columns=60, prose=True)

    lines = COLOUR.sub("", sent).splitlines()
    assert code == Exit.CORRUPT
    assert max(map(len, lines)) <= 60
    assert any("`spanfold run fold runs/ok --into DIR`" in line for line in lines)


def test_a_comparison_on_a_narrow_terminal_keeps_what_matters(runs: Path, tmp_path: Path) -> None:
    code, sent = on_terminal("timings", "compare", "ok", "fail", cwd=tmp_path, columns=80)

    assert code == Exit.DONE
    lines = COLOUR.sub("", sent).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("95 % interval" in line and "B / A" in line for line in lines)
    assert "Verdict: inconclusive" in sent
    assert "spans_not_independent" not in sent
    assert "Give several runs a side." in " ".join(" ".join(lines).split())


def test_prose_is_on_stderr_and_data_on_stdout(spanfold: Spanfold, runs: Path) -> None:
    answer = spanfold("run", "list")

    assert "4 runs below runs: 2 completed" in answer.err
    assert "below" not in answer.out
    assert len(answer.lines) == 5


@pytest.mark.case("C-026")
@pytest.mark.parametrize(
    "words", [("run", "list"), ("run", "show", "evil"), ("run", "tail", "evil", "--all", "--from-start")]
)
def test_what_a_run_says_cannot_drive_the_terminal(spanfold: Spanfold, runs: Path, words: tuple[str, ...]) -> None:
    answer = spanfold(*words)

    assert answer.code == Exit.DONE
    assert [char for char in answer.out + answer.err if not (char.isprintable() or char == "\n")] == []
    if "list" not in words:
        assert "\\x1b[2J" in answer.out
    as_json = spanfold(*words, "--json")
    assert [char for char in as_json.out if not (char.isprintable() or char == "\n")] == []
    if "show" in words:
        assert as_json.document["models"][1]["name"] == "m\r\nodel \u202eevil"


def test_a_reader_that_goes_away_ends_the_command_quietly(runs: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "spanfold", "run", "tail", "ok", "--all", "--from-start"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()

    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(HANG_S) == Exit.PIPE_CLOSED
    assert err == b""


@pytest.mark.parametrize("redirect", [">&-", "> /dev/full"])
@pytest.mark.parametrize(
    "words", ["run list", "run list --json", "run show ok", "--help", "run show --help", "--version"]
)
def test_an_answer_that_can_go_nowhere_is_a_failure(runs: Path, tmp_path: Path, redirect: str, words: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m spanfold {words} {redirect}', sys.executable],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        timeout=HANG_S,
        check=False,
    )

    assert done.returncode == Exit.FAILED
    last = done.stderr.decode().splitlines()[-1]
    assert "stdout is closed" in last or "No space left on device" in last
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_a_closed_stderr_costs_nothing_but_the_prose(runs: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$0" -m spanfold run list --json 2>&-', sys.executable],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        timeout=HANG_S,
        check=False,
    )

    assert done.returncode == Exit.DONE
    assert len(json.loads(done.stdout)["runs"]) == 4


def test_a_locale_without_the_characters_is_no_reason_to_fail(spanfold: Spanfold, runs: Path) -> None:
    answer = spanfold("timings", "plot", "ok", PYTHONIOENCODING="ascii", PYTHONUTF8="0")

    assert answer.code == Exit.DONE
    assert answer.out.isascii()


def test_json_is_utf_8_whatever_the_locale(spanfold: Spanfold, tmp_path: Path) -> None:
    folder = tmp_path / "größe"
    folder.mkdir()

    answer = spanfold("run", "list", folder.name, "--json", PYTHONIOENCODING="ascii", PYTHONUTF8="0")

    assert answer.document["folder"] == "größe"


def test_ctrl_c_ends_a_command_with_130_and_one_line(live: subprocess.Popen[bytes], tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "spanfold", "run", "tail", "live", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()  # it follows now

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=HANG_S)

    assert process.returncode == Exit.INTERRUPTED
    assert err.decode().splitlines() == ["interrupted"]


def test_a_traceback_is_there_for_whoever_asks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spanfold", "run", "show", "nowhere"],
        cwd=tmp_path,
        env={**os.environ, "SPANFOLD_TRACEBACK": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )

    assert done.returncode == Exit.NOT_FOUND
    assert "Traceback" in done.stderr


def test_a_comparison_on_a_terminal_counts_what_says_nothing_and_explains_a_small_p(
    spanfold: Spanfold, tmp_path: Path
) -> None:
    for name, slower in (("a", 1.0), ("b", 1.12)):
        rows: list[dict[str, object]] = []
        for number in range(200):
            for stage, scale in (("fast", 0.5 if name == "b" else 1.0), ("near", slower)):
                rows.append(_timing(name, stage, (0.1 + (number * 37 % 100) / 2000) * scale))
        rows += [_timing(name, f"alone_{n}", 0.1) for n in range(5)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    _, short = on_terminal("timings", "compare", "a.jsonl", "b.jsonl", cwd=tmp_path, columns=120)
    _, whole = on_terminal("timings", "compare", "a.jsonl", "b.jsonl", "--all", cwd=tmp_path, columns=120)
    plain = spanfold("timings", "compare", "a.jsonl", "b.jsonl").out

    assert re.search(r"inconclusive.* near .*< 0.001", COLOUR.sub("", short)), short
    assert "and 5 inconclusive stages; --all shows them" in short
    assert "alone" not in short
    assert whole.count("alone_") == plain.count("alone_") == 5
    for told in (short, whole, plain):
        assert "Inconclusive with a small p" in told


def _timing(run: str, stage: str, seconds: float) -> dict[str, object]:
    return {
        "schema": "spanfold.timing/1",
        "run_id": run,
        "cell_id": run,
        "stage": stage,
        "depth": 0,
        "seconds": round(seconds, 6),
        "ok": True,
        "measured": True,
        "container": False,
        "attributes": {"kind": "timing", "name": stage},
        "source": "timer",
    }
