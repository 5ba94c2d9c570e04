"""A variable that cannot be used, or that nothing reads: told once, and never the cause of more."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import spanfold
from spanfold.errors import SettingsError
from spanfold.settings import KNOWN_VARIABLES, Settings, resolve, unknown_variables
from spanfold.testing import LoopbackOtlpReceiver

PROGRAM = """
import json, sys, spanfold
with spanfold.run("r", dir=sys.argv[1]) as run, spanfold.model_call("m", input="a private question"):
    pass
spanfold.flush()
print(json.dumps(run.losses))
"""


class Recorded(NamedTuple):
    """What became of a program that ran below a receiver."""

    kept: str
    """On disk."""
    sent: list[str]
    told: str
    """Logged."""
    losses: dict[str, int]


def recorded(folder: Path, **variables: str) -> Recorded:
    """Run a program below a receiver."""
    with LoopbackOtlpReceiver() as receiver:
        env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, **variables}
        command = [sys.executable, "-c", PROGRAM, str(folder / "run")]
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
        sent = [span.name for span in receiver.spans]
    kept = "".join(p.read_text(errors="replace") for p in folder.rglob("*") if p.is_file())
    return Recorded(kept, sent, done.stderr, json.loads(done.stdout))


@pytest.mark.slow
def test_a_bad_variable_leaves_the_others_in_force(tmp_path: Path) -> None:
    kept, sent, told, losses = recorded(
        tmp_path, SPANFOLD_DURABILITY="disk", SPANFOLD_CONTENT="none", SPANFOLD_OTLP="false"
    )

    assert '"name":"chat m"' in kept
    assert "a private question" not in kept
    assert sent == []
    assert told == (
        'spanfold reads SPANFOLD_DURABILITY as "process": expected process or machine, found text of 4 characters.\n'
    )
    assert losses == {"the setting SPANFOLD_DURABILITY": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "is_kept", "is_content_kept", "is_sent"),
    [
        ("SPANFOLD_OTLP", True, True, False),
        ("SPANFOLD_CONTENT", True, False, True),
        ("SPANFOLD_DISABLED", False, False, False),
        ("SPANFOLD_REDACT", True, True, True),
    ],
)
def test_a_bad_variable_never_records_or_sends_more_than_may_have_been_meant(
    tmp_path: Path, variable: str, is_kept: bool, is_content_kept: bool, is_sent: bool
) -> None:
    kept, sent, told, _ = recorded(tmp_path, **{variable: "maybe"})

    assert ('"name":"chat m"' in kept) == is_kept
    assert ("a private question" in kept) == is_content_kept
    assert bool(sent) == is_sent
    assert variable in told
    assert "maybe" not in told


def test_each_bad_variable_is_told_with_what_is_in_force() -> None:
    bad = dict.fromkeys(
        ("SPANFOLD_OTLP", "SPANFOLD_LANGFUSE", "SPANFOLD_CONTENT", "SPANFOLD_PROVIDER", "SPANFOLD_SIGNALS"), "maybe"
    )
    told: dict[str, str] = {}

    found = resolve(bad, refused=lambda error, instead: told.update({error.setting: instead}))

    assert told == {
        "SPANFOLD_OTLP": "false",
        "SPANFOLD_LANGFUSE": "false",
        "SPANFOLD_CONTENT": "none",
        "SPANFOLD_PROVIDER": "own",
        "SPANFOLD_SIGNALS": "false",
    }
    assert found == Settings(otlp=False, langfuse=False, content="none", provider="own", signals=False)
    with pytest.raises(SettingsError, match="SPANFOLD_OTLP"):
        resolve(bad)


@pytest.mark.parametrize("settings", [{}, {"content": "all"}], ids=["the first run", "configure()"])
@pytest.mark.slow
def test_a_variable_that_nothing_reads_is_told_once_with_the_one_that_was_meant(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    program = (
        "import spanfold\n"
        f"for i in range(2):\n    {f'spanfold.configure(**{settings})' if settings else 'pass'}\n"
        "    with spanfold.run('r') as run: pass\n"
        "print(run.losses)\n"
    )
    env = {**os.environ, "SPANFOLD_CONTNT": "a private value", "SPANFOLD_OF_ANOTHER_PROGRAM": "x"}

    done = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stderr == (
        "spanfold knows no variable SPANFOLD_CONTNT (did you mean SPANFOLD_CONTENT?), SPANFOLD_OF_ANOTHER_PROGRAM: "
        "what they are set to changes nothing.\n"
    )
    assert done.stdout == "{}\n"


@pytest.mark.parametrize("variable", ["SPANFOLD_DISABLED", "SPANFOLD_PARENT_RUN_DIR"])
def test_nothing_is_told_where_nothing_is_recorded_or_the_parent_process_has_told_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str
) -> None:
    monkeypatch.setenv("SPANFOLD_NONE_OF_OURS", "1")
    monkeypatch.setenv(variable, "1")

    spanfold.configure()

    assert caplog.messages == []


def test_names_that_cannot_be_a_slip_are_left_alone() -> None:
    others = ("SPANFOLD", "SPANFOLD_", "SPANFOLD_A\nB", "SPANFOLD_ä", "SPANFOLD_" + "X" * 100, "SPANFOLDER_X", "PATH")

    assert unknown_variables(dict.fromkeys(others, "1")) == {}
    assert unknown_variables(dict.fromkeys(KNOWN_VARIABLES, "1")) == {}
    assert unknown_variables({"SPANFOLD_DISABLE": "1", "SPANFOLD_QQQ": ""}) == {
        "SPANFOLD_DISABLE": "SPANFOLD_DISABLED",
        "SPANFOLD_QQQ": "",
    }
