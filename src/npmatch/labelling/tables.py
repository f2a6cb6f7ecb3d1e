"""A run's suggestions: from its own unlabelled images or a folder of others, as a table and as Label Studio's tasks."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from npmatch.data import FileImages, ImageStore
from npmatch.data.images import JoinedImages, SelectedImages, file_of
from npmatch.data.labels import positions_by_name
from npmatch.data.sources.patterns import find_images
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.labelling.files import ImageFinder, training_labels
from npmatch.labelling.label_studio import labelling_interface, local_file, make_task
from npmatch.labelling.suggest import Suggestion, suggest
from npmatch.predict.classifier import Classifier
from npmatch.predict.files import read_in_batches
from npmatch.runs.folder import RunFolder
from npmatch.runs.open import RunData, load, open_run_data
from npmatch.types import Prediction


@dataclass(frozen=True)
class Candidates:
    """Images that might be worth a label."""

    names: list[str]  # N, as a label book calls them
    images: ImageStore  # N
    known: ImageStore | None = None  # labelled since the run was trained
    prediction: Prediction | None = None  # where reading them took one
    problems: tuple[str, ...] = ()  # a line for each file that is no readable image


@dataclass(frozen=True)
class Suggestions:
    """What to label next, and what was wrong on the way."""

    rows: list[Suggestion]
    candidates: Candidates
    class_names: tuple[str, ...]

    def path(self, name: str, position: int) -> str:
        """Where an image is: its file, absolute, or its name where it has none."""
        file = file_of(self.candidates.images, position)
        return name if file is None else os.path.abspath(file)

    def table(self) -> list[dict[str, Any]]:
        """A row each, with an empty label to fill in."""
        paths = {row.name: self.path(row.name, row.position) for row in self.rows}
        table = []
        for row in self.rows:
            fields = {
                key: round(value, 4) if isinstance(value, float) else value
                for key, value in asdict(row).items()
                if key not in ("name", "position")
            }
            nearest = None if row.nearest is None else paths[row.nearest]
            table.append({"path": paths[row.name], "label": "", **fields, "nearest": nearest})
        return table


def suggest_for_run(
    run: str | Path,
    count: int = 50,
    strategy: str = "diverse",
    *,
    unlabeled: str | Path | None = None,
    data: str | Path | None = None,
    device: str | None = None,
    seed: int = 0,
) -> Suggestions:
    """What to label next among a run's unlabelled images, or those of the folder `unlabeled`."""
    run = Path(run)
    classifier = load(run, device)
    opened = open_run_data(run, data) if unlabeled is None or RunFolder(run).exists() else None
    if unlabeled is not None:
        candidates = folder_candidates(classifier, Path(unlabeled), opened)
    else:
        assert opened is not None
        candidates = own_candidates(opened)
    if not candidates.names and candidates.problems:
        more = f" and {len(candidates.problems) - 1} more" if len(candidates.problems) > 1 else ""
        raise NPMatchError(f"{unlabeled}: no image without a label that can be read; {candidates.problems[0]}{more}")
    if not candidates.names:
        raise NPMatchError(f"{unlabeled or run}: every readable image in it has a label; give others, --unlabeled DIR")
    rows = suggest(
        classifier,
        candidates.names,
        candidates.images,
        count,
        strategy,
        known=candidates.known,
        prediction=candidates.prediction,
        seed=seed,
    )
    return Suggestions(rows, candidates, classifier.class_names)


def own_candidates(run: RunData) -> Candidates:
    """The run's unlabelled images."""
    labels = run.book().labels
    left = run.unlabeled(labels)
    return Candidates(left.names, left.images, labelled_since(run, labels))


def labelled_since(run: RunData, labels: dict[str, str]) -> ImageStore:
    """The images in the run's book: its own, and those outside its data that are still there."""
    train = run.dataset.train
    place = positions_by_name(train)
    index = torch.tensor([place[name] for name in labels if name in place], dtype=torch.int64)
    outside = [name for name in labels if name not in place and os.path.isfile(name)]
    channels, side, _ = train.images.shape
    return JoinedImages(SelectedImages(train.images, index), FileImages(outside, side, channels))


def folder_candidates(classifier: Classifier, folder: Path, run: RunData | None) -> Candidates:
    """The images of a folder that are readable and have no label in the run; the run's own keep their names."""
    names: dict[str, str] = {}  # of each file
    labels = {} if run is None else run.book().labels
    finder, trained = (None, {}) if run is None else (ImageFinder(run), training_labels(run))
    for file in map(os.path.abspath, find_images([folder])):
        name = (finder.name_of(file) if finder else None) or file
        may_be_labelled = finder is None or finder.takes_label(file, name)
        if may_be_labelled and name not in labels and name not in trained:
            names[file] = name
    known = None if run is None else labelled_since(run, labels)
    files, prediction, problems = predict_readable(classifier, names)
    images = FileImages(files, classifier.spec.stored_side, classifier.spec.channels)
    return Candidates([names[file] for file in files], images, known, prediction, tuple(problems))


def predict_readable(
    classifier: Classifier, files: Iterable[str], batch_size: int = 256
) -> tuple[list[str], Prediction, list[str]]:
    """The files that are readable images, what the model says of these, and a line on each of the others."""
    readable, problems, parts = list[str](), list[str](), [classifier.predict([])]
    for images, unreadable in read_in_batches(classifier, map(Path, files), batch_size):
        readable += [str(path) for path, _ in images]
        problems += unreadable
        if images:
            parts.append(classifier.predict(torch.stack([image for _, image in images]), batch_size))
    return readable, Prediction.cat(parts), problems


def write_table(found: Suggestions, out: Path) -> None:
    """The suggestions as a CSV, ready for labels to be filled in."""
    table = found.table()
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(table[0]))
    writer.writeheader()
    writer.writerows(table)
    _write(out, text.getvalue().encode(errors="surrogateescape"))


def write_tasks(found: Suggestions, out: Path, model: str) -> tuple[Path, Path | None]:
    """Label Studio's tasks, and beside them the labelling interface; returns that file and the files' common folder."""
    files = [file_of(found.candidates.images, row.position) for row in found.rows]
    root = None if None in files else Path(os.path.commonpath([os.path.abspath(f.parent) for f in files if f]))
    tasks = []
    for row, file in zip(found.rows, files, strict=True):
        address = (
            as_data_uri(found.candidates.images, row.position)
            if file is None or root is None
            else local_file(Path(os.path.abspath(file)), root)
        )
        tasks.append(make_task(row, found.path(row.name, row.position), address, model))
    interface = out.with_suffix(".xml")
    _write(out, json.dumps(tasks, indent=1).encode())
    _write(interface, labelling_interface(found.class_names).encode())
    return interface, root


def as_data_uri(images: ImageStore, position: int) -> str:
    """An image that is no file of its own, as a PNG within its address."""
    pixels = images.take(torch.tensor([position]))[0].permute(1, 2, 0).squeeze(-1).numpy()
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, "PNG")
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise NPMatchError(f"{path}: cannot be written ({error.strerror})") from error
