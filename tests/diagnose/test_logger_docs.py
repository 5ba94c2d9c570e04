"""The page on diagnose loops, and the one on moving to them, say what is true."""

import re
from pathlib import Path

import pytest

from spanfold.artifacts import MAX_MEDIA_BYTES
from spanfold.diagnose._logger_core import MAX_LATE_SESSIONS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "diagnose.md").read_text(encoding="utf-8")
MOVING = (DOCS / "moving-from-runloggerv2.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [PAGE, MOVING], ids=["diagnose", "moving"])
def test_the_first_example_of_a_page_prints_what_it_says(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]

    exec(compile(source, "page", "exec"), {})

    assert f"```text\n{capsys.readouterr().out}```" in page


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"up to {MAX_MEDIA_BYTES >> 20} MiB" in PAGE
    assert f"at once up to {MAX_LATE_SESSIONS} times" in PAGE
