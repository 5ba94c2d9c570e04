"""What docs/cli.md shows is what the commands print: same lines, same labels, same columns."""

import re
from pathlib import Path

import pytest

from spanfold.cli._text import bar
from spanfold.testing import LoopbackOtlpReceiver
from tests.cli.conftest import ROOT, Spanfold
from tests.cli.test_streams import COLOUR, on_terminal

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
LABEL = re.compile(r"  [a-z]+(?: \(UTC\))? +")
"""The left column of facts below each other, with the space up to their values."""


def samples(command: str) -> list[list[str]]:
    """Return the lines of every output that the section of a command shows, the command itself left out."""
    section = PAGE.split(f"## spanfold {command}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```text\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [[line for line in block.splitlines() if not line.startswith("$ ")] for block in blocks]


def shape(line: str) -> str:
    """Return a line without what differs from run to run: numbers, hashes, addresses, names of runs, widths of columns."""
    for pattern, stands_for in (
        (r"http://\S+", "URL"),
        (r"runs/[\w-]+", "RUN"),
        (r"\b[0-9a-f]{64}\b", "HASH"),
        (r"\d{8}T\d{6}Z-\d+-[0-9a-f]{8}", "WRITER"),
        (r"\d[\d,.]*(?: (?:µs|ms|s|B|kB|MB))?\b", "#"),
        (r"  +", "  "),
    ):
        line = re.sub(pattern, stands_for, line)
    return line


def shapes(lines: list[str]) -> list[str]:
    return [shape(line) for line in lines]


def on_wide_terminal(*words: str, cwd: Path, **environment: str) -> list[str]:
    """Run a command and return everything it prints, in the order in which it is seen."""
    _, sent = on_terminal(*words, cwd=cwd, columns=250, prose=True, **environment)
    return COLOUR.sub("", sent).splitlines()


def labels(lines: list[str]) -> set[str]:
    return {found[0] for line in lines if (found := LABEL.match(line))}


def test_a_delivery_that_waits_is_shown_as_it_is(runs: Path, tmp_path: Path) -> None:
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}

    told = shapes(on_wide_terminal("run", "deliver", "ok", "--timeout", "1.5", cwd=tmp_path, **where))

    sample = shapes(samples("run deliver")[0])
    progress = [line for line in sample if line.startswith("  ")]
    # How often progress is told depends on the machine.
    assert [line for line in told if line not in progress] == [line for line in sample if line not in progress]
    assert progress == ["  # sent, # refused, # waiting (no answer: ConnectionRefusedError)"]


def test_a_delivery_that_was_refused_before_is_shown_as_it_is(runs: Path, tmp_path: Path) -> None:
    with LoopbackOtlpReceiver() as receiver, receiver.answering(status=400):
        where = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
        on_wide_terminal("run", "deliver", "ok", cwd=tmp_path, **where)
        told = on_wide_terminal("run", "deliver", "ok", cwd=tmp_path, **where)

    assert shapes(told) == shapes(samples("run deliver")[1])


def test_an_export_is_shown_as_it_is(runs: Path, tmp_path: Path) -> None:
    told = on_wide_terminal("bundle", "export", "ok", cwd=tmp_path)

    assert shapes(told) == shapes(samples("bundle export")[0])


@pytest.mark.parametrize("command", ["bundle verify", "run verify", "run show"])
def test_facts_below_each_other_are_shown_with_their_labels(spanfold: Spanfold, runs: Path, command: str) -> None:
    spanfold("bundle", "export", "ok")
    document = runs / "ok" / "run.json"
    document.write_text(document.read_text().replace('"verdict": "good"', '"verdict": "evil"'))
    what = {"bundle verify": "runs/ok.spanfold.tar.zst", "run verify": "ok", "run show": "kill"}[command]

    told = labels(spanfold(*command.split(), what).out.partition("\n\n")[0].splitlines())

    shown = labels("\n".join(samples(command)[0]).partition("\n\n")[0].splitlines())
    assert len(shown) >= 4
    assert shown <= told


def test_a_recovery_is_shown_as_it_is(runs: Path, tmp_path: Path) -> None:
    told = [line for _ in range(2) for line in on_wide_terminal("run", "recover", "kill", cwd=tmp_path)]

    sample = [line for line in samples("run recover")[0] if line != "6"]  # the exit code
    span = re.compile(r"(model_call|agent|stage|run)  ")
    assert [line for line in shapes(told) if not span.match(line)] == [
        line for line in shapes(sample) if not span.match(line)
    ]


def test_the_examination_is_shown_with_every_row(spanfold: Spanfold, runs: Path) -> None:
    told, sample = spanfold("doctor").lines, samples("doctor")[0]

    def names(lines: list[str], heading: str) -> list[str]:
        rows = lines[lines.index(heading) + 1 :]
        return [row.split()[0] for row in rows[: rows.index("")]]

    for heading in ("Settings", "Extras", "Destinations", "Run folder"):
        assert names(sample, heading) == names(told, heading)


def test_shares_of_the_run_that_is_shown_follow_the_rule_of_the_page() -> None:
    shown = next(line for line in samples("run show")[0] if line.startswith("  M1 "))
    ended = next(line for line in samples("run recover")[0] if line.startswith("run "))
    micros, millis = re.search(r"([\d.]+) µs", shown), re.search(r"([\d.]+) ms", ended)
    assert micros
    assert millis

    share = float(micros[1]) / float(millis[1]) / 1000

    assert f"{bar(share, 8):8} {100 * share:5.1f} %" in shown
