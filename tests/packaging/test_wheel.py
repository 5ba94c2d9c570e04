"""The wheel, with its C core and without, installed in another folder, beside exactly the distributions that a test names.

Nothing is fetched: the distributions are linked from the environment that runs the tests, file by file as their metadata
lists them, so that nothing else is importable.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
VERSION = "0.1.0"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
# What a recorder that only writes files needs: no exporter, no grpc, no protobuf, no compression.
RECORDER = ["opentelemetry-api", "opentelemetry-sdk", "orjson", "google-re2"]

NO_COMPILER = {"CC": "/nonexistent/cc", "LDSHARED": "/nonexistent/cc -shared"}

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
from spanfold.instrument import IS_NATIVE

assert IS_NATIVE is (sys.argv[1] == "C"), IS_NATIVE

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


def ran(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command with its output on one stream, and SPANFOLD_NATIVE only when it is among the variables."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPANFOLD_NATIVE")}
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def checked(*command: str, cwd: Path, **variables: str) -> str:
    result = ran(*command, cwd=cwd, **variables)
    assert result.returncode == 0, f"{command}: {result.stdout}"
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


def build_command(source: Path, into: Path) -> list[str]:
    wheel = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "--no-index", "--no-build-isolation"]
    return [*wheel, "--wheel-dir", str(into), str(source)]


def build(source: Path, into: Path, **variables: str) -> tuple[Path, str]:
    """Return the wheel and what the build said."""
    into.mkdir(exist_ok=True)
    said = checked(*build_command(source, into), cwd=into, **variables)
    (built,) = into.glob("*.whl")
    return built, said


def members(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def recipe(folder: Path) -> Path:
    """Copy what the C core is built from."""
    for path in [ROOT / "hatch_build.py", *(ROOT / "src").rglob("_native.[ch]")]:
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return folder


def in_place(root: Path, **variables: str) -> tuple[dict[Path, int], str]:
    """Run the recipe; return when each module was built, and what was said."""
    said = checked(sys.executable, "hatch_build.py", cwd=root, **variables)
    return {path: path.stat().st_mtime_ns for path in root.rglob(f"*{SUFFIX}")}, said


@pytest.fixture(scope="module")
def compiler() -> None:
    """Skip where there is no C compiler; CI has one, and fails when a test is skipped."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if shutil.which(command.split()[0]) is None or not headers.is_file():
        pytest.skip("needs a C compiler and Python's headers")


@pytest.fixture(scope="module")
def wheel(compiler: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), SPANFOLD_NATIVE="1")[0]


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("pure"), SPANFOLD_NATIVE="0")[0]


@pytest.fixture(scope="module")
def core_only(pure_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("core"), pure_wheel, closure(["spanfold"]) - {"spanfold"})


def test_the_wheel_holds_the_package_its_types_and_its_licence_and_nothing_else(wheel: Path, pure_wheel: Path) -> None:
    names = set(members(pure_wheel))

    assert pure_wheel.name == f"spanfold-{VERSION}-py3-none-any.whl"
    assert "spanfold/py.typed" in names
    assert f"spanfold-{VERSION}.dist-info/licenses/LICENSE" in names
    assert {name.split("/")[0] for name in names} == {"spanfold", f"spanfold-{VERSION}.dist-info"}
    modules = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src").rglob("*.py")}
    assert modules <= names
    cores = {str(p.relative_to(ROOT / "src").with_suffix("")) + SUFFIX for p in (ROOT / "src").rglob("_native.c")}
    assert cores
    assert set(members(wheel)) == names | cores
    assert not {name for name in names if name.endswith((".so", ".c"))}


def test_the_wheel_with_the_core_is_for_this_python_and_platform_only(wheel: Path) -> None:
    (tag,) = parse_wheel_filename(wheel.name)[3]

    assert (tag.interpreter, tag.abi) == (f"cp{sys.version_info[0]}{sys.version_info[1]}",) * 2
    assert tag in set(sys_tags())


def test_without_a_compiler_the_wheel_is_built_without_the_core_and_says_so_in_one_line(
    pure_wheel: Path, tmp_path: Path
) -> None:
    built, said = build(ROOT, tmp_path / "wheels", **NO_COMPILER)

    assert built.name == pure_wheel.name
    assert sorted(members(built)) == sorted(members(pure_wheel))
    (line,) = (line for line in said.splitlines() if "C core" in line)
    assert "nonexistent" in line
    assert "To have it, " in line


def test_a_build_that_must_have_the_core_fails_with_the_words_of_the_compiler(tmp_path: Path) -> None:
    result = ran(*build_command(ROOT, tmp_path), cwd=tmp_path, SPANFOLD_NATIVE="1", **NO_COMPILER)

    assert result.returncode != 0
    assert "spanfold cannot be built with its C core" in result.stdout
    assert "/nonexistent/cc" in result.stdout
    assert not list(tmp_path.glob("*.whl"))


def test_a_wheel_is_built_without_a_change_in_the_checkout(compiler: None, tmp_path: Path) -> None:
    root = recipe(tmp_path / "checkout")
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, root)
    before = {path.relative_to(root) for path in root.rglob("*")}

    built, _ = build(root, tmp_path / "wheels", SPANFOLD_NATIVE="1")

    assert any(name.endswith(SUFFIX) for name in members(built))
    assert {path.relative_to(root) for path in root.rglob("*") if "__pycache__" not in str(path)} == before


def test_the_sdist_holds_the_source_of_the_core_and_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    checked(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path), cwd=ROOT)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"hatch_build.py", "src/spanfold/_native.h", "src/spanfold/journal/_native.c"} <= names
    assert not {name for name in names if name.endswith(".so")}
    built, _ = build(sdist, tmp_path / "wheels", SPANFOLD_NATIVE="1")
    assert built.name == wheel.name
    assert sorted(members(built)) == sorted(members(wheel))


def test_beside_the_sources_only_what_is_older_than_its_source_is_built_again(compiler: None, tmp_path: Path) -> None:
    root = recipe(tmp_path)

    first, _ = in_place(root, SPANFOLD_NATIVE="1")
    second, said = in_place(root, SPANFOLD_NATIVE="1")
    changed = root / "src" / "spanfold" / "journal" / "_native.c"
    changed.touch()
    third, _ = in_place(root, SPANFOLD_NATIVE="1")

    assert len(first) == len(list((ROOT / "src").rglob("_native.c")))
    assert second == first
    assert said == "C core: up to date\n"
    assert {path.parent for path, built in third.items() if built != first[path]} == {changed.parent}
    (root / "src" / "spanfold" / "_native.h").touch()
    assert set(in_place(root, SPANFOLD_NATIVE="1")[0].items()).isdisjoint(third.items())


@pytest.mark.parametrize("variables", [NO_COMPILER, {"SPANFOLD_NATIVE": "0"}], ids=["no compiler", "switched off"])
def test_what_cannot_be_built_again_beside_the_sources_is_removed(
    compiler: None, tmp_path: Path, variables: dict[str, str]
) -> None:
    root = recipe(tmp_path)
    in_place(root, SPANFOLD_NATIVE="1")
    for source in root.rglob("_native.c"):
        source.touch()

    left, said = in_place(root, **variables)

    assert not left
    assert "spanfold is installed without its C core" in said


def test_the_command_runs_by_name_and_as_a_module(core_only: Installed) -> None:
    assert VERSION in core_only.run("spanfold", "--version")
    assert VERSION in core_only.run("python", "-m", "spanfold", "--version")


@pytest.mark.contract("DL-188")
@pytest.mark.case("C-059")
def test_every_module_but_the_demo_imports_with_the_core_dependencies_only(core_only: Installed) -> None:
    core_only.run("python", "-W", "error", "-c", IMPORT_EVERY_MODULE)


@pytest.mark.contract("DL-188")
@pytest.mark.case("C-059")
@pytest.mark.parametrize(("core", "built"), [("C", "wheel"), ("Python", "pure_wheel")])
def test_a_run_is_recorded_without_grpc_protobuf_or_any_exporter(
    core: str, built: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    recorder_only = Installed(tmp_path, request.getfixturevalue(built), closure(RECORDER))

    recorder_only.run("python", "-W", "error", "-c", RECORD_A_RUN, core)
