"""Figures of benchmarks, written to a file: curves and bars."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Literal, NamedTuple

from npmatch.errors import NPMatchError

COLOURS = ("#8a8a8a", "#0b62c4", "#c2410c", "#d99a00", "#0f766e", "#7c3aed")
FORMATS = (".png", ".svg", ".pdf")


class Curve(NamedTuple):
    """A name and its points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def check_plot(path: Path | None) -> Path | None:
    """Refuses a file that cannot be written, before anything is measured for it."""
    if path is not None and path.suffix.lower() not in FORMATS:
        raise NPMatchError(f"--plot {path}: name a file that ends in {', '.join(FORMATS)}")
    if path is not None and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
        raise NPMatchError(f"--plot {path}: cannot be written there; name a file in a folder that exists")
    return path


def draw_curves(
    path: Path, panels: Mapping[str, list[Curve]], xlabel: str, ylabel: str, scale: Literal["log", "linear"] = "log"
) -> None:
    """Draws panels side by side, both axes of one scale, with one legend below them all."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(panels), 3.8), dpi=150, layout="constrained")
    for place, (title, curves) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), place, xscale=scale, yscale=scale, xlabel=xlabel)
        axes.set_title(fill(title, 48), fontsize=10)
        axes.grid(axis="y", color="#dddddd", linewidth=0.7)
        for curve, colour in zip(curves, COLOURS, strict=False):
            axes.plot(curve.x, curve.y, color=colour, marker="o", markersize=3.5, linewidth=1.6, label=curve.name)
        axes.set_xticks(curves[0].x, [f"{x:g}" for x in curves[0].x])
        axes.minorticks_off()
        if place == 1:
            axes.set_ylabel(ylabel)
            handles = axes.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=min(len(handles[0]), 2 * len(panels)), frameon=False)
    _save(figure, path)


def draw_bars(path: Path, bars: Mapping[str, float], xlabel: str) -> None:
    """Draws one horizontal bar for each name, with its value beside it, the first on top."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 0.9 + 0.42 * len(bars)), dpi=150, layout="constrained")
    axes = figure.add_subplot(xlabel=xlabel)
    drawn = axes.barh(list(bars), list(bars.values()), color=COLOURS[1], height=0.6)
    axes.bar_label(drawn, fmt="{:,.4g}", padding=3)
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _save(figure: object, path: Path) -> None:
    try:
        figure.savefig(path)  # type: ignore[attr-defined]
    except OSError as error:
        raise NPMatchError(f"--plot {path}: cannot be written ({error.strerror})") from error
