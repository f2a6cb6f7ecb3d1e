"""Every cell of the paper's tables as a named recipe, `<data set>-<labels>`, and small recipes that run on a laptop.

`cifar10-open` is an open set, whose unlabelled images are of unknown classes too. `<data set>-lt-<γ>` are long-tailed:
the first class has γ times as many images as the last one.

A recipe is a layer of configuration, with the error rates that the paper reports for it. To run one:
`npmatch train cifar10-40 --data DIR`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from npmatch.algorithms import find_algorithm
from npmatch.data.long_tail import long_tailed
from npmatch.errors import NoSuchChoiceError


@dataclass(frozen=True)
class Recipe:
    """A named layer of configuration."""

    name: str
    about: str
    settings: dict[str, Any]
    classes: int
    images: int  # for training
    side: int  # pixels
    paper_error: dict[str, tuple[float, float | None]] = field(default_factory=dict)  # algorithm → %, ± over seeds


CIFAR10 = {
    "data.source": "cifar10",
    "backbone.name": "wrn-28-2",
    "training.weight_decay": 5e-4,
}
CIFAR10_OPEN = {**CIFAR10, "data.source": "cifar10-open"}
CIFAR100 = {
    "data.source": "cifar100",
    "backbone.name": "wrn-28-8",
    "training.weight_decay": 1e-3,
}
STL10 = {
    "data.source": "stl10",
    "backbone.name": "wrn-37-2",
    "training.weight_decay": 5e-4,
}
IMAGENET = {
    "data.source": "imagenet",
    "data.image_size": 256,
    "augment.crop": "resized",
    "augment.size": 224,
    "backbone.name": "timm:resnet50",
    "training.batch": 256,
    "training.unlabeled_ratio": 1,
    "training.learning_rate": 0.05,
    "training.weight_decay": 1e-4,
}
# Settings of an algorithm that depend on the data set (paper, appendix, and the methods' own papers).
ALGORITHM_SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("digits", "npmatch"): {"algorithm.alignment": True, "algorithm.max_entropy": 1.2},
    ("digits", "ups"): {"algorithm.dropout": 0.1},  # the default of 0.3 keeps a small network from learning
    # VAT's default of 6 is for 32×32×3 pixels; these radii are as large for each pixel.
    ("digits", "vat"): {"algorithm.radius": 0.87},
    ("fashion-mnist", "vat"): {"algorithm.radius": 3.03},
    ("digits", "meanteacher"): {"algorithm.teacher_decay": 0.99},  # as training.ema
    ("stl10", "comatch"): {"algorithm.contrastive_weight": 5.0},
    ("imagenet", "fixmatch"): {"algorithm.confidence": 0.7},
    ("imagenet", "flexmatch"): {"algorithm.confidence": 0.7},
    ("imagenet", "ups"): {"algorithm.confidence": 0.7},
    ("imagenet", "npmatch"): {"algorithm.width": 256, "algorithm.confidence": 0.7, "algorithm.max_entropy": 1.2},
    ("fashion-mnist", "npmatch"): {"algorithm.alignment": True},
    ("imagenet", "simmatch"): {
        "algorithm.confidence": 0.7,
        "algorithm.unlabeled_weight": 10.0,
        "algorithm.instance_weight": 5.0,
        "algorithm.window": 256,
    },
    ("cifar100", "regmixmatch"): {"algorithm.mixing_confidence": 0.99, "algorithm.class_aware": False},
    ("stl10", "regmixmatch"): {"algorithm.mixing_confidence": 0.99},
    ("cifar10", "iomatch"): {"algorithm.alignment": False},
    ("cifar10-open", "openmatch"): {"training.iterations": 2**19},
    ("cifar10-open", "iomatch"): {"algorithm.alignment": False, "training.iterations": 2**18},
    ("cifar10-open", "ssb"): {"training.iterations": 2**19},
    ("cifar100", "openmatch"): {"algorithm.consistency_weight": 1.0},
    ("cifar100", "ssb"): {"algorithm.consistency_weight": 1.0},
    ("fashion-mnist", "meanteacher"): {"algorithm.teacher_decay": 0.99},  # as training.ema
}

# 8×8 pixels and 1,437 images: a small network that trains in minutes. Chosen on seeds 10–19.
DIGITS = {
    "data.source": "digits",
    "augment.policy": "digits",
    "augment.padding": 1,
    "augment.operations": 1,
    "augment.cutout": 0.25,
    "backbone.name": "cnn",
    "training.iterations": 1500,
    "training.batch": 32,
    "training.unlabeled_ratio": 4,
    "training.ema": 0.99,
    "training.eval_every": 100,
    "training.checkpoint_every": 250,
}
# 28×28 grey pixels and 60,000 images: five minutes on one core.
FASHION_MNIST = {
    "data.source": "fashion-mnist",
    "augment.padding": 2,
    "backbone.name": "cnn",
    "backbone.width": 48,
    "backbone.stem_stride": 2,
    "training.iterations": 2000,
    "training.batch": 32,
    "training.unlabeled_ratio": 4,
    "training.ema": 0.99,
    "training.eval_every": 500,
    "training.checkpoint_every": 500,
}
# Defaults for a user's own images; choices.py refines them.
OWN_IMAGES: dict[str, Any] = {
    "data.source": "folder",
    "data.image_size": 32,
    "backbone.name": "cnn",
    "backbone.width": 48,
    "training.iterations": 3000,
    "training.batch": 32,
    "training.unlabeled_ratio": 4,
    "training.ema": 0.99,
    "training.eval_every": 500,
    "training.checkpoint_every": 500,
}

# Error rates (%) of the paper's Tables 1 and 4: mean, standard deviation over three seeds; – where there is none. Those
# below the line are published elsewhere: by TorchSSL (first four), USB (adamatch, crmatch on CIFAR-10) or in the paper
# of the method, as later repositories quote it; simmatch and softmatch on CIFAR-10 are from memory. Numbers of USB for
# CIFAR-100 are of a smaller network.
COLUMNS = [
    "cifar10-40", "cifar10-250", "cifar10-4000", "cifar100-400", "cifar100-2500", "cifar100-10000",
    "stl10-40", "stl10-250", "stl10-1000",
]  # fmt: skip
PAPER = {
    "mixmatch": "36.19 6.48 13.63 0.59 6.66 0.26 67.59 0.66 39.76 0.48 27.78 0.29 54.93 0.96 34.52 0.32 21.70 0.68",
    "remixmatch": "9.88 1.03 6.30 0.05 4.84 0.01 42.75 1.05 26.03 0.35 20.02 0.27 32.12 6.24 12.49 1.28 6.74 0.14",
    "uda": "10.62 3.75 5.16 0.06 4.29 0.07 46.39 1.59 27.73 0.21 22.49 0.23 37.42 8.44 9.72 1.15 6.64 0.17",
    "comatch": "6.88 0.92 4.90 0.35 4.06 0.03 40.02 1.11 27.01 0.21 21.83 0.23 31.77 2.56 11.56 1.27 8.66 0.41",
    "semco": "7.87 0.22 5.12 0.27 3.80 0.08 44.11 1.18 31.93 0.33 24.45 0.12 34.17 2.78 12.23 1.40 7.49 0.29",
    "mpl": "6.93 0.17 4.94 0.04 3.89 0.07 44.23 0.99 27.68 0.22 22.48 0.18 34.29 3.29 9.90 0.96 6.45 0.26",
    "flexmatch": "4.96 0.06 4.98 0.09 4.19 0.01 39.94 1.62 26.49 0.20 21.90 0.15 29.15 4.16 8.23 0.39 5.77 0.18",
    "ups": "5.26 0.29 5.11 0.08 4.25 0.05 41.07 1.66 27.14 0.24 21.97 0.23 30.82 2.16 9.77 0.44 6.02 0.28",
    "fixmatch": "7.47 0.28 4.86 0.05 4.21 0.08 46.42 0.82 28.03 0.16 22.20 0.12 35.96 4.14 9.81 1.04 6.25 0.33",
    "npmatch": "4.91 0.04 4.96 0.06 4.11 0.02 38.91 0.99 26.03 0.26 21.22 0.13 14.20 0.67 9.51 0.37 5.59 0.24",
    "npmatch/kl": "5.32 0.06 5.20 0.02 4.36 0.03 39.15 1.53 26.48 0.23 21.51 0.17 14.67 0.38 9.92 0.24 6.21 0.23",
    "npmatch/js_dual": "4.93 0.02 4.87 0.03 4.19 0.04 38.67 1.29 26.24 0.17 21.33 0.10 14.45 0.55 9.48 0.28 5.47 0.19",
    # ----------
    "pseudolabel": "74.61 0.26 46.49 2.20 15.08 0.19 87.45 0.85 57.74 0.28 36.55 0.24 74.68 0.99 – – 32.64 0.71",
    "pimodel": "74.34 1.76 46.24 1.29 13.13 0.59 86.96 0.80 58.80 0.66 36.65 0.00 74.31 0.85 – – 32.78 0.40",
    "meanteacher": "70.09 1.60 37.46 3.30 8.10 0.21 81.11 1.44 45.17 1.06 31.75 0.23 71.72 1.45 – – 33.90 1.37",
    "vat": "74.66 2.12 41.03 1.79 10.51 0.12 85.20 1.40 46.84 0.79 32.14 0.19 74.74 0.38 – – 37.95 1.12",
    "dash": "13.22 3.75 4.56 0.13 4.08 0.06 44.76 0.96 27.18 0.21 – – – – – – – –",
    "adamatch": "5.05 0.04 5.01 0.11 4.29 0.06 – – – – – – – – – – – –",
    "simmatch": "5.60 1.37 4.84 0.39 3.96 0.01 37.81 2.21 25.07 0.32 20.58 0.11 – – – – – –",
    "freematch": "4.90 0.04 4.88 0.18 4.10 0.02 37.98 0.42 26.47 0.20 21.68 0.03 15.56 0.55 – – 5.63 0.15",
    "softmatch": "4.91 0.12 4.82 0.09 4.04 0.02 37.10 0.77 26.66 0.25 22.03 0.03 21.42 3.48 – – 5.73 0.24",
    "crmatch": "10.13 2.09 4.67 0.02 3.81 0.16 39.45 1.69 25.43 0.14 20.40 0.08 – – – – 4.89 0.17",
    "regmixmatch": "– – – – – – 35.27 – 23.78 – 19.41 – 11.74 – – – 4.66 –",
}
PAPER_IMAGENET = {
    "fixmatch": 43.66,
    "flexmatch": 41.85,
    "comatch": 42.17,
    "ups": 42.69,
    "npmatch": 41.78,
}  # top-1
# Of known classes, without standard deviations: the first three from IOMatch's paper, SSB's from its authors' results.
PAPER_OPEN = {
    "cifar10-open-24": {"fixmatch": 18.42, "openmatch": 56.37, "iomatch": 10.32},
    "cifar10-open-150": {"fixmatch": 7.06, "openmatch": 33.73, "iomatch": 6.13, "ssb": 8.26},
    "cifar10-open-300": {"ssb": 7.82},
}


def _paper_errors(name: str) -> dict[str, tuple[float, float | None]]:
    """A recipe's column of the paper's tables: algorithm → error in %, standard deviation."""
    if (means := PAPER_OPEN.get(name, PAPER_IMAGENET if name == "imagenet-100k" else None)) is not None:
        return {algorithm: (error, None) for algorithm, error in means.items()}
    if name not in COLUMNS:
        return {}
    column = 2 * COLUMNS.index(name)
    found = {}
    for algorithm, row in PAPER.items():
        mean, deviation = (None if cell == "–" else float(cell) for cell in row.split()[column : column + 2])
        if mean is not None:
            found[algorithm] = (mean, deviation)
    return found


def _long_tailed(
    name: str, about: str, settings: dict[str, Any], imbalance: int, heads: tuple[int, int], side: int
) -> Recipe:
    """A recipe of ten classes with `heads` labelled and unlabelled images of the first one."""
    labels, unlabeled = (long_tailed(head, imbalance, classes=10) for head in heads)
    tail = {"data.labels_head": heads[0], "data.unlabeled_head": heads[1], "data.imbalance": imbalance}
    about = f"{about}, long-tailed 1:{imbalance}, {labels[0]} to {labels[-1]} labels per class"
    return Recipe(name, about, {**settings, **tail}, 10, sum(labels) + sum(unlabeled), side)


def _all_recipes() -> dict[str, Recipe]:
    sets: list[tuple[str, str, dict[str, Any], list[int], tuple[int, int, int]]] = [
        ("digits", "8×8 handwritten digits, embedded; minutes on a CPU", DIGITS, [40], (10, 1437, 8)),
        ("fashion-mnist", "28×28 pictures of clothes; minutes on a CPU", FASHION_MNIST, [40, 250], (10, 60_000, 28)),
        ("cifar10", "CIFAR-10, WRN-28-2", CIFAR10, [40, 250, 4000], (10, 50_000, 32)),
        ("cifar10-open", "CIFAR-10, animals known, vehicles not", CIFAR10_OPEN, [24, 150, 300], (6, 50_000, 32)),
        ("cifar100", "CIFAR-100, WRN-28-8", CIFAR100, [400, 2500, 10000], (100, 50_000, 32)),
        ("stl10", "STL-10 with its 100k unlabelled images, WRN-37-2", STL10, [40, 250, 1000], (10, 105_000, 96)),
    ]
    recipes = [
        Recipe(f"{source}-{n}", about, {**settings, "data.labels": n}, *facts, _paper_errors(f"{source}-{n}"))
        for source, about, settings, numbers_of_labels, facts in sets
        for n in numbers_of_labels
    ]
    imagenet = {**IMAGENET, "data.labels": 100_000}
    about = "ImageNet with 100 labels per class, ResNet-50"
    recipes.append(Recipe("imagenet-100k", about, imagenet, 1000, 1_281_167, 224, _paper_errors("imagenet-100k")))
    recipes.append(_long_tailed("digits-lt-20", "8×8 handwritten digits", DIGITS, 20, (40, 100), 8))
    recipes.append(_long_tailed("fashion-mnist-lt-20", "28×28 clothes", FASHION_MNIST, 20, (200, 4000), 28))
    for heads in ((500, 4000), (1500, 3000)):
        for imbalance in (50, 100, 150):
            name = f"cifar10-lt-{imbalance}-{heads[0]}"
            recipes.append(_long_tailed(name, "CIFAR-10, WRN-28-2", CIFAR10, imbalance, heads, 32))
    return {recipe.name: recipe for recipe in recipes}


RECIPES = _all_recipes()


def find_recipe(name: str) -> Recipe:
    """The recipe called `name`; an unknown name is an error."""
    if name not in RECIPES:
        raise NoSuchChoiceError("recipe", name, list(RECIPES))
    return RECIPES[name]


def recipe_layer(name: str, algorithm: str) -> dict[str, Any]:
    """A recipe's settings for an algorithm, as a layer of configuration."""
    settings = find_recipe(name).settings
    for_data_set = ALGORITHM_SETTINGS.get((settings["data.source"], algorithm), {})
    cls = find_algorithm(algorithm)
    aligns = "data.imbalance" in settings and any(setting.name == "alignment" for setting in fields(cls.Config))
    for_tail = {"algorithm.alignment": False} if aligns else {}  # alignment assumes balanced classes
    return {"recipe": name, **settings, **cls.settings, **for_data_set, **for_tail}
