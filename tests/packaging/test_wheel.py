"""The wheel, built and installed in another folder, beside exactly the distributions that a test names.

Nothing is fetched: the distributions are linked from the environment that runs the tests, file by file as their metadata
lists them, so that nothing else is importable.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
VERSION = "0.1.0"
# What a recorder that only writes files needs: no exporter, no grpc, no protobuf, no compression.
RECORDER = ["opentelemetry-api", "opentelemetry-sdk", "orjson", "google-re2"]

IMPORT_EVERY_MODULE = """
import importlib, pkgutil, spanfold
for module in pkgutil.walk_packages(spanfold.__path__, "spanfold."):
    # The demo has an extra of its own; __main__ runs the command line.
    if not module.name.startswith(("spanfold.demo", "spanfold.__main__")):
        importlib.import_module(module.name)
"""

RECORD_A_RUN = """
import sys
from pathlib import Path

import spanfold

@spanfold.traced
def double(x):
    return x * 2

with spanfold.run("small", dir="run") as run:
    with spanfold.stage("M1") as stage:
        stage.set(severity="low")
        assert double(2) == 4
spanfold.shutdown()

lines = [line for path in Path("run/journal").iterdir() for line in path.read_text().splitlines()]
assert any("severity" in line for line in lines), lines
assert Path("run/run.json").is_file(), sorted(Path("run").rglob("*"))
for absent in (
    "google.protobuf", "grpc", "requests", "opentelemetry.exporter", "numpy", "matplotlib", "jsonschema", "langfuse"
):
    try:
        __import__(absent)
    except ImportError:
        continue
    sys.exit(f"{absent} is here, so this shows nothing")
"""


class Installed:
    """A virtual environment that holds our wheel and the distributions named, and a folder to run it in."""

    def __init__(self, folder: Path, wheel: Path, distributions: Iterable[str]) -> None:
        self.folder = folder / "elsewhere"
        self.folder.mkdir()
        self.home = folder / "venv"
        venv.create(self.home, with_pip=False)
        self.bin = self.home / "bin"
        site = Path(sysconfig.get_path("purelib", "venv", {"base": str(self.home)}))
        for name in distributions:
            link_distribution(name, site)
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "--quiet"]
        checked(*pip, "--no-deps", "--no-index", str(wheel), cwd=folder)

    def run(self, *command: str) -> str:
        return checked(str(self.bin / command[0]), *command[1:], cwd=self.folder)


def checked(*command: str, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert result.returncode == 0, f"{command}: {result.stdout}\n{result.stderr}"
    return result.stdout


def link_distribution(name: str, site: Path) -> None:
    distribution = importlib.metadata.distribution(name)
    for file in distribution.files or ():
        if file.parts[0] == ".." or file.suffix == ".pyc":
            continue
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(str(file.locate()), target)
        except OSError:  # another file system
            shutil.copy2(str(file.locate()), target)


def closure(names: Iterable[str]) -> set[str]:
    """Return the distributions named and all that they require on this machine, no extra included."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = canonicalize_name(left.pop())
        if name not in found:
            found.add(name)
            requirements = [Requirement(line) for line in importlib.metadata.requires(name) or ()]
            left += [r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    checked(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"),
        *("--wheel-dir", str(folder), str(ROOT)),
        cwd=folder,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def recorder_only(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("recorder"), wheel, closure(RECORDER))


@pytest.fixture(scope="module")
def core_only(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("core"), wheel, closure(["spanfold"]) - {"spanfold"})


def test_the_wheel_holds_the_package_its_types_and_its_licence_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert wheel.name == f"spanfold-{VERSION}-py3-none-any.whl"
    assert "spanfold/py.typed" in names
    assert f"spanfold-{VERSION}.dist-info/licenses/LICENSE" in names
    assert {name.split("/")[0] for name in names} == {"spanfold", f"spanfold-{VERSION}.dist-info"}
    modules = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src").rglob("*.py")}
    assert modules <= set(names)


def test_the_command_runs_by_name_and_as_a_module(core_only: Installed) -> None:
    assert VERSION in core_only.run("spanfold", "--version")
    assert VERSION in core_only.run("python", "-m", "spanfold", "--version")


@pytest.mark.contract("DL-188")
@pytest.mark.case("C-059")
def test_every_module_but_the_demo_imports_with_the_core_dependencies_only(core_only: Installed) -> None:
    core_only.run("python", "-W", "error", "-c", IMPORT_EVERY_MODULE)


@pytest.mark.contract("DL-188")
@pytest.mark.case("C-059")
def test_a_run_is_recorded_without_grpc_protobuf_or_any_exporter(recorder_only: Installed) -> None:
    recorder_only.run("python", "-W", "error", "-c", RECORD_A_RUN)
