"""Settings for a folder of images that nobody has said anything about: each follows from the files, with a reason."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from statistics import median
from typing import Any, NamedTuple

from PIL import Image

from npmatch.algorithms import NPMatch, find_algorithm
from npmatch.config.recipes import FOLDER
from npmatch.data.check.inspection import open_regular
from npmatch.data.images import FORMATS
from npmatch.data.sources.listing import Listing
from npmatch.training import filled_decay

SAMPLE = 256  # files whose headers are read to learn how large images are
SIDES = (8, 16, 24, 32, 48, 64, 96, 128, 160, 224)
LARGEST = {False: 48, True: 96}  # side for a network from scratch; True: on CUDA
LARGEST_PRETRAINED = {False: 96, True: 224}
# Networks worth having where their weights are in the Hugging Face cache, the first found is taken; True: on CUDA.
PRETRAINED = {
    False: ("resnet18.a1_in1k", "resnet18.tv_in1k", "mobilenetv3_small_100.lamb_in1k", "resnet34.a1_in1k"),
    True: ("resnet50.a1_in1k", "resnet50.tv_in1k", "resnet34.a1_in1k", "resnet18.a1_in1k", "resnet18.tv_in1k"),
}
ENTROPY_SHARE = 0.4 / math.log(10)  # of ln K: the paper's 0.4 for ten classes, its 1.2 for ImageNet's thousand
HELD_OUT, ENOUGH_LABELS = 0.2, 10  # share of labels kept for validation, and the fewest per class to do so
BALANCED = 2.0  # at most so many times as many labels in one class as in another


class Choice(NamedTuple):
    """A setting, and why it was chosen."""

    key: str
    value: Any
    reason: str


def make_choices(listing: Listing, given: Mapping[str, Any], on_cuda: bool = False) -> list[Choice]:
    """What follows from the files for every key that is not `given` (as text or as values)."""
    algorithm = str(given.get("algorithm.name", "npmatch"))
    found = usual_side(listing)
    name = None if found is None or found < 64 else pretrained_at_hand(on_cuda)
    size = _given_size(given) or _stored_side(found, (LARGEST_PRETRAINED if name else LARGEST)[on_cuda])
    choices = [
        Choice(
            "data.image_size", size, "no file could be read" if found is None else f"the median shorter side is {found}"
        ),
        *_backbone(size, name, on_cuda),
        *_augmentation(size, listing.classes),
        *_batches(listing, on_cuda),
        *_average(given, on_cuda),
        *_thresholds(listing, algorithm),
        *_clipping(algorithm),
        *_validation(listing),
    ]
    own_network = "backbone.name" in given  # whose width, stride and weights are then not ours to choose
    return [c for c in choices if c.key not in given and not (own_network and c.key.startswith("backbone."))]


def usual_side(listing: Listing) -> int | None:
    """The median of the shorter sides, from the headers of some files; None where none can be read."""
    step = max(1, len(listing.files) // SAMPLE)
    sides = []
    for file in listing.files[::step]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with open_regular(listing.path(file)) as content, Image.open(content, formats=FORMATS) as image:
                    sides.append(min(image.size))
        except Exception:  # whatever is wrong with it, the check of the data says
            continue
    return round(median(sides)) if sides else None


def pretrained_at_hand(on_cuda: bool, cache: str | None = None) -> str | None:
    """A timm network whose weights are on this machine; nothing is downloaded."""
    from huggingface_hub import try_to_load_from_cache

    for name in PRETRAINED[on_cuda]:
        if isinstance(try_to_load_from_cache(f"timm/{name}", "model.safetensors", cache_dir=cache), str):
            return name
    return None


def _given_size(given: Mapping[str, Any]) -> int | None:
    text = str(given.get("data.image_size", ""))
    return int(text) if text.isdecimal() else None


def _stored_side(found: int | None, largest: int) -> int:
    """The largest of the usual sides that needs no enlarging."""
    return max((side for side in SIDES if side <= min(found or largest, largest)), default=SIDES[0])


def _backbone(size: int, pretrained: str | None, on_cuda: bool) -> Iterator[Choice]:
    if pretrained is not None:
        yield Choice("backbone.name", f"timm:{pretrained}", "its pretrained weights are on this machine")
        yield Choice("backbone.pretrained", True, "few labels go further from learnt features")
        yield Choice("training.learning_rate", 0.01, "pretrained weights should not be shaken")
    elif on_cuda:
        yield Choice("backbone.name", "wrn-37-2" if size > 64 else "wrn-28-2", f"the literature's for {size}×{size}")
    else:
        yield Choice("backbone.name", "cnn", "small, for a CPU")
        yield Choice("backbone.width", 32 if size <= 16 else 48, f"for {size}×{size} pixels")
        yield Choice("backbone.stem_stride", 1 if size <= 16 else 2, "a quarter of the time, but for tiny images")


def _augmentation(size: int, classes: list[str]) -> Iterator[Choice]:
    if classes and all(len(name) == 1 for name in classes):
        yield Choice("augment.policy", "digits", "classes are single characters: mirrored they are others")
    else:
        yield Choice("augment.policy", "natural", "photos may be mirrored")
    yield Choice("augment.padding", max(1, size // 8), "an eighth of the side")
    if size <= 16:
        yield Choice("augment.operations", 1, "tiny images do not survive more")
        yield Choice("augment.cutout", 0.25, "tiny images do not survive more")


def _batches(listing: Listing, on_cuda: bool) -> Iterator[Choice]:
    labeled = sum(listing.count("labeled").values())
    images = labeled + sum(listing.count("unlabeled").values())
    usual, ratio = (64, 7) if on_cuda else (32, 4)
    batch = min(usual, max(8, 1 << max(0, labeled - 1).bit_length()))
    yield Choice("training.batch", batch, f"{labeled} labelled images")
    ratio = min(ratio, max(1, images // batch))
    yield Choice("training.unlabeled_ratio", ratio, f"{images} images to learn from")
    if on_cuda:
        yield Choice("training.iterations", 20_000, "minutes on a GPU; --minutes says how many")


def _average(given: Mapping[str, Any], on_cuda: bool) -> Iterator[Choice]:
    usual, steps = (0.999 if on_cuda else FOLDER["training.ema"]), str(given.get("training.iterations", ""))
    decay = filled_decay(usual, int(steps)) if steps.isdecimal() and int(steps) else usual
    if decay < usual:
        yield Choice("training.ema", decay, f"{steps} steps do not fill a longer average")
    elif on_cuda:
        yield Choice("training.ema", usual, "the average of a long run")


def _thresholds(listing: Listing, algorithm: str) -> Iterator[Choice]:
    known = {field.name for field in fields(find_algorithm(algorithm).Config)}
    k, labels = max(2, len(listing.classes)), listing.count("labeled").values()
    if "max_entropy" in known:
        value = round(ENTROPY_SHARE * math.log(k), 3)
        yield Choice("algorithm.max_entropy", value, f"the paper's share of ln K, K = {k}")
    if "confidence" in known and k > 100:
        value = round(max(0.7, 0.95 - 0.25 * math.log10(k / 100)), 3)
        yield Choice("algorithm.confidence", value, f"0.95 up to 100 classes, 0.7 from 1,000; K = {k}")
    if "alignment" in known and labels:
        balanced = is_balanced(labels)
        reason = f"{min(labels)} to {max(labels)} labels a class: " + ("balanced" if balanced else "not balanced")
        yield Choice("algorithm.alignment", balanced, reason)


def is_balanced(labels: Collection[int]) -> bool:
    """Whether the classes have so nearly equally many labels that alignment, which assumes as much, may be on."""
    return max(labels) <= BALANCED * min(labels)


def _clipping(algorithm: str) -> Iterator[Choice]:
    if issubclass(find_algorithm(algorithm), NPMatch):
        yield Choice("training.clip", 1.0, "a neural process then learns from its first steps on")


def _validation(listing: Listing) -> Iterator[Choice]:
    labels = listing.count("labeled").values()
    if not listing.count("test") and labels and min(labels) >= ENOUGH_LABELS:
        yield Choice("data.validation", HELD_OUT, "no test images: some labels are kept to measure the error")
