"""Activations of a few weak and strong views of every training image, computed once and kept on disk beside the run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from npmatch.algorithms import find_algorithm
from npmatch.augment import make_policy, normalize
from npmatch.backbones import make_backbone
from npmatch.backbones.frozen import FrozenTrunk, fast_activations
from npmatch.config.tree import Config
from npmatch.data import Dataset, Split
from npmatch.data.fingerprint import hash_contents
from npmatch.data.loading import iterate_selected, workers_or_default
from npmatch.data.split import trained_on
from npmatch.draws import mix
from npmatch.files import remove_leftovers
from npmatch.training import Display, load_tensors, save_tensors
from npmatch.training.display import counting
from npmatch.types import Views

BATCH = 32  # images at a time
STRONG = 2  # strong views for each weak one
TIMED = 3  # batches by which the time of the views is measured
SHARE_OF_MINUTES = 0.5  # that the views may take
KEPT_BYTES = 4 << 30  # of the features of other images and settings in the same folder; the oldest are deleted


Activations = Callable[[Tensor], Tensor]  # n C H W, normalised → n D


class ViewActivations(NamedTuple):
    """The activations of the views of n images."""

    weak: Tensor  # V n D, float16
    strong: Tensor  # 2V n D, float16


def view_activations(
    config: Config,
    dataset: Dataset,
    used: Tensor,
    device: torch.device,
    folder: Path | None,
    display: Display,
) -> ViewActivations:
    """The activations of the images at `used`: from the file that an earlier run has left in `folder`, or new ones.

    The draws of the views do not depend on the run's seed, so that runs of other seeds and algorithms share the file.
    """
    path = None if folder is None else folder / f"{key_of(config, dataset, used)}.safetensors"
    if path is not None and path.is_file():
        saved, _ = load_tensors(path)
        display.say(f"features of the views: from {path}")
        return ViewActivations(saved["weak"].to(device), saved["strong"].to(device))
    backbone = make_backbone(config.backbone, dataset.train.images.shape[0]).to(device)
    assert isinstance(backbone, FrozenTrunk)
    weak, strong = compute(config, dataset, used, make_activations(backbone, dataset, device), device, display.quiet)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        delete_oldest(path.parent)
        remove_leftovers(path)
        save_tensors(path, {"weak": weak.cpu(), "strong": strong.cpu()})
    return ViewActivations(weak, strong)


def learnt_from(split: Split, views: Views) -> Tensor:
    """Ascending positions of the images whose views training needs: only the labelled ones without unlabelled views."""
    return trained_on(split) if views.uses_unlabeled else split.labeled.sort().values


def key_of(config: Config, dataset: Dataset, used: Tensor) -> str:
    """A name that says of which images, views and weights the activations are."""
    facts = [dataclasses.asdict(config.augment), dataclasses.asdict(config.backbone)]
    digest = hashlib.sha256(json.dumps(facts).encode())
    digest.update(hash_contents(dataset.train.images, used).encode())
    return digest.hexdigest()[:16]


def delete_oldest(folder: Path) -> None:
    """Makes room for new features: deletes the oldest ones until the others take no more than KEPT_BYTES."""
    files = sorted(folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime, reverse=True)
    total = 0
    for file in files:
        total += file.stat().st_size
        if total > KEPT_BYTES:
            file.unlink(missing_ok=True)


@torch.no_grad()
def make_activations(backbone: FrozenTrunk, dataset: Dataset, device: torch.device) -> Activations:
    """The backbone's activations, as fast as they can be had for batches of this data set."""
    return fast_activations(backbone, torch.zeros(BATCH, *dataset.train.images.shape, device=device))


@torch.no_grad()
def compute(
    config: Config, dataset: Dataset, used: Tensor, activations: Activations, device: torch.device, quiet: bool
) -> tuple[Tensor, Tensor]:
    """Activations of the weak and strong views of the images at `used`, V n D and 2V n D."""
    policy = make_policy(config.augment, dataset.train.images.shape, dataset.mean)
    v = config.backbone.cached_views
    views = [policy.weak] * v + [policy.strong] * (STRONG * v)
    workers = workers_or_default(config.data.workers)
    rows: list[Tensor] = []
    with (
        counting(f"features of {len(views)} views", len(used), quiet) as advance,
        torch.random.fork_rng(devices=range(torch.cuda.device_count())),
    ):
        for number, batch in enumerate(iterate_selected(dataset.train.images, used, BATCH, workers)):
            torch.manual_seed(mix(0, "features", number))
            pixels = batch.to(device)
            # Called directly, a view would use the draws of this rank's share of a batch, but every rank has them all.
            changed = (view.apply(pixels, view.draw(len(pixels), device)) for view in views)
            inputs = (normalize(x, dataset.mean, dataset.std) for x in changed)
            rows.append(torch.stack([activations(x) for x in inputs]).half())
            advance(len(batch))
    found = torch.cat(rows, dim=1)
    return found[:v], found[v:]


def fit_views(
    config: Config, dataset: Dataset, split: Split, minutes: float, given: Collection[str], display: Display
) -> Config:
    """The configuration with as many views as can be computed in a part of the minutes."""
    if "backbone.cached_views" in given or torch.cuda.is_available():  # a GPU needs seconds
        return config
    used, v = learnt_from(split, find_algorithm(config.name).views), config.backbone.cached_views
    backbone = make_backbone(config.backbone, dataset.train.images.shape[0])
    assert isinstance(backbone, FrozenTrunk)
    one = replace(config, backbone=replace(config.backbone, cached_views=1))
    cpu, timed = torch.device("cpu"), used[: TIMED * BATCH]
    activations = make_activations(backbone, dataset, cpu)
    compute(one, dataset, used[:BATCH], activations, cpu, quiet=True)  # loads decoders and kernels
    started = time.monotonic()
    compute(one, dataset, timed, activations, cpu, quiet=True)
    each = (time.monotonic() - started) / len(timed)
    possible = int(SHARE_OF_MINUTES * 60 * minutes / (each * len(used)))
    if possible >= v:
        return config
    fewer = max(1, possible)
    display.say(f"backbone.cached_views={fewer}: {v} would take {each * len(used) * v / 60:.1f} of the minutes")
    return replace(config, backbone=replace(config.backbone, cached_views=fewer))
