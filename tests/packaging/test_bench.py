"""The benchmarks: without their packages, and a short one with them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]


def test_benchmarks_without_their_packages_say_in_one_line_what_to_install():
    # -S: without the packages of this environment.
    result = subprocess.run(
        [sys.executable, "-S", "-m", "bench", "--help"],
        cwd=CLONE,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "make setup" in result.stderr
    assert ".venv/bin/python -m bench" in result.stderr


@pytest.mark.slow
def test_the_benchmark_of_a_sparse_loop_measures_each_call_beside_the_sdk():
    # It needs a newer SDK than the oldest we run with (make oldest).
    pytest.importorskip(
        "opentelemetry.exporter.otlp.json.file",
        reason="needs opentelemetry-exporter-otlp-json-file, as `make setup` has it",
    )
    result = subprocess.run(
        [sys.executable, "-m", "bench", "sparse", "--quick", "--json"],
        cwd=CLONE,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    medians = json.loads(result.stdout)["sparse"]["median_us"]
    assert [name.split(":")[0].split()[0] for name in medians] == ["SDK", "SDK", *["timed"] * 4, "stage"]
    assert all(median > 0 for median in medians.values())
