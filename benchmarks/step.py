"""Time of a whole training step, compared with the same computation in plain PyTorch and with FixMatch's step.

Each variant is a trainer as in any run, on random images: views drawn on the device, forward, backward, clipping,
optimiser, averaged weights, banks, curriculum and log. They take turns, so their ratios are of one run.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer

from benchmarks.command_line import PlotOption, RecipeArgument, RoundsOption, run, show
from benchmarks.flops import step_flops
from benchmarks.plot import draw_bars
from benchmarks.result import BenchmarkResult, Column
from benchmarks.synthetic import TrainStep, make_train_step, synthetic_dataset, variant_config
from benchmarks.timing import finish, interleaved, seconds_per_call, tell
from npmatch.cli.shared import DeviceOption, JsonOption, check_device, recipe_and_settings
from npmatch.config.resolve import resolve_config
from npmatch.config.tree import Config, parse_overrides
from npmatch.distributed.devices import choose_device
from npmatch.training import Recorder

EAGER = {"training.graph": False, "training.compile": False, "training.fused": False}
COLUMNS = [
    Column("variant", "step"),
    Column("milliseconds", "ms", "{:.2f}"),
    Column("images_per_second", "images/s", "{:,.0f}"),
    Column("floor_share", "share of the arithmetic floor", "{:.1%}"),
    Column("peak_gib", "peak memory, GiB", "{:.2f}"),
    Column("reserved_gib", "reserved, GiB", "{:.2f}"),
    Column("ready_seconds", "ready after, s", "{:.0f}"),
]


@dataclass(frozen=True)
class Variant:
    """One way to compute the step."""

    name: str
    config: Config
    tf32: bool = True  # in convolutions of an eager step


def bench_step(
    recipe: str | None = None,
    overrides: Iterable[str] = (),
    device: str | None = None,
    peak_tflops: float = 800.0,
    rounds: int = 7,
) -> BenchmarkResult:
    """Times all variants; `peak_tflops` is the peak of the device in the precision of our step."""
    chosen = choose_device(device)
    on_cuda = chosen.type == "cuda"
    recipe = recipe or ("cifar10-250" if on_cuda else "digits-40")
    variants = step_variants(recipe, list(overrides), on_cuda)
    config = variants[0].config
    dataset = synthetic_dataset(config)
    builds = {v.name: partial(make_train_step, v.config, dataset, chosen, v.tf32) for v in variants}
    seconds, rows, runs = time_steps(builds, chosen, rounds)
    ours, *others = (variant.name for variant in variants)
    t, unlabeled = config.training, runs[ours].images - config.training.batch
    flops = step_flops(config, dataset.train.images.shape, unlabeled)
    if on_cuda and flops is not None:
        for row in rows:
            row["floor_share"] = flops / (peak_tflops * 1e12) / (row["milliseconds"] / 1000)
    ratios = {f"{name} / {ours}": seconds[name] / seconds[ours] for name in others if name != "fixmatch"}
    if "fixmatch" in seconds:
        ratios[f"{ours} / fixmatch"] = seconds[ours] / seconds["fixmatch"]
    line = seconds_per_log_line(runs[ours], chosen)
    share = line / (t.log_every * seconds[ours])
    return BenchmarkResult(
        name="step",
        about=f"One training step: {recipe}, {config.backbone.name}, {t.batch} + {unlabeled} random images "
        f"{'×'.join(map(str, dataset.train.images.shape))}{_weak_views(config)}",
        columns=COLUMNS,
        rows=rows,
        ratios=ratios,
        notes=[
            *_notes(flops, peak_tflops, on_cuda),
            *_unequal_batches(ours, {name: runs[name].images for name in (ours, "fixmatch") if name in runs}),
            f"A line of the log takes {1000 * line:.2f} ms in which the device waits: {share:.2%} of the {t.log_every} "
            "steps it is about.",
            *([] if on_cuda else [ON_CPU]),
        ],
        device=str(chosen),
    )


ON_CPU = (
    "On the CPU a step is neither compiled nor captured, so ours is plain eager float32; without a RECIPE the small "
    "network of digits-40 stands for the paper's. Compare with the rest on a GPU."
)


def step_variants(recipe: str, words: list[str], on_cuda: bool) -> list[Variant]:
    """Our step first, then FixMatch computed the same way, then ours in plain eager PyTorch."""
    given = parse_overrides(words)
    name = resolve_config(recipe, overrides=given).name  # raises where a word is unknown to this algorithm

    def variant(label: str, algorithm: str, settings: dict[str, Any], tf32: bool = True) -> Variant:
        endless = {**settings, "training.iterations": 2**20}
        return Variant(label, variant_config(recipe, algorithm, given, endless), tf32)

    variants = [variant(name, name, {})]
    if name != "fixmatch":
        variants.append(variant("fixmatch", "fixmatch", {}))
    variants.append(variant(f"{name}, eager bfloat16", name, {**EAGER, "training.precision": "bfloat16"}))
    if on_cuda:
        plain = {**EAGER, "training.precision": "float32", "training.channels_last": False}
        variants.append(variant(f"{name}, eager float32, convolutions in TF32", name, plain))
        variants.append(variant(f"{name}, eager float32", name, plain, tf32=False))
    return variants


def time_steps(
    variants: Mapping[str, Callable[[], TrainStep]], device: torch.device, rounds: int = 7
) -> tuple[dict[str, float], list[dict[str, Any]], dict[str, TrainStep]]:
    """Seconds of each variant's step, a row of the table for each, and the steps themselves."""
    runs: dict[str, TrainStep] = {}
    rows = []
    for name, build in variants.items():
        runs[name], row = _prepare(name, build, device)
        rows.append(row)
    seconds = interleaved(runs, str(device), rounds)
    for row in rows:
        name = row["variant"]
        row["milliseconds"] = 1000 * seconds[name]
        row["images_per_second"] = runs[name].images / seconds[name]
        tell(f"{name}: {row['milliseconds']:.2f} ms a step, {row['images_per_second']:,.0f} images/s")
    return seconds, rows, runs


def _prepare(name: str, build: Callable[[], TrainStep], device: torch.device) -> tuple[TrainStep, dict[str, Any]]:
    """The variant after its first steps, in which it is compiled and captured, and the memory that these took."""
    started = time.perf_counter()
    on_cuda = device.type == "cuda"
    before = reserved = 0
    if on_cuda:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    train_step = build()
    train_step()
    ready = time.perf_counter() - started
    seconds = seconds_per_call(train_step, str(device), repeats=3, calls=3)
    row: dict[str, Any] = {"variant": name, "ready_seconds": ready}
    if on_cuda:
        row["peak_gib"] = (torch.cuda.max_memory_allocated(device) - before) / 2**30
        row["reserved_gib"] = (torch.cuda.memory_reserved(device) - reserved) / 2**30
    memory = f", {row['peak_gib']:.2f} GiB" if on_cuda else ""
    tell(f"{name}: ready after {ready:.0f} s, about {1000 * seconds:.2f} ms a step{memory}")
    return train_step, row


def seconds_per_log_line(train_step: TrainStep, device: torch.device, lines: int = 20) -> float:
    """Time to read the meter and write a line of the log after a step, in which the device has no work."""
    taken = []
    with TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder, "metrics.jsonl"), Path(folder, "tensorboard"))
        for number in range(lines):
            train_step()
            finish(str(device))
            started = time.perf_counter()
            recorder.write("train", number, train_step.trainer.read_meter(1.0, train_step.images))
            taken.append(time.perf_counter() - started)
        recorder.close()
    return median(taken)


def _weak_views(config: Config) -> str:
    weak_norm = getattr(config.algorithm, "weak_norm", None)
    return "" if weak_norm is None else f", weak views {weak_norm}"


def _unequal_batches(ours: str, images: Mapping[str, int]) -> list[str]:
    return [
        f"{name}'s step has {count} images and {ours}'s {images[ours]}: their ratio is of steps, not of images."
        for name, count in images.items()
        if count != images[ours]
    ]


def _notes(flops: int | None, peak_tflops: float, on_cuda: bool) -> list[str]:
    notes = []
    if flops is not None:
        at_peak = f", {flops / peak_tflops / 1e9:.2f} ms at {peak_tflops:g} TFLOP/s (--peak-tflops): the floor"
        notes.append(f"The backbone's arithmetic is {flops / 1e9:,.1f} GFLOP a step{at_peak if on_cuda else ''}.")
    if on_cuda:
        notes += [
            "Eager variants run with torch's settings as they are by default, which let float32 convolutions round to "
            "TF32; the last one does not. bfloat16 is channels-last, float32 is not.",
            "Peak memory is what tensors took at most, resident images included; reserved is what the process held.",
        ]
    return notes


def main(
    words: RecipeArgument = None,
    peak_tflops: Annotated[
        float,
        typer.Option("--peak-tflops", min=1e-3, help="Peak of the device; 800 is about that of an H200 in bfloat16."),
    ] = 800.0,
    rounds: RoundsOption = 7,
    device: DeviceOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Training step against plain PyTorch and against FixMatch's.

    On a GPU it also shows the share of the arithmetic's least time, and the memory.
    """
    recipe, settings = recipe_and_settings(words or [])
    result = bench_step(recipe, settings, check_device(device), peak_tflops, rounds)
    if plot:
        draw_bars(plot, {row["variant"]: row["milliseconds"] for row in result.rows}, "milliseconds a step")
    show(result, as_json)


if __name__ == "__main__":
    sys.exit(run(main))
