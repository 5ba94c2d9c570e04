"""The rules that conftest.py holds over every test, tried on a small suite of their own."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PLAIN = "def test_passes():\n    pass\n"
SKIPPED = PLAIN + "import pytest\n@pytest.mark.skip(reason='not here')\ndef test_skipped():\n    pass\n"


def core(folder: Path, *, older_s: int | None) -> None:
    """Lay down a source of the C core, and, unless None, a module made so many seconds before it."""
    source = folder / "src" / "spanfold" / "journal" / "_native.c"
    source.parent.mkdir(parents=True)
    source.touch()
    if older_s is not None:
        built = source.with_name("_native" + sysconfig.get_config_var("EXT_SUFFIX"))
        built.touch()
        os.utime(built, (source.stat().st_mtime - older_s,) * 2)


def run_suite(folder: Path, source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).parent
    suite = folder / "tests"
    suite.mkdir()
    shutil.copy(here / "conftest.py", suite)
    shutil.copy(here.parent / "pyproject.toml", folder)
    (suite / "test_small.py").write_text(source, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest"],
        cwd=folder,
        env={**os.environ, "SPANFOLD_NATIVE": "", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_skipped_test_fails_the_session_in_ci_and_is_named(tmp_path: Path) -> None:
    result = run_suite(tmp_path, SKIPPED, SPANFOLD_CI="1")

    assert result.returncode == 1
    assert "not run: tests/test_small.py" in result.stdout
    assert "1 passed, 1 skipped" in result.stdout.splitlines()[-1]


def test_a_skipped_test_passes_outside_ci(tmp_path: Path) -> None:
    assert run_suite(tmp_path, SKIPPED).returncode == 0


def test_a_suite_without_skips_passes_in_ci(tmp_path: Path) -> None:
    assert run_suite(tmp_path, PLAIN, SPANFOLD_CI="1").returncode == 0


def test_a_core_older_than_its_source_fails_the_session_and_says_what_to_do(tmp_path: Path) -> None:
    core(tmp_path, older_s=5)

    result = run_suite(tmp_path, PLAIN)

    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "make setup" in result.stderr


def test_a_core_that_is_not_built_fails_the_session_in_ci(tmp_path: Path) -> None:
    core(tmp_path, older_s=None)

    result = run_suite(tmp_path, PLAIN, SPANFOLD_CI="1")

    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "make setup" in result.stderr


@pytest.mark.parametrize(
    ("older_s", "environment"),
    [
        pytest.param(-5, {"SPANFOLD_CI": "1"}, id="built in CI"),
        pytest.param(None, {}, id="not built, outside CI"),
        pytest.param(None, {"SPANFOLD_CI": "1", "SPANFOLD_NATIVE": "0"}, id="not built, nor wanted"),
        pytest.param(5, {"SPANFOLD_NATIVE": "0"}, id="older, not wanted"),
    ],
)
def test_a_core_that_fits_or_is_not_wanted_fails_nothing(
    tmp_path: Path, older_s: int | None, environment: dict[str, str]
) -> None:
    core(tmp_path, older_s=older_s)

    assert run_suite(tmp_path, PLAIN, **environment).returncode == 0


def test_programs_that_tests_start_run_in_the_core_that_is_tested(tmp_path: Path) -> None:
    source = "import os\ndef test_x():\n    assert os.environ['SPANFOLD_NATIVE'] == '0'\n"

    assert run_suite(tmp_path, source, SPANFOLD_NATIVE="0").returncode == 0


def test_an_unknown_marker_is_refused(tmp_path: Path) -> None:
    result = run_suite(tmp_path, "import pytest\n@pytest.mark.slwo\ndef test_x():\n    pass\n")

    assert result.returncode != 0
    assert "slwo" in result.stdout.partition("ERROR")[2]


def test_a_contract_id_that_no_contract_has_the_form_of_is_refused(tmp_path: Path) -> None:
    result = run_suite(tmp_path, "import pytest\n@pytest.mark.contract('AI-1')\ndef test_x():\n    pass\n")

    assert result.returncode != 0
    assert "must name ids like" in result.stdout + result.stderr


def test_a_warning_is_an_error(tmp_path: Path) -> None:
    result = run_suite(tmp_path, "import warnings\ndef test_x():\n    warnings.warn('old', DeprecationWarning)\n")

    assert result.returncode == 1


def test_the_hosts_variables_do_not_reach_a_test(tmp_path: Path) -> None:
    names = ["OTEL_EXPORTER_OTLP_ENDPOINT", "LANGFUSE_HOST", "SPANFOLD_RUN_DIR", "TRACEPARENT", "https_proxy"]
    source = f"import os\ndef test_x():\n    assert not os.environ.keys() & set({names!r})\n"

    result = run_suite(tmp_path, source, **dict.fromkeys(names, "http://127.0.0.1:1"))

    assert result.returncode == 0, result.stdout


def test_what_a_test_does_to_the_process_is_undone(tmp_path: Path) -> None:
    source = (
        "import os\n"
        "from pathlib import Path\n"
        "def test_first():\n"
        "    os.environ['SPANFOLD_LEFT'] = '1'\n"
        "    Path('left').touch()\n"
        "    os.chdir('/')\n"
        "def test_second():\n"
        "    assert 'SPANFOLD_LEFT' not in os.environ\n"
        "    assert Path.cwd() == Path.home() and not list(Path.cwd().iterdir())\n"
    )

    result = run_suite(tmp_path, source)

    assert result.returncode == 0, result.stdout
