"""Figures of the final model on the test set: classes, calibration, selective risk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from npmatch.metrics import ClassRow, Reliability, RiskCoverage
from npmatch.report.drawing import AMBER, BLUE, GRID, MUTED, calm, inline_svg, legend, new_figure, panel
from npmatch.report.formatting import shortened
from npmatch.report.naming import name_points

NAMES_SHOWN = 30  # beside points; every class is in the table below the figure
CURVE_POINTS = 400


def class_scatter(rows: Sequence[ClassRow]) -> str:
    """Mean uncertainty against accuracy, a point per class; the least accurate ones are named first."""
    rows = sorted((row for row in rows if row.n), key=lambda row: row.accuracy)
    points = np.array([(row.uncertainty, 100 * row.accuracy) for row in rows])
    figure, axes = panel("mean uncertainty, nats", "accuracy, %")
    axes.scatter(points[:, 0], points[:, 1], s=30, color=BLUE, alpha=0.85, linewidths=0)
    axes.margins(0.1, 0.12)
    name_points(axes, points, [shortened(row.name) for row in rows[:NAMES_SHOWN]])
    return inline_svg(figure, "classes", "Class-wise uncertainty against accuracy")


def reliability_diagram(bins: Reliability, score: str, outcome: str, name: str) -> str:
    """Outcome against score, bin by bin, with the diagonal of perfect calibration; below, how many images."""
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


def risk_coverage_curve(curve: RiskCoverage) -> str:
    """Error among the surest images against the share of images answered, in per cent."""
    coverage, risk = _thinned(curve)
    figure, axes = panel("images answered, surest first, %", "error among them, %")
    axes.axhline(risk[-1], color=MUTED, linewidth=1, linestyle="--", label="error on all images")
    axes.plot(coverage, risk, color=BLUE, linewidth=1.8, label="error among those answered")
    axes.fill_between(coverage, risk, color=BLUE, alpha=0.12, linewidth=0)
    axes.set(xlim=(0, 100), ylim=(0, None))
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    legend(axes)
    return inline_svg(figure, "risk", "Error against coverage")


def abstention_curve(test: RiskCoverage, held_out: RiskCoverage, points: Sequence[tuple[float, float, str]]) -> str:
    """Error against the share kept, on test and held-out images; points (kept %, error %, target) on the first."""
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
