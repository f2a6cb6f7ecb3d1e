"""Which images, how many labels, and where they live while training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from npmatch.types import NonNegativeFloat, PositiveInt, Share, ShareBelowOne, Size


@dataclass(frozen=True)
class DataConfig:
    """The data part of a run's configuration."""

    source: str = "digits"  # digits, cifar10, folder, … (configuration.md lists them), or package.module:function
    root: str | None = None  # where its files are; None: $NPMATCH_DATA
    labels: PositiveInt | None = None  # labelled images in all, class-balanced; None: every label there is
    foreign: str | None = None  # a source whose training images are mixed, unlabelled, into this one's
    foreign_root: str | None = None  # where its files are; None: $NPMATCH_DATA
    foreign_share: ShareBelowOne = 0.0  # of all training images once they are mixed in
    validation: NonNegativeFloat = 0.0  # held out of training: a share of each class, or from 2 on a number in all
    include_labeled: bool = True  # labelled images are among the unlabelled ones, as in the literature
    split: str | None = None  # a split.json to reuse instead of drawing one
    given_labels: str | None = None  # a CSV of path,label: labels given since the data was made, laid over its own
    image_size: Size | None = None  # stored side of images that come from files
    check: bool = True  # folder and csv only: look at every file first, and leave out what cannot be used
    resident: Literal["auto", "always", "never"] = "auto"  # on the device as uint8, or streamed
    resident_share: Share = 0.25  # of the device's free memory: what images may take to be resident by `auto`
    workers: Annotated[int, Field(ge=0, le=1000)] | None = None  # decoding processes; None: one for each core, up to 16
