"""Figures of final models on the test set: errors, classes, calibration, selective risk, sweeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from npmatch.metrics import ClassRow, Reliability, RiskCoverage
from npmatch.report.drawing import (
    AMBER,
    BLUE,
    GRID,
    INK,
    MUTED,
    WIDE,
    calm,
    inline_svg,
    legend,
    name_points,
    new_figure,
    panel,
    plain,
    scale_errors,
    small_panel,
)
from npmatch.report.formatting import shortened
from npmatch.report.record import BASELINE, OURS, Method

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES_SHOWN, NAMES_IN_SMALL = 30, 3  # number of least accurate classes named in a figure and in a small panel
CURVE_POINTS = 400
LONGEST_NAME = 34  # characters of a name beside a row of a figure
LOG_BEYOND = 30  # largest over smallest value of a sweep, above which its axis is logarithmic


def error_rows(methods: Sequence[Method]) -> Markup:
    """A row for every method, lowest error first: mean and deviation, each seed, and the paper's error."""
    shown = sorted((m for m in methods if m.values("error")), key=lambda m: m.mean("error") or 0.0)
    if not shown:
        return Markup()
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
    """Draws one method: its seeds as ticks, its mean as a dot, its deviation as a bar."""
    colour = {OURS: BLUE, BASELINE: MUTED}.get(method.name, INK)
    values, spread = method.values("error"), method.spread("error")
    mean = float(np.mean(values))
    labels = ("mean ± deviation", "each seed") if y == 0 else (None, None)
    axes.plot(mean, y, "o", color=colour, markersize=6.5, label=labels[0])
    if spread is not None:
        axes.plot([max(mean - spread, min(values) / 2), mean + spread], [y, y], color=colour, linewidth=1.8)
        axes.plot(values, [y] * len(values), "|", color=colour, markersize=9, markeredgewidth=1.2, label=labels[1])


def _paper_marks(axes: Axes, methods: Sequence[Method]) -> None:
    """Marks the published errors in the rows of their methods."""
    marks = [(method.paper[0], y) for y, method in enumerate(methods) if method.paper is not None]
    if marks:
        look: dict[str, Any] = {"color": "none", "markeredgecolor": AMBER, "markeredgewidth": 1.5, "markersize": 7}
        axes.plot(*np.array(marks).T, "D", label="the paper", **look)


def class_scatter(rows: Sequence[ClassRow], method: str | None = None) -> Markup:
    """Mean uncertainty against accuracy, one point per class; the least accurate classes are named.

    With the name of a `method` it is a small panel beside those of other methods.
    """
    seen = sorted((row for row in rows if row.n), key=lambda row: row.accuracy)
    points = np.array([(row.uncertainty, 100 * row.accuracy) for row in seen])
    if method is None:
        figure, axes = panel("mean uncertainty, nats", "accuracy, %")
        size, names, margin = 30, [shortened(row.name) for row in seen[:NAMES_SHOWN]], 0.1
    else:
        figure, axes = small_panel("uncertainty, nats", "accuracy, %")
        size, names, margin = 24, [shortened(row.name, 14) for row in seen[:NAMES_IN_SMALL]], 0.12
    axes.scatter(points[:, 0], points[:, 1], s=size, color=BLUE, alpha=0.8, linewidths=0)
    axes.margins(margin, margin + 0.02)
    name_points(axes, points, names)
    alt = "Class-wise uncertainty against accuracy"
    if method is None:
        return inline_svg(figure, "classes", alt)
    return inline_svg(figure, f"classes {method}", f"{alt}: {method}")


def reliability_diagram(bins: Reliability, score: str, outcome: str, name: str) -> Markup:
    """Outcome against score, bin by bin, with the diagonal of perfect calibration; below it the share of images."""
    figure = new_figure((4.7, 4.3))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    calm(above, "", f"{outcome}, %")
    calm(below, f"{score}, %", "images, %")
    left, width = 100 * bins.edges[:-1].numpy(), 100 / len(bins.count)
    mean, actual = 100 * bins.score.numpy(), 100 * bins.outcome.numpy()
    filled = bins.count.numpy() > 0
    bar = {"width": 0.86 * width, "linewidth": 0, "align": "center"}
    middle = left + width / 2
    above.bar(middle[filled], actual[filled], color=BLUE, alpha=0.75, label=outcome, **bar)
    above.plot(mean[filled], mean[filled], "o", color=AMBER, markersize=4.5, label=f"mean {score}")
    above.plot([0, 100], [0, 100], "--", color=MUTED, linewidth=1)
    above.set(xlim=(0, 100), ylim=(0, 102))
    share = 100 * bins.count.numpy() / bins.count.sum().item()
    below.bar(middle, share, color=MUTED, alpha=0.6, **bar)
    below.set_ylim(bottom=0)
    legend(above)
    return inline_svg(figure, name, f"{outcome} against {score}".capitalize())


def reliability_panel(bins: Reliability, score: str, outcome: str, name: str) -> Markup:
    """A small reliability diagram with the diagonal; paler bars stand for fewer images."""
    figure, axes = small_panel(f"{score}, %", f"{outcome}, %")
    width = 100 / len(bins.count)
    share = bins.count.numpy() / bins.count.sum().item()
    middle, actual = 100 * bins.edges[:-1].numpy() + width / 2, 100 * bins.outcome.numpy()
    for x, height, weight in zip(middle, actual, share, strict=True):
        if weight > 0:
            axes.bar(x, height, width=0.86 * width, color=BLUE, alpha=min(0.9, 0.25 + 3 * weight), linewidth=0)
    axes.plot([0, 100], [0, 100], "--", color=MUTED, linewidth=1)
    axes.set(xlim=(0, 100), ylim=(0, 102), xticks=(0, 50, 100), yticks=(0, 50, 100))
    return inline_svg(figure, f"{score} {name}", f"{outcome.capitalize()} against {score}: {name}")


def risk_coverage_curve(curve: RiskCoverage) -> Markup:
    """Error among the most certain images against the share of images answered, in per cent."""
    coverage, risk = _thinned(curve)
    figure, axes = panel("images answered, surest first, %", "error among them, %")
    axes.axhline(risk[-1], color=MUTED, linewidth=1, linestyle="--", label="error on all images")
    axes.plot(coverage, risk, color=BLUE, linewidth=1.8, label="error among those answered")
    axes.fill_between(coverage, risk, color=BLUE, alpha=0.12, linewidth=0)
    axes.set(xlim=(0, 100), ylim=(0, None))
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    legend(axes)
    return inline_svg(figure, "risk", "Error against coverage")


def abstention_curve(test: RiskCoverage, held_out: RiskCoverage, points: Sequence[tuple[float, float, str]]) -> Markup:
    """Error against the share kept, on test and held-out images; `points` are (kept %, error %, target)."""
    figure, axes = panel("images kept, surest first, %", "error among them, %")
    axes.plot(*_thinned(held_out), color=MUTED, linewidth=1, label="held-out images")
    axes.plot(*_thinned(test), color=BLUE, linewidth=1.8, label="test images")
    axes.set(xlim=(0, 103), ylim=(0, None))
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    if points:
        at = np.array([(kept, error) for kept, error, _ in points])
        axes.plot(at[:, 0], at[:, 1], "o", color=AMBER, markersize=6, clip_on=False, label="thresholds")
        name_points(axes, at, [f"at most {target}" for _, _, target in points])
    legend(axes)
    return inline_svg(figure, "abstention", "Error against the share kept")


def _thinned(curve: RiskCoverage) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Coverage and risk in per cent, at no more points than a figure shows."""
    shown = np.unique(np.linspace(0, len(curve.risk) - 1, CURVE_POINTS).round().astype(int))
    return 100 * curve.coverage.numpy()[shown], 100 * curve.risk.numpy()[shown]


def sweep_panel(methods: Sequence[Method], key: str, quantity: str, label: str) -> Markup:
    """One quantity, mean ± deviation over seeds, against the swept value."""
    shown = [method for method in methods if method.values(quantity)]
    if not shown:
        return Markup()
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
    return inline_svg(figure, f"sweep {quantity}", f"{label} against {key}")


def _tick_values(axes: Axes, values: Sequence[float]) -> None:
    """Puts the ticks of a logarithmic axis at the values of the sweep."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.xaxis.set_major_locator(FixedLocator(sorted(values)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def numeric(names: Sequence[str]) -> list[float] | None:
    """The names as numbers; None unless all of them are finite."""
    try:
        values = [float(name) for name in names]
    except ValueError:
        return None
    return values if all(math.isfinite(value) for value in values) else None
