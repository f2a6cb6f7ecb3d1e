"""Cost of a prediction's uncertainty: T samples of NP-Match against T of MC dropout (the paper's Figure 3).

NP-Match decodes T latent samples after one pass of the network; its kernel process has T resamplings of a context in
their place. MC dropout passes the network T times, as the paper has it, or once with T copies of the batch. One plain
pass with a linear head is the unit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from benchmarks.command_line import PlotOption, RoundsOption, run, show
from benchmarks.plot import Curve, draw_curves
from benchmarks.result import BenchmarkResult, Column
from benchmarks.step import time_steps
from benchmarks.synthetic import make_train_step, synthetic_dataset, variant_config
from benchmarks.timing import captured, interleaved, tell
from npmatch.algorithms import NPMatch
from npmatch.backbones import BackboneConfig, make_backbone
from npmatch.cli.shared import DeviceOption, JsonOption, check_device
from npmatch.distributed.devices import choose_device
from npmatch.heads import LinearHead, MCDropout, MCDropoutModel, Model
from npmatch.objectives.losses import entropy
from npmatch.types import Prediction, Predictor, Task

BATCH, CLASSES, DROPOUT = 16, 10, 0.3
LABELED, TRUSTED = 250, 2560  # images in the context of the kernel process: those of a run of cifar10-250
SAMPLES = (1, 2, 5, 10, 20, 50, 100)
NAMES = {
    "plain": "plain forward",
    "npmatch": "NP-Match",
    "kernel": "kernel process",
    "passes": "MC dropout, T passes",
    "batch": "MC dropout, one batch of 16·T",
}
COLUMNS = [
    Column("network", "network"),
    Column("way", "way"),
    Column("samples", "T"),
    *(Column(f"{key}_ms", f"{name}, ms", "{:.3f}") for key, name in NAMES.items()),
    Column("over_plain", "NP-Match / plain", "{:.2f}"),
    Column("over_paper", "kernel process / NP-Match", "{:.2f}"),
]


class Precision(StrEnum):
    """Floating-point format of the networks' arithmetic."""

    float32 = "float32"
    bfloat16 = "bfloat16"


def bench_uncertainty(
    device: str | None = None,
    precision: str = "float32",
    steps: bool = True,
    rounds: int = 5,
    networks: tuple[str, ...] = (),
    samples: tuple[int, ...] = (),
) -> BenchmarkResult:
    """Times predictions in `precision`; with `steps`, also the training step of UPS against NP-Match's."""
    chosen = choose_device(device)
    on_cuda = chosen.type == "cuda"
    networks = networks or (("wrn-28-2", "wrn-28-8") if on_cuda else ("wrn-28-2",))
    samples = samples or (SAMPLES if on_cuda else SAMPLES[:5])
    rows: list[dict[str, Any]] = []
    for network in networks:
        rows += time_predictions(network, samples, chosen, precision, rounds)
    ratios = {}
    for row in rows:
        if row["samples"] == 10:
            name = f"{row['network']}, T = 10, {row['way']}"
            ratios[f"{name}: NP-Match / plain forward"] = row["over_plain"]
            ratios[f"{name}: kernel process / NP-Match"] = row["over_paper"]
            for key in ("passes", "batch"):
                ratios[f"{name}: {NAMES[key]} / NP-Match"] = row[f"{key}_ms"] / row["npmatch_ms"]
    if steps:
        ratios |= time_training(chosen)
    notes = [
        f"MC dropout: rate {DROPOUT} in every block and before the classifier. T passes use masks drawn beforehand, as "
        "prediction does; the one batch draws its masks.",
        "NP-Match: the head of a saved model, whose banks hold their mean alone. The context of the kernel process is "
        f"{LABELED:,} labelled and {TRUSTED:,} trusted images.",
    ]
    if not on_cuda:
        notes.append("On the CPU: one network, T up to 20, nothing captured; the training steps are of digits-40.")
    about = f"A prediction with uncertainty: batch {BATCH} of 3×32×32 pixels, {precision}"
    return BenchmarkResult("uncertainty", about, COLUMNS, rows, ratios, notes, str(chosen))


def time_predictions(
    network: str, samples: tuple[int, ...], device: torch.device, precision: str, rounds: int
) -> list[dict[str, Any]]:
    """A row for every T: eager and, on a GPU, captured as well."""
    on_cuda = device.type == "cuda"
    x = torch.randn(BATCH, 3, 32, 32, device=device)
    if on_cuda:
        x = x.contiguous(memory_format=torch.channels_last)
    rows = []
    with torch.no_grad():
        for count in samples:
            runs = {key: _call(predict, x) for key, predict in predictors(network, count, device, precision).items()}
            for way in ("eager", "captured") if on_cuda else ("eager",):
                if way == "captured":
                    runs = {key: captured(run) for key, run in runs.items()}
                seconds = interleaved(runs, str(device), rounds, burst=0.1)
                row: dict[str, Any] = {"network": network, "way": way, "samples": count}
                row |= {f"{key}_ms": 1000 * value for key, value in seconds.items()}
                row["over_plain"] = seconds["npmatch"] / seconds["plain"]
                row["over_paper"] = seconds["kernel"] / seconds["npmatch"]
                times = ", ".join(f"{NAMES[key]} {1000 * value:.3f} ms" for key, value in seconds.items())
                tell(f"{network}, T = {count}, {way}: {times}")
                rows.append(row)
            del runs
    return rows


def predictors(network: str, samples: int, device: torch.device, precision: str) -> dict[str, Predictor]:
    """The ways to predict, with networks of one architecture."""
    task = Task(tuple(map(str, range(CLASSES))), num_labeled=LABELED, num_unlabeled=0)

    def backbone() -> nn.Module:
        return make_backbone(BackboneConfig(network), 3)

    def ready(model: Model) -> Model:
        model.autocast = torch.bfloat16 if precision == "bfloat16" else None
        model = model.to(device).eval()
        model.freeze()  # as a loaded classifier is
        return model.to(memory_format=torch.channels_last) if device.type == "cuda" else model  # type: ignore[call-overload, no-any-return]

    plain = backbone()
    kernel = NPMatch.make_model(backbone(), task, NPMatch.Config(process="kernel", samples=samples, bank=TRUSTED))
    kernel.head.set_context(*context(int(plain.num_features)))  # type: ignore[arg-type, operator]
    dropout = ready(MCDropoutModel(backbone(), CLASSES, DROPOUT, samples))
    fresh = ready(MCDropoutModel(backbone(), CLASSES, DROPOUT, samples))
    for module in fresh.modules():
        if isinstance(module, MCDropout):
            module.train()  # a mask of its own for every copy of an image
    return {
        "plain": ready(Model(plain, LinearHead(int(plain.num_features), CLASSES))),  # type: ignore[arg-type]
        "npmatch": ready(NPMatch.make_model(backbone(), task, NPMatch.Config(samples=samples, bank=1))),
        "kernel": ready(kernel),
        "passes": dropout,
        "batch": lambda x: predict_copies(fresh, x, samples),
    }


def context(num_features: int) -> tuple[Tensor, Tensor, Tensor]:
    """Made-up images for the kernel process: features N F, labels N, and which are trusted N."""
    points = torch.arange(LABELED + TRUSTED)
    return torch.randn(len(points), num_features).relu(), points % CLASSES, points >= LABELED


def predict_copies(model: Model, x: Tensor, samples: int) -> Prediction:
    """MC dropout in one pass over T copies of the batch."""
    logits: Tensor = model.head(model.features(x.repeat(samples, 1, 1, 1)))
    sampled = logits.view(samples, len(x), -1).softmax(-1)
    probs = sampled.mean(0)
    u = entropy(probs)
    return Prediction(probs, u, (u - entropy(sampled).mean(0)).clamp(min=0))


def time_training(device: torch.device) -> dict[str, float]:
    """Ratio of the training step of UPS, whose labels come from T passes of MC dropout, to NP-Match's."""
    recipe = "cifar10-250" if device.type == "cuda" else "digits-40"
    configs = {name: variant_config(recipe, name, {}, {"training.iterations": 2**20}) for name in ("npmatch", "ups")}
    dataset = synthetic_dataset(configs["npmatch"])
    steps = {name: partial(make_train_step, config, dataset, device) for name, config in configs.items()}
    seconds, *_ = time_steps(steps, device)
    return {f"training step ({recipe}, T = 10): UPS / NP-Match": seconds["ups"] / seconds["npmatch"]}


def plot_uncertainty(result: BenchmarkResult, path: Path) -> None:
    """Milliseconds against T, both logarithmic, a panel for each network and way."""
    panels: dict[str, list[Curve]] = {}
    for network, way in dict.fromkeys((row["network"], row["way"]) for row in result.rows):
        mine = [row for row in result.rows if (row["network"], row["way"]) == (network, way)]
        samples = [row["samples"] for row in mine]
        panels[f"{network}, {way}"] = [
            Curve(name, samples, [row[f"{key}_ms"] for row in mine]) for key, name in NAMES.items()
        ]
    draw_curves(path, panels, "samples T", "milliseconds")


def _call(predict: Predictor, x: Tensor) -> Callable[[], object]:
    return lambda: predict(x)


def main(
    precision: Annotated[
        Precision, typer.Option("--precision", help="Precision of the networks; npmatch predict uses float32.")
    ] = Precision.float32,
    steps: Annotated[
        bool, typer.Option("--steps/--no-steps", help="Time the training steps of UPS and NP-Match as well.")
    ] = True,
    rounds: RoundsOption = 5,
    device: DeviceOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Prediction with uncertainty: NP-Match against MC dropout.

    The number of samples T goes from 1 to 100, on a CPU to 20.
    """
    result = bench_uncertainty(check_device(device), precision.value, steps, rounds)
    if plot:
        plot_uncertainty(result, plot)
    show(result, as_json)


if __name__ == "__main__":
    sys.exit(run(main))
