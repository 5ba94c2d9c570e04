"""docs/durability.md promises what tests try to break: each row names its test, and the test is there."""

import re

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
