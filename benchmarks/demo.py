"""`make demo`: NP-Match on 40 labelled digits, compared with supervised training on them and with LabelSpreading."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console

from benchmarks import command_line
from npmatch.data import Split, load_dataset
from npmatch.metrics import scores
from npmatch.objectives.losses import entropy
from npmatch.report import Method, Outcome, methods_table, write_report
from npmatch.runs.evaluate import evaluate_run, run_comparison
from npmatch.runs.fit import Run, fit
from npmatch.types import Dataset, Prediction

FOLDER = Path("runs/demo")
OWN_PHOTOS = "train --data photos --out runs/photos"  # as in README.md, which says how to arrange them
EXPECTATION = (
    "what to expect of photographs: they start from learnt features. With 4 labels in each of ten classes of satellite "
    "images: 5 % error after 80 s on a GPU, 9 % after 3½ minutes on two CPU cores (docs/results.md)"
)
# As by default for one's own images; the recipe keeps SGD, with which docs/results.md compares all methods.
OPTIMIZER = {"training.optimizer": "muon"}
SHOWN = ("method", "error", "nll", "ece", "uce", "seconds", "note")  # in the terminal; the report has all there is


def main(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the runs and the report.")] = FOLDER,
) -> Path:
    """Learn 40 labelled digits, print a table and write a report.

    Runs that the folder holds already are not trained again.
    """
    console = Console()
    console.print("NP-Match learns from 40 labelled and 1,437 unlabelled 8×8 digits.", highlight=False)
    run = train("npmatch", folder / "npmatch")
    alone = train("supervised", folder / "supervised", quiet=True)
    spreading = label_spreading(load_dataset("digits"), run.folder / "split.json")
    others = [
        Method("same network, 40 labels alone", [Outcome(0, alone.scores)]),
        Method("LabelSpreading, 7 neighbours", [Outcome(0, spreading)]),
    ]
    comparison = run_comparison(run.folder, evaluate_run(run.folder), others)
    report = write_report(comparison, run.folder / "report.html")
    console.print("360 test images, 40 labels", highlight=False)
    rows = [{key: row[key] for key in SHOWN} for row in comparison.rows()]
    console.print(methods_table(rows))
    for line in (f"report: {report.resolve()}", f"your own photos: {npmatch_command()} {OWN_PHOTOS}", EXPECTATION):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    return report


def npmatch_command() -> str:
    """The command as it can be typed here: beside this Python where it is not on the PATH."""
    return "npmatch" if shutil.which("npmatch") else os.path.relpath(Path(sys.executable).with_name("npmatch"))


def train(algorithm: str, folder: Path, quiet: bool = False) -> Run:
    """Trains a run, or continues where an earlier demo stopped."""
    resume = folder.exists()
    return fit("digits-40", algorithm=algorithm, out=folder, seed=0, resume=resume, overrides=OPTIMIZER, quiet=quiet)


def label_spreading(dataset: Dataset, split_file: Path) -> dict[str, float]:
    """scikit-learn's LabelSpreading on the pixels of the same split, as it would be used by hand."""
    from sklearn.semi_supervised import LabelSpreading

    assert dataset.test is not None
    split = Split.load(split_file, dataset)
    pixels, y = flat_pixels(dataset.train.images.take(split.unlabeled)), np.full(len(split.unlabeled), -1)
    known = np.isin(split.unlabeled.numpy(), split.labeled.numpy())
    y[known] = dataset.train.labels[split.unlabeled[torch.from_numpy(known)]].numpy()
    started = time.monotonic()
    with np.errstate(invalid="ignore"):  # points that no label reaches are 0/0, made uniform below
        model = LabelSpreading(kernel="knn", n_neighbors=7).fit(pixels, y)
        raw = model.predict_proba(flat_pixels(dataset.test.images.take(torch.arange(len(dataset.test)))))
    seconds = time.monotonic() - started
    probs = torch.from_numpy(np.nan_to_num(raw, nan=1 / raw.shape[1])).float()
    probs = probs / probs.sum(-1, keepdim=True)
    result = scores(Prediction(probs, entropy(probs)), dataset.test.labels)
    return {"error": result.error, "ece": result.ece, "uce": result.uce, "nll": result.nll, "seconds": seconds}


def flat_pixels(images: torch.Tensor) -> np.ndarray[Any, Any]:
    """N C H W → N C·H·W in [0, 1]."""
    return images.flatten(1).float().div(255).numpy()


if __name__ == "__main__":
    sys.exit(command_line.run(main))
