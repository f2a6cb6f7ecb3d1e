"""Calibration of a run: its model on labels it has not been trained on, written into the run's folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from npmatch.data import Dataset, FileImages, ImageSet, ImageStore, Split, iterate_images
from npmatch.data.images import SelectedImages
from npmatch.data.labels import class_index, read_label_table
from npmatch.data.sources.folders import walk_pictures
from npmatch.data.sources.patterns import why_unread
from npmatch.data.sources.walk import names_in
from npmatch.data.split import test_set, trained_on, validation_set
from npmatch.decide import Calibration, Novelty
from npmatch.decide.novelty import reference_positions
from npmatch.errors import NPMatchError
from npmatch.predict.batches import describe_store, predict_store
from npmatch.predict.classifier import Classifier
from npmatch.predict.saved import load_calibration, save_calibration
from npmatch.runs.open import load, open_run_data


def calibrate(
    classifier: Classifier, dataset: Dataset, split: Split, batch_size: int, labeled: ImageSet | None = None
) -> Calibration:
    """The calibration on the labels that the split holds out, or on `labeled`, with the OOD score of training images.

    Pseudo-labels and test images are never used.
    """
    held_out = validation_set(dataset, split) if labeled is None else labeled
    model, spec, device = classifier.model, classifier.spec, classifier.device
    train = trained_on(split)
    reference = SelectedImages(dataset.train.images, train[reference_positions(len(train))])
    novelty = Novelty.fit(describe_store(model, reference, spec, device, batch_size)[1]) if len(reference) > 1 else None
    if held_out is None:
        return Calibration.fit(None, None, novelty)
    prediction = predict_store(model, held_out.images, spec, device, batch_size)
    source = "data.validation" if labeled is None else "--labeled"
    return Calibration.fit(prediction, held_out.labels, novelty, source)


def calibrate_run(
    folder: str | Path, labeled: str | Path | None = None, data: str | Path | None = None, device: str | None = None
) -> Calibration:
    """Calibrates a finished run again, on the labels it held out or on `labeled` (a folder or a CSV), and saves it."""
    folder = Path(folder)
    classifier = load(folder, device, calibrated=False)
    run = open_run_data(folder, data)
    held_out = None if labeled is None else read_labeled(Path(labeled), classifier)
    if held_out is not None:
        check_unseen(held_out, run.dataset, run.split)
    elif not len(run.split.validation) and (used := num_calibration_labels(folder)):
        raise NPMatchError(
            f"{folder}: is calibrated on {used} labels from elsewhere, and has held out none of its own to replace "
            "them; give --labeled DIR again, or remove its calibration.safetensors first"
        )
    calibration = calibrate(classifier, run.dataset, run.split, run.config.training.eval_batch, held_out)
    save_calibration(folder, calibration)
    return calibration


def num_calibration_labels(folder: Path) -> int:
    """Number of labels that a run's present calibration was fitted on; 0 if there is none that can be read."""
    try:
        calibration = load_calibration(folder)
    except NPMatchError:
        return 0
    return 0 if calibration is None else calibration.n


def read_labeled(path: Path, classifier: Classifier) -> ImageSet:
    """The labelled images in a folder `DIR/<class>/*`, or in a CSV with the columns path,label."""
    if path.is_dir():
        rows = list(_images_in_folder(path, classifier.class_names))
    else:
        rows = [
            (os.path.join(path.parent, row.path), class_index(row.label, classifier.class_names, row.where))
            for row in read_label_table(path)
            if row.label  # an empty label means unlabelled
        ]
    if not rows:
        raise NPMatchError(f"{path}: holds no labelled images; put some into {path}/<class>/ or name them in a CSV")
    files, labels = [file for file, _ in rows], [label for _, label in rows]
    spec = classifier.spec
    return ImageSet(FileImages(files, spec.stored_side, spec.channels), torch.tensor(labels), files)


def _images_in_folder(folder: Path, class_names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Path and class index of every image in `DIR/<class>/`."""
    for entry in (folder / name for name in names_in(folder)):
        if entry.is_dir() and not entry.name.startswith("."):
            label = class_index(entry.name, class_names, str(entry))
            for where, names in walk_pictures(entry):
                for name in names:
                    if problem := why_unread(Path(where, name)):
                        raise NPMatchError(f"{problem}, or remove it")
                    yield os.path.join(where, name), label


def check_unseen(labeled: ImageSet, dataset: Dataset, split: Split) -> None:
    """Refuses images that the run is trained or tested on, compared by their pixels and not by their file names."""
    names: dict[bytes, str] = {}
    for digest, name in zip(_digests(labeled.images), labeled.names, strict=True):
        if digest in names:
            raise NPMatchError(f"--labeled: {names[digest]} and {name} are the same image; remove one of them")
        names[digest] = name
    used: dict[str, ImageStore] = {"trained": SelectedImages(dataset.train.images, trained_on(split))}
    if (test := test_set(dataset, split)) is not None:
        used["tested"] = test.images
    for verb, images in used.items():
        if seen := [names[digest] for digest in _digests(images) if digest in names]:
            more = f" and {len(seen) - 1} more" if len(seen) > 1 else ""
            raise NPMatchError(
                f"{seen[0]}{more}: the run was {verb} on it, so it cannot be used for calibration; give images that "
                "the run has not seen"
            )


def _digests(images: ImageStore) -> Iterable[bytes]:
    """A digest of each image's pixels at the model's input size."""
    for batch in iterate_images(images, 256):
        yield from (hashlib.sha256(image.numpy().tobytes()).digest() for image in batch)
