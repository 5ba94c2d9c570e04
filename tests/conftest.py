"""What holds for every test: an empty environment, a fresh spanfold, and no skipped test in CI.

Each test starts in an empty home and working folder, without the variables that OpenTelemetry, Langfuse, spanfold, model
endpoints and proxies read, and ends with `spanfold.shutdown()`. `SPANFOLD_CI=1` (set by `.ci/run`) makes Hypothesis replay
the same examples and fails the session when any test was skipped or expected to fail, or when there is no C core to test.
A C core that is older than its source fails every session. `SPANFOLD_NATIVE=0` tests Python alone.
"""

import os
import re
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.database import DirectoryBasedExampleDatabase

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
# Read here because the fixture below hides it from the tests.
IN_CI = os.environ.get("SPANFOLD_CI", "") not in ("", "0")

# The one variable of ours that stays: programs that the tests start run in the same core.
CORE_SWITCH = "SPANFOLD_NATIVE"
WITHOUT_CORE = os.environ.get(CORE_SWITCH, "").strip().lower() in {"0", "false", "no", "off"}

LEAKY_PREFIXES = ("OTEL_", "LANGFUSE_", "SPANFOLD_", "OPENAI_", "ANTHROPIC_", "XDG_")
LEAKY_NAMES = {
    *("TRACEPARENT", "TRACESTATE", "BAGGAGE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES"),
}
IDS = {"contract": re.compile(r"(DL|AI|EP)-\d{3}"), "case": re.compile(r"C-\d{3}")}

# A shell that starts the tests in the background has them ignore Ctrl-C, and every program they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

set_hypothesis_home_dir(CACHE / "hypothesis")
for _profile, _examples in (("fast", 25), ("thorough", 100)):
    settings.register_profile(
        _profile,
        max_examples=_examples,
        # Two shared cores: a slow example is not a wrong one.
        deadline=None,
        derandomize=IN_CI,
        database=None if IN_CI else DirectoryBasedExampleDatabase(CACHE / "hypothesis" / "examples"),
        print_blob=True,
    )
# `--hypothesis-profile` (make test) overrides this.
settings.load_profile("fast")


@pytest.fixture(scope="session")
def _scratch() -> Iterator[Path]:
    # Not under pytest's tmp_path: its long names break the 108 bytes of a Unix socket path that multiprocessing makes here.
    folder = Path(tempfile.mkdtemp(prefix="sf-")).resolve()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def guest(_scratch: Path) -> Iterator[None]:
    """Run a test as a guest on an empty machine, and take its changes to the process back afterwards."""
    environment, folder = dict(os.environ), Path.cwd()
    home = Path(tempfile.mkdtemp(dir=_scratch))
    for name in environment:
        if (name.startswith(LEAKY_PREFIXES) and name != CORE_SWITCH) or name.upper() in LEAKY_NAMES:
            del os.environ[name]
    os.environ.update(
        HOME=str(home),
        TMPDIR=str(_scratch),
        # matplotlib builds a font list in its first home: once for all tests is enough.
        MPLCONFIGDIR=str(CACHE / "matplotlib"),
        MPLBACKEND="Agg",
    )
    os.chdir(home)
    yield
    # Process-global by design (configure), so that no test inherits another's journal. A test that never imported spanfold pays nothing.
    if instrument := sys.modules.get("spanfold.instrument"):
        for run in tuple(instrument.state.runs.values()):  # a loop that never closed its logger
            run.close()
        instrument.shutdown()
        instrument.losses.clear()
    os.chdir(folder)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def pytest_configure() -> None:
    if WITHOUT_CORE:
        return
    package = ROOT / "src" / "spanfold"
    shared = max((header.stat().st_mtime_ns for header in package.glob("*.h")), default=0)
    for source in package.glob("*/_native.c"):
        built = source.with_name(source.stem + sysconfig.get_config_var("EXT_SUFFIX"))
        if not built.exists():
            if IN_CI:
                raise pytest.UsageError(
                    f"{source.relative_to(ROOT)} is not built, so the tests would leave it out: run `make setup`, or set "
                    f"{CORE_SWITCH}=0 to test Python alone."
                )
        elif built.stat().st_mtime_ns < max(source.stat().st_mtime_ns, shared):
            raise pytest.UsageError(
                f"{built.relative_to(ROOT)} is older than its source, so the tests would show nothing: run `make setup`."
            )


def pytest_itemcollected(item: pytest.Item) -> None:
    for marker, pattern in IDS.items():
        for mark in item.iter_markers(marker):
            if not mark.args or not all(isinstance(i, str) and pattern.fullmatch(i) for i in mark.args):
                raise pytest.UsageError(
                    f"{item.nodeid}: @pytest.mark.{marker}{mark.args!r} must name ids like {pattern.pattern}"
                )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    # Before the terminal reporter's own hook, which prints the summary and the closing line.
    if _not_run(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if reports := _not_run(config):
        terminalreporter.section("SPANFOLD_CI: every test must run", red=True)
        for report in reports:
            terminalreporter.line(f"not run: {report.nodeid}")


def _not_run(config: pytest.Config) -> list[pytest.TestReport]:
    """Return the reports of tests that did not run, in CI; empty elsewhere and in the workers of pytest-xdist."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not IN_CI or reporter is None or hasattr(config, "workerinput"):
        return []
    return [report for outcome in ("skipped", "xfailed") for report in reporter.stats.get(outcome, ())]
