"""Figures of many methods: small panels, one for each, and the few in which all of them meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from npmatch.metrics import ClassRow, Reliability
from npmatch.report.drawing import AMBER, BLUE, GRID, INK, MUTED, calm, inline_svg, legend, new_figure, panel, plain
from npmatch.report.formatting import printable, shortened
from npmatch.report.methods import BASELINE, OURS, Method, numeric
from npmatch.report.naming import name_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMALL = (2.75, 2.15)  # inches, of one panel among many
WIDE = 9.6  # inches, of a figure in which all methods meet
LONGEST_NAME = 34  # letters beside a row of a figure
NAMES_IN_SMALL = 3  # of the least accurate classes
LOG_ERRORS_BEYOND = 8  # largest over smallest error, above which their axis is logarithmic
LOG_BEYOND = 30  # largest over smallest value of a sweep, above which its axis is logarithmic


def small_panel(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    """One panel among many; its name stands above it on the page."""
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


def error_rows(methods: Sequence[Method]) -> str:
    """Every method's error as a row: mean with its deviation, each seed, and the paper's figure; lowest first."""
    shown = sorted((m for m in methods if m.values("error")), key=lambda m: m.mean("error") or 0.0)
    if not shown:
        return ""
    names = [plain(shortened(method.name, LONGEST_NAME)) for method in shown]
    size = (WIDE, 0.29 * len(shown) + 0.95)
    figure = new_figure(size)
    left = 0.25 + 0.078 * max(len(name) for name in names)
    figure.subplots_adjust(left / size[0], 0.46 / size[1], 1 - 0.2 / size[0], 1 - 0.36 / size[1])
    axes = calm(figure.add_subplot(), "test error, %", "")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    for y, method in enumerate(shown):
        _error_row(axes, y, method)
    _paper_marks(axes, shown)
    errors = [value for m in shown for value in [*m.values("error"), *(m.paper or ())[:1]]]
    scale_errors(axes, "x", min(errors), max(errors))
    axes.set_yticks(range(len(shown)), names, color=INK)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    legend(axes)
    return inline_svg(figure, "error of methods", "Test error of every method")


def _error_row(axes: Axes, y: int, method: Method) -> None:
    """One method: its seeds as ticks, its mean as a dot on the bar of its deviation."""
    colour = {OURS: BLUE, BASELINE: MUTED}.get(method.name, INK)
    values, spread = method.values("error"), method.spread("error")
    mean = float(np.mean(values))
    labels = ("mean ± deviation", "each seed") if y == 0 else (None, None)
    axes.plot(mean, y, "o", color=colour, markersize=6.5, label=labels[0])
    if spread is not None:
        axes.plot([max(mean - spread, min(values) / 2), mean + spread], [y, y], color=colour, linewidth=1.8)
        axes.plot(values, [y] * len(values), "|", color=colour, markersize=9, markeredgewidth=1.2, label=labels[1])


def _paper_marks(axes: Axes, methods: Sequence[Method]) -> None:
    """The published errors, each in its method's row."""
    marks = [(method.paper[0], y) for y, method in enumerate(methods) if method.paper is not None]
    if marks:
        look: dict[str, Any] = {"color": "none", "markeredgecolor": AMBER, "markeredgewidth": 1.5, "markersize": 7}
        axes.plot(*np.array(marks).T, "D", label="the paper", **look)


def scale_errors(axes: Axes, name: str, low: float, high: float) -> bool:
    """Makes the axis `x` or `y` logarithmic where errors span far, so that the good ones can be told apart."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if low <= 0 or high / low <= LOG_ERRORS_BEYOND:
        return False
    axes.set(**{f"{name}scale": "log", f"{name}lim": (low / 1.15, min(high * 1.15, 105))})
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    return True


def class_panel(rows: Sequence[ClassRow], name: str) -> str:
    """Mean uncertainty against accuracy, a point per class; the least accurate are named."""
    seen = sorted((row for row in rows if row.n), key=lambda row: row.accuracy)
    points = np.array([(row.uncertainty, 100 * row.accuracy) for row in seen])
    figure, axes = small_panel("uncertainty, nats", "accuracy, %")
    axes.scatter(points[:, 0], points[:, 1], s=24, color=BLUE, alpha=0.8, linewidths=0)
    axes.margins(0.12, 0.14)
    name_points(axes, points, [shortened(row.name, 14) for row in seen[:NAMES_IN_SMALL]])
    return inline_svg(figure, f"classes {name}", f"Class-wise uncertainty against accuracy: {printable(name)}")


def reliability_panel(bins: Reliability, score: str, outcome: str, name: str) -> str:
    """Outcome against score, bin by bin, with the diagonal; the paler a bar, the fewer images it stands for."""
    figure, axes = small_panel(f"{score}, %", f"{outcome}, %")
    width = 100 / len(bins.count)
    share = bins.count.numpy() / bins.count.sum().item()
    middle, actual = 100 * bins.edges[:-1].numpy() + width / 2, 100 * bins.outcome.numpy()
    for x, height, weight in zip(middle, actual, share, strict=True):
        if weight > 0:
            axes.bar(x, height, width=0.86 * width, color=BLUE, alpha=min(0.9, 0.25 + 3 * weight), linewidth=0)
    axes.plot([0, 100], [0, 100], "--", color=MUTED, linewidth=1)
    axes.set(xlim=(0, 100), ylim=(0, 102), xticks=(0, 50, 100), yticks=(0, 50, 100))
    return inline_svg(figure, f"{score} {name}", f"{outcome.capitalize()} against {score}: {printable(name)}")


def sweep_panel(methods: Sequence[Method], key: str, quantity: str, label: str) -> str:
    """One quantity, mean ± deviation over seeds, against the swept value."""
    shown = [method for method in methods if method.values(quantity)]
    if not shown:
        return ""
    figure, axes = panel(plain(key), label)
    values = numeric([method.name for method in methods])
    if values is None:
        names = [method.name for method in methods]
        x = [float(names.index(method.name)) for method in shown]
        axes.set_xticks(range(len(names)), [plain(shortened(name)) for name in names])
    else:
        shown.sort(key=lambda method: float(method.name))
        x = [float(method.name) for method in shown]
        if min(values) > 0 and max(values) / min(values) > LOG_BEYOND:
            axes.set_xscale("log")
            _tick_values(axes, values)
    means = np.array([method.mean(quantity) for method in shown])
    spreads = np.array([method.spread(quantity) or 0.0 for method in shown])
    axes.errorbar(x, means, spreads, color=BLUE, linewidth=1.8, marker="o", markersize=5, capsize=3, capthick=1.4)
    for method, at in zip(shown, x, strict=True):
        each = method.values(quantity)
        axes.plot([at] * len(each), each, "o", color=MUTED, markersize=3.5, alpha=0.6, markeredgewidth=0, zorder=1)
    axes.margins(0.08)
    return inline_svg(figure, f"sweep {quantity}", f"{label} against {printable(key)}")


def _tick_values(axes: Axes, values: Sequence[float]) -> None:
    """On a logarithmic axis the values that were tried are the ticks."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.xaxis.set_major_locator(FixedLocator(sorted(values)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
