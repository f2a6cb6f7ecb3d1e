"""Learning curves of many methods: all in one figure, named at their ends, and each in a small panel of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from npmatch.report.drawing import AMBER, BLUE, LINES, MUTED, calm, count_steps, inline_svg, new_figure, plain
from npmatch.report.formatting import printable, shortened
from npmatch.report.many_charts import LONGEST_NAME, WIDE, scale_errors, small_panel
from npmatch.report.methods import BASELINE, OURS, Method

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]
STYLES = ("-", "--", ":", "-.")
ASIDE: dict[str, Any] = {"color": MUTED, "linewidth": 0.9, "alpha": 0.3, "zorder": 1}
IN_SIGHT: dict[str, dict[str, Any]] = {
    OURS: {"color": BLUE, "linewidth": 1.3, "zorder": 3},
    BASELINE: {"color": MUTED, "linewidth": 1.3, "zorder": 2, "linestyle": "--"},
}
LETTER = 12.5  # points between two names at the ends of curves


def curves_together(methods: Sequence[Method]) -> str:
    """The mean error of every method against the step; its name stands at the end of its curve."""
    shown = [method for method in methods if len(method.curve()[0][0])]
    if not shown:
        return ""
    size = (WIDE, max(4.4, 0.19 * len(shown) + 1.4))
    figure = new_figure(size)
    names = [shortened(method.name, LONGEST_NAME) for method in shown]
    right = 0.45 + 0.078 * max(len(name) for name in names)
    figure.subplots_adjust(0.6 / size[0], 0.46 / size[1], 1 - right / size[0], 1 - 0.12 / size[1])
    axes = calm(figure.add_subplot(), "step", "test error, %")
    ends = []
    for method, (colour, style) in zip(shown, line_styles(shown), strict=True):
        (steps, errors), deviation = method.curve()
        stressed = method.name in IN_SIGHT
        axes.plot(steps, errors, color=colour, linestyle=style, linewidth=2.6 if stressed else 1.4, zorder=3 + stressed)
        if stressed:
            band(axes, steps, errors, deviation, colour)
        ends.append((float(steps[-1]), float(errors[-1]), colour))
    error_axis(axes, shown)
    count_steps(axes)
    axes.set_xlim(left=0, right=max(step for step, _, _ in ends))
    name_ends(axes, names, ends, [method.name in IN_SIGHT for method in shown])
    return inline_svg(figure, "curves", "Test error of every method against the training step")


def line_styles(methods: Sequence[Method]) -> list[tuple[str, str]]:
    """Colour and dash of each: blue for NP-Match, grey dashes for the baseline, no two alike among the others."""
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
    """Writes names in a column right of the drawing, in the order of the curves' ends and never on one another."""
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
    """Ascending places at least `gap` apart, together as near to the wanted ones as can be, inside the limits."""
    from scipy.optimize import isotonic_regression

    offsets = gap * np.arange(len(wanted))
    places: Floats = isotonic_regression(wanted - offsets).x
    return np.clip(places, low, max(low, high - offsets[-1])) + offsets


def curve_panel(method: Method, methods: Sequence[Method]) -> str:
    """One method's error with the deviation over seeds, before all others; the two landmarks stand out among them."""
    (steps, errors), deviation = method.curve()
    if not len(steps):
        return ""
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
    return inline_svg(figure, f"curve {method.name}", f"Test error against the training step: {printable(method.name)}")


def band(axes: Axes, steps: Floats, errors: Floats, deviation: Floats, colour: str) -> None:
    """Mean ± deviation, where there is one."""
    if deviation.any():
        lowest = np.maximum(errors - deviation, 0.05 * errors)  # a logarithmic axis has no place for 0
        axes.fill_between(steps, lowest, errors + deviation, color=colour, alpha=0.18, linewidth=0, zorder=3)


def error_axis(axes: Axes, methods: Sequence[Method]) -> None:
    """The same for all panels."""
    errors = np.concatenate([method.curve()[0][1] for method in methods])
    if not scale_errors(axes, "y", float(errors.min()), float(errors.max())):
        axes.set_ylim(0, float(errors.max()) * 1.06 or 1)
