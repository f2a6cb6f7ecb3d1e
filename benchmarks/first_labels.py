"""The first labels: typical images (`npmatch suggest --data`) against a random choice, judged by heads on features.

Every seed draws a part of the images as the pool, chooses labels in it both ways, and fits a linear probe and label
spreading to their pretrained features. The error is that of the pool's other images. A folder has every image under
labeled/<class>/; `digits` names the embedded digits.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from benchmarks.command_line import run, show
from benchmarks.result import BenchmarkResult, Column
from npmatch.backbones import BackboneConfig
from npmatch.backbones.weights import with_weights
from npmatch.baselines import BASELINES
from npmatch.cli.shared import DeviceOption, JsonOption, check_device
from npmatch.data import load_dataset
from npmatch.distributed.devices import choose_device
from npmatch.draws import mix
from npmatch.labelling.first import SIDE, choose_typical, learnt_features

NETWORK = "timm:tf_efficientnet_lite0.in1k"
SHARE = 0.5  # of the images in the pool of a seed
RULES = ("random", "typical")


def choose(rule: str, f: Tensor, count: int, seed: int) -> Tensor:
    """Rows of `f` to label."""
    if rule == "typical":
        return torch.tensor([row for row, _ in choose_typical(f, count)])
    return torch.randperm(len(f), generator=torch.Generator().manual_seed(mix(seed, "random")))[:count]


def measure(f: Tensor, y: Tensor, chosen: Tensor, num_classes: int) -> dict[str, float]:
    """Errors in % of the images that were not chosen, and the number of classes among the chosen ones."""
    others = torch.ones(len(f), dtype=torch.bool)
    others[chosen] = False
    found = {"classes": float(len(torch.unique(y[chosen])))}
    for name in ("probe", "spreading"):
        prediction = BASELINES[name].predict(f[chosen], y[chosen], f[others], num_classes, f[others])
        found[name] = 100 * float((prediction.label != y[others]).double().mean())
    return found


def bench_first_labels(
    data: str, labels: tuple[int, ...] = (10, 20, 40), seeds: int = 5, first_seed: int = 0, device: str | None = None
) -> BenchmarkResult:
    """Chooses labels by both rules in the pool of every seed."""
    chosen_device = choose_device(device)
    dataset = load_dataset("digits") if data == "digits" else load_dataset("folder", Path(data), SIDE)
    network = with_weights(BackboneConfig(name=NETWORK, pretrained=True, input_size=SIDE))
    f, y = learnt_features(network, dataset.train.images, chosen_device), dataset.train.labels
    rows: list[dict[str, Any]] = []
    for count in labels:
        for rule in RULES:
            found = []
            for seed in range(first_seed, first_seed + seeds):
                order = torch.randperm(len(f), generator=torch.Generator().manual_seed(mix(seed, "pool")))
                pool = order[: int(SHARE * len(f))]
                chosen = choose(rule, f[pool], count, seed)
                found.append(measure(f[pool], y[pool], chosen, len(dataset.class_names)))
            averages = {key: mean(one[key] for one in found) for key in found[0]}
            rows.append({"labels": count, "rule": rule, **averages})
    return BenchmarkResult(
        name="first labels",
        about=f"{data}: {seeds} pools of {int(SHARE * len(f)):,} images",
        columns=[
            Column("labels", "labels"),
            Column("rule", "chosen"),
            Column("classes", "classes covered", "{:.1f}"),
            Column("probe", "error of a linear probe, %", "{:.1f}"),
            Column("spreading", "of label spreading, %", "{:.1f}"),
        ],
        rows=rows,
        device=str(chosen_device),
    )


def main(
    data: Annotated[str, typer.Argument(help="Folder with every image under labeled/<class>/, or digits.")] = "digits",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of pools.")] = 5,
    first_seed: Annotated[int, typer.Option("--first-seed", help="Seed of the first pool.")] = 0,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Typical images against a random choice, as the first labels."""
    show(bench_first_labels(data, seeds=seeds, first_seed=first_seed, device=check_device(device)), as_json)


if __name__ == "__main__":
    sys.exit(run(main))
