"""Lay out rows of text in aligned columns, and make them fit a terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from spanfold.cli._text import columns, cut, shown

Style = Literal["", "bold", "dim", "red", "green", "yellow", "blue"]
GAP: Final = 2


class Cell(NamedTuple):
    """Text in a style."""

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    title: str
    align: Literal["<", ">"] = "<"
    least: int = 0
    """Columns it may be cut to on a narrow terminal; 0 for never."""
    drop: int = 0
    """Of columns that still do not fit, the one with the highest number is left out first; 0 never is."""
    if_any: bool = False
    """Left out when no row has anything in it."""


Row = Sequence[str | Cell]
Paint = Callable[[str, Style], str]


def table(columns_: Sequence[Column], rows: Sequence[Row], *, width: int | None, paint: Paint, indent: int = 0) -> str:
    """Return a table with a header, ending in a newline; empty without rows.

    Args:
        columns_: What the columns are.
        rows: Their cells, as they are: control characters are made visible here.
        width: Columns of the terminal, None for as many as it takes.
        paint: Puts text into a style.
        indent: Spaces before every line.
    """
    if not rows:
        return ""
    cells = [[_safe(cell) for cell in row] for row in rows]
    kept = [i for i, column in enumerate(columns_) if not column.if_any or any(row[i].text for row in cells)]
    widths = {i: max(columns(columns_[i].title), *(columns(row[i].text) for row in cells)) for i in kept}
    if width is not None:
        kept = _fit(columns_, kept, widths, width - indent)

    def line(row: Sequence[Cell]) -> str:
        parts: list[str] = []
        for place, i in enumerate(kept):
            text = cut(row[i].text, widths[i])
            fill = " " * (widths[i] - columns(text))
            painted = paint(text, row[i].style) if text else ""
            last = place == len(kept) - 1
            parts.append(fill + painted if columns_[i].align == ">" else painted if last else painted + fill)
        return (" " * indent + (" " * GAP).join(parts)).rstrip()

    header = line([Cell(column.title, "bold") for column in columns_])
    return "\n".join([header, *(line(row) for row in cells)]) + "\n"


def _safe(cell: str | Cell) -> Cell:
    found = Cell(cell) if isinstance(cell, str) else cell
    return Cell(shown(found.text), found.style)


def _fit(columns_: Sequence[Column], kept: list[int], widths: dict[int, int], width: int) -> list[int]:
    """Cut columns, and leave out what still does not fit."""
    while (over := sum(widths[i] for i in kept) + GAP * (len(kept) - 1) - width) > 0:
        loose = [i for i in kept if columns_[i].least and widths[i] > columns_[i].least]
        if loose:
            widest = max(loose, key=lambda i: widths[i])
            widths[widest] -= min(over, widths[widest] - columns_[widest].least)
            continue
        dropped = max(kept, key=lambda i: columns_[i].drop)
        if not columns_[dropped].drop:
            return kept
        kept = [i for i in kept if i != dropped]
    return kept
