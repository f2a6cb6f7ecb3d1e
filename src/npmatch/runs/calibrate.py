"""From a run's model and labels it has not seen to what later decisions rest on, written into the run's folder."""

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
from npmatch.data.split import test_set, trained_on, validation_set
from npmatch.decide import Calibration, Novelty
from npmatch.decide.novelty import reference_positions
from npmatch.errors import NPMatchError
from npmatch.predict.batches import describe_store, predict_store
from npmatch.predict.classifier import Classifier
from npmatch.runs.open import load, open_run_data


def calibrate(
    classifier: Classifier, dataset: Dataset, split: Split, batch_size: int, labeled: ImageSet | None = None
) -> Calibration:
    """Fitted on the labels the split held out, or on `labeled`; novelty is measured from the training images.

    Nothing here ever asks for a pseudo-label or a test image.
    """
    held_out = validation_set(dataset, split) if labeled is None else labeled
    model, spec, device = classifier.model, classifier.spec, classifier.device
    seen = trained_on(split)
    reference = SelectedImages(dataset.train.images, seen[reference_positions(len(seen))])
    novelty = Novelty.fit(describe_store(model, reference, spec, device, batch_size)[1]) if len(reference) > 1 else None
    if held_out is None:
        return Calibration.fit(None, None, novelty)
    prediction = predict_store(model, held_out.images, spec, device, batch_size)
    source = "data.validation" if labeled is None else "--labeled"
    return Calibration.fit(prediction, held_out.labels, novelty, source)


def calibrate_run(
    folder: str | Path, labeled: str | Path | None = None, data: str | Path | None = None, device: str | None = None
) -> Calibration:
    """Writes a finished run's calibration anew, on the labels it held out or on `labeled`: a folder or a CSV."""
    folder = Path(folder)
    classifier = load(folder, device, calibrated=False)
    run = open_run_data(folder, data)
    extra = None if labeled is None else read_labeled(Path(labeled), classifier)
    if extra is not None:
        check_unseen(extra, run.dataset, run.split)
    elif not len(run.split.validation) and (given := labels_before(folder)):
        raise NPMatchError(
            f"{folder}: is calibrated on {given} labels from elsewhere, and held out none of its own to put in their "
            "place; give --labeled DIR again, or remove its calibration.safetensors first"
        )
    calibration = calibrate(classifier, run.dataset, run.split, run.config.training.eval_batch, extra)
    calibration.save(folder)
    return calibration


def labels_before(folder: Path) -> int:
    """How many labels a run's calibration rests on; none where it cannot be read."""
    try:
        before = Calibration.load(folder)
    except NPMatchError:
        return 0
    return 0 if before is None else before.n


def read_labeled(path: Path, classifier: Classifier) -> ImageSet:
    """Labelled images of a user's: `DIR/<class>/*`, or a CSV with the columns path,label."""
    if path.is_dir():
        rows = list(_rows_of_folder(path, classifier.class_names))
    else:
        rows = [
            (os.path.join(path.parent, row.path), class_index(row.label, classifier.class_names, row.where))
            for row in read_label_table(path)
            if row.label  # else unlabelled, as in any table
        ]
    if not rows:
        raise NPMatchError(f"{path}: no labelled image in it; put some into {path}/<class>/ or name them in a CSV")
    files, labels = [file for file, _ in rows], [label for _, label in rows]
    spec = classifier.spec
    return ImageSet(FileImages(files, spec.stored_side, spec.channels), torch.tensor(labels), files)


def _rows_of_folder(folder: Path, class_names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):
            label = class_index(entry.name, class_names, str(entry))
            for where, names in walk_pictures(entry):
                for name in names:
                    if problem := why_unread(Path(where, name)):
                        raise NPMatchError(f"{problem}, or take it out")
                    yield os.path.join(where, name), label


def check_unseen(labeled: ImageSet, dataset: Dataset, split: Split) -> None:
    """Refuses images that the run was trained or is tested on, whatever their files are called now."""
    names: dict[bytes, str] = {}
    for digest, name in zip(_digests(labeled.images), labeled.names, strict=True):
        if digest in names:
            raise NPMatchError(f"--labeled: {names[digest]} and {name} are the same image; remove one of them")
        names[digest] = name
    train = SelectedImages(dataset.train.images, trained_on(split))
    test = test_set(dataset, split)
    parts: list[tuple[str, ImageStore]] = [
        ("trained on", train),
        *([] if test is None else [("tested on", test.images)]),
    ]
    for what, images in parts:
        if found := [names[digest] for digest in _digests(images) if digest in names]:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise NPMatchError(
                f"{found[0]}{more}: the run was {what} it, so it cannot be used for calibration; give images that it "
                "has not seen"
            )


def _digests(images: ImageStore) -> Iterable[bytes]:
    """Of every image's pixels, at the size the model takes."""
    for batch in iterate_images(images, 256):
        yield from (hashlib.sha256(image.numpy().tobytes()).digest() for image in batch)
