"""Active learning on digits: what a label is worth when the model chooses the image, and when chance does.

A round asks for labels, gets the true ones, and trains on from the weights of the round before, as
`npmatch suggest`, `label` and `train --resume-from` do. All strategies of a seed start from the same first model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from benchmarks.command_line import PlotOption, run, show
from benchmarks.plot import Curve, draw_curves
from benchmarks.result import BenchmarkResult, Column
from npmatch.cli.shared import DeviceOption, JsonOption, check_device
from npmatch.config.recipes import recipe_layer
from npmatch.config.tree import Config, make_config
from npmatch.data import Dataset, Split, load_configured, make_split
from npmatch.data.images import SelectedImages
from npmatch.data.split import with_more_labels
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.labelling.suggest import suggest
from npmatch.predict.classifier import Classifier
from npmatch.runs.build import build
from npmatch.runs.resume_from import SHORTER, load_state
from npmatch.training import Display
from npmatch.training.display import counting

NAMES = {"random": "random", "uncertainty": "uncertainty", "diverse": "uncertainty + diversity"}


@dataclass(frozen=True)
class Round:
    """A trained model of one round: its split, its weights and its test error."""

    split: Split
    state: dict[str, Tensor]
    classifier: Classifier
    error: float  # %, on the test images


def bench_labelling(
    seeds: int = 5,
    start: int = 10,
    stop: int = 60,
    step: int = 10,
    iterations: int = 150,
    device: str | None = None,
) -> BenchmarkResult:
    """Measures the error after every round for every strategy and seed, and the area under that curve."""
    counts = list(range(start, stop + 1, step))
    if len(counts) < 2:
        raise NPMatchError(f"--from {start} --to {stop} --step {step}: makes no second round; raise --to")
    chosen, trainings = choose_device(device), seeds * (1 + len(NAMES) * (len(counts) - 1))
    rows: list[dict[str, Any]] = []
    fork_rng = torch.random.fork_rng(devices=range(torch.cuda.device_count()))
    with fork_rng, counting("rounds", trainings) as advance:
        for seed in range(seeds):
            config = digits_config(seed, iterations)
            dataset = load_configured(config.data)
            first = train_first(config, dataset, make_split(dataset, start, seed), chosen)
            advance(1)
            for strategy in NAMES:
                errors = [first.error]
                for later in rounds(config, dataset, first, strategy, step, len(counts) - 1, chosen):
                    errors.append(later.error)
                    advance(1)
                rows.append(make_row(strategy, str(seed), counts, errors))
    means = [mean_row(strategy, rows, counts) for strategy in NAMES]
    areas = {row["strategy"]: row["area"] for row in means}
    return BenchmarkResult(
        name="labelling",
        about=f"error (%) on 360 digits against labels; {iterations} iterations a round, {seeds} seeds",
        columns=[
            Column("strategy", "labels chosen by"),
            Column("seed", "seed"),
            *(Column(f"error_{count}", str(count), "{:.2f}") for count in counts),
            Column("area", "area", "{:.2f}"),
        ],
        rows=rows + means,
        ratios={f"area: {NAMES[s]} / random": areas[NAMES[s]] / areas["random"] for s in NAMES if s != "random"},
        notes=["area: the mean height of the error curve, %; all strategies of a seed share the first model"],
        device=str(chosen),
    )


def digits_config(seed: int, iterations: int) -> Config:
    """NP-Match on digits, trained for `iterations` a round and evaluated at its end alone."""
    words = {"seed": seed, "training.iterations": iterations, "training.log_every": iterations}
    return make_config(recipe_layer("digits-40", "npmatch"), {**words, "training.eval_every": SHORTER * iterations + 1})


def train_first(config: Config, dataset: Dataset, split: Split, device: torch.device) -> Round:
    """The model that all strategies of a seed start from; a first run trains longer than a later round."""
    longer = replace(config.training, iterations=SHORTER * config.training.iterations)
    return train_round(replace(config, training=longer), dataset, split, device, None)


def rounds(
    config: Config, dataset: Dataset, first: Round, strategy: str, step: int, count: int, device: torch.device
) -> Iterator[Round]:
    """`count` rounds of asking for `step` labels and training on."""
    current = first
    for _ in range(count):
        asked = ask(current, dataset, strategy, step, config.seed)
        split = with_more_labels(current.split, dataset, asked)
        current = train_round(config, dataset, split, device, current.state)
        yield current


def ask(current: Round, dataset: Dataset, strategy: str, count: int, seed: int) -> Tensor:
    """Which unlabelled images a strategy wants labelled, as positions in the training set."""
    left = torch.ones(len(dataset.train), dtype=torch.bool)
    left[current.split.labeled] = False
    index = left.nonzero().flatten()
    names = [str(position) for position in index.tolist()]
    images = SelectedImages(dataset.train.images, index)
    found = suggest(current.classifier, names, images, count, strategy, seed=seed, batch_size=512)
    return index[[suggestion.position for suggestion in found]]


def train_round(
    config: Config, dataset: Dataset, split: Split, device: torch.device, state: dict[str, Tensor] | None
) -> Round:
    """Trains from `state`, or from nothing, and measures the averaged model."""
    trainer, evaluator = build(config, dataset, split, device, Display("", 0, quiet=True))
    if state is not None:
        load_state(trainer.algorithm, state, origin="the round before")
        trainer.update.ema.load_state_dict(trainer.update.ema.live)
    trainer.run()
    error = evaluator()["error"]
    with evaluator.averaged():
        state = {name: t.clone() for name, t in trainer.algorithm.state_dict().items()}
        model = deepcopy(trainer.algorithm.model)
    return Round(split, state, Classifier(model, evaluator.spec, device), error)


def make_row(strategy: str, seed: str, counts: list[int], errors: list[float]) -> dict[str, Any]:
    """A curve and the area under it, as its mean height."""
    row = {f"error_{count}": error for count, error in zip(counts, errors, strict=True)}
    area = mean((before + after) / 2 for before, after in pairwise(errors))
    return {"strategy": NAMES[strategy], "seed": seed, **row, "area": area}


def mean_row(strategy: str, rows: list[dict[str, Any]], counts: list[int]) -> dict[str, Any]:
    """The mean curve over the seeds."""
    mine = [row for row in rows if row["strategy"] == NAMES[strategy]]
    return make_row(strategy, "mean", counts, [mean(row[f"error_{count}"] for row in mine) for count in counts])


def plot_labelling(result: BenchmarkResult, path: Path) -> None:
    """The mean error against labels, a curve for each strategy."""
    counts = [int(column.key.removeprefix("error_")) for column in result.columns if column.key.startswith("error_")]
    curves = [
        Curve(row["strategy"], counts, [row[f"error_{count}"] for count in counts])
        for row in result.rows
        if row["seed"] == "mean"
    ]
    draw_curves(path, {result.about: curves}, "labels", "error, %", scale="linear")


def main(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds, which count up from 0.")] = 5,
    start: Annotated[
        int, typer.Option("--from", min=10, help="Number of labels in the first round, equally many of each digit.")
    ] = 10,
    stop: Annotated[int, typer.Option("--to", help="Number of labels in the last round.")] = 60,
    step: Annotated[int, typer.Option("--step", min=1, help="Number of labels added in a round.")] = 10,
    iterations: Annotated[
        int, typer.Option("--iterations", min=1, help="Training steps of a round; the first has three times as many.")
    ] = 150,
    device: DeviceOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Active learning on digits: error against number of labels.

    Labels are chosen at random, by uncertainty, and by uncertainty and diversity.
    """
    result = bench_labelling(seeds, start, stop, step, iterations, check_device(device))
    if plot:
        plot_labelling(result, plot)
    show(result, as_json)


if __name__ == "__main__":
    sys.exit(run(main))
