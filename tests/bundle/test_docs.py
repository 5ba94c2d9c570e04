"""The pages on bundles say what is true."""

import re
from pathlib import Path

import pytest

from spanfold.bundle import _frames, verifying
from tests.bundle import runs

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "bundle.md").read_text(encoding="utf-8")
FORMAT = (DOCS / "formats" / "bundle-v1.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.record_small(tmp_path / "runs" / "001")
    monkeypatch.chdir(tmp_path)
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

    exec(compile(example, "docs/bundle.md", "exec"), {})

    assert capsys.readouterr().out.splitlines()[1:] == ["True", "completed"]


def test_the_numbers_of_the_pages_are_those_of_the_code() -> None:
    assert f"at most {_frames.FRAME_BYTES:,} bytes of" in FORMAT
    assert f"{verifying.MIN_UNPACKED_BYTES >> 30} GiB and to more than {verifying.MAX_RATIO:,} times" in PAGE
