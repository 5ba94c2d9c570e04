"""docs/durability.md promises what tests try to break: each row names its test, and the test is there."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spanfold.journal import read_journal
from spanfold.model import Span
from tests.instrument.programs import ROOT


def test_every_row_of_the_durability_page_names_a_test_that_exists() -> None:
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:    )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    page = (ROOT / "docs" / "durability.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| What", "|---"))]

    assert len(rows) > 40
    for row in rows:
        last = row.rstrip("| ").rsplit("|", 1)[1]
        named = re.findall(r"`(test_\w+)`", last)
        assert named or last.strip() == "not tested", row
        assert set(named) <= there, row


OPEN = "import spanfold, os, signal, time\nrun = spanfold.run('r', dir='run')\nstage = spanfold.stage('M1', cycle=0)\n"
WITHIN = OPEN + "with run, stage:\n    os.kill(os.getpid(), signal.{}); time.sleep(30)\n"
ENDS = {
    "Ctrl-C": WITHIN.format("SIGINT"),
    "SIGTERM": WITHIN.format("SIGTERM"),
    "The end of the program, which left it open": OPEN + "run.__enter__(); stage.__enter__()",
    "SIGKILL": WITHIN.format("SIGKILL"),
    "SIGKILL, then `run recover`": WITHIN.format("SIGKILL"),
}


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_an_end_is_called_what_the_page_says(tmp_path: Path, end: str) -> None:
    def command(*given: str) -> str:
        done = subprocess.run(
            [sys.executable, *given], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout

    page = (ROOT / "docs" / "durability.md").read_text(encoding="utf-8")
    [row] = [line for line in page.splitlines() if line.startswith(f"| {end} | ") and "called_what" in line]
    outcome, error, run_status, stage_status = (re.findall("none|`([^`]+)`", cell)[0] for cell in row.split(" | ")[1:5])

    command("-c", ENDS[end])
    is_finished = "SIGKILL" not in end or "recover" in end
    if "recover" in end:
        command("-m", "spanfold", "run", "recover", "run")
    spans = [record for record in read_journal(tmp_path / "run").records if isinstance(record, Span)]

    assert {(s.attributes.get("spanfold.outcome", ""), s.attributes.get("error.type", "")) for s in spans} == (
        {(outcome, error)} if is_finished else set()
    )
    shown = json.loads(command("-m", "spanfold", "run", "show", "run", "--json"))
    assert shown["status"] == run_status
    assert re.search(rf"^  M1 +0  {stage_status} ", command("-m", "spanfold", "run", "show", "run"), re.MULTILINE)
    if is_finished:
        document = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
        assert document["run"]["status"] == run_status
    listed = command("-m", "spanfold", "run", "list", ".")
    assert re.search(rf"^run +r +{run_status}", listed, re.MULTILINE)
    assert ("(recovered)" in listed) == ("recover" in end)
