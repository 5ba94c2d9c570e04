"""`spanfold version`: which spanfold this is."""

import argparse
import platform
from typing import Final

from spanfold.cli._console import Console
from spanfold.cli._exits import Exit
from spanfold.instrument import version

SCHEMA: Final = "spanfold.version/1"


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Print the version."""
    del arguments  # every command is called with them
    if console.as_json:
        console.document(SCHEMA, {"spanfold_version": version(), "python_version": platform.python_version()})
    else:
        console.text(f"spanfold {version()}")
    return Exit.DONE
