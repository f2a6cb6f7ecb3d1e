"""The page of a folder without labels: how soon after the last label it guesses, and how well, against a training.

A random part of the images is copied into one folder without their labels. They are labelled in the order in which the
page offers them, with their true classes. The error is that of the images without a label.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.command_line import run, show
from benchmarks.result import BenchmarkResult, Column
from npmatch.cli.shared import DeviceOption, JsonOption, check_device
from npmatch.data.sources.folders import list_pictures
from npmatch.data.sources.label_table import Answer
from npmatch.draws import mix
from npmatch.errors import NPMatchError
from npmatch.web.project import Project
from npmatch.web.results import Estimates, describe_results

POLL = 0.02  # seconds


def copy_part(data: Path, out: Path, images: int, seed: int) -> dict[str, str]:
    """Copies a random part of the labelled images; the class of each by its new name."""
    listing = list_pictures(data)
    files = [file for file in listing.files if file.label]
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(mix(seed, "page")))[:images]
    out.mkdir()
    truth = {}
    for number, row in enumerate(order.tolist()):
        name = f"{number:05}{Path(files[row].name).suffix}"
        shutil.copy(listing.path(files[row]), out / name)
        truth[name] = files[row].label
    return truth


def wait_for(project: Project, source: str, labels: int) -> float:
    """Seconds until the page guesses from this many labels, by the quick look or by a round."""
    started = time.monotonic()
    while True:
        if project.problem is not None:
            raise NPMatchError(project.problem)
        guesses, status = project.desk.guesses, project.status()
        if status["quick_look"] == labels and guesses is not None and guesses.source == source:
            return time.monotonic() - started
        if status["training"]["state"] == "failed":
            raise NPMatchError(status["training"]["message"])
        time.sleep(POLL)


def measure(project: Project, truth: dict[str, str], source: str) -> dict[str, Any]:
    """The error of the guesses in %, and the page's own estimate of it."""
    images = project.desk.page("todo", None, 0, len(truth))["images"]
    wrong = [image["guess"] != truth[image["name"]] for image in images]
    found = describe_results(project, source)
    by_confidence = Estimates(project).of(source)["error"] if source else None
    by_quick_look = found["quick_look"] if source else found["error"]
    return {"error": 100 * sum(wrong) / len(wrong), "confidence": by_confidence, "quick_look": by_quick_look}


def bench_page(
    data: Path, images: int = 400, labels: int = 40, minutes: int = 1, seed: int = 0, device: str | None = None
) -> BenchmarkResult:
    """Labels a folder as its page offers the images, and trains a round; 0 minutes train none."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        truth = copy_part(data, Path(place) / "photos", images, seed)
        project = Project(Path(place) / "photos", device=device)
        started = time.monotonic()
        project.start()
        try:
            while project.progress["stage"] != "ready" and project.problem is None:
                time.sleep(POLL)
            ready = time.monotonic() - started
            for _ in range(labels):
                image = project.desk.page("todo", None, 0, 1)["images"][0]
                project.desk.mark(image["image"], Answer(truth[image["name"]]), skip=False)
            seconds = wait_for(project, "", labels)
            rows.append({"model": "quick look", "seconds": seconds, **measure(project, truth, "")})
            if minutes:
                project.training.start(minutes)
                seconds = wait_for(project, "round1", labels)
                rows.append({"model": f"{minutes} min", "seconds": seconds, **measure(project, truth, "round1")})
        finally:
            project.stop()
    return BenchmarkResult(
        name="page",
        about=f"{data}: {len(truth):,} images, {labels} labels; the page was ready after {ready:.1f} s",
        columns=[
            Column("model", "model"),
            Column("seconds", "seconds to its guesses", "{:.1f}"),
            Column("error", "error, %", "{:.1f}"),
            Column("confidence", "estimated by its confidence", "{:.1f}"),
            Column("quick_look", "by the quick look", "{:.1f}"),
        ],
        rows=rows,
        device=device or "cpu",
    )


def main(
    data: Annotated[Path, typer.Argument(help="Folder with every image under labeled/<class>/.")],
    images: Annotated[int, typer.Option("--images", min=2, help="Number of images to copy.")] = 400,
    labels: Annotated[int, typer.Option("--labels", min=2, help="Number of labels to give.")] = 40,
    minutes: Annotated[int, typer.Option("--minutes", help="Minutes of the training; 0 for none.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the choice of images.")] = 0,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """How soon and how well the page of a folder guesses."""
    show(bench_page(data, images, labels, minutes, seed, check_device(device)), as_json)


if __name__ == "__main__":
    sys.exit(run(main))
