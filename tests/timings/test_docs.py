"""The page on timings says what is true."""

import re
from pathlib import Path

import pytest

from spanfold.timings import statistics
from tests.timings.samples import loop_run

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "timings.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        loop_run(tmp_path / "runs" / f"00{number}", seed=number)
    monkeypatch.chdir(tmp_path)
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

    exec(compile(example, "docs/timings.md", "exec"), {})

    assert capsys.readouterr().out.splitlines()[-1] == "inconclusive"
    assert (tmp_path / "runs" / "001.png").exists()


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"{statistics.REPLICATES:,} replicates" in PAGE
    assert f"exact up to {statistics.EXACT_LIMIT} values" in PAGE
    assert f"From {statistics.RESAMPLE_LIMIT + 1} values on a side" in PAGE
    assert "3 a side can never reach 0.05, 4 a side can for a single path, 5 a side for up to six" in PAGE
    p = {n: statistics.smallest_p(n, n) for n in (3, 4, 5)}
    assert p[3] > 0.05 >= p[4]
    assert 2 * p[4] > 0.05
    assert 6 * p[5] <= 0.05 < 7 * p[5]
