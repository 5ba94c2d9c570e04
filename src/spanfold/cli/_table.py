"""Lay out rows of text in aligned columns, and make them fit a terminal."""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """Columns it may be cut to on a narrow terminal; 0 for never. The first column that has this holds the name of a row."""
    drop: int = 0
    """What does not fit then is left out: the highest number first, of equal numbers the rightmost. The name of a row is
    never left out, nor what stands before it with a 0."""
    if_any: bool = False
    """Left out when no row has anything in it."""
    wrap: bool = False
    """What does not fit goes on in the next line, where other columns are cut: for sentences."""


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

    def lines(row: Sequence[Cell]) -> Iterator[str]:
        pieces = {i: _pieces(row[i].text, widths[i], columns_[i]) for i in kept}
        for number in range(max(map(len, pieces.values()))):
            yield line(
                [Cell("".join(pieces.get(i, [])[number : number + 1]), cell.style) for i, cell in enumerate(row)]
            )

    def line(row: Sequence[Cell]) -> str:
        parts: list[str] = []
        for place, i in enumerate(kept):
            text = row[i].text
            fill = " " * (widths[i] - columns(text))
            painted = paint(text, row[i].style) if text else ""
            last = place == len(kept) - 1
            parts.append(fill + painted if columns_[i].align == ">" else painted if last else painted + fill)
        return (" " * indent + (" " * GAP).join(parts)).rstrip()

    header = [Cell(column.title, "bold") for column in columns_]
    return "\n".join(text for row in (header, *cells) for text in lines(row)) + "\n"


def _pieces(text: str, width: int, column: Column) -> list[str]:
    """Return what of a cell stands in each of its lines."""
    if not column.wrap:
        return [cut(text, width)]
    found = textwrap.wrap(text, max(1, width), break_on_hyphens=False)
    return [cut(piece, width) for piece in found] or [""]


def _safe(cell: str | Cell) -> Cell:
    found = Cell(cell) if isinstance(cell, str) else cell
    return Cell(shown(found.text), found.style)


def _fit(columns_: Sequence[Column], kept: list[int], widths: dict[int, int], width: int) -> list[int]:
    """Leave out columns that do not fit even when others are cut, and cut the others to the width."""
    leasts = {i: min(widths[i], columns_[i].least or widths[i]) for i in kept}
    name = next((i for i in kept if columns_[i].least), kept[0])
    while _over(kept, leasts, width) > 0:
        loose = [i for i in kept if i > name or (columns_[i].drop and i != name)]
        if not loose:
            break
        kept = [i for i in kept if i != max(loose, key=lambda i: (columns_[i].drop, i))]
    _cut_to(width, kept, widths, leasts)
    # Narrower than the least that was asked for: a short name says more than half a line.
    _cut_to(width, kept, widths, dict.fromkeys(kept, 1))
    return kept


def _over(kept: Sequence[int], widths: Mapping[int, int], width: int) -> int:
    return sum(widths[i] for i in kept) + GAP * (len(kept) - 1) - width


def _cut_to(width: int, kept: Sequence[int], widths: dict[int, int], leasts: Mapping[int, int]) -> None:
    """Make the widest column narrower, then those as wide as it is by then too, until all fit or none may be cut further."""
    while (over := _over(kept, widths, width)) > 0:
        loose = [i for i in kept if widths[i] > leasts[i]]
        if not loose:
            return
        widest = max(loose, key=lambda i: widths[i])
        others = max((widths[i] for i in loose if i != widest), default=0)
        widths[widest] -= min(over, widths[widest] - leasts[widest], max(1, widths[widest] - others))
