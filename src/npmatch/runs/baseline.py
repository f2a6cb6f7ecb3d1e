"""The features that a run starts from, and a linear probe on them: the error that training has to beat."""

from __future__ import annotations

import torch
from torch import Tensor

from npmatch.backbones import make_backbone
from npmatch.backbones.frozen import FrozenTrunk
from npmatch.backbones.weights import find_file
from npmatch.baselines import BASELINES, Baseline, out_of_fold_error
from npmatch.config.tree import Config
from npmatch.data import Dataset, ImageSet, ImageStore, Split, iterate_images
from npmatch.data.images import JoinedImages, SelectedImages
from npmatch.data.loading import workers_or_default
from npmatch.data.split import evaluation_set
from npmatch.errors import NPMatchError
from npmatch.predict.batches import as_network_input
from npmatch.report.probe import read_probe
from npmatch.runs.build import make_spec, normalised_for
from npmatch.training.display import Display, counting
from npmatch.types import Prediction

BATCH = 128  # images: enough for a GPU, and as fast as more on a CPU


@torch.no_grad()
def pretrained_features(
    config: Config, dataset: Dataset, split: Split, images: ImageStore, device: torch.device, quiet: bool = True
) -> Tensor:
    """Pooled features N F, on the CPU, of images as the network sees them in evaluation, before any training."""
    spec = make_spec(config, normalised_for(config, dataset), split)
    backbone = make_backbone(config.backbone, spec.channels).to(device).eval()
    features = backbone.activations if isinstance(backbone, FrozenTrunk) else backbone  # its top is not learnt yet
    workers = workers_or_default(config.data.workers)
    parts = []
    with counting("pretrained features", len(images), quiet) as advance:
        for batch in iterate_images(images, min(BATCH, config.training.eval_batch), workers):
            parts.append(features(as_network_input(batch, spec, device)).float())
            advance(len(batch))
    return torch.cat(parts).cpu()


def predict_baseline(
    baseline: Baseline,
    config: Config,
    dataset: Dataset,
    split: Split,
    held_out: ImageSet,
    device: torch.device,
    quiet: bool = True,
) -> Prediction:
    """The baseline's prediction of the held-out images, fitted to the images and labels that a run trains on."""
    is_labeled = torch.isin(split.unlabeled, split.labeled)
    unlabeled = split.unlabeled[~is_labeled] if baseline.uses_unlabeled else split.unlabeled[:0]
    known = SelectedImages(dataset.train.images, torch.cat([split.labeled, unlabeled]))
    f = pretrained_features(config, dataset, split, JoinedImages(known, held_out.images), device, quiet)
    f_labeled, f_unlabeled, f_held_out = torch.split(f, [len(split.labeled), len(unlabeled), len(held_out)])
    y = dataset.train.labels[split.labeled]
    return baseline.predict(f_labeled, y, f_held_out, len(dataset.class_names), f_unlabeled)


def probe_scores(
    config: Config, dataset: Dataset, split: Split, device: torch.device, display: Display
) -> dict[str, float]:
    """The probe's error in %: `probe_error` on the held-out images, `probe_error_estimated` if there are none.

    The estimate is the out-of-fold error on the labels. Nothing is returned for a run from random weights, nor where
    the weights are gone, nor where no class has two labels to estimate from.
    """
    if not config.backbone.pretrained:
        return {}
    try:
        find_file(config.backbone)
    except NPMatchError as missing:  # a resumed run can do without
        display.warn(f"no linear probe to compare with: {missing}")
        return {}
    quiet = display.quiet
    probe, held_out = BASELINES["probe"], evaluation_set(dataset, split)
    if held_out is not None:
        prediction = predict_baseline(probe, config, dataset, split, held_out, device, quiet)
        return {"probe_error": 100 * float((prediction.label != held_out.labels).double().mean())}
    labeled = SelectedImages(dataset.train.images, split.labeled)
    f, y = pretrained_features(config, dataset, split, labeled, device, quiet), dataset.train.labels[split.labeled]
    error = out_of_fold_error(probe, f, y, len(dataset.class_names), config.seed)
    return {} if error is None else {"probe_error_estimated": error}


def show_probe(scores: dict[str, float], display: Display) -> None:
    """Warns if training has not beaten the probe; without held-out images, says what the probe's estimate is."""
    probe = read_probe(scores)
    if probe is None:
        return
    if probe.is_estimated:
        display.say(f"linear probe on the pretrained features: {probe.words} error, estimated out of fold from labels")
    if warning := probe.warning(scores.get("error")):
        display.warn(warning)
