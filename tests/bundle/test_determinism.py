"""The same run gives the same bytes: on another day, in another place, under other settings of the process."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spanfold.bundle import export
from tests.bundle import runs

pytestmark = pytest.mark.slow

EXPORT = "import sys; from spanfold.bundle import export; export(sys.argv[1], sys.argv[2])"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.record(tmp_path_factory.mktemp("runs") / "001")


@pytest.fixture(scope="module")
def expected(run_dir: Path) -> bytes:
    return export(run_dir).path.read_bytes()


def test_exporting_twice_gives_the_same_bytes(run_dir: Path, expected: bytes, tmp_path: Path) -> None:
    again = export(run_dir, tmp_path / "again.zst")

    assert again.path.read_bytes() == expected
    assert again.sha256 == hashlib.sha256(expected).hexdigest()


@pytest.mark.parametrize(
    ("variables", "umask"),
    [
        ({"TZ": "Asia/Kolkata", "LC_ALL": "C"}, 0o077),
        ({"TZ": "America/St_Johns", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "1"}, 0o000),
        ({"TZ": "UTC", "LANG": "tr_TR.UTF-8", "PYTHONHASHSEED": "2", "PYTHONUTF8": "0"}, 0o777),
        ({"HOME": "/nonexistent", "USER": "somebody", "LOGNAME": "somebody", "SOURCE_DATE_EPOCH": "1"}, 0o022),
    ],
)
@pytest.mark.case("C-069")
def test_time_zone_locale_umask_and_user_make_no_difference(
    run_dir: Path, expected: bytes, tmp_path: Path, variables: dict[str, str], umask: int
) -> None:
    out = tmp_path / "other.zst"
    subprocess.run(
        [sys.executable, "-c", EXPORT, str(run_dir), str(out)],
        env=runs.environment(**variables),
        umask=umask,
        cwd="/",
        check=True,
        timeout=60,
    )

    assert out.read_bytes() == expected


def test_a_moved_copy_with_other_times_and_modes_gives_the_same_bytes(
    run_dir: Path, expected: bytes, tmp_path: Path
) -> None:
    copy = runs.moved(run_dir, tmp_path / "elsewhere" / "another name")
    for number, path in enumerate(copy.rglob("*")):
        path.chmod(0o755)
        os.utime(path, (number, number))
    exported = export(copy)

    assert exported.path.name == "another name.spanfold.tar.zst"
    assert exported.path.read_bytes() == expected


def test_the_order_in_which_files_were_made_makes_no_difference(run_dir: Path, expected: bytes, tmp_path: Path) -> None:
    copy = tmp_path / "001"
    for path in sorted(run_dir.rglob("*"), reverse=True):
        target = copy / path.relative_to(run_dir)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)

    assert export(copy).path.read_bytes() == expected


def test_another_day_makes_no_difference(run_dir: Path, expected: bytes, tmp_path: Path) -> None:
    # A clock that says another day, where the system lets us have one; else the next second.
    out = tmp_path / "later.zst"
    program = f"import time; time.time = lambda: 4e9; time.time_ns = lambda: 4 * 10**18\n{EXPORT}"
    time.sleep(1.1)
    subprocess.run([sys.executable, "-c", program, str(run_dir), str(out)], check=True, timeout=60)

    assert out.read_bytes() == expected


def test_a_killed_run_and_one_of_several_processes_are_the_same_elsewhere(tmp_path: Path) -> None:
    for name, record in (("killed", runs.record_killed), ("family", runs.record_with_children)):
        run_dir = record(tmp_path / name)
        copy = runs.moved(run_dir, tmp_path / "copies" / name)

        assert export(copy).path.read_bytes() == export(run_dir).path.read_bytes()
