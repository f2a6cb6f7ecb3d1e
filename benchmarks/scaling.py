"""Data-parallel scaling: images per second on one and on several ranks of this machine, and their communication.

Each number of ranks is a torchrun of its own, which trains as in any run, on random images (scaling_worker.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.command_line import RecipeArgument, run, show
from benchmarks.result import BenchmarkResult, Column
from benchmarks.timing import tell
from npmatch.cli.shared import DeviceOption, JsonOption, check_device, recipe_and_settings
from npmatch.config.resolve import resolve_config
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.runs.build import refuse_unequal_shares

TOLD = "npmatch: "  # the start of a line that says what is wrong
ON_CPU = "Ranks on one CPU share its memory and caches; this says nothing of GPUs or of a network."
COLUMNS = [
    Column("ranks", "ranks"),
    Column("milliseconds", "ms a step", "{:.1f}"),
    Column("images_per_second", "images/s", "{:,.0f}"),
    Column("speedup", "against the first", "{:.2f}"),
    Column("communication_share", "share of time in communication", "{:.0%}"),
    Column("collectives", "collectives a step", "{:.0f}"),
    Column("megabytes", "MB a step and rank", "{:.2f}"),
]


def bench_scaling(
    recipe: str | None = None,
    overrides: Iterable[str] = (),
    ranks: Sequence[int] = (1, 2),
    steps: int = 30,
    device: str | None = None,
) -> BenchmarkResult:
    """Times the same global batch on each number of ranks; one rank is one process without a group."""
    if len(ranks) < 2:
        raise NPMatchError(f"--ranks {','.join(map(str, ranks))}: give two numbers or more to compare, such as 1,2")
    recipe, words = recipe or "digits-40", list(overrides)
    config = resolve_config(recipe, overrides=words)
    for count in ranks:  # before minutes are spent on the first of them
        refuse_unequal_shares(config.training.batch, count)
    chosen = choose_device(device)
    rows = []
    for count in ranks:
        rows.append(_measure(count, [recipe, *words], steps, chosen.type))
        tell(f"{count} rank(s): {rows[-1]['images_per_second']:,.0f} images/s")
    first = rows[0]
    for row in rows:
        row["speedup"] = first["milliseconds"] / row["milliseconds"]
    cores = len(os.sched_getaffinity(0))
    return BenchmarkResult(
        name="scaling",
        about=f"{steps} steps of {recipe}, {config.name}, {config.backbone.name}: {first['images']} random images "
        f"each, one thread a rank, {cores} core(s)",
        columns=COLUMNS,
        rows=rows,
        ratios={f"images/s of {row['ranks']} / of {first['ranks']} ranks": row["speedup"] for row in rows[1:]},
        notes=[
            "Communication is the time inside collectives, and so the wait for the slower rank as well.",
            "Bytes are what a rank hands in; a ring all-reduce sends each of them 2(W − 1)/W times.",
            *([] if chosen.type == "cuda" else [ON_CPU]),
        ],
        device=str(chosen),
    )


def _measure(count: int, words: list[str], steps: int, device: str) -> dict[str, Any]:
    """The row of the table for one number of ranks, timed in processes of their own."""
    with TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        python = [sys.executable, "-m"]
        if count > 1:
            python += ["torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "-m"]
        command = [*python, "benchmarks.scaling_worker", str(result), str(steps), device, *words]
        done = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
        if done.returncode or not result.exists():
            lines = done.stderr.splitlines()
            told = [line.removeprefix(TOLD) for line in lines if line.startswith(TOLD)]
            raise NPMatchError(f"{count} rank(s) did not run: {' '.join((told or lines[-1:])[:1])}")
        row: dict[str, Any] = json.loads(result.read_text())
        return row


def main(
    words: RecipeArgument = None,
    ranks: Annotated[
        str, typer.Option("--ranks", help="Numbers of ranks; the others are compared with the first.")
    ] = "1,2",
    steps: Annotated[int, typer.Option("--steps", min=1, help="Training steps timed for each number of ranks.")] = 30,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Images per second on several ranks of this machine.

    It also shows the share of time in communication.
    """
    counts = [int(word) for word in ranks.split(",") if word.isdecimal() and int(word)]
    if len(counts) != len(ranks.split(",")):
        raise NPMatchError(f"--ranks {ranks}: give numbers such as 1,2")
    recipe, settings = recipe_and_settings(words or [])
    show(bench_scaling(recipe, settings, counts, steps, check_device(device)), as_json)


if __name__ == "__main__":
    sys.exit(run(main))
