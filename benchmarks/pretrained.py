"""Training from pretrained weights, one setting changed at a time, judged by images whose labels were not given.

The photographs are a folder with every image under labeled/<class>/; each seed draws a few labels of each class and
hides the others. No test image is looked at.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.command_line import run, show
from benchmarks.defaults import train
from benchmarks.result import BenchmarkResult, Column
from npmatch.cli.shared import DeviceOption, JsonOption, check_device
from npmatch.data import load_dataset
from npmatch.distributed.devices import choose_device

BATCH_NORM: dict[str, Any] = {"backbone.frozen_norms": False, "algorithm.weak_norm": "joint"}
VARIANTS: dict[str, dict[str, Any]] = {
    "the defaults": {},
    "batch norm by the batch's statistics": BATCH_NORM,
    "input of 96 pixels": {"backbone.input_size": 96},
    "input of 64 pixels": {"backbone.input_size": 64},
    "learning rate 0.01": {"training.learning_rate": 0.01},
    "learning rate 0.06": {"training.learning_rate": 0.06},
    "the backbone at 0.3 of the rate": {"training.backbone_rate": 0.3},
    "the head alone in the first tenth": {"training.head_first": 0.1},
    "half the batch": {"training.batch": 32},
    "from scratch": {"backbone.pretrained": False},
}


def bench_pretrained(
    photographs: Path,
    labels: int = 40,
    steps: int = 300,
    seeds: int = 1,
    first_seed: int = 10,
    device: str | None = None,
    variants: dict[str, dict[str, Any]] = VARIANTS,
) -> BenchmarkResult:
    """Trains every variant with every seed."""
    chosen = choose_device(device)
    dataset = load_dataset("folder", photographs, 64)
    rows: list[dict[str, Any]] = []
    for variant, settings in variants.items():
        found = [
            train(dataset, labels, first_seed + n, steps, settings, chosen, chosen.type == "cuda") for n in range(seeds)
        ]
        error, ece = (mean(scores[key] for scores in found) for key in ("error", "ece"))
        rows.append({"variant": variant, "error": error, "ece": ece})
        Console(stderr=True).print(f"{variant}: {error:.2f} %")
    return BenchmarkResult(
        name="pretrained",
        about=f"NP-Match, {labels} labels, {steps} steps, seeds {first_seed} to {first_seed + seeds - 1}",
        columns=[
            Column("variant", "setting"),
            Column("error", "error on unlabelled images, %", "{:.2f}"),
            Column("ece", "ECE, %", "{:.2f}"),
        ],
        rows=rows,
        device=str(chosen),
    )


def main(
    photographs: Annotated[Path, typer.Argument(help="Folder with all images under labeled/<class>/.")],
    labels: Annotated[int, typer.Option("--labels", min=1, help="Number of labels that are given.")] = 40,
    steps: Annotated[int, typer.Option("--steps", min=2, help="Steps of each training.")] = 300,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds.")] = 1,
    first_seed: Annotated[int, typer.Option("--first-seed", help="First seed; the others count up from it.")] = 10,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Settings for pretrained weights against other values.

    The error is measured on the images whose labels are hidden.
    """
    show(bench_pretrained(photographs, labels, steps, seeds, first_seed, check_device(device)), as_json)


if __name__ == "__main__":
    sys.exit(run(main))
