"""What every figure here has in common: size, labels beside the lanes, title, legend, file.

Places are worked out in inches, from the width the labels really take, so that
nothing overlaps however many lanes there are and however long their names.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from spanfold.errors import MissingExtra
from spanfold.fs import SafeRoot
from spanfold.timings.layout import printable

# matplotlib's own types leave keyword arguments unknown, which strict checking refuses at every call.
Axes = Any
Artist = Any
Figure = Any

INK: Final = "#222222"
FAINT: Final = "#767676"
GRID: Final = "#e3e3e3"
# matplotlib ships it, so that a figure looks the same whatever the machine has.
FONT: Final = "DejaVu Sans"

_DPI: Final = 144
_WIDTH_INCHES: Final = 11.0
_LANE_INCHES: Final = 0.24
_ABOVE_INCHES: Final = 0.95
_BELOW_INCHES: Final = 0.55
_MARGIN_INCHES: Final = 0.25
_GAP_INCHES: Final = 0.12


def new_figure(lanes: int) -> Figure:
    """Return an empty figure that is high enough for so many lanes.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as NewFigure
    except ImportError as error:
        raise MissingExtra("figures", "Drawing timings") from error
    height = lanes * _LANE_INCHES + _ABOVE_INCHES + _BELOW_INCHES
    figure: Figure = NewFigure(figsize=(_WIDTH_INCHES, height), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def style_lanes(axes: Axes, lanes: int) -> None:
    """Make room for lanes 0, 1, … from the top down, and take away what is no data."""
    axes.set_facecolor("white")
    axes.set_ylim(lanes - 0.4, -0.6)
    axes.tick_params(axis="y", left=False, labelleft=False)
    axes.tick_params(axis="x", which="both", colors=INK, labelsize=8, labelfontfamily=FONT)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(FAINT)


def name_axis(axes: Axes, label: str) -> None:
    """Write under the horizontal axis what it measures."""
    axes.set_xlabel(label, color=INK, fontfamily=FONT, fontsize=9)


def write_labels(axes: Axes, labels: Sequence[str], *, side: Literal["left", "right"]) -> float:
    """Write one label for each lane beside the axes and return how many inches the widest takes."""
    from matplotlib.transforms import ScaledTranslation, blended_transform_factory

    figure = axes.get_figure()
    style: dict[str, Any] = {"ha": "left", "va": "center", "fontsize": 8.5, "color": INK, "fontfamily": FONT}
    texts = [axes.text(0, place, drawable(text), parse_math=False, **style) for place, text in enumerate(labels)]
    renderer = figure.canvas.get_renderer()
    inches: float = max(text.get_window_extent(renderer).width for text in texts) / figure.dpi + _GAP_INCHES
    # An offset from the edge of the axes holds when the axes are moved to make room.
    offset: Any = ScaledTranslation(-inches if side == "left" else _GAP_INCHES, 0, figure.dpi_scale_trans)
    transform: Any = blended_transform_factory(axes.transAxes, axes.transData)
    for text in texts:
        text.set_x(0.0 if side == "left" else 1.0)
        text.set_transform(transform + offset)
    return inches


def finish(figure: Figure, *, left: float, right: float, title: str, subtitle: str, legend: Sequence[Artist]) -> None:
    """Move the axes between labels of `left` and `right` inches, and write title and legend above them."""
    width, height = figure.get_size_inches()
    figure.subplots_adjust(
        left=(_MARGIN_INCHES + left) / width,
        right=1 - (_MARGIN_INCHES + right) / width,
        top=1 - _ABOVE_INCHES / height,
        bottom=_BELOW_INCHES / height,
        wspace=0.08,
    )
    edge = _MARGIN_INCHES / width
    style: dict[str, Any] = {"fontfamily": FONT, "ha": "left", "va": "top", "parse_math": False}
    figure.text(edge, 1 - 0.14 / height, drawable(title), fontsize=12, weight="bold", color=INK, **style)
    figure.text(edge, 1 - 0.41 / height, drawable(subtitle), fontsize=9, color=FAINT, **style)
    figure.legend(
        handles=list(legend),
        loc="upper left",
        bbox_to_anchor=(edge, 1 - 0.64 / height),
        borderaxespad=0,
        borderpad=0,
        ncols=len(legend),
        frameon=False,
        prop={"family": FONT, "size": 8},
        labelcolor=INK,
        handlelength=1.0,
        handleheight=0.9,
        columnspacing=1.4,
    )


def patches(entries: Sequence[tuple[str, str]]) -> list[Artist]:
    """Return a coloured square for the legend for each (label, colour)."""
    from matplotlib.patches import Patch

    return [Patch(facecolor=colour, label=label) for label, colour in entries]


def dots(entries: Sequence[tuple[str, str]]) -> list[Artist]:
    """Return a coloured dot for the legend for each (label, colour)."""
    from matplotlib.lines import Line2D

    return [Line2D([], [], marker="o", linestyle="none", color=colour, label=label) for label, colour in entries]


def drawable(text: str) -> str:
    """Keep what the font has: a missing glyph would be a box, and a warning in the caller's log."""
    return printable(text).encode("cp1252", "replace").decode("cp1252")


def write(figure: Figure, target: Path) -> None:
    """Write a figure in the format its name ends in; the whole file or nothing."""
    form = target.suffix.lower().removeprefix(".")
    # Neither a date nor a version, so that one figure is the same bytes as far as the format allows.
    metadata = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
    image = io.BytesIO()
    figure.savefig(image, format=form, metadata=metadata, dpi=_DPI)
    SafeRoot(target.parent.resolve(), create=True).replace_atomic(target.name, image.getvalue(), durable=False)
