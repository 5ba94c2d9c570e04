"""Parse the arguments, run the command, turn what goes wrong into one line and an exit code."""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

from spanfold.cli._commands import parse
from spanfold.cli._console import Console, say, stdout
from spanfold.cli._exits import Exit, exit_code
from spanfold.cli._wording import sentence
from spanfold.errors import SpanfoldError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; the console script `spanfold`.

    Args:
        argv: The arguments without the program's name; those of the process by default.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that cannot show a character is no reason to fail.
            stream.reconfigure(errors="replace")
    arguments: argparse.Namespace | None = None
    try:
        try:
            arguments = parse(sys.argv[1:] if argv is None else argv)
        except SystemExit as error:  # argparse, after printing help, version or what is wrong
            code = error.code if isinstance(error.code, int) else int(Exit.USAGE)
        else:
            code = _run(arguments)
        if (answer := stdout()) is not None:
            answer.flush()
    except (Exception, KeyboardInterrupt) as error:
        return _failed(error, arguments)
    return code


def _run(arguments: argparse.Namespace) -> int:
    command: Any = importlib.import_module(f"spanfold.cli.{arguments.module}")
    console = Console(as_json=arguments.json)
    return int(command.command(arguments, console))


def _failed(error: BaseException, arguments: argparse.Namespace | None) -> int:
    code = exit_code(error)
    if os.environ.get("SPANFOLD_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    if code is Exit.PIPE_CLOSED:
        _drop_stdout()
    elif code is Exit.INTERRUPTED:
        # A second Ctrl-C while Python winds up would end in a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        say("interrupted")
    else:
        say(f"spanfold: {_sentence(error, arguments)}")
        if isinstance(error, OSError):
            _drop_stdout()
    return code


def _sentence(error: BaseException, arguments: argparse.Namespace | None) -> str:
    if isinstance(error, SpanfoldError | OSError):
        return sentence(error, arguments)
    return (
        f"an error of spanfold itself, {type(error).__name__}: {error}. "
        "Set SPANFOLD_TRACEBACK=1 to see where, and please report it."
    )


def _drop_stdout() -> None:
    """Close stdout, so that Python does not try again at exit, fail again and say so."""
    try:
        if (answer := stdout()) is not None:
            answer.close()
    except OSError:
        pass  # what it held goes nowhere; the exit code says so
