"""Defaults for a user's own images, each with its reason: one policy for a folder, a CSV and arrays in memory.

All the policy knows about the images is a `DataFacts`; it does not depend on where they come from. The numbers were
chosen on digits and Fashion-MNIST, seeds 10–14 (docs/results.md, "Defaults for one's own images").
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any, NamedTuple

from PIL import Image

from npmatch.algorithms import NPMatch, find_algorithm
from npmatch.config.recipes import OWN_IMAGES
from npmatch.data.check.inspection import open_regular
from npmatch.data.images import FORMATS
from npmatch.data.sources.listing import Listing
from npmatch.training import limit_ema_decay

SAMPLED_FILES = 256  # number of files whose headers are read to find the usual image size
SIDES = (8, 16, 24, 32, 48, 64, 96, 128, 160, 224)  # pixels: sides that images of different sizes are scaled to
# The tables below have one entry for the CPU (False) and one for CUDA (True).
LARGEST_SIDE = {False: 48, True: 96}  # pixels, for a network trained from scratch
LARGEST_SIDE_PRETRAINED = {False: 96, True: 224}  # pixels
TINY = 16  # pixels: smaller images do not survive strong augmentation, nor a first layer of stride 2
# timm networks in order of preference: the first one whose weights are in the Hugging Face cache is used.
PRETRAINED = {
    False: ("resnet18.a1_in1k", "resnet18.tv_in1k", "mobilenetv3_small_100.lamb_in1k", "resnet34.a1_in1k"),
    True: ("resnet50.a1_in1k", "resnet50.tv_in1k", "resnet34.a1_in1k", "resnet18.a1_in1k", "resnet18.tv_in1k"),
}
# Entropy in nats below which a pseudo-label is trusted: measured at ten classes, and the paper's at a thousand.
MAX_ENTROPY, AT_CLASSES = 1.2, 10
HELD_OUT, ENOUGH_LABELS = 0.2, 10  # share of labels kept for validation, and labels per class from which it is kept
BALANCED = 2.0  # largest ratio between the numbers of labels of two classes

# Every key the policy may choose, now or in version 0.1.0: a resumed run keeps what was chosen when it started.
CHOSEN_KEYS = frozenset(
    {
        *("data.image_size", "data.validation"),
        *("backbone.name", "backbone.pretrained", "backbone.width", "backbone.stem_stride"),
        *("augment.policy", "augment.padding", "augment.operations", "augment.cutout"),
        *("training.batch", "training.unlabeled_ratio", "training.iterations", "training.learning_rate"),
        *("training.ema", "training.clip"),
        *("algorithm.max_entropy", "algorithm.confidence", "algorithm.alignment", "algorithm.dropout"),
    }
)


class Choice(NamedTuple):
    """A setting that was chosen for the user, and the reason for it."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True)
class DataFacts:
    """The facts about a user's images that the defaults follow from."""

    class_names: Sequence[str]
    labels: Sequence[int]  # number of labelled images in each class that has any
    images: int  # number of training images, labelled and unlabelled
    side: int | None  # median of the shorter sides in pixels; None if no file could be read
    sides_differ: bool = False  # if so, images have to be scaled in any case
    is_grey: bool = False
    from_files: bool = True  # files can be decoded to any size; arrays keep the size they have
    is_tested: bool = True  # whether there are test images, or the caller measures the error itself


def facts_of_listing(listing: Listing) -> DataFacts:
    """The facts about a folder or a CSV: counts from its listing, image sizes from the headers of some files."""
    sides, modes = _headers(listing)
    labels = listing.count("labeled")
    return DataFacts(
        class_names=listing.classes,
        labels=list(labels.values()),
        images=labels.total() + listing.count("unlabeled").total(),
        side=round(median(sides)) if sides else None,
        sides_differ=len(set(sides)) > 1,
        is_grey=bool(modes) and modes <= {"1", "L"},
        is_tested=bool(listing.count("test")),
    )


def _headers(listing: Listing) -> tuple[list[int], set[str]]:
    """The shorter sides and Pillow's modes of some of the files."""
    sides, modes = [], set()
    for file in listing.files[:: max(1, len(listing.files) // SAMPLED_FILES)]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with open_regular(listing.path(file)) as content, Image.open(content, formats=FORMATS) as image:
                    sides.append(min(image.size))
                    modes.add(image.mode)
        except Exception:  # the data check reports files that cannot be read
            continue
    return sides, modes


def make_choices(facts: DataFacts, given: Mapping[str, Any], on_cuda: bool = False) -> list[Choice]:
    """The settings that follow from the facts, for every key that is not in `given` (values may be text)."""
    algorithm = str(given.get("algorithm.name", "npmatch"))
    pretrained = cached_pretrained(on_cuda) if facts.from_files and (facts.side or 0) >= 64 else None
    largest = LARGEST_SIDE_PRETRAINED if pretrained else LARGEST_SIDE
    size = _given_size(given) or _stored_side(facts, largest[on_cuda])
    choices = [
        *_image_size(facts, size),
        *_backbone(size, pretrained, on_cuda),
        *_augmentation(size, facts),
        *_batches(facts, on_cuda),
        *_average(given, on_cuda),
        *_thresholds(facts, algorithm),
        *_clipping(algorithm),
        *_dropout(algorithm, size, on_cuda),
        *_validation(facts),
    ]
    chooses_backbone = "backbone.name" not in given  # width, stride and weights suit the chosen network only
    return [c for c in choices if c.key not in given and (chooses_backbone or not c.key.startswith("backbone."))]


def cached_pretrained(on_cuda: bool, cache: str | None = None) -> str | None:
    """Name of a timm network whose weights are on this machine, or None; nothing is downloaded."""
    from huggingface_hub import try_to_load_from_cache

    for name in PRETRAINED[on_cuda]:
        if isinstance(try_to_load_from_cache(f"timm/{name}", "model.safetensors", cache_dir=cache), str):
            return name
    return None


def _given_size(given: Mapping[str, Any]) -> int | None:
    text = str(given.get("data.image_size", ""))
    return int(text) if text.isdecimal() else None


def _stored_side(facts: DataFacts, largest: int) -> int:
    """The images' own side if they share one and it is not too large, otherwise the next smaller one in SIDES."""
    if facts.side is not None and (not facts.from_files or (facts.side <= largest and not facts.sides_differ)):
        return facts.side
    return max((side for side in SIDES if side <= min(facts.side or largest, largest)), default=SIDES[0])


def _image_size(facts: DataFacts, size: int) -> Iterator[Choice]:
    if facts.from_files:
        reason = "the images' own size" if size == facts.side else f"the median shorter side is {facts.side}"
        yield Choice("data.image_size", size, "no file could be read" if facts.side is None else reason)


def _is_small(size: int, on_cuda: bool) -> bool:
    """Whether a small convolutional network is trained: on a CPU, and on images too small for a deep one."""
    return not on_cuda or size < TINY


def _backbone(size: int, pretrained: str | None, on_cuda: bool) -> Iterator[Choice]:
    if pretrained is not None:
        yield Choice("backbone.name", f"timm:{pretrained}", "its pretrained weights are on this machine")
        yield Choice("backbone.pretrained", True, "with few labels, pretrained features help")
        yield Choice("training.learning_rate", 0.01, "small, to keep the pretrained features")
    elif _is_small(size, on_cuda):
        yield Choice("backbone.name", "cnn", "small, for tiny images" if on_cuda else "small, for a CPU")
        yield Choice("backbone.width", 32 if size < TINY else 48, f"for {size}×{size} pixels")
        if size < TINY:
            yield Choice("backbone.stem_stride", 1, "tiny images lose too much at stride 2")
        else:
            yield Choice("backbone.stem_stride", 2, "takes a quarter of the time of stride 1")
    else:
        name = "wrn-37-2" if size > 64 else "wrn-28-2"
        yield Choice("backbone.name", name, f"usual in the literature for {size}×{size} pixels")


def _augmentation(size: int, facts: DataFacts) -> Iterator[Choice]:
    numbered = all(name.isdecimal() for name in facts.class_names)  # such names do not say what the images show
    if facts.class_names and all(len(name) == 1 for name in facts.class_names):
        yield Choice("augment.policy", "digits", "classes are single characters, which must not be mirrored")
    elif facts.class_names and numbered and facts.is_grey:
        yield Choice("augment.policy", "digits", "grey images of numbered classes may be characters: not mirrored")
    else:
        yield Choice("augment.policy", "natural", "photos may be mirrored")
    yield Choice("augment.padding", max(1, size // 8), "an eighth of the side")
    if size < TINY:
        yield Choice("augment.operations", 1, "more would destroy tiny images")
        yield Choice("augment.cutout", 0.25, "more would destroy tiny images")


def _batches(facts: DataFacts, on_cuda: bool) -> Iterator[Choice]:
    labeled = sum(facts.labels)
    usual, ratio = (64, 7) if on_cuda else (32, 4)
    batch = min(usual, max(8, 1 << max(0, labeled - 1).bit_length()))
    yield Choice("training.batch", batch, f"{labeled} labelled images")
    ratio = min(ratio, max(1, facts.images // batch))
    yield Choice("training.unlabeled_ratio", ratio, f"{facts.images} training images")
    if on_cuda:
        yield Choice("training.iterations", 20_000, "minutes on a GPU; --minutes sets the time instead")


def _average(given: Mapping[str, Any], on_cuda: bool) -> Iterator[Choice]:
    usual, steps = (0.999 if on_cuda else OWN_IMAGES["training.ema"]), str(given.get("training.iterations", ""))
    decay = limit_ema_decay(usual, int(steps)) if steps.isdecimal() and int(steps) else usual
    if decay < usual:
        yield Choice("training.ema", decay, f"{steps} steps are too few for a longer average")
    elif on_cuda:
        yield Choice("training.ema", usual, "a long run allows a long average")


def _thresholds(facts: DataFacts, algorithm: str) -> Iterator[Choice]:
    known = {field.name for field in fields(find_algorithm(algorithm).Config)}
    k = max(2, len(facts.class_names))
    if "max_entropy" in known:
        value = round(MAX_ENTROPY * min(1.0, math.log(k) / math.log(AT_CLASSES)), 3)
        reason = f"{MAX_ENTROPY} nats from {AT_CLASSES} classes on, proportional to ln K below; K = {k}"
        yield Choice("algorithm.max_entropy", value, reason)
    if "confidence" in known and k > 100:
        value = round(max(0.7, 0.95 - 0.25 * math.log10(k / 100)), 3)
        yield Choice("algorithm.confidence", value, f"0.95 up to 100 classes, 0.7 from 1,000; K = {k}")
    if "alignment" in known and facts.labels:
        balanced = is_balanced(facts.labels)
        fewest, most = min(facts.labels), max(facts.labels)
        reason = f"{fewest} to {most} labels per class: " + ("balanced" if balanced else "not balanced")
        yield Choice("algorithm.alignment", balanced, reason)


def is_balanced(labels: Collection[int]) -> bool:
    """Whether the classes have similar numbers of labels, which distribution alignment assumes."""
    return max(labels) <= BALANCED * min(labels)


def _clipping(algorithm: str) -> Iterator[Choice]:
    if issubclass(find_algorithm(algorithm), NPMatch):
        yield Choice("training.clip", 1.0, "lets a neural process learn from its first steps on")


def _dropout(algorithm: str, size: int, on_cuda: bool) -> Iterator[Choice]:
    if algorithm == "ups" and _is_small(size, on_cuda):
        yield Choice("algorithm.dropout", 0.1, "more would keep a small network from learning")


def _validation(facts: DataFacts) -> Iterator[Choice]:
    if not facts.is_tested and facts.labels and min(facts.labels) >= ENOUGH_LABELS:
        yield Choice("data.validation", HELD_OUT, "no test images: some labels are kept to measure the error")
