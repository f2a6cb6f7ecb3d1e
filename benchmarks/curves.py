"""How methods learn: the error on the way, and whether classes merge or exchange their names.

With few labels, two things go wrong: two classes become one, or the clusters are found but have each other's names. The
error under the best names, which counts every cluster for the class that suits it best, one to one, is lower in the
second case only. All is judged by unlabelled training images, whose labels were hidden, so that settings may be tuned
by it. Nothing is written to disk.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from benchmarks.command_line import OutputOption, named_recipe, run, show
from benchmarks.process_scores import MOST_UNLABELED, hidden_images, seconds_per_step
from benchmarks.processes import ALL_PROCESSES, parse_processes, parse_seeds
from benchmarks.result import BenchmarkResult, Column
from benchmarks.synthetic import torch_defaults
from benchmarks.timing import tell
from npmatch.cli.shared import DataOption, DeviceOption, JsonOption, WordsArgument, check_device
from npmatch.compare.plan import Plan, settings_as_text
from npmatch.config.tree import Config
from npmatch.data.labels import load_configured
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.metrics import confusion, scores
from npmatch.runs.build import build
from npmatch.runs.fit import check_and_split
from npmatch.runs.folder import RunFolder
from npmatch.runs.memory import clear_memory
from npmatch.training import Display, Unrecorded
from npmatch.training.log import last_record
from npmatch.training.nonfinite import NotFiniteError
from npmatch.types import Prediction

NO_RUN = RunFolder("no-such-run")  # what is trained here has no folder
ON_THE_WAY, AT_THE_END = "Error in % after so many steps", "After the last step"


class Remembered(Unrecorded):
    """A log in memory."""

    def __init__(self) -> None:
        """Starts empty."""
        super().__init__()
        self.records: list[dict[str, Any]] = []

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Keeps a line."""
        self.records.append({"kind": kind, "step": step, **values})


def bench_curves(
    recipe: str,
    methods: str = ALL_PROCESSES,
    *,
    seeds: Sequence[int] = (10,),
    iterations: int = 10_000,
    points: int = 4,
    settings: Sequence[str] = (),
    data: Path | None = None,
    device: str | None = None,
) -> BenchmarkResult:
    """Trains every method with every seed, and judges it at no more than `points` evenly spaced steps."""
    every = math.ceil(iterations / points)
    shared = {} if data is None else {"data.root": str(data)}
    shared |= {**settings_as_text(settings), "training.eval_every": str(every)}
    rivals = parse_processes(methods)
    if ensembles := [rival.label for rival in rivals if rival.members > 1]:
        raise NPMatchError(f"--methods {ensembles[0]}: an ensemble has no curve of its own; name its method")
    plan = Plan(recipe, tuple(rival.variant for rival in rivals), tuple(seeds), shared, budget_iterations=iterations)
    plan.check()
    chosen = choose_device(device)
    rows, runs, diverged = [], [], []
    for seed in plan.seeds:
        for rival in rivals:
            clear_memory(chosen)
            try:
                with torch_defaults():
                    found, step_ms = curve(plan.config(rival.variant, seed), chosen)
            except NotFiniteError as error:  # the others go on
                tell(f"{rival.label}, seed {seed}: {error}")
                diverged.append(f"{rival.label}, seed {seed}")
                continue
            last = found[-1]
            errors = {f"error/{point['step']}": point["error"] for point in found}
            recall = " ".join(f"{value:.0f}" for value in last["recall"])
            rows.append({"method": rival.label, "seed": seed, **last, **errors, "recall": recall, "step_ms": step_ms})
            runs += [{"method": rival.label, "seed": seed, **point} for point in found]
            tell(f"{rival.label}, seed {seed}: " + ", ".join(f"{point['error']:.1f}" for point in found) + " %")
    if not rows:
        raise NPMatchError("no training has finished, because all diverged; lower training.learning_rate")
    steps = dict.fromkeys(key for row in rows for key in row if key.startswith("error/"))
    return BenchmarkResult(
        name="curves",
        about=f"{recipe}, judged by at most {MOST_UNLABELED:,} unlabelled training images",
        columns=[
            Column("method", "method"),
            Column("seed", "seed"),
            *(Column(key, f"at {int(key.removeprefix('error/')):,}", "{:.1f}", ON_THE_WAY) for key in steps),
            Column("best_names", "error under the best names, %", "{:.1f}", AT_THE_END),
            Column("ece", "ECE, %", "{:.1f}", AT_THE_END),
            Column("recall", "recall of each class, %", table=AT_THE_END),
            Column("trusted", "trusted, %", "{:.0f}", AT_THE_END),
            Column("right", "right, %", "{:.0f}", AT_THE_END),
            Column("step_ms", "a step, ms", "{:.1f}", AT_THE_END),
        ],
        rows=rows,
        notes=[
            "Trusted, and right of these: of the pseudo-labels since the last but one line of the log.",
            *(f"Diverged, and left out: {name}." for name in diverged),
        ],
        device=str(chosen),
        runs=runs,
    )


def curve(config: Config, device: torch.device) -> tuple[list[dict[str, Any]], float]:
    """What a training has reached at every evaluation and at its end; and milliseconds of a step."""
    display = Display("", config.training.iterations, quiet=True)
    dataset = load_configured(config.data)
    split, _ = check_and_split(dataset, config, NO_RUN, False, display)
    judged, _ = hidden_images(dataset, split)
    log, points = Remembered(), list[dict[str, Any]]()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        trainer, evaluator = build(config, dataset, split, device, display)
        judge = replace(evaluator, held_out=judged)

        def look() -> dict[str, float]:
            prediction = judge.predict()
            assert prediction is not None
            points.append({"step": trainer.step, **reached(prediction, judged.labels), **pseudo_labels(log.records)})
            return {}

        trainer.evaluate, trainer.recorder = look, log
        trainer.run()
        look()  # the loop leaves the last evaluation to its caller
    return points, 1000 * seconds_per_step(log.records)


def reached(prediction: Prediction, y: Tensor) -> dict[str, Any]:
    """Errors and ECE, recall of each class, all in %, and the confusion matrix, of images with the labels y N."""
    found, table = scores(prediction, y), confusion(prediction, y)
    recall = 100 * table.diagonal() / table.sum(1)
    return {
        "error": found.error,
        "best_names": error_under_best_names(table),
        "ece": found.ece,
        "recall": recall.tolist(),
        "confusion": table.tolist(),
    }


def error_under_best_names(table: Tensor) -> float:
    """Error in % where every column of a confusion matrix K K counts for one class, chosen for the fewest errors."""
    rows, columns = linear_sum_assignment(table.numpy(), maximize=True)
    return 100 * (1 - float(table[rows, columns].sum()) / float(table.sum()))


def pseudo_labels(records: list[dict[str, Any]]) -> dict[str, float]:
    """Share of the pseudo-labels that the last line of a log says were trusted, and of these that were right, in %."""
    last = last_record(records, "train") or {}
    named = {"trusted": last.get("trusted"), "right": last.get("pseudo_accuracy")}
    return {name: 100 * share for name, share in named.items() if share is not None}


def main(
    words: WordsArgument,
    methods: Annotated[
        str, typer.Option("--methods", help="Processes and algorithms, such as flexmatch,kernel[scale=1000].")
    ] = ALL_PROCESSES,
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds, separated by commas.")] = "10",
    iterations: Annotated[int, typer.Option("--iterations", min=1, help="Number of training steps.")] = 10_000,
    points: Annotated[int, typer.Option("--points", min=1, help="Number of steps at which the error is measured.")] = 4,
    output: OutputOption = None,
    data: DataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learning curves, and classes that exchange their names.

    Judged by unlabelled training images, so that settings may be tuned by them.
    """
    recipe, settings = named_recipe(words)
    numbers = parse_seeds(seeds)
    result = bench_curves(
        recipe,
        methods,
        seeds=numbers,
        iterations=iterations,
        points=points,
        settings=settings,
        data=data,
        device=check_device(device),
    )
    for path in output or []:
        result.write(path)
    show(result, as_json)
    if len(result.rows) < len(numbers) * len(parse_processes(methods)):
        raise typer.Exit(1)


if __name__ == "__main__":
    sys.exit(run(main))
