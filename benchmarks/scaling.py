"""Images per second on one and on several ranks of this machine, and what they say to one another.

Every number of ranks is a torchrun of its own that trains as in any run, on random images. `python -m
benchmarks.scaling` is what torchrun starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.practice import practice_dataset, practise
from benchmarks.result import BenchResult, Column
from benchmarks.timing import finish, tell
from npmatch.config.resolve import resolve_config
from npmatch.distributed.collective import traffic
from npmatch.distributed.devices import choose_device
from npmatch.distributed.ranks import from_all, group, is_first, world
from npmatch.errors import NPMatchError, ToldElsewhereError
from npmatch.runs.build import refuse_unequal_shares

WARM_UP = 3  # steps
TOLD = "npmatch: "  # begins the line that says what is wrong
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
) -> BenchResult:
    """The same global batch on each number of ranks; one rank is one process without a group."""
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
    return BenchResult(
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
    """One number of ranks, in processes of their own."""
    with TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        python = [sys.executable, "-m"]
        if count > 1:
            python += ["torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "-m"]
        command = [*python, "benchmarks.scaling", str(result), str(steps), device, *words]
        done = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
        if done.returncode or not result.exists():
            lines = done.stderr.splitlines()
            told = [line.removeprefix(TOLD) for line in lines if line.startswith(TOLD)]
            raise NPMatchError(f"{count} rank(s) did not run: {' '.join((told or lines[-1:])[:1])}")
        row: dict[str, Any] = json.loads(result.read_text())
        return row


def measure_here(result: Path, steps: int, device: torch.device, words: list[str]) -> None:
    """What each process does; the first writes what it measured."""
    torch.set_num_threads(1)
    with group(device):
        config = resolve_config(words[0], overrides=words[1:])
        config = replace(config, training=replace(config.training, iterations=2**20))  # however many are measured
        practice = practise(config, practice_dataset(config), device)
        for _ in range(WARM_UP):
            practice()
        finish(str(device))
        traffic.clear()
        start = time.perf_counter()
        for _ in range(steps):
            practice()
        finish(str(device))
        seconds = (time.perf_counter() - start) / steps
        shares = from_all(traffic.seconds / steps / seconds)
        row = {
            "ranks": world(),
            "milliseconds": 1000 * seconds,
            "images": practice.images,
            "images_per_second": practice.images / seconds,
            "communication_share": sum(shares) / len(shares),
            "collectives": traffic.collectives / steps,
            "megabytes": traffic.sent / steps / 1e6,
        }
        if is_first():
            result.write_text(json.dumps(row))


if __name__ == "__main__":
    try:
        measure_here(Path(sys.argv[1]), int(sys.argv[2]), choose_device(sys.argv[3]), sys.argv[4:])
    except NPMatchError as error:
        sys.exit("" if isinstance(error, ToldElsewhereError) else f"{TOLD}{error}")
