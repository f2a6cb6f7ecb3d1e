"""The forecast of a run's error with more labels, for its page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from npmatch.report.drawing import BLUE, GRID, inline_svg, panel
from npmatch.report.formatting import count, percent
from npmatch.report.run_sections import Section, Tile
from npmatch.report.tables import Line

CLASSES = 5  # that pay most
CLASS_COLUMNS = ("the next labels pay most for", "labels now", "error without half of them")


def lines(found: Mapping[str, Any], run: str | Path) -> list[str]:
    """A forecast as its JSON has it, in words: the command prints these lines, and the page shows them."""
    now = f"{run}: {100 * found['error']:.1f} % error with {found['labels']} labels, {found['source']}"
    expected = [
        f"with {one['labels']} labels: about {100 * one['error']:.1f} %, "
        f"80 % band {100 * one['low']:.1f} to {100 * one['high']:.1f} %"
        for one in found["expected"]
    ]
    return [now, *expected, *found["remarks"]]


def class_rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Name, labels and gain of the classes whose labels pay most."""
    paying = [one for one in found["classes"] if one["gain"] is not None]
    return [(one["name"], str(one["labels"]), f"{one['gain']:+.1f} points") for one in paying[:CLASSES]]


def can_be_read(found: Mapping[str, Any]) -> bool:
    """Whether a file holds what `npmatch forecast` writes."""
    try:
        lines(found, ""), class_rows(found), drawing(found)
    except (KeyError, TypeError, ValueError):
        return False
    return True


def section(found: Mapping[str, Any]) -> Section:
    """The section for a forecast as its JSON has it."""
    tiles = [
        Tile(
            percent(100 * one["error"]),
            f"With {count(one['labels'])} labels",
            f"80 % band {100 * one['low']:.1f} to {percent(100 * one['high'])}",
        )
        for one in found["expected"]
    ]
    lines = [
        Line(one["name"], [count(one["labels"]), f"{one['gain']:+.1f} points"])
        for one in found["classes"]
        if one["gain"] is not None
    ]
    data = {"drawing": drawing(found), "numbers": tiles, "lines": lines[:CLASSES], "remarks": found["remarks"]}
    return Section("forecast.html", data)


def drawing(found: Mapping[str, Any]) -> Markup:
    """Expected error and band against the number of labels."""
    points = [(found["labels"], found["error"], found["error"], found["error"])]
    points += [(one["labels"], one["error"], one["low"], one["high"]) for one in found["expected"]]
    labels, error, low, high = ([row[k] * (100 if k else 1) for row in points] for k in range(4))
    figure, axes = panel("labels", "error, %")
    axes.plot(labels, error, "o-", color=BLUE, linewidth=1.8, markersize=5)
    axes.fill_between(labels, low, high, color=BLUE, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(labels, [f"{n:g}" for n in labels], minor=False)
    axes.set_ylim(0, None)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    return inline_svg(figure, "forecast", "Expected error against the number of labels")
