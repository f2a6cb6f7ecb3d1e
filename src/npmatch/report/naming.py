"""Names beside the points of a scatter, without covering one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from npmatch.report.drawing import INK, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = 9.0  # of the letters, points
GAP = 6.0  # between a point's centre and its name, points
SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))  # right, left, above, …
HORIZONTAL = {1: "left", 0: "center", -1: "right"}
VERTICAL = {1: "bottom", 0: "center_baseline", -1: "top"}


def name_points(axes: Axes, points: npt.NDArray[np.float64], names: Sequence[str]) -> None:
    """Writes the names of the first points (P 2, in data units), each where there is room, else nowhere.

    The figure must be at 72 dpi, where a pixel of the drawing is a point.
    """
    axes.autoscale_view()  # otherwise left until the drawing, which would move the points
    at = axes.transData.transform(points)
    frame = axes.get_window_extent()
    taken = np.concatenate([at - GAP / 2, at + GAP / 2], axis=1)  # boxes: left, bottom, right, top
    for name, point, place in zip(names, points, at, strict=False):
        half = np.array([0.3 * SIZE * len(name), 0.55 * SIZE])
        for side in SIDES:
            centre = place + np.array(side) * (half + GAP * (0.6 if all(side) else 1))
            box = np.concatenate([centre - half, centre + half])
            inside = (box[:2] >= frame.min).all() and (box[2:] <= frame.max).all()
            free = ((box[2:] < taken[:, :2]) | (box[:2] > taken[:, 2:])).any(axis=1).all()
            if inside and free:
                taken = np.vstack([taken, box])
                _write(axes, name, point, side)
                break


def _write(axes: Axes, name: str, point: npt.NDArray[np.float64], side: tuple[int, int]) -> None:
    """One name on one side of its point."""
    gap = GAP * (0.6 if all(side) else 1)
    axes.annotate(
        plain(name),
        (float(point[0]), float(point[1])),
        (side[0] * gap, side[1] * gap),
        textcoords="offset points",
        ha=HORIZONTAL[side[0]],
        va=VERTICAL[side[1]],
        fontsize=SIZE,
        color=INK,
        in_layout=False,
    )
