"""Figures as inline SVG in the page's colours, so that one drawing serves light and dark mode.

Matplotlib draws with placeholder colours, which are then replaced by CSS variables of the page. Text stays text:
the browser sets it in the page's font, in any script, and it can be searched.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from npmatch.report.formatting import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#010101", "#010102", "#010103"
LINES = ("#020201", "#020202", "#020203", "#020204", "#020205", "#020206")
BLUE, AMBER = LINES[0], LINES[1]
CSS_NAME = {INK: "ink", MUTED: "muted", GRID: "grid"} | {c: f"line-{i}" for i, c in enumerate(LINES, 1)}

LEGEND_COLUMNS = 3
PANEL = (4.7, 3.3)  # inches; small enough that text stays readable at the width of a phone
SMALL = (2.75, 2.15)  # inches, of a small panel
WIDE = 9.6  # inches, width of a figure that shows all methods
LOG_ERRORS_BEYOND = 8  # largest over smallest error, above which their axis is logarithmic

NAME_SIZE = 9.0  # font size of a point's name, in points
NAME_GAP = 6.0  # points between the centre of a point and its name
SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))  # right, left, above, …
HORIZONTAL = {1: "left", 0: "center", -1: "right"}
VERTICAL = {1: "bottom", 0: "center_baseline", -1: "top"}
NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}


def new_figure(size: tuple[float, float]) -> Figure:
    """An empty figure outside of pyplot's global state; at 72 dpi a pixel is a point."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=72)
    # Fixed margins in inches: figures below one another line up, and no layout pass is needed.
    width, height = size
    figure.subplots_adjust(0.6 / width, 0.46 / height, 1 - 0.14 / width, 1 - 0.34 / height, hspace=0.14)
    return figure


def panel(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    """A figure with one pair of axes in the common style."""
    figure = new_figure(PANEL)
    return figure, calm(figure.add_subplot(), xlabel, ylabel)


def small_panel(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    """A small figure without a title; the page shows its name above it."""
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(SMALL)
    width, height = SMALL
    figure.subplots_adjust(0.5 / width, 0.44 / height, 1 - 0.08 / width, 1 - 0.08 / height)
    axes = calm(figure.add_subplot(), xlabel, ylabel)
    axes.tick_params(labelsize=9)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    return figure, axes


def calm(axes: Axes, xlabel: str, ylabel: str) -> Axes:
    """Sets the common style of axes: a faint horizontal grid, no box, no tick marks."""
    axes.set_xlabel(xlabel, color=MUTED, fontsize=10)
    axes.set_ylabel(ylabel, color=MUTED, fontsize=10)
    axes.tick_params(which="both", colors=MUTED, length=0, labelsize=9.5)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(GRID)
    return axes


def legend(axes: Axes) -> None:
    """Puts the legend above the axes, where it hides nothing."""
    handles, _ = axes.get_legend_handles_labels()
    rows = -(-len(handles) // LEGEND_COLUMNS)
    figure = axes.get_figure(root=True)
    if figure is not None and rows > 1:
        figure.subplots_adjust(top=1 - (0.14 + 0.2 * rows) / figure.get_figheight())
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=LEGEND_COLUMNS,
        frameon=False,
        labelcolor=INK,
        fontsize=9.5,
        handlelength=1.2,
        columnspacing=1.4,
        borderaxespad=0.2,
    )


def count_steps(axes: Axes, most: int = 6) -> None:
    """Formats the horizontal axis as steps, 20k instead of 20000, with about `most` ticks."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(most, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step / 1000:g}k" if step >= 1000 else f"{step:g}"))


def scale_errors(axes: Axes, name: str, low: float, high: float) -> bool:
    """Makes the axis `x` or `y` logarithmic if errors span a wide range, so that the low ones can be told apart."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if low <= 0 or high / low <= LOG_ERRORS_BEYOND:
        return False
    axes.set(**{f"{name}scale": "log", f"{name}lim": (low / 1.15, min(high * 1.15, 105))})
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    return True


def name_points(axes: Axes, points: npt.NDArray[np.float64], names: Sequence[str]) -> None:
    """Writes names beside the first of `points` (P 2, in data units), and leaves out those for which there is no room.

    The figure must be at 72 dpi, where a pixel is a point.
    """
    axes.autoscale_view()  # otherwise done when the figure is drawn, which would move the points
    at = axes.transData.transform(points)
    frame = axes.get_window_extent()
    taken = np.concatenate([at - NAME_GAP / 2, at + NAME_GAP / 2], axis=1)  # boxes: left, bottom, right, top
    for name, point, place in zip(names, points, at, strict=False):
        half = np.array([0.3 * NAME_SIZE * len(name), 0.55 * NAME_SIZE])
        for side in SIDES:
            centre = place + np.array(side) * (half + _gap(side))
            box = np.concatenate([centre - half, centre + half])
            inside = (box[:2] >= frame.min).all() and (box[2:] <= frame.max).all()
            free = ((box[2:] < taken[:, :2]) | (box[:2] > taken[:, 2:])).any(axis=1).all()
            if inside and free:
                taken = np.vstack([taken, box])
                _write_name(axes, name, point, side)
                break


def _gap(side: tuple[int, int]) -> float:
    """Distance between a point and its name, in points; less at corners, which are farther away than sides."""
    return NAME_GAP * (0.6 if all(side) else 1)


def _write_name(axes: Axes, name: str, point: npt.NDArray[np.float64], side: tuple[int, int]) -> None:
    """Writes one name on one side of its point."""
    axes.annotate(
        plain(name),
        (float(point[0]), float(point[1])),
        (side[0] * _gap(side), side[1] * _gap(side)),
        textcoords="offset points",
        ha=HORIZONTAL[side[0]],
        va=VERTICAL[side[1]],
        fontsize=NAME_SIZE,
        color=INK,
        in_layout=False,
    )


def plain(text: str) -> str:
    """Text for a figure: printable, and with dollar signs escaped, which would begin a formula."""
    return printable(text).replace("$", r"\$")


def inline_svg(figure: Figure, name: str, alt: str) -> Markup:
    """The figure as an inline <svg> element; `name` makes its ids unique on the page."""
    import matplotlib

    buffer = io.StringIO()
    settings: dict[Any, str] = {"svg.fonttype": "none", "svg.hashsalt": printable(name)}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser has the font
        figure.savefig(buffer, format="svg", transparent=True, metadata=NO_METADATA)
    drawing = buffer.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", drawing, count=1, flags=re.DOTALL)
    drawing = re.sub(r'\s(xmlns(:\w+)?|width|height|version)="[^"]*"', "", drawing, count=5)
    drawing = re.sub(r'<g id="[^"]*"', "<g", drawing).replace("xlink:href", "href")
    drawing = re.sub(r"<!--.*?-->", "", drawing, flags=re.DOTALL)
    for colour, variable in CSS_NAME.items():
        drawing = drawing.replace(colour, f"var(--{variable})")
    opening = Markup('<svg role="img" aria-label="{}"').format(printable(alt))
    return Markup(drawing.replace("<svg", opening, 1).strip())
