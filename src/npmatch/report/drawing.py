"""Figures as inline SVG whose colours are the page's own, so that one drawing serves light and dark mode.

Matplotlib draws with stand-in colours; each becomes a CSS variable of the page afterwards. Words stay text:
the browser sets them in the page's font, in any script, and they can be searched.
"""

from __future__ import annotations

import io
import re
import warnings
from html import escape
from typing import TYPE_CHECKING, Any

from npmatch.report.formatting import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#010101", "#010102", "#010103"
LINES = ("#020201", "#020202", "#020203", "#020204", "#020205", "#020206")
BLUE, AMBER = LINES[0], LINES[1]
CSS_NAME = {INK: "ink", MUTED: "muted", GRID: "grid"} | {c: f"line-{i}" for i, c in enumerate(LINES, 1)}

LEGEND_COLUMNS = 3
PANEL = (4.7, 3.3)  # inches; small enough that the words stay readable at the width of a phone
NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}


def new_figure(size: tuple[float, float]) -> Figure:
    """An empty figure of its own, known to no global state; at 72 dpi a pixel is a point."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=72)
    # Fixed margins, in inches: figures one below the other line up, and nothing has to be drawn twice.
    width, height = size
    figure.subplots_adjust(0.6 / width, 0.46 / height, 1 - 0.14 / width, 1 - 0.34 / height, hspace=0.14)
    return figure


def panel(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    """A figure of one calm pair of axes."""
    figure = new_figure(PANEL)
    return figure, calm(figure.add_subplot(), xlabel, ylabel)


def calm(axes: Axes, xlabel: str, ylabel: str) -> Axes:
    """The house style of axes: a faint horizontal grid, no box, no tick marks."""
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
    """The names of the curves above the drawing, where they hide nothing."""
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
    """Steps on the horizontal axis, 20k rather than 20000, at `most` places or so."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(most, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step / 1000:g}k" if step >= 1000 else f"{step:g}"))


def plain(text: str) -> str:
    """Text a figure can hold, in which a dollar sign is a dollar sign, not the beginning of a formula."""
    return printable(text).replace("$", r"\$")


def inline_svg(figure: Figure, name: str, alt: str) -> str:
    """The figure as an <svg> element for the middle of a page; `name` keeps its ids apart from others'."""
    import matplotlib

    buffer = io.StringIO()
    settings: dict[Any, str] = {"svg.fonttype": "none", "svg.hashsalt": name}
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
    return drawing.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1).strip()
