"""Build the C core of spanfold where that is possible. Nothing but speed is lost where it is not.

Each `src/spanfold/*/_native.c` becomes an extension module of the same name. A wheel gets what was compiled for it alone
and then has the tag of its platform; an editable install, and `python hatch_build.py`, build beside the sources whatever
is not there yet or is older than its source or `_native.h`.

`SPANFOLD_NATIVE` says what to do: `0` leaves the core out; `1` fails with the compiler's words when it cannot be built;
without it such a build is told in one line, and goes on in Python alone.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# With those that Python was built with, or what CFLAGS says instead of them.
FLAGS = ["-O2", "-g0", "-DNDEBUG", "-fwrapv", "-fvisibility=hidden"]
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")

ON = {"1", "true", "yes", "on"}
OFF = {"0", "false", "no", "off"}


class CannotBuild(Exception):
    """The core cannot be built here.

    Args:
        reason: Why, in a few words.
        remedy: What to do about it.
        output: What the compiler said.
    """

    def __init__(self, reason: str, remedy: str, output: str = "") -> None:
        super().__init__(
            f"spanfold is installed without its C core ({reason}): a recorded span takes about twice the time, "
            f"everything else is the same. To have it, {remedy}."
        )
        self.reason, self.output = reason, output


class CustomBuildHook(BuildHookInterface[BuilderConfig]):
    """What hatchling calls before and after it makes a wheel."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the core beside its sources for an editable install, else into the wheel."""
        root = Path(self.root)
        try:
            if version == "editable":
                build_in_place(root)
                return
            self._folder = tempfile.TemporaryDirectory(prefix="spanfold-build-")
            compiled = compile_core(root, sources(root), Path(self._folder.name))
        except CannotBuild as error:
            fail_if_required(error)
            self.app.display_warning(str(error))
            return
        if not compiled:
            return
        package = root / "src"
        build_data["force_include"] |= {
            str(file): str(built(source).relative_to(package)) for source, file in compiled.items()
        }
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what is in the wheel now."""
        if self._folder is not None:
            self._folder.cleanup()


def sources(root: Path) -> list[Path]:
    """Return the files of C, each of which is one module."""
    return sorted((root / "src" / "spanfold").glob("*/_native.c"))


def built(source: Path) -> Path:
    """Return where this interpreter looks for the module of a source."""
    return source.with_name(source.stem + SUFFIX)


def build_in_place(root: Path) -> list[Path]:
    """Build beside its source each module that is missing or older; return those that were built.

    Raises:
        CannotBuild: What was to be replaced is gone too: a module that does not fit its source would be worse than none.
    """
    shared = max(file.stat().st_mtime_ns for file in [Path(__file__), *(root / "src" / "spanfold").glob("*.h")])
    stale = [
        source
        for source in sources(root)
        if not built(source).exists()
        or built(source).stat().st_mtime_ns < max(source.stat().st_mtime_ns, shared)
        or switch() in OFF
    ]
    with tempfile.TemporaryDirectory(prefix="spanfold-build-") as folder:
        try:
            compiled = compile_core(root, stale, Path(folder))
        except CannotBuild:
            for source in stale:
                built(source).unlink(missing_ok=True)
            raise
        for source, file in compiled.items():
            with _staged(built(source)) as staged:
                shutil.copy2(file, staged)
    return [built(source) for source in compiled]


def compile_core(root: Path, chosen: Iterable[Path], folder: Path) -> dict[Path, Path]:
    """Compile files of C into a folder; return source -> module.

    Raises:
        CannotBuild: One of them could not be compiled, or none can be here.
    """
    check_platform()
    modules = {source: folder / built(source).relative_to(root / "src") for source in chosen}
    if not modules:
        return {}
    # In a process of its own, so that what the compiler says can be kept; in an empty folder, where setuptools finds no
    # project to make its own of.
    result = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--compile", str(root.resolve()), *map(str, modules)],
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if result.returncode != 0 or not all(file.exists() for file in modules.values()):
        output = f"{result.stdout}{result.stderr}".strip()
        found = next((line for line in output.splitlines() if "error:" in line), "the compiler failed")
        raise CannotBuild(
            found.strip().removeprefix("error: "),
            "install it again with a C compiler and Python's headers (python3-dev, python3-devel); "
            "SPANFOLD_NATIVE=1 shows what the compiler said",
            output,
        )
    # Warnings, for whoever builds by hand or asked for the output of the build.
    sys.stderr.write(result.stderr)
    return modules


def check_platform() -> None:
    """Raise CannotBuild where no core is wanted, or none can be."""
    again = "install it again"
    if switch() in OFF:
        raise CannotBuild(f"SPANFOLD_NATIVE={switch()}", f"{again} without that variable")
    if os.name != "posix":
        raise CannotBuild(f"it is not for {sys.platform}", "use Linux or macOS")
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        kind = "free-threaded Python" if sys.implementation.name == "cpython" else sys.implementation.name
        raise CannotBuild(f"it is not for {kind}", "use CPython with its global lock")
    if importlib.util.find_spec("setuptools") is None:
        raise CannotBuild("setuptools, which knows compilers, is not here", f"install setuptools, then {again}")


def switch() -> str:
    """Return what the environment says about the core."""
    return os.environ.get("SPANFOLD_NATIVE", "").strip().lower()


def fail_if_required(error: CannotBuild) -> None:
    """End the build when it was to have the core."""
    if switch() in ON:
        raise SystemExit(f"{error.output}\nspanfold cannot be built with its C core: {error.reason}".lstrip())


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """Put a file in its place at once: a running process keeps the module that it has mapped."""
    staged = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield staged
        staged.replace(target)
    finally:
        staged.unlink(missing_ok=True)


def _run_setuptools(root: Path, chosen: list[str]) -> None:
    """Compile into the working folder."""
    from setuptools import Extension, setup  # type: ignore[import-untyped]  # publishes no types

    package = root / "src"
    names = [".".join(Path(source).relative_to(package).with_suffix("").parts) for source in chosen]
    setup(
        name="spanfold",
        ext_modules=[
            Extension(name, [source], extra_compile_args=FLAGS) for name, source in zip(names, chosen, strict=True)
        ],
        script_name="hatch_build.py",
        script_args=["--quiet", "build_ext", "--build-lib", ".", "--build-temp", "objects"],
    )


def main(arguments: list[str]) -> None:
    """Build beside the sources and say what was done."""
    if arguments[:1] == ["--compile"]:
        _run_setuptools(Path(arguments[1]), arguments[2:])
        return
    try:
        done = build_in_place(Path(__file__).resolve().parent)
    except CannotBuild as error:
        fail_if_required(error)
        print(error, file=sys.stderr)
    else:
        print(f"C core: {', '.join(file.parent.name for file in done)} built" if done else "C core: up to date")


if __name__ == "__main__":
    main(sys.argv[1:])
