"""Where a command prints: data on stdout, prose on stderr, colour only on a terminal that wants it."""

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any, Final, TextIO, cast

from spanfold.cli._table import Cell, Column, Row, Style, table
from spanfold.cli._text import columns, cut, shown

_CODES: Final[Mapping[Style, str]] = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34"}


class Console:
    """The two streams of a command.

    Args:
        as_json: Whether stdout is to get JSON: then `document` and `item` print, and tables and text are not asked for.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.is_terminal = _is_terminal(stdout())
        self.width = shutil.get_terminal_size().columns if self.is_terminal else None
        """Columns to fit data into; None where it goes to a file or another program, which get it whole."""
        self._coloured = self.is_terminal and not as_json and wants_colour(os.environ)

    # -- stdout

    def text(self, block: str = "") -> None:
        """Print lines that are made already; what a terminal would execute is shown, long lines are cut on a terminal."""
        for line in block.removesuffix("\n").split("\n"):
            safe = shown(line)
            self._out(safe if self.width is None else cut(safe, self.width))

    def prose(self, text: str, *, indent: str = "", style: Style = "") -> None:
        """Print a paragraph, wrapped on a terminal; its further lines are moved right by `indent`."""
        safe = shown(text)
        lines = [safe] if self.width is None else _wrapped(safe, self.width, indent)
        for line in lines:
            self._out(self.paint(line, style))

    def line(self, text: str) -> None:
        """Print a line that was made safe and painted already."""
        self._out(text)

    def pairs(self, rows: Sequence[Row]) -> None:
        """Print names with their values below each other; long values are wrapped on a terminal."""
        left = max((columns(str(row[0])) for row in rows), default=0) + 4
        for name, value in rows:
            text, style = Cell(value) if isinstance(value, str) else value
            safe = shown(text)
            room = max(20, self.width - left) if self.width is not None else None
            lines = [safe] if room is None else _wrapped(safe, room)
            for number, line in enumerate(lines):
                label = shown(str(name)) if number == 0 else ""
                self._out(f"  {label}{' ' * (left - 2 - columns(label))}{self.paint(line, style)}")

    def heading(self, title: str) -> None:
        """Print an empty line and a title."""
        self._out("")
        self.prose(title, style="bold")

    def table(self, titles: Sequence[Column], rows: Sequence[Row], *, indent: int = 2) -> None:
        """Print rows in columns."""
        block = table(titles, rows, width=self.width, paint=self.paint, indent=indent)
        if block:
            self._out(block.removesuffix("\n"))

    def document(self, schema: str, content: Mapping[str, Any]) -> None:
        """Print the one JSON document of a command."""
        self._json(_json_text({"schema": schema, **content}, indent=2))

    def item(self, schema: str, content: Mapping[str, Any]) -> None:
        """Print one object of a stream, in one line, at once."""
        self._json(_json_text({"schema": schema, **content}, indent=None))
        self.flush()

    def paint(self, text: str, style: Style) -> str:
        """Return text in a style, or as it is where there is no colour."""
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style and self._coloured else text

    def flush(self) -> None:
        """Hand everything printed to the system.

        Raises:
            OSError: It does not take it.
        """
        if (stream := stdout()) is not None:
            stream.flush()

    def _out(self, line: str) -> None:
        _stdout().write(line + "\n")

    def _json(self, text: str) -> None:
        stream = _stdout()
        stream.flush()
        # JSON is UTF-8, whatever the locale says.
        binary = getattr(stream, "buffer", None)
        if binary is None:
            stream.write(text + "\n")
        else:
            binary.write(text.encode() + b"\n")

    # -- stderr

    def say(self, text: str) -> None:
        """Tell people something; never the reason why a command fails."""
        say(text)


def say(text: str) -> None:
    """Print a line on stderr, if there is one; wrapped when that is a terminal."""
    safe = shown(text)
    try:
        if _is_terminal(sys.stderr):
            # Commands and paths are there to be copied, so they are kept in one piece.
            safe = "\n".join(_wrapped(safe, _columns(sys.stderr), break_long_words=False))
        sys.stderr.write(safe + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass  # closed, or nobody reads it: there is nowhere left to say so


def _columns(terminal: TextIO) -> int:
    try:
        return os.get_terminal_size(terminal.fileno()).columns or 80
    except OSError:
        return 80


def wrapped(text: str, width: int, indent: str = "") -> str:
    """Return a paragraph in lines of at most so many columns, the further ones moved right; commands in it stay whole."""
    return "\n".join(_wrapped(text, max(20, width), indent, break_long_words=False))


def _wrapped(text: str, width: int, indent: str = "", *, break_long_words: bool = True) -> list[str]:
    # What was shown holds no control character, so one can stand for the spaces that no line may end at.
    whole = text if break_long_words else _TYPED.sub(lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        whole, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=break_long_words
    )
    return [line.replace("\0", " ") for line in lines] or [""]


_TYPED: Final = re.compile("`[^`]+`")
"""A command in a sentence."""


def wants_colour(environ: Mapping[str, str]) -> bool:
    """Whether a terminal is to get colours (no-color.org)."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _json_text(content: Mapping[str, Any], *, indent: int | None) -> str:
    text = json.dumps(plain(content), ensure_ascii=False, allow_nan=False, indent=indent)
    # Beyond ASCII there are controls too, and the encoder leaves them as they are: a terminal would obey.
    return _BEYOND_ASCII.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)


_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7e]")


def plain(value: Any) -> Any:
    """Return a result as JSON data: dataclasses and named tuples as objects, paths as text, text without lone surrogates."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, PurePath):
        return plain(str(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(cast("Any", value), "_asdict"):
        return plain(cast("Any", value)._asdict())
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [plain(item) for item in cast("Iterable[Any]", value)]
    if isinstance(value, float) and value - value != 0:
        return None  # JSON has no infinity, and no number that is none
    return value


def stdout() -> TextIO | None:
    """Return stdout; None when it was closed before the program started."""
    return cast("TextIO | None", sys.stdout)


def _stdout() -> TextIO:
    stream = stdout()
    if stream is None:
        raise OSError("stdout is closed, so the answer can go nowhere")
    return stream


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False
