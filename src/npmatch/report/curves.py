"""Figures against the training step: logged quantities of a run, and learning curves of many methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from npmatch.report.charts import LONGEST_NAME
from npmatch.report.drawing import (
    AMBER,
    BLUE,
    LINES,
    MUTED,
    WIDE,
    calm,
    count_steps,
    inline_svg,
    legend,
    new_figure,
    panel,
    plain,
    scale_errors,
    small_panel,
)
from npmatch.report.formatting import shortened
from npmatch.report.record import BASELINE, OURS, Method, RunRecord, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]
MOST_POINTS = 240  # of one curve: more are not visible, and a long run logs tens of thousands
STYLES = ("-", "--", ":", "-.")
ASIDE: dict[str, Any] = {"color": MUTED, "linewidth": 0.9, "alpha": 0.3, "zorder": 1}
IN_SIGHT: dict[str, dict[str, Any]] = {
    OURS: {"color": BLUE, "linewidth": 1.3, "zorder": 3},
    BASELINE: {"color": MUTED, "linewidth": 1.3, "zorder": 2, "linestyle": "--"},
}
LETTER = 12.5  # points between two names at the ends of the curves


def thinned(series: Series) -> Series:
    """Replaces a long series by the means of consecutive parts, which average noise instead of aliasing it."""
    steps, values = series
    if len(steps) <= MOST_POINTS:
        return series
    stretches = zip(np.array_split(steps, MOST_POINTS), np.array_split(values, MOST_POINTS), strict=True)
    means = np.array([(s.mean(), v.mean()) for s, v in stretches])
    return means[:, 0], means[:, 1]


def loss_curves(record: RunRecord) -> Markup:
    """Every logged loss; empty where none was logged."""
    named = [(key.removeprefix("loss_") or "loss", key) for key in record.keys("train", "loss")]
    named = [("total" if name == "loss" else name.replace("_", " "), key) for name, key in named]
    return _lines(record, named, "loss", "Losses in training")


def latent_curves(record: RunRecord) -> Markup:
    """The divergence between the two latents and its skew α, on a logarithmic axis."""
    named = [("divergence", "divergence"), ("α", "alpha")]
    return _lines(record, named, "divergence, α", "Divergence and alpha in training", log=True)


def error_curve(record: RunRecord) -> Markup:
    """Test error of the averaged model during training, in per cent."""
    steps, values = record.series("eval", "error")
    if not len(steps):
        return Markup()
    figure, axes = panel("step", "test error, %")
    axes.plot(steps, values, color=BLUE, linewidth=1.8, marker="o", markersize=3.5)
    axes.set_ylim(bottom=0)
    count_steps(axes)
    return inline_svg(figure, "error", "Test error against the training step")


def trust_curves(record: RunRecord) -> Markup:
    """The share of trusted pseudo-labels, and the share of these that is right, in per cent."""
    shown = [("trusted", "trusted share", BLUE), ("pseudo_accuracy", "right among them", AMBER)]
    curves = [(label, colour, record.series("train", key)) for key, label, colour in shown]
    if not any(len(steps) for _, _, (steps, _) in curves):
        return Markup()
    figure, axes = panel("step", "pseudo-labels, %")
    for label, colour, series in curves:
        if len(series[0]):
            steps, values = thinned(series)
            axes.plot(steps, 100 * values, color=colour, linewidth=1.8, label=label)
    axes.set_ylim(0, 102)
    count_steps(axes)
    legend(axes)
    return inline_svg(figure, "trust", "Trusted share and accuracy of pseudo-labels against the step")


def _lines(record: RunRecord, named: Sequence[tuple[str, str]], ylabel: str, alt: str, log: bool = False) -> Markup:
    """Several logged quantities in one panel; `named` holds pairs (label, key)."""
    curves = [(label, thinned(record.series("train", key))) for label, key in named]
    if log:
        curves = [(label, (steps[values > 0], values[values > 0])) for label, (steps, values) in curves]
    curves = [(label, series) for label, series in curves if len(series[0])]
    if not curves:
        return Markup()
    figure, axes = panel("step", ylabel)
    for i, (label, (steps, values)) in enumerate(curves):
        axes.plot(steps, values, color=LINES[i % len(LINES)], linewidth=1.6, label=plain(label))
    if log:
        axes.set_yscale("log")
    elif min(values.min() for _, (_, values) in curves) >= 0:
        axes.set_ylim(bottom=0)
    count_steps(axes)
    legend(axes)
    return inline_svg(figure, alt, alt)


def curves_together(methods: Sequence[Method]) -> Markup:
    """The mean error of every method against the step, with its name at the end of its curve."""
    size = (WIDE, max(4.4, 0.19 * len(methods) + 1.4))
    figure = new_figure(size)
    names = [shortened(method.name, LONGEST_NAME) for method in methods]
    right = 0.45 + 0.078 * max(len(name) for name in names)
    figure.subplots_adjust(0.6 / size[0], 0.46 / size[1], 1 - right / size[0], 1 - 0.12 / size[1])
    axes = calm(figure.add_subplot(), "step", "test error, %")
    ends = []
    for method, (colour, style) in zip(methods, line_styles(methods), strict=True):
        (steps, errors), deviation = method.curve()
        stressed = method.name in IN_SIGHT
        axes.plot(steps, errors, color=colour, linestyle=style, linewidth=2.6 if stressed else 1.4, zorder=3 + stressed)
        if stressed:
            band(axes, steps, errors, deviation, colour)
        ends.append((float(steps[-1]), float(errors[-1]), colour))
    error_axis(axes, methods)
    count_steps(axes)
    axes.set_xlim(left=0, right=max(step for step, _, _ in ends))
    name_ends(axes, names, ends, [method.name in IN_SIGHT for method in methods])
    return inline_svg(figure, "curves", "Test error of every method against the training step")


def line_styles(methods: Sequence[Method]) -> list[tuple[str, str]]:
    """Colour and dash of each method: blue for NP-Match, grey dashes for the baseline, distinct others."""
    others, found = 0, []
    for method in methods:
        if method.name == OURS:
            found.append((BLUE, "-"))
        elif method.name == BASELINE:
            found.append((MUTED, "--"))
        else:
            colours = LINES[1:5]
            found.append((colours[others % len(colours)], STYLES[others // len(colours) % len(STYLES)]))
            others += 1
    return found


def name_ends(axes: Axes, names: Sequence[str], ends: Sequence[tuple[float, float, str]], bold: Sequence[bool]) -> None:
    """Writes the names in a column right of the axes, in the order of the curves' ends and without overlap."""
    axes.autoscale_view()
    frame = axes.get_window_extent()
    wanted = axes.transData.transform([(step, error) for step, error, _ in ends])
    order = np.argsort(wanted[:, 1], kind="stable")
    heights = spread_out(wanted[order, 1], LETTER, frame.y0, frame.y1)
    for rank, i in enumerate(order):
        x, colour = frame.x1 + 26, ends[i][2]
        start = (frame.x1 + 4 if wanted[i, 0] > frame.x1 - 4 else wanted[i, 0] + 3, wanted[i, 1])
        arrow = {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0}
        arrow |= {"alpha": 0.6, "relpos": (0, 0.5)}
        axes.annotate(
            plain(names[i]),
            start,
            (x, heights[rank]),
            xycoords="figure pixels",
            textcoords="figure pixels",
            color=colour,
            fontsize=9.5,
            fontweight="bold" if bold[i] else "normal",
            va="center",
            annotation_clip=False,
            arrowprops=arrow,
            in_layout=False,
        )


def spread_out(wanted: Floats, gap: float, low: float, high: float) -> Floats:
    """Ascending places within the limits, at least `gap` apart, as near as possible to the wanted ones."""
    from scipy.optimize import isotonic_regression

    offsets = gap * np.arange(len(wanted))
    places: Floats = isotonic_regression(wanted - offsets).x
    return np.clip(places, low, max(low, high - offsets[-1])) + offsets


def curve_panel(method: Method, methods: Sequence[Method]) -> Markup:
    """One method's error with its deviation over seeds; other methods are faint, except NP-Match and supervised."""
    (steps, errors), deviation = method.curve()
    figure, axes = small_panel("step", "error, %")
    for other in methods:
        (other_steps, other_errors), _ = other.curve()
        if other.name != method.name:
            axes.plot(other_steps, other_errors, **IN_SIGHT.get(other.name, ASIDE))
    look = {"color": AMBER, **IN_SIGHT.get(method.name, {}), "linewidth": 2.2, "zorder": 4}
    axes.plot(steps, errors, **look)
    band(axes, steps, errors, deviation, str(look["color"]))
    error_axis(axes, methods)
    count_steps(axes, 3)
    axes.set_xlim(left=0)
    return inline_svg(figure, f"curve {method.name}", f"Test error against the training step: {method.name}")


def band(axes: Axes, steps: Floats, errors: Floats, deviation: Floats, colour: str) -> None:
    """Shades mean ± deviation; nothing where the deviation is 0."""
    if deviation.any():
        lowest = np.maximum(errors - deviation, 0.05 * errors)  # a logarithmic axis cannot show 0
        axes.fill_between(steps, lowest, errors + deviation, color=colour, alpha=0.18, linewidth=0, zorder=3)


def error_axis(axes: Axes, methods: Sequence[Method]) -> None:
    """Gives the error axis the same range and scale in all panels."""
    errors = np.concatenate([method.curve()[0][1] for method in methods])
    if not scale_errors(axes, "y", float(errors.min()), float(errors.max())):
        axes.set_ylim(0, float(errors.max()) * 1.06 or 1)
