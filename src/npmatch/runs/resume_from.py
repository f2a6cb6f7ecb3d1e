"""Starting a run from another one (--resume-from): its weights, its split, its labels, and labels given since."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npmatch.algorithms import Algorithm
from npmatch.config.tree import Config, make_config
from npmatch.data import Dataset, Split
from npmatch.data.labels import encode_label_table, positions_by_name, read_label_table
from npmatch.data.split import with_more_labels
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.heads import Bank
from npmatch.runs.audit_record import kept_error, kept_for_audits
from npmatch.runs.folder import RunFolder
from npmatch.runs.open import open_run_data
from npmatch.training import Checkpoints, Display, Trainer, load_tensors

SHORTER = 3  # a run from one that was trained from scratch takes 1/SHORTER of its iterations
# Keys that the new run must share with the one it starts from.
KEPT_KEYS = (
    *("data.labels", "data.labels_head", "data.unlabeled_head", "data.imbalance", "data.unlabeled_distribution"),
    *("data.validation", "data.split", "data.include_labeled", "algorithm.name", "recipe"),
)


def config_from_run(source: RunFolder, run: RunFolder, given: Mapping[str, Any]) -> Config:
    """The configuration of a `run` that starts from the weights of `source`: that one's, changed by `given`."""
    for key in KEPT_KEYS:
        if key in given:
            raise NPMatchError(
                f"{key}={given[key]}: a run with --resume-from keeps the split and the algorithm of {source}; leave "
                "the setting out, or train a new run without --resume-from"
            )
    config = source.read_config()
    iterations = config.training.iterations
    if config.training.start_from is None:
        iterations = -(-iterations // SHORTER)
    changes = {
        "training.start_from": str(source),
        "training.iterations": iterations,
        "data.given_labels": str(run.given_labels),
    }
    return make_config({}, {**config.flat(), **changes, **given})


def next_folder(run: Path) -> Path:
    """The default folder of the next run: runs/photos → runs/photos-round2 → runs/photos-round3."""
    name, _, number = run.name.rpartition("-round")
    if name and number.isdecimal():
        return run.with_name(f"{name}-round{int(number) + 1}")
    return run.with_name(f"{run.name}-round2")


def labels_so_far(run: Path, data: str | None) -> dict[str, str]:
    """The labels that people gave before `run` started, updated by those they have given since."""
    opened = open_run_data(run, data)
    table = opened.config.data.given_labels
    at_start = {} if table is None else {row.path: row.label for row in read_label_table(Path(table))}
    book, kept = opened.book(), kept_for_audits(run)
    for where, labels, remedy in ((table, at_start, ""), (book.path, book.labels, ", or remove its line")):
        if gone := next((name for name in labels if os.path.isabs(name) and not os.path.isfile(name)), None):
            raise NPMatchError(f"{where}: labels the image {gone}, which no longer exists; restore it{remedy}")
        if audited := next((name for name in labels if name in kept), None):
            raise kept_error(str(where), audited, run)
        for name in filter(os.path.isabs, labels):  # checked when it was labelled, but people edit such tables
            if audited := opened.audited_copy(name):
                raise kept_error(str(where), f"{name}, which has the content of {audited},", run)
            if same := opened.why_no_label(name):
                raise NPMatchError(f"{where}: labels {name}, which has the content of {same}; remove its line")
    return at_start | book.labels


@contextmanager
def given_labels_written(config: Config, run: RunFolder) -> Iterator[None]:
    """Writes the labels given so far into the new run's folder, where later changes to the label book do not reach.

    The file is deleted again if an error ends the run before it has started.
    """
    start, table = config.training.start_from, config.data.given_labels
    if start is None or table is None or run.exists():
        yield
        return
    content = encode_label_table(labels_so_far(Path(start), config.data.root))
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(table), content)
    except OSError as error:
        raise NPMatchError(f"{run}: cannot be written ({error.strerror}); choose another --out") from error
    try:
        yield
    finally:
        if not run.exists():
            Path(table).unlink(missing_ok=True)
            with suppress(OSError):  # the folder may hold other files
                run.path.rmdir()


def split_from_run(config: Config, dataset: Dataset) -> Split:
    """The split of the run that this one starts from, with the images that people have labelled added to it."""
    start, table = Path(str(config.training.start_from)), config.data.given_labels
    source = open_run_data(start, config.data.root)
    position, source_position = positions_by_name(dataset.train), positions_by_name(source.dataset.train)
    same_images = list(position)[: len(source_position)] == list(source_position)
    if dataset.class_names != source.dataset.class_names or not same_images:
        raise NPMatchError(f"training.start_from={start}: that run was trained on other images or classes")
    labeled = [] if table is None else [position[row.path] for row in read_label_table(Path(table))]
    return with_more_labels(source.split, dataset, torch.tensor(labeled, dtype=torch.int64))


def start_from_run(trainer: Trainer, source: RunFolder) -> None:
    """Loads another run's weights, and starts their average from them; momentum and schedule are not taken over."""
    load_state(trainer.algorithm, _saved_state(source), origin=f"training.start_from={source}")
    trainer.update.ema.load_state_dict(trainer.update.ema.live)


def load_state(algorithm: Algorithm, saved: Mapping[str, Tensor], origin: str) -> None:
    """Loads the state of an earlier training; `origin` names it in errors.

    Weights must fit. A module whose buffers depend on the number of images (a curriculum) keeps its initial state if
    that number has changed.
    """
    initial = algorithm.state_dict()
    misfits = {name for name, t in initial.items() if name not in saved or saved[name].shape != t.shape}
    weights = {name for name, _ in algorithm.named_parameters()}
    if bad := misfits & weights:
        raise NPMatchError(
            f"{origin}: its weights do not fit this configuration ({min(bad)}); keep backbone and algorithm"
        )
    reset = {name.rpartition(".")[0] for name in misfits}  # modules
    fitting = {name: saved[name] for name in initial if name in weights or name.rpartition(".")[0] not in reset}
    algorithm.load_state_dict({**initial, **fitting})
    for name, module in algorithm.named_modules():
        if isinstance(module, Bank) and name in reset and f"{name}.rows" in saved:
            # A finished model stores only the mean of a bank; it becomes the first row of this one.
            module.rows[0] = saved[f"{name}.rows"][: int(saved[f"{name}.filled"])].mean(0)


def _saved_state(source: RunFolder) -> dict[str, Tensor]:
    """The state in the last checkpoint, with averaged weights; without checkpoints, that of the finished model."""
    latest = Checkpoints(source.checkpoints).load_latest(Display("", 0).warn)
    if latest is not None:
        return {**latest[1]["algorithm"], **latest[1]["ema"]}
    if not source.model_weights.is_file():
        raise NPMatchError(f"{source}: has neither a checkpoint nor a model to start from; train it first")
    return {f"model.{name}": t for name, t in load_tensors(source.model_weights)[0].items()}
