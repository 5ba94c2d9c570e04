"""A variable that cannot be used, in a program that never calls configure(): told once, and never the cause of more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spanfold.errors import SettingsError
from spanfold.settings import Settings, resolve
from spanfold.testing import LoopbackOtlpReceiver

PROGRAM = """
import json, sys, spanfold
with spanfold.run("r", dir=sys.argv[1]) as run, spanfold.model_call("m", input="a private question"):
    pass
spanfold.flush()
print(json.dumps(run.losses))
"""


def recorded(folder: Path, **variables: str) -> tuple[str, list[str], str]:
    """Run a program below a receiver; return what is on disk, what was sent, and what was logged."""
    with LoopbackOtlpReceiver() as receiver:
        env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, **variables}
        command = [sys.executable, "-c", PROGRAM, str(folder / "run")]
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
        sent = [span.name for span in receiver.spans]
    kept = "".join(p.read_text(errors="replace") for p in folder.rglob("*") if p.is_file())
    assert json.loads(done.stdout) is not None
    return kept, sent, done.stderr


@pytest.mark.slow
def test_a_bad_variable_leaves_the_others_in_force(tmp_path: Path) -> None:
    kept, sent, told = recorded(tmp_path, SPANFOLD_DURABILITY="disk", SPANFOLD_CONTENT="none", SPANFOLD_OTLP="false")

    assert '"name":"chat m"' in kept
    assert "a private question" not in kept
    assert sent == []
    assert "SPANFOLD_DURABILITY" in told
    assert "process is in force" in told


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
    kept, sent, told = recorded(tmp_path, **{variable: "maybe"})

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
