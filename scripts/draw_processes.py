"""Draws the uncertainty of NP-Match's processes on two moons with a hole, five labels each: docs/img/processes.png.

    python scripts/draw_processes.py [FILE] [--steps 1500] [--seed 0]

No training point lies in a piece of the upper moon. A process that knows what it has seen is uncertain there and far
from both moons.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn

from npmatch.algorithms import NPMatch
from npmatch.heads import ContextHead
from npmatch.types import Batch, Prediction, Task

LABELS, POINTS, WEAK, STRONG = 5, 600, 0.03, 0.15  # labels a class; standard deviations of the two views' jitter
PROCESSES = ("paper", "attentive", "kernel")


class Points(nn.Module):
    """A small network for points of the plane."""

    num_features = 64

    def __init__(self) -> None:
        """Two hidden layers."""
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        """N 2 → N 64."""
        out: Tensor = self.layers(x)
        return out


def moons_with_a_hole(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points n 2, their classes n, and positions of the labelled ones."""
    x, y = make_moons(POINTS, noise=0.08, random_state=seed)
    kept = ~((y == 0) & (abs(x[:, 0]) < 0.35))
    points, classes = torch.tensor(x[kept], dtype=torch.float32), torch.tensor(y[kept])
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    labeled = torch.cat([order[classes[order] == c][:LABELS] for c in (0, 1)])
    return points, classes, labeled


def train(process: str, x: Tensor, y: Tensor, labeled: Tensor, steps: int, seed: int) -> NPMatch:
    """NP-Match on the points; the views are jittered copies."""
    torch.manual_seed(seed)
    config = NPMatch.Config(process=process, max_entropy=0.3, confidence=0.9)  # type: ignore[arg-type]
    algorithm = NPMatch(Points(), Task(("a", "b"), len(labeled), len(x)), config).train()
    optimizer = torch.optim.SGD(algorithm.parameters(), 0.03, momentum=0.9, weight_decay=5e-4)
    for step in range(steps):
        index, own = torch.randperm(len(x))[:128], torch.randint(len(labeled), (32,))

        def view(points: Tensor, jitter: float) -> Tensor:
            return points + jitter * torch.randn_like(points)

        chosen = labeled[own]
        weak, strong = view(x[index], WEAK), view(x[index], STRONG)
        batch = Batch(view(x[chosen], WEAK), y[chosen], (weak,), (strong,), index, own)
        optimizer.zero_grad()
        algorithm.loss(batch, torch.tensor(step / steps)).loss.backward()
        nn.utils.clip_grad_norm_(algorithm.parameters(), 1.0)
        optimizer.step()
    algorithm.eval()
    set_context(algorithm, x, y, labeled)
    return algorithm


@torch.no_grad()
def set_context(algorithm: NPMatch, x: Tensor, y: Tensor, labeled: Tensor) -> None:
    """Lets the process predict from the labelled points, and from trusted ones if it was trained with such."""
    head, features = algorithm.model.head, algorithm.model.features
    if isinstance(head, ContextHead) and (found := algorithm.trusted_images()) is not None:
        index, pseudo = found
        is_trusted = torch.cat([torch.zeros(len(labeled)), torch.ones(len(index))]).bool()
        head.set_context(features(x[torch.cat([labeled, index])]), torch.cat([y[labeled], pseudo]), is_trusted)
    else:
        head.set_context(features(x[labeled]), y[labeled])  # type: ignore[operator]


@torch.no_grad()
def on_grid(algorithm: NPMatch, across: Tensor, up: Tensor) -> Prediction:
    """The prediction on a grid, row by row."""
    grid = torch.stack(torch.meshgrid(across, up, indexing="xy"), -1).flatten(0, 1)
    return algorithm.predict(grid)


def main() -> None:
    """The entropy of each process, and the vacuity of those that estimate it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=Path("docs/img/processes.png"))
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    x, y, labeled = moons_with_a_hole(arguments.seed)
    across, up = torch.linspace(-2.5, 3.5, 160), torch.linspace(-2.2, 2.7, 130)
    panels: list[tuple[str, Tensor]] = []
    for process in PROCESSES:
        prediction = on_grid(train(process, x, y, labeled, arguments.steps, arguments.seed), across, up)
        panels.append((f"entropy, {process}", prediction.entropy / math.log(2)))
        if prediction.outlier is not None:
            panels.append((f"vacuity, {process}", prediction.outlier))
    figure, axes = plt.subplots(1, len(panels), figsize=(14, 3.4), layout="constrained", sharey=True)
    for axis, (title, u) in zip(axes, panels, strict=True):
        values = u.reshape(len(up), len(across))
        shown = axis.pcolormesh(across, up, values, cmap="magma", vmin=0, vmax=1, rasterized=True)
        axis.scatter(*x.T, s=2, c="#9ecae1", alpha=0.6, linewidths=0)
        for c, marker in enumerate("os"):
            axis.scatter(*x[labeled][y[labeled] == c].T, s=28, marker=marker, c="white", edgecolors="black")
        axis.set_title(title, fontsize=10)
        axis.set_xticks([])
        axis.set_yticks([])
    figure.colorbar(shown, ax=axes, label="share of the largest value")
    figure.savefig(arguments.file, dpi=110)


if __name__ == "__main__":
    main()
