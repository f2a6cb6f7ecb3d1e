"""What the context of a neural process contributes to a run's predictions: the context changed, one part at a time.

A saved model of the paper's process keeps the mean of its memory banks only. The context is therefore rebuilt from the
run's labelled images with the averaged weights, and every change is compared with that. The other processes save the
points of their context, which are changed in place. A process to which the network
listens gets worse where its context is wrong; where nothing changes, the prediction comes from the image's own feature
alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from npmatch.data.images import SelectedImages
from npmatch.data.split import evaluation_set
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.heads import ContextHead, NeuralProcessHead
from npmatch.metrics import scores
from npmatch.predict.batches import describe_store
from npmatch.predict.classifier import Classifier
from npmatch.runs.open import RunData, load, open_run_data
from npmatch.types import ImageStore, Prediction
from npmatch.user_code import trusting

MOST_REMOVED = 10  # classes whose removal is tried, evenly spaced

Head = NeuralProcessHead | ContextHead
Change = Callable[[Any, Tensor, Tensor], None]  # head, context features n F and labels n


@dataclass(frozen=True)
class ContextRow:
    """The predictions of the judged images after one change of the context."""

    change: str
    error: float  # %
    nll: float  # nats
    uce: float  # %
    information: float  # nats: mean mutual information of class and latent sample


def ablate_context(
    folder: str | Path, data: str | Path | None = None, device: str | None = None, trust_code: bool = False
) -> list[ContextRow]:
    """One row for each change of the context of a finished NP-Match run, the first two without a change.

    `data` is the images' new place, if they have been moved. `trust_code` allows importing and running Python code that
    the run's files name (`package.module:name`).
    """
    with trusting(trust_code):
        classifier = load(folder, str(choose_device(device)))
        run = open_run_data(folder, data)
    if not has_context(classifier):
        raise NPMatchError(f"{folder}: '{run.config.name}' has no neural process, so there is no context to change")
    held_out = evaluation_set(run.dataset, run.split)
    if held_out is None:
        raise NPMatchError(f"{folder}: there are no held-out images; put labelled ones into test/<class>/")
    return context_rows(classifier, run, describe(classifier, run, held_out.images)[1], held_out.labels)


def has_context(classifier: Classifier) -> bool:
    """Whether a model has a neural process, and so a context to change."""
    return isinstance(classifier.model.head, Head)


def describe(classifier: Classifier, run: RunData, images: ImageStore) -> tuple[Prediction, Tensor]:
    """Prediction and features N F of images, by the model of a run."""
    batch = run.config.training.eval_batch
    return describe_store(classifier.model, images, classifier.spec, classifier.device, batch)


def context_rows(classifier: Classifier, run: RunData, features: Tensor, labels: Tensor) -> list[ContextRow]:
    """The rows of `ablate_context` for a model that has a context, by any images with features N F and labels N."""
    head = classifier.model.head
    assert isinstance(head, Head)
    if isinstance(head, ContextHead):
        f_context, y = head.context_features, head.context_labels
    else:
        context = SelectedImages(run.dataset.train.images, run.split.labeled)
        f_context = describe(classifier, run, context)[1].to(classifier.device)
        y = run.dataset.train.labels[run.split.labeled].to(classifier.device)
    features = features.to(classifier.device)

    rows = []
    for name, changes in context_changes(y, isinstance(head, NeuralProcessHead)):
        found = [changed_scores(head, change, f_context, y, features, labels) for change in changes]
        rows.append(ContextRow(name, *(mean(column) for column in zip(*found, strict=True))))
    return rows


@torch.no_grad()
def changed_scores(
    head: Head, change: Change, f_context: Tensor, y_context: Tensor, features: Tensor, labels: Tensor
) -> tuple[float, float, float, float]:
    """Error, NLL, UCE and mutual information of the predictions of a copy of the head that was changed."""
    changed = copy.deepcopy(head)
    change(changed, f_context, y_context)
    changed.freeze()
    prediction = changed.predict(features).to("cpu")
    assert prediction.disagreement is not None
    found = scores(prediction, labels)
    return found.error, found.nll, found.uce, float(prediction.disagreement.mean())


def context_changes(y: Tensor, has_latent: bool = True) -> Iterator[tuple[str, list[Change]]]:
    """Names of changes, each with the changes over which its row is averaged; y are the context's labels, n."""
    classes = torch.unique(y)
    removed = classes[:: -(-len(classes) // MOST_REMOVED)]
    by_class = torch.argsort(y, stable=True)
    yield "as saved", [lambda head, f, y: None]
    yield "context rebuilt", [set_context]
    if has_latent:
        yield "z at its mean", [latent_at_mean]
        yield "z zeroed", [no_latent]
        yield "r zeroed", [no_deterministic]
    else:
        yield "not resampled", [not_resampled]
    # Every label becomes the next class's, so that all are wrong.
    yield "labels permuted", [lambda head, f, y: set_context(head, f, y, labels=(y + 1) % head.num_classes)]
    yield "a class removed", [partial(without_class, removed=c) for c in removed]
    half = by_class[::2]
    yield "context halved", [lambda head, f, y: set_context(head, f, y, half)]


def set_context(
    head: Head, features: Tensor, y: Tensor, kept: Tensor | None = None, labels: Tensor | None = None
) -> None:
    """Makes these points the context, or those `kept` (positions or a mask), with their labels or with others, n."""
    kept = torch.arange(len(y), device=y.device) if kept is None else kept
    labels = y if labels is None else labels
    if isinstance(head, ContextHead):
        head.set_context(features[kept], labels[kept], head.context_trusted[kept])
    else:
        head.set_context(features[kept], labels[kept])


def without_class(head: Head, features: Tensor, y: Tensor, removed: Tensor) -> None:
    """The context without the points of one class."""
    set_context(head, features, y, y != removed)


def not_resampled(head: ContextHead, features: Tensor, y: Tensor) -> None:
    """Every point of the context counts alike."""
    head.context_weights.fill_(1)


def latent_at_mean(head: NeuralProcessHead, features: Tensor, y: Tensor) -> None:
    """z = μ: the rebuilt context without the noise of the samples."""
    head.set_context(features, y)
    head.noise.zero_()


def no_latent(head: NeuralProcessHead, features: Tensor, y: Tensor) -> None:
    """z = 0: its weights in the decoder's first layer zeroed."""
    head.set_context(features, y)
    head.decoder_in.weight.data[:, -2 * head.width : -head.width] = 0


def no_deterministic(head: NeuralProcessHead, features: Tensor, y: Tensor) -> None:
    """r = 0: its weights in the decoder's first layer zeroed."""
    head.set_context(features, y)
    head.decoder_in.weight.data[:, -head.width :] = 0
