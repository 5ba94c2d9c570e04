"""The pages on the helpers of a diagnose loop say what is true: their examples run and print what stands below them."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLE = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", re.DOTALL)


@pytest.mark.parametrize(
    ("page", "count"), [("diagnose-model-proxy.md", 2), ("diagnose-tracing.md", 2), ("artifacts.md", 1)]
)
def test_the_examples_of_a_page_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], page: str, count: int
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = EXAMPLE.findall((DOCS / page).read_text(encoding="utf-8"))

    assert len(examples) == count
    for source, printed in examples:
        exec(compile(source, page, "exec"), {})
        out = capsys.readouterr().out
        if printed:
            assert out == printed
