"""Whether forecasts come true: the error with 2 and 4 times the labels, against having these labels.

A case draws labels, forecasts from them alone, and then fits the head to twice or four times as many, the first ones
among them. Today's error and the later one are those of heads on pretrained features, which stand for whole training.
Both are measured on the images that never get a label.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from benchmarks.command_line import run, show
from benchmarks.first_labels import NETWORK
from benchmarks.result import BenchmarkResult, Column
from npmatch.backbones import BackboneConfig
from npmatch.backbones.weights import with_weights
from npmatch.baselines import BASELINES
from npmatch.cli.shared import DeviceOption, JsonOption, check_device
from npmatch.data import load_dataset
from npmatch.data.images import SelectedImages
from npmatch.distributed.devices import choose_device
from npmatch.draws import mix
from npmatch.labelling.first import SIDE, learnt_features
from npmatch.labelling.forecast import Today, curve_of_heads, forecast_from
from npmatch.training import load_tensors, save_tensors

CASES = ((4, 2), (4, 4), (8, 2), (8, 4), (16, 2))  # labels of each class, and times as many
MOST_IMAGES = 1500


def features_of(data: str, device: torch.device, cache: Path | None = None) -> tuple[Tensor, Tensor]:
    """Pretrained features and labels of at most MOST_IMAGES images, from the folder `cache` if they are there."""
    kept = None if cache is None else cache / f"{Path(data).name}.safetensors"
    if kept is not None and kept.is_file():
        tensors, _ = load_tensors(kept)
        return tensors["features"], tensors["labels"]
    dataset = load_dataset(data) if data in ("digits", "fashion-mnist") else load_dataset("folder", Path(data), SIDE)
    order = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(0))
    taken = order[dataset.train.labels[order] >= 0][:MOST_IMAGES]
    network = with_weights(BackboneConfig(name=NETWORK, pretrained=True, input_size=SIDE))
    f, y = learnt_features(network, SelectedImages(dataset.train.images, taken), device), dataset.train.labels[taken]
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(kept, {"features": f, "labels": y})
    return f, y


def head_error(f: Tensor, y: Tensor, labelled: Tensor, others: Tensor) -> float:
    """Error rate on `others` of a head on the images at `labelled`."""
    num_classes = int(y.max()) + 1
    prediction = BASELINES["probe"].predict(f[labelled], y[labelled], f[others], num_classes, f[:0])
    return float((prediction.label != y[others]).double().mean())


def try_forecast(f: Tensor, y: Tensor, of_each: int, times: int, seed: int) -> dict[str, Any]:
    """One case; rates in %."""
    generator = torch.Generator().manual_seed(mix(seed, "forecast"))
    by_class = [(y == k).nonzero()[:, 0] for k in range(int(y.max()) + 1)]
    order = [at[torch.randperm(len(at), generator=generator)] for at in by_class]
    now, then = (torch.cat([at[:count] for at in order]) for count in (of_each, of_each * times))
    others = torch.ones(len(y), dtype=torch.bool)
    others[then] = False
    rest = others.nonzero().flatten()
    today = head_error(f, y, now, rest)
    found = forecast_from(curve_of_heads(f[now], y[now]), Today(today, len(rest), ""), len(now), [len(then)])
    expected, later = found.expected[0], head_error(f, y, then, rest)
    return {
        "labels": f"{len(now)} → {len(then)}",
        "today": 100 * today,
        "expected": 100 * expected.error,
        "low": 100 * expected.low,
        "high": 100 * expected.high,
        "later": 100 * later,
        "inside": expected.low <= later <= expected.high,
        "width": (expected.high - expected.low) / today,
    }


def bench_forecasts(
    data: list[str], first_seed: int = 0, cache: Path | None = None, device: str | None = None
) -> BenchmarkResult:
    """Five cases for every data set, each with a seed of its own."""
    rows: list[dict[str, Any]] = []
    for name in data:
        f, y = features_of(name, choose_device(device), cache)
        for number, (of_each, times) in enumerate(CASES):
            rows.append({"data": Path(name).name, **try_forecast(f, y, of_each, times, first_seed + number)})
    return BenchmarkResult(
        name="forecasts",
        about=f"{len(rows)} forecasts with an 80 % band",
        columns=[
            Column("data", "images"),
            Column("labels", "labels"),
            Column("today", "error now, %", "{:.1f}"),
            Column("expected", "expected", "{:.1f}"),
            Column("low", "from", "{:.1f}"),
            Column("high", "to", "{:.1f}"),
            Column("later", "came true", "{:.1f}"),
            Column("inside", "inside"),
            Column("width", "width / error now", "{:.2f}"),
        ],
        rows=rows,
        ratios={
            "share inside the band": sum(row["inside"] for row in rows) / len(rows),
            "median width / error now": median(row["width"] for row in rows),
        },
        device=str(choose_device(device)),
    )


def main(
    data: Annotated[list[str], typer.Argument(help="digits, fashion-mnist, or folders with labeled/<class>/.")],
    first_seed: Annotated[int, typer.Option("--first-seed", help="Seed of the first case of each data set.")] = 0,
    cache: Annotated[Path | None, typer.Option("--cache", help="Folder to keep the features in.")] = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forecasts of npmatch forecast against having the labels."""
    show(bench_forecasts(data, first_seed, cache, check_device(device)), as_json)


if __name__ == "__main__":
    sys.exit(run(main))
