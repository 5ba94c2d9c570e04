"""Draw a picture of an array whose name says what it shows.

Which names and shapes get a picture, and of what kind, is one pure table
(`plan_figure`). Drawing uses Matplotlib's objects with a canvas that needs no
display, never `pyplot`: no global figure, back end or setting of the host is
looked at or changed. Nothing here raises.
"""

import io
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from spanfold.artifacts.placing import place
from spanfold.artifacts.results import StoredFigure
from spanfold.fs import SafeRoot

if TYPE_CHECKING:
    from spanfold.artifacts.arrays import Array

DPI: Final = 100
MAX_ELEMENTS: Final = 50_000_000
"""int. A larger array gets no picture: drawing it would take the memory and the time of the host."""
MAX_PIXELS: Final = 2_000
"""int. Rows and columns drawn; more are averaged into so many, which a picture of 800 dots cannot tell apart."""
MAX_POINTS: Final = 20_000
"""int. Points of a line; of more, the least and the greatest of each stretch are drawn."""
_TITLE_LIMIT: Final = 120
_FIRST_UNDRAWABLE: Final = "\u2e80"
_HEATMAP_WORDS: Final = ("rollout", "spatial", "map")
_LINE_WORDS: Final = ("entropy", "score", "prob", "weight", "rollout")


# Fonts and text layout are shared by all figures of the process and are not safe to use from two threads.
_drawing = threading.RLock()

if hasattr(os, "register_at_fork"):
    # Matplotlib has such locks too. A child forked while another thread draws would wait for them for ever, so the
    # fork waits until our picture is done. The lock is reentrant because drawing may itself start a process.
    os.register_at_fork(before=_drawing.acquire, after_in_parent=_drawing.release, after_in_child=_drawing.release)


@dataclass(frozen=True, slots=True)
class FigurePlan:
    """How an array is drawn."""

    form: Literal["heatmap", "line"]
    title: str
    size_inches: tuple[float, float]
    mean_over: tuple[int, ...] = ()
    """Axes averaged away first."""
    colour_map: str = "viridis"
    limits: Literal["auto", "from zero", "symmetric"] = "auto"


def plan_figure(stem: str, shape: tuple[int, ...]) -> FigurePlan | None:
    """Choose the picture of an array by its name and shape; None when it gets none.

    Args:
        stem: Name of the artifact, as the user gave it.
        shape: Of the array.
    """
    key = stem.lower()
    is_attention = "attn" in key or "attention" in key
    square, wide = (8.0, 7.0), (8.0, 3.0)
    if "logit" in key:
        return None
    match len(shape):
        case 4 if is_attention:
            title = f"{stem}  (mean over {shape[0]}L × {shape[1]}H)"
            return FigurePlan("heatmap", title, square, mean_over=(0, 1), limits="from zero")
        case 3 if is_attention:
            title = f"{stem}  (mean over {shape[0]} heads)"
            return FigurePlan("heatmap", title, square, mean_over=(0,), limits="from zero")
        case 2 if "diff" in key:
            return FigurePlan("heatmap", stem, square, colour_map="coolwarm", limits="symmetric")
        case 2 if is_attention or any(word in key for word in _HEATMAP_WORDS):
            return FigurePlan("heatmap", stem, square)
        case 1 if any(word in key for word in _LINE_WORDS):
            return FigurePlan("line", stem, wide)
        case _:
            return None


def render_figure(
    root: SafeRoot, folder: str, stem: str, array: "Array", *, file_stem: str | None = None
) -> StoredFigure | None:
    """Draw an array as `<folder>/<stem>.png`.

    Args:
        root: The run directory.
        folder: Folder in it.
        stem: Name of the artifact; decides whether and how it is drawn, and is its title.
        array: What to draw.
        file_stem: Name of the file where it differs, so that a picture stands beside its array.

    Returns:
        The picture just drawn, never one that was there before; None when
        there is none to draw, Matplotlib is missing, or anything fails.
    """
    try:
        plan = plan_figure(stem, array.shape)
        if plan is None or not 0 < array.size <= MAX_ELEMENTS or array.dtype.kind not in "biuf":
            return None
        picture = figure_bytes(draw(plan, array, label=stem))
        placed = place(root, folder, file_stem or stem, ".png", lambda: (picture,))
    except Exception:
        return None
    return StoredFigure(placed.path, placed.sha256, placed.size_bytes)


def figure_bytes(figure: Any) -> bytes:
    """Return a Matplotlib figure as PNG, the same bytes for the same picture."""
    picture = io.BytesIO()
    with _drawing:
        # Without the version of Matplotlib in it, which says nothing about the picture.
        figure.savefig(picture, format="png", dpi=DPI, bbox_inches="tight", metadata={"Software": None})
    return picture.getvalue()


def draw(plan: FigurePlan, array: "Array", *, label: str) -> Any:
    """Return a Matplotlib figure of an array that holds at least one number.

    Args:
        plan: What `plan_figure` chose.
        array: Real numbers; NaN and infinities are left blank.
        label: Of the vertical axis of a line.
    """
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with _drawing, np.errstate(all="ignore"):
        values = cast("Array", np.mean(array, axis=plan.mean_over, dtype=np.float64)) if plan.mean_over else array
        figure: Any = Figure(figsize=plan.size_inches, dpi=DPI)
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        if plan.form == "line":
            axes.plot(*_outline(values))
            axes.set_xlabel("position")
            axes.set_ylabel(_drawable(label), parse_math=False, usetex=False)
        else:
            image = axes.imshow(
                np.ma.masked_invalid(_reduced(values)),
                cmap=plan.colour_map,
                aspect="auto",
                extent=_extent(values.shape),
                **_limits(plan, values),
            )
            figure.colorbar(image, ax=axes, fraction=0.046, pad=0.04)
        axes.set_title(_drawable(plan.title), parse_math=False, usetex=False)
        figure.tight_layout()
    return figure


def _extent(shape: tuple[int, ...]) -> tuple[float, float, float, float]:
    """Return the edges that keep the axes counting rows and columns of the array, however many are drawn."""
    rows, columns = shape
    return (-0.5, columns - 0.5, rows - 0.5, -0.5)


def _limits(plan: FigurePlan, values: "Array") -> dict[str, float]:
    import numpy as np

    if plan.limits == "from zero":
        return {"vmin": 0.0}
    if plan.limits == "auto":
        return {}
    finite = values[np.isfinite(values)]
    most = float(max(abs(float(finite.min())), abs(float(finite.max())))) if finite.size else 0.0
    return {"vmin": -(most or 1.0), "vmax": most or 1.0}


def _reduced(values: "Array") -> "Array":
    """Average rows and columns into at most `MAX_PIXELS` of each; numbers that are none do not count."""
    import numpy as np

    for axis in (0, 1):
        step = -(-values.shape[axis] // MAX_PIXELS)
        if step > 1:
            starts = np.arange(0, values.shape[axis], step, dtype=np.intp)
            finite = np.isfinite(values)
            total = np.add.reduceat(np.where(finite, values, 0), starts, axis=axis, dtype=np.float64)
            values = total / np.add.reduceat(finite, starts, axis=axis, dtype=np.float64)
    return values.astype(np.float64)


def _outline(values: "Array") -> "tuple[Array, Array]":
    """Return positions and heights of a line of at most `MAX_POINTS` points."""
    import numpy as np

    values = values.astype(np.float64)
    values[~np.isfinite(values)] = np.nan
    step = -(-2 * values.size // MAX_POINTS)
    if values.size <= MAX_POINTS:
        return np.arange(values.size), values
    starts = np.arange(0, values.size, step)
    heights = np.stack([np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)], axis=1)
    return np.repeat(starts, 2), heights.reshape(-1)


def _drawable(text: str) -> str:
    """Keep what Matplotlib's own font can draw in one line; anything else would only raise warnings in the host."""
    shown = text if len(text) <= _TITLE_LIMIT else f"{text[: _TITLE_LIMIT - 1]}…"
    return "".join(char if char.isprintable() and char < _FIRST_UNDRAWABLE else "?" for char in shown)
