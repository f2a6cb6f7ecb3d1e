"""What `npmatch train --minutes M` spends its time on: a whole command on a folder of small images, phase by phase.

The images are random spots in the colour of their class, or those of a folder that is given.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer
from PIL import Image

from benchmarks.command_line import run, show
from benchmarks.result import BenchmarkResult, Column
from npmatch.cli.shared import DeviceOption, JsonOption, check_device, recipe_and_settings
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError

CLASSES, LABELS = 10, 4  # classes, and labelled images of each
TEST_SHARE = 0.1  # of the images


def bench_minutes(
    minutes: float = 2.0,
    images: int = 10_000,
    size: int = 64,
    data: Path | None = None,
    device: str | None = None,
    overrides: list[str] | None = None,
) -> BenchmarkResult:
    """Trains in a process of its own, and compares the time from its start to its end with the minutes it was given."""
    chosen = str(choose_device(device))
    with TemporaryDirectory() as place:
        folder, result = Path(place), Path(place) / "result.json"
        data = data or make_folder(folder / "photos", images, size)
        words = [str(result), str(data), str(folder / "run"), str(minutes), chosen, *(overrides or [])]
        started = time.monotonic()
        child = subprocess.run([sys.executable, "-m", "benchmarks.minutes_worker", *words], check=False)
        whole = time.monotonic() - started
        if child.returncode:
            raise NPMatchError("the run has failed, for the reason above")
        measured = json.loads(result.read_text())
    phases: dict[str, float] = measured["phases"]
    rest = whole - sum(phases.values())
    return BenchmarkResult(
        name="minutes",
        about=f"npmatch train --minutes {minutes:g}, {measured['steps']} steps: what the time is spent on",
        columns=[Column("phase", "phase"), Column("seconds", "seconds", "{:.1f}")],
        rows=[
            *({"phase": phase, "seconds": seconds} for phase, seconds in phases.items()),
            {"phase": "start and end of the process", "seconds": rest},
            {"phase": "in all", "seconds": whole},
        ],
        ratios={"whole command / minutes given": whole / (60 * minutes)},
        notes=["The check also decodes the images for training. The timing of steps includes capturing and compiling."],
        device=chosen,
    )


def make_folder(root: Path, images: int, size: int) -> Path:
    """Writes JPEG files: LABELS labelled ones of each class, a share for the test, and the others unlabelled."""
    draw = np.random.default_rng(0)
    test = round(TEST_SHARE * images)
    parts = ["labeled"] * (CLASSES * LABELS) + ["test"] * test
    parts += ["unlabeled"] * (images - len(parts))
    for number, part in enumerate(parts):
        kind = number % CLASSES
        colour = 10 * np.array([kind, CLASSES - kind, 3 * kind % CLASSES])
        spots = Image.fromarray((draw.integers(0, 156, (8, 8, 3)) + colour).astype(np.uint8))
        folder = root / part if part == "unlabeled" else root / part / f"class-{kind}"
        folder.mkdir(parents=True, exist_ok=True)
        spots.resize((size, size), Image.Resampling.BICUBIC).save(folder / f"{number:06}.jpg", quality=90)
    return root


def main(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as training.compile=true.")
    ] = None,
    minutes: Annotated[float, typer.Option("--minutes", help="Minutes that the command may take.")] = 2.0,
    images: Annotated[int, typer.Option("--images", min=200, help="Number of images in the folder.")] = 10_000,
    size: Annotated[int, typer.Option("--size", min=8, help="Side of the images, in pixels.")] = 64,
    data: Annotated[Path | None, typer.Option("--data", help="Image folder in place of random images.")] = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Seconds of each phase of `train --minutes`.

    A whole command is run, on a folder of small images.
    """
    recipe, settings = recipe_and_settings(words or [])
    if recipe is not None:
        raise NPMatchError(f"{recipe}: a folder is trained on; give settings only, as KEY=VALUE")
    show(bench_minutes(minutes, images, size, data, check_device(device), settings), as_json)


if __name__ == "__main__":
    sys.exit(run(main))
