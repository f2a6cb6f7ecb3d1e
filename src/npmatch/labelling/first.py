"""The first labels of a folder that has none: typical images that differ from one another.

MaxHerding (Bae et al., Generalized Coverage for More Robust Low-Budget Active Learning, ECCV 2024) chooses, one after
another, the image whose label says most about the images that no chosen one resembles yet:

    gain(x) = Σ_i max(k(x, i) − m_i, 0),   m_i = max over chosen j of k(j, i),   k(x, y) = exp(−‖f_x − f_y‖² / σ²)

with features f of a pretrained network, scaled to length 1, and σ = 1. Gains never rise, so every beginning of the list
is a good choice too. Broken files are never chosen, nor two copies of one picture.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from npmatch.augment import normalize
from npmatch.backbones import BackboneConfig, make_backbone
from npmatch.backbones.weights import fixed_side, input_facts, with_weights
from npmatch.config.facts import facts_of_listing
from npmatch.config.start import find_start
from npmatch.data import FileImages, ImageSet, ImageStore, iterate_images
from npmatch.data.check import check_data
from npmatch.data.copies import copies_in_report, picture_of_each
from npmatch.data.loading import workers_or_default
from npmatch.data.sources.folders import list_folder, list_unlabeled
from npmatch.data.sources.label_table import LABEL_TABLE
from npmatch.data.sources.listing import Listing
from npmatch.distributed.devices import choose_device
from npmatch.draws import mix
from npmatch.errors import NPMatchError
from npmatch.labelling.folder_labels import FolderLabels
from npmatch.labelling.tables import write_empty_table, write_images_as_tasks
from npmatch.training.display import counting

SIDE = 128  # pixels at which the network sees the images: enough to tell what is typical
BATCH = 128
MOST_IMAGES = 35_000  # from which to choose; of more, a random part, because the time grows with the square
BLOCK = 1024  # rows of the kernel at a time


@dataclass(frozen=True)
class FirstLabel:
    """An image to label."""

    path: Path
    coverage: float  # mean over all images of what it adds to the resemblance to their nearest chosen image

    @property
    def reason(self) -> str:
        """Why it was chosen, in words."""
        return f"typical: adds {self.coverage:.1%} to the coverage of the images"


@dataclass(frozen=True)
class FirstLabels:
    """The images to label first, and the files that cannot be used."""

    rows: list[FirstLabel]
    images: int  # number of images to choose from
    problems: tuple[str, ...]  # a line for each file that cannot be used
    class_names: tuple[str, ...] = ()  # those that the folder's labels have so far


def suggest_first(
    data: str | Path, count: int = 40, device: str | None = None, seed: int = 0, quiet: bool = False
) -> FirstLabels:
    """The images of a folder to label first; images that have a label already are not chosen, nor what they cover."""
    if count < 1:
        raise NPMatchError(f"{count} suggestions: ask for 1 or more")
    root, chosen = Path(data), choose_device(device)
    listing = list_unlabeled(root)
    if not listing.files:
        raise NPMatchError(f"{root}: there is no unlabelled image in it")
    with counting("checking images", len(listing.files), quiet) as advance:
        report = check_data(listing, advance=advance)
    broken = {one.path: one for one in report.quarantine}
    names = [file.name for file in listing.files]
    pool = ImageSet(FileImages([listing.path(file) for file in listing.files], SIDE), torch.empty(len(names)), names)
    picture = picture_of_each(len(names), copies_in_report(report, pool))
    kept = first_of_each([int(number) for number in picture], [name not in broken for name in names])
    if not kept:
        raise NPMatchError(f"{root}: none of its {len(names)} images can be read; npmatch check-data {root} says why")
    if len(kept) > MOST_IMAGES:
        order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(mix(seed, "first labels")))
        kept = [kept[place] for place in sorted(order[:MOST_IMAGES].tolist())]
    known = list_folder(root)
    labelled = [listing.path(file) for file in known.files if file.part == "labeled"]
    paths = [listing.path(listing.files[position]) for position in kept]
    backbone = find_network(listing, chosen)
    images = FileImages([*paths, *filter(os.path.isfile, labelled)], SIDE)
    f = learnt_features(backbone, images, chosen, quiet)
    picks = choose_typical(f[: len(paths)], count, f[len(paths) :])
    rows = [FirstLabel(Path(paths[row]), gain / len(paths)) for row, gain in picks]
    problems = tuple(f"{root / one.path}: {one.kind} {one.detail}".rstrip() for one in broken.values())
    return FirstLabels(rows, len(paths), problems, tuple(known.classes))


def first_of_each(pictures: list[int], usable: list[bool]) -> list[int]:
    """Positions of usable images, of each picture the first."""
    first: dict[int, int] = {}
    for position, (picture, is_usable) in enumerate(zip(pictures, usable, strict=True)):
        if is_usable:
            first.setdefault(picture, position)
    return list(first.values())


def find_network(listing: Listing, device: torch.device) -> BackboneConfig:
    """The best pretrained network on this machine."""
    start = find_start(facts_of_listing(listing), {"backbone.pretrained": "true"}, device.type == "cuda")
    assert start is not None
    kind, _, network = start.network.partition(":")
    side = (fixed_side(network) if kind == "timm" else None) or SIDE
    return with_weights(BackboneConfig(name=start.network, pretrained=True, input_size=side))


@torch.no_grad()
def learnt_features(
    config: BackboneConfig,
    images: ImageStore,
    device: torch.device,
    quiet: bool = True,
    workers: int | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> Tensor:
    """Features of images by a pretrained network, scaled to length 1: N F, on the CPU.

    `workers` is the number of decoding processes; None means one per core, up to 16. `advance` is called with the
    number of images described since the last call.
    """
    channels = images.shape[0]
    backbone = make_backbone(config, channels).to(device).eval()
    facts = input_facts(config)
    assert facts is not None
    parts = []
    with counting("pretrained features", len(images), quiet) as show:
        for batch in iterate_images(images, BATCH, workers_or_default(workers)):
            f = backbone(normalize(batch.to(device), facts.mean[:channels], facts.std[:channels]))
            parts.append(F.normalize(f.float(), dim=-1).cpu())
            show(len(batch))
            advance(len(batch))
    return torch.cat(parts)


def choose_typical(features: Tensor, count: int, known: Tensor | None = None) -> list[tuple[int, float]]:
    """Rows of `features` (N F, of length 1) to label, best first, each with its gain; `known` n F have a label."""
    covered = features.new_zeros(len(features))  # m
    for row in () if known is None else known:
        torch.maximum(covered, kernel(features, row[None])[:, 0], out=covered)
    starts = range(0, len(features), BLOCK)
    gains = torch.cat([_gains(features, features[start : start + BLOCK], covered) for start in starts])
    # Gains never rise: a row whose gain is still the largest after it was computed anew is the best one.
    waiting = [(-gain, row) for row, gain in enumerate(gains.tolist())]
    heapq.heapify(waiting)
    picks: list[tuple[int, float]] = []
    while waiting and len(picks) < count:
        _, row = heapq.heappop(waiting)
        gain = float(_gains(features, features[row : row + 1], covered))
        if waiting and gain < -waiting[0][0]:
            heapq.heappush(waiting, (-gain, row))
            continue
        picks.append((row, gain))
        torch.maximum(covered, kernel(features, features[row : row + 1])[:, 0], out=covered)
    return picks


def kernel(features: Tensor, others: Tensor) -> Tensor:
    """exp(−‖f − g‖²) for features of length 1: N F, n F → N n."""
    return (2 * (features @ others.T) - 2).clamp(max=0).exp()


def _gains(features: Tensor, rows: Tensor, covered: Tensor) -> Tensor:
    """gain(x) for the rows n F: n."""
    return (kernel(features, rows) - covered[:, None]).clamp(min=0).sum(0)


def write_first_table(found: FirstLabels, data: Path, out: Path) -> None:
    """Writes the images as a table in which labels can be filled in.

    In the folder's own table, DATA/labels.csv, answered rows stay, and paths are relative to the folder.
    """
    if out.resolve() == (data / LABEL_TABLE).resolve():
        FolderLabels(data).offer((os.path.relpath(row.path, data), row.reason) for row in found.rows)
    else:
        write_empty_table(((os.path.abspath(row.path), "", row.reason) for row in found.rows), out)


def write_first_tasks(found: FirstLabels, out: Path) -> tuple[Path, Path | None]:
    """Writes the images as tasks for Label Studio; the result is that of `write_images_as_tasks`."""
    images = FileImages([row.path for row in found.rows], SIDE)
    rows = [(place, str(row.path), row.reason, dict[str, Any]()) for place, row in enumerate(found.rows)]
    return write_images_as_tasks(rows, images, found.class_names, out, may_name_others=True)
