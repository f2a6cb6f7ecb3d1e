"""Suggestions for a run, from its own unlabelled images or from a folder, as a CSV or as tasks for Label Studio."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from npmatch.data import FileImages, ImageStore
from npmatch.data.images import JoinedImages, SelectedImages, file_of
from npmatch.data.labels import positions_by_name
from npmatch.data.sources.patterns import find_images
from npmatch.data.sources.registry import find_root
from npmatch.data.sources.tables import read_rows
from npmatch.errors import NPMatchError
from npmatch.files import name_as_text, write_atomically
from npmatch.labelling.files import ImageFinder, training_labels
from npmatch.labelling.folder_labels import FolderLabels
from npmatch.labelling.label_studio import labelling_interface, local_file, make_task, proposal
from npmatch.labelling.suggest import Suggestion, suggest
from npmatch.predict.classifier import Classifier
from npmatch.predict.rows import read_in_batches
from npmatch.runs.audit_record import kept_for_audits
from npmatch.runs.folder import RunFolder
from npmatch.runs.open import RunData, load, open_run_data
from npmatch.types import Prediction


@dataclass(frozen=True)
class Candidates:
    """N images to choose suggestions from."""

    names: list[str]  # N, as in a LabelBook
    images: ImageStore  # N
    known: ImageStore | None = None  # images that have been labelled since the run was trained
    prediction: Prediction | None = None  # of the N images, if it has been computed already
    problems: tuple[str, ...] = ()  # a line for each unreadable file


@dataclass(frozen=True)
class Suggestions:
    """The suggestions, and the candidates they were chosen from."""

    rows: list[Suggestion]
    candidates: Candidates
    class_names: tuple[str, ...]

    def path(self, name: str, position: int) -> str:
        """The absolute path of an image, or its name if it has no file of its own."""
        return path_of(self.candidates.images, name, position)

    def table(self) -> list[dict[str, Any]]:
        """The rows of the CSV, with an empty label to fill in."""
        paths = {row.name: self.path(row.name, row.position) for row in self.rows}
        table = []
        for row in self.rows:
            cells = {
                key: round(value, 4) if isinstance(value, float) else value
                for key, value in asdict(row).items()
                if key not in ("name", "position")
            }
            nearest = None if row.nearest is None else paths[row.nearest]
            table.append({"path": paths[row.name], "label": "", **cells, "nearest": nearest})
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
    """The images to label next, among a run's unlabelled images or those in the folder `unlabeled`."""
    run = Path(run)
    classifier = load(run, device)
    opened = open_run_data(run, data) if unlabeled is None or RunFolder(run).exists() else None
    if unlabeled is not None:
        candidates = folder_candidates(classifier, Path(unlabeled), opened, not_to_suggest(opened))
    else:
        assert opened is not None
        candidates = own_candidates(opened)
    if not candidates.names and candidates.problems:
        more = f" and {len(candidates.problems) - 1} more" if len(candidates.problems) > 1 else ""
        raise NPMatchError(f"{unlabeled}: no unlabelled image in it can be read; {candidates.problems[0]}{more}")
    if not candidates.names:
        raise NPMatchError(f"{unlabeled or run}: every readable image in it has a label; give others: --unlabeled DIR")
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


def labels_since(run: RunData) -> dict[str, str]:
    """What people have said since a run was started, in its label book or in the table of the folder of its images."""
    data = run.config.data
    root = find_root(data.source, data.root) if data.source == "folder" else None
    in_folder = FolderLabels(root).labels if root is not None and root.is_dir() else {}
    known = training_labels(run)
    since = {name: answer.label for name, answer in in_folder.items() if name not in known}
    return since | run.book().labels


def own_candidates(run: RunData) -> Candidates:
    """The run's own unlabelled images, without those that are kept for an audit."""
    labels = labels_since(run)
    unlabeled = run.unlabeled(labels.keys() | kept_for_audits(run.folder))
    return Candidates(unlabeled.names, unlabeled.images, labelled_since(run, labels))


def labelled_since(run: RunData, labels: dict[str, str]) -> ImageStore:
    """The images in a label book: the run's own, and those outside its data whose files still exist."""
    train = run.dataset.train
    position = positions_by_name(train)
    index = torch.tensor([position[name] for name in labels if name in position], dtype=torch.int64)
    outside = [name for name in labels if name not in position and os.path.isfile(name)]
    channels, side, _ = train.images.shape
    return JoinedImages(SelectedImages(train.images, index), FileImages(outside, side, channels))


def not_to_suggest(run: RunData | None) -> set[str]:
    """Names of images that people have answered for since the run was started, or that are kept for an audit of it."""
    return set() if run is None else labels_since(run).keys() | kept_for_audits(run.folder)


def folder_candidates(classifier: Classifier, folder: Path, run: RunData | None, without: Container[str]) -> Candidates:
    """The readable images in a folder that the run was not trained or tested on, without those of some names.

    The run's own images keep their names.
    """
    names: dict[str, str] = {}  # absolute path → name
    labels = {} if run is None else labels_since(run)
    finder, trained = (None, {}) if run is None else (ImageFinder(run), training_labels(run))
    for file in map(os.path.abspath, find_images([folder])):
        name = (finder.name_of(file) if finder else None) or file
        may_be_labelled = finder is None or finder.takes_label(file, name)
        if may_be_labelled and name not in without and name not in trained:
            names[file] = name
    known = None if run is None else labelled_since(run, labels)
    files, prediction, problems = predict_readable(classifier, names)
    images = FileImages(files, classifier.spec.stored_side, classifier.spec.channels)
    return Candidates([names[file] for file in files], images, known, prediction, tuple(problems))


def predict_readable(
    classifier: Classifier, files: Iterable[str], batch_size: int = 256
) -> tuple[list[str], Prediction, list[str]]:
    """The readable files, the prediction of their images, and a line for each unreadable file."""
    readable, problems, parts = list[str](), list[str](), [classifier.predict([])]
    for images, unreadable in read_in_batches(classifier, map(Path, files), batch_size):
        readable += [str(path) for path, _ in images]
        problems += unreadable
        if images:
            parts.append(classifier.predict(torch.stack([image for _, image in images]), batch_size))
    return readable, Prediction.cat(parts), problems


def has_no_label(table: Path) -> bool:
    """Whether a file is a table of suggestions in which nobody has filled in a label."""
    columns = {"path", "label", "reason"}
    try:
        rows = read_rows(table, verbatim=True)
        return all(columns <= cells.keys() and not cells["label"].strip() for _, cells in rows)
    except NPMatchError:
        return False


def write_table(suggestions: Suggestions, out: Path) -> None:
    """Writes the suggestions as a CSV in which labels can be filled in."""
    table = suggestions.table()
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(table[0]))
    writer.writeheader()
    for row in table:
        named = {column: name_as_text(row[column] or "") for column in ("path", "nearest", "reason")}
        writer.writerow({**row, **named})
    write_file(out, text.getvalue().encode())


def write_tasks(suggestions: Suggestions, out: Path, model: str) -> tuple[Path, Path | None]:
    """Writes suggestions as tasks for Label Studio with proposals; the result is that of `write_images_as_tasks`."""
    rows = [
        (row.position, row.name, row.reason, proposal(row.predicted, row.confidence, model)) for row in suggestions.rows
    ]
    return write_images_as_tasks(rows, suggestions.candidates.images, suggestions.class_names, out)


def write_images_as_tasks(
    rows: Sequence[tuple[int, str, str, dict[str, Any]]],
    images: ImageStore,
    choices: Sequence[str],
    out: Path,
    may_name_others: bool = False,
) -> tuple[Path, Path | None]:
    """Writes tasks for Label Studio to `out`, and the labelling interface to an XML file beside it.

    A row is the position of an image in `images`, its name, the reason to label it and what else its task holds. With
    `may_name_others`, classes besides the `choices` can be typed.
    Returns the path of the XML file, and the folder that holds all images, or None if they are not in files.
    """
    files = [file_of(images, position) for position, *_ in rows]
    root = None if None in files else Path(os.path.commonpath([os.path.abspath(f.parent) for f in files if f]))
    tasks = []
    for (position, name, reason, more), file in zip(rows, files, strict=True):
        if file is None or root is None:
            address = as_data_uri(images, position)
        else:
            address = local_file(Path(os.path.abspath(file)), root)
        tasks.append({**make_task(path_of(images, name, position), address, reason), **more})
    interface = interface_of(out)
    write_file(out, json.dumps(tasks, indent=1).encode())
    write_file(interface, labelling_interface(choices, may_name_others).encode())
    return interface, root


def path_of(images: ImageStore, name: str, position: int) -> str:
    """The absolute path of an image, or its name if it has no file of its own."""
    file = file_of(images, position)
    return name if file is None else os.path.abspath(file)


def write_empty_table(rows: Iterable[tuple[str, str, str]], out: Path) -> None:
    """Writes images as a CSV in which labels can be filled in; a row is a path, a label, mostly empty, and a reason."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(("path", "label", "reason"))
    writer.writerows((name_as_text(path), label, name_as_text(reason)) for path, label, reason in rows)
    write_file(out, text.getvalue().encode())


def interface_of(tasks: Path) -> Path:
    """The XML file of the labelling interface, beside the file of the tasks."""
    return tasks.with_suffix(".xml")


def as_data_uri(images: ImageStore, position: int) -> str:
    """An image as a data URI (PNG in base64)."""
    pixels = images.take(torch.tensor([position]))[0].permute(1, 2, 0).squeeze(-1).numpy()
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, "PNG")
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()


def write_file(path: Path, content: bytes) -> None:
    """Writes a file, and the folders it lies in; an error names it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise NPMatchError(f"{path}: cannot be written ({error.strerror})") from error
