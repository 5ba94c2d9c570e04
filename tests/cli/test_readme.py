"""What README.md shows runs as it is printed, and the commands print about it what README.md says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Spanfold
from tests.cli.test_samples import shapes

pytestmark = pytest.mark.slow

PAGE = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def output(command: str) -> list[str]:
    """Return the lines that the page shows below a command."""
    block = next(block for block in blocks("console") if f"$ {command}\n" in block)
    return block.partition(f"$ {command}\n")[2].partition("\n\n$ ")[0].splitlines()


def alike(lines: list[str]) -> list[str]:
    """Return lines without what differs from run to run: also ids, the machine, and bars."""
    return shapes([re.sub(r"[▏▎▍▌▋▊▉█]|\b[0-9a-f]{32}\b|host \S+", "", line) for line in lines])


def test_each_python_block_runs_as_a_program_and_the_second_leaves_the_run_that_is_shown(
    spanfold: Spanfold, tmp_path: Path
) -> None:
    agent, loop, logger = blocks("python")
    for name, text in {"agent.py": agent, "loop.py": loop, "logger.py": logger}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-W", "error", name], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, ""), name

    for path in ("runs/agent", "runs/001"):
        assert spanfold("run", "verify", path).code == 0
    left = sorted(str(p.relative_to(tmp_path)) for p in (tmp_path / "runs/001").rglob("*") if p.is_file())
    assert shapes(left) == shapes(output("find runs/001 -type f | sort"))
    for command in ("show", "verify"):
        told = spanfold("run", command, "runs/001")
        shown = output(f"spanfold run {command} runs/001")
        assert alike(told.lines + told.err.splitlines()) == alike(shown)


def test_the_answers_of_the_agents_model_are_where_the_page_says(spanfold: Spanfold, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", blocks("python")[0]], cwd=tmp_path, check=True, timeout=60)

    shown = spanfold("run", "show", "runs/agent", "--json").document
    assert (shown["totals"]["model_calls"], [tool["name"] for tool in shown["tools"]]) == (2, ["read"])
    assert [score["name"] for score in shown["scores"]] == ["solved"]
    document = (tmp_path / "runs" / "agent" / "run.json").read_text(encoding="utf-8")
    assert "What is wrong in add.py?" in document and "It subtracts." in document
