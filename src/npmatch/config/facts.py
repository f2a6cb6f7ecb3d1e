"""What the defaults for a user's own images follow from: class names, numbers of labels and images, image sizes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from PIL import Image

from npmatch.config.recipes import Recipe
from npmatch.data.check.inspection import open_regular
from npmatch.data.config import DataConfig
from npmatch.data.images import FORMATS
from npmatch.data.long_tail import labels_per_class
from npmatch.data.sources.listing import Listing

SAMPLED_FILES = 256  # number of files whose headers are read to find the usual image size


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


def facts_of_recipe(recipe: Recipe) -> DataFacts:
    """The facts about a recipe's data set, which are known without reading it."""
    names = [f"class {number}" for number in range(recipe.classes)]
    settings = ((*key.split(".", 1), value) for key, value in recipe.settings.items())
    config = DataConfig(**{key: value for group, key, value in settings if group == "data"})
    labels = labels_per_class(config, recipe.classes) or [(config.labels or 0) // recipe.classes] * recipe.classes
    return DataFacts(names, labels, recipe.images, recipe.side, from_files=False)


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
