"""The command line: reads arguments, makes one library call, prints, exits. docs/cli.md shows every command.

Data goes to stdout, prose and progress to stderr. A command loads only the rooms
it needs, when it runs.
"""

from spanfold.cli._main import main

__all__ = ["main"]
