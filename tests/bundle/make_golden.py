"""Make the golden bundles: `python -m tests.bundle.make_golden`.

Only before a release: the bundles of a released version are kept and read for ever.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from spanfold.bundle import export
from tests.bundle import runs

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).resolve().parent.parent.parent

PROGRAMS = {
    "completed": "from pathlib import Path; from tests.bundle import runs; runs.record(Path('completed'))",
    "family": "from pathlib import Path; from tests.bundle import runs; runs.record_with_children(Path('family'), 1)",
    "interrupted": f"import sys; sys.argv.append('interrupted')\n{runs.DEATH}",
}


def main() -> None:
    """Record each run in an empty folder, on a machine without a name of its own, and export it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, program in PROGRAMS.items():
            subprocess.run(
                [sys.executable, "-c", f"{runs.on_host('golden')}\n{program}"],
                cwd=folder,
                env=runs.environment(PYTHONPATH=str(ROOT)),
                check=False,
                timeout=60,
            )
            export(Path(folder) / name, GOLDEN, allow_open=True)


if __name__ == "__main__":
    main()
