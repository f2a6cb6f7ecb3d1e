"""Figures of the training: what was logged, against the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npmatch.report.drawing import AMBER, BLUE, LINES, count_steps, inline_svg, legend, panel, plain
from npmatch.report.record import RunRecord, Series

MOST_POINTS = 240  # of one curve: more cannot be seen, and a long run logs tens of thousands


def thinned(series: Series) -> Series:
    """A long series as the means of consecutive stretches, so that noise averages out rather than aliases."""
    steps, values = series
    if len(steps) <= MOST_POINTS:
        return series
    stretches = zip(np.array_split(steps, MOST_POINTS), np.array_split(values, MOST_POINTS), strict=True)
    means = np.array([(s.mean(), v.mean()) for s, v in stretches])
    return means[:, 0], means[:, 1]


def loss_curves(record: RunRecord) -> str:
    """Every logged loss, or nothing where none was logged."""
    named = [(key.removeprefix("loss_") or "loss", key) for key in record.keys("train", "loss")]
    named = [("total" if name == "loss" else name.replace("_", " "), key) for name, key in named]
    return _lines(record, named, "loss", "Losses in training")


def latent_curves(record: RunRecord) -> str:
    """The divergence between the two latents and the skew α it was taken at, on a logarithmic axis."""
    named = [("divergence", "divergence"), ("α", "alpha")]
    return _lines(record, named, "divergence, α", "Divergence and alpha in training", log=True)


def error_curve(record: RunRecord) -> str:
    """Test error of the evaluated model along the way, in per cent."""
    steps, values = record.series("eval", "error")
    if not len(steps):
        return ""
    figure, axes = panel("step", "test error, %")
    axes.plot(steps, values, color=BLUE, linewidth=1.8, marker="o", markersize=3.5)
    axes.set_ylim(bottom=0)
    count_steps(axes)
    return inline_svg(figure, "error", "Test error against the training step")


def trust_curves(record: RunRecord) -> str:
    """The share of pseudo-labels that was trusted, and how many of those were right, in per cent."""
    shown = [("trusted", "trusted share", BLUE), ("pseudo_accuracy", "right among them", AMBER)]
    curves = [(label, colour, record.series("train", key)) for key, label, colour in shown]
    if not any(len(steps) for _, _, (steps, _) in curves):
        return ""
    figure, axes = panel("step", "pseudo-labels, %")
    for label, colour, series in curves:
        if len(series[0]):
            steps, values = thinned(series)
            axes.plot(steps, 100 * values, color=colour, linewidth=1.8, label=label)
    axes.set_ylim(0, 102)
    count_steps(axes)
    legend(axes)
    return inline_svg(figure, "trust", "Trusted share and accuracy of pseudo-labels against the step")


def _lines(record: RunRecord, named: Sequence[tuple[str, str]], ylabel: str, alt: str, log: bool = False) -> str:
    """Curves of one kind of quantity in one panel; `named` holds (label, key)."""
    curves = [(label, thinned(record.series("train", key))) for label, key in named]
    if log:
        curves = [(label, (steps[values > 0], values[values > 0])) for label, (steps, values) in curves]
    curves = [(label, series) for label, series in curves if len(series[0])]
    if not curves:
        return ""
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
