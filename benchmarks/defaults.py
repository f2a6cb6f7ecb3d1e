"""The defaults for one's own images, one changed at a time: digits and Fashion-MNIST, judged by images not learnt from.

The error is that on the unlabelled training images, whose labels training never reads. No test image is looked at.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from torch import Tensor

from benchmarks.command_line import run, show
from benchmarks.result import BenchmarkResult, Column
from npmatch.backbones.weights import with_weights
from npmatch.cli.shared import DataOption, DeviceOption, JsonOption, check_device
from npmatch.config.choices import make_choices
from npmatch.config.facts import DataFacts
from npmatch.config.recipes import OWN_IMAGES
from npmatch.config.tree import make_config
from npmatch.data import ArrayImages, load_dataset, make_split
from npmatch.data.images import select_images
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.runs.build import build
from npmatch.training import Display, TrainingConfig
from npmatch.types import Dataset

NARROW = {"backbone.width": 32, "backbone.stem_stride": 1, "augment.operations": 1, "augment.cutout": 0.25}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "muon": {},
    "muon, half the angle": {"training.filter_angle": TrainingConfig.filter_angle / 2},
    "sgd": {"training.optimizer": "sgd"},
}


class Question(NamedTuple):
    """A default, and what it is compared with; a variant without settings is the default."""

    about: str
    data: str  # digits, or fashion and the side in pixels
    iterations: int
    variants: dict[str, dict[str, Any]]


QUESTIONS = [
    question
    for data, steps in (("digits", 1500), ("fashion-28", 2000))
    for question in (
        Question("max_entropy", data, steps, {"1.2 nats": {}, "0.4 nats": {"algorithm.max_entropy": 0.4}}),
        Question("clip", data, steps, {"1": {}, "none": {"training.clip": None}}),
        Question("average of short runs", data, 300, {"1/10": {}, "1/5": {"training.ema": 1 - 5 / 300}}),
        Question("optimizer", data, steps, OPTIMIZERS),
    )
] + [
    Question("at 16 pixels", "fashion-16", 2000, {"as larger images": {}, "as tiny images": NARROW}),
    Question("images of 28 pixels", "fashion-28", 2000, {"kept": {}}),
    Question("images of 28 pixels", "fashion-24", 2000, {"scaled to 24": {}}),
]
LABELS = {"digits": 40, "fashion": 100}


def bench_defaults(
    seeds: int = 5,
    first_seed: int = 10,
    share_of_steps: float = 1.0,
    data: Path | None = None,
    device: str | None = None,
    questions: list[Question] = QUESTIONS,
) -> BenchmarkResult:
    """Trains every variant of every question with every seed."""
    chosen = choose_device(device)
    rows, trained = [], dict[tuple[object, ...], list[dict[str, float]]]()  # a default is compared more than once
    for question in questions:
        dataset = load(question.data, data)
        steps = max(10, round(share_of_steps * question.iterations))
        labels = LABELS[question.data.partition("-")[0]]
        for variant, settings in question.variants.items():
            key = (question.data, steps, *settings.items())
            if key not in trained:
                trained[key] = [train(dataset, labels, first_seed + n, steps, settings, chosen) for n in range(seeds)]
            scores = trained[key]
            errors = [score["error"] for score in scores]
            rows.append(
                {
                    "question": question.about,
                    "data": f"{question.data}, {labels} labels, {steps} steps",
                    "value": variant,
                    "error": mean(errors),
                    "spread": stdev(errors) if seeds > 1 else None,
                    "ece": mean(score["ece"] for score in scores),
                }
            )
            Console(stderr=True).print(f"{question.about}, {question.data}: {variant}: {rows[-1]['error']:.2f} %")
    return BenchmarkResult(
        name="defaults",
        about=f"NP-Match with the defaults of a CPU, seeds {first_seed} to {first_seed + seeds - 1}",
        columns=[
            Column("question", "default"),
            Column("data", "data"),
            Column("value", "value"),
            Column("error", "error on unlabelled images, %", "{:.2f}"),
            Column("spread", "±", "{:.2f}"),
            Column("ece", "ECE, %", "{:.2f}"),
        ],
        rows=rows,
        notes=["The first value of each default is the one that is taken."],
        device=str(chosen),
    )


def load(name: str, root: Path | None) -> Dataset:
    """digits, or fashion-SIDE: Fashion-MNIST scaled to that side."""
    if name == "digits":
        return load_dataset("digits")
    dataset, side = load_dataset("fashion-mnist", root), int(name.partition("-")[2])
    images = dataset.train.images
    assert isinstance(images, ArrayImages)
    if side == images.shape[-1]:
        return dataset
    train = replace(dataset.train, images=ArrayImages(scaled(images.pixels, side)))
    return replace(dataset, train=train, test=None)


def scaled(pixels: Tensor, side: int) -> Tensor:
    """Images N C H W as uint8, scaled to `side` pixels."""
    resized = F.interpolate(pixels.float(), (side, side), mode="bilinear", antialias=True)
    return resized.round().clamp(0, 255).byte()


def train(
    dataset: Dataset,
    labels: int,
    seed: int,
    iterations: int,
    settings: dict[str, Any],
    device: torch.device,
    on_cuda: bool = False,
) -> dict[str, float]:
    """Error and ECE, in %, on the images whose labels were not given; `on_cuda` chooses the defaults of a GPU."""
    k = len(dataset.class_names)
    channels, side, _ = dataset.train.images.shape
    facts = DataFacts(dataset.class_names, [labels // k] * k, len(dataset.train), side, False, channels == 1, False)
    given = {"training.iterations": iterations, "seed": seed, **settings}
    choices = {choice.key: choice.value for choice in make_choices(facts, given, on_cuda)}
    own = {"data.source": "arrays", "data.image_size": None, "training.eval_every": iterations + 1}
    config = make_config({**OWN_IMAGES, **own, **choices}, given)
    config = replace(config, backbone=with_weights(config.backbone))
    split = make_split(dataset, labels, seed)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        trainer, evaluator = build(config, dataset, split, device, Display("", iterations, quiet=True))
        trainer.run()
    unseen = split.unlabeled[~torch.isin(split.unlabeled, split.labeled)]
    judge = replace(evaluator, held_out=select_images(dataset.train, unseen))
    return judge()


def main(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds.")] = 5,
    first_seed: Annotated[int, typer.Option("--first-seed", help="First seed; the others count up from it.")] = 10,
    share_of_steps: Annotated[
        float, typer.Option("--share-of-steps", min=0.0, max=1.0, help="Share of each training's steps to take.")
    ] = 1.0,
    data: DataOption = None,
    only: Annotated[str, typer.Option("--only", help="A word of the questions to ask, as clip or digits.")] = "",
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Defaults for one's own images against other values.

    The error is measured on the unlabelled training images.
    """
    questions = [question for question in QUESTIONS if only in f"{question.about}, {question.data}"]
    if not questions:
        raise NPMatchError(f"--only {only}: there are only {', '.join(f'{q.about}, {q.data}' for q in QUESTIONS)}")
    show(bench_defaults(seeds, first_seed, share_of_steps, data, check_device(device), questions), as_json)


if __name__ == "__main__":
    sys.exit(run(main))
