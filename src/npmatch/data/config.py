"""The settings of the data: which images, how many labels, and where the images are kept during training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from npmatch.types import NonNegativeFloat, PositiveInt, Share, ShareBelowOne, Size


@dataclass(frozen=True)
class DataConfig:
    """The data part of a run's configuration."""

    source: str = "digits"  # digits, cifar10, folder, … (configuration.md lists them), or package.module:function
    root: str | None = None  # folder or file of the source; None: $NPMATCH_DATA
    labels: PositiveInt | None = None  # number of labelled images, class-balanced; None: all labels are used
    labels_head: PositiveInt | None = None  # long tail: labelled images of the first class, in place of data.labels
    unlabeled_head: PositiveInt | None = None  # long tail: unlabelled images of the largest class; None: all others
    imbalance: Annotated[float, Field(ge=1, le=10**6)] = 1.0  # γ: how many times as many images the largest class has
    unlabeled_distribution: Literal["same", "reversed", "uniform"] = "same"  # of classes, relative to the labels'
    foreign: str | None = None  # a source whose training images are mixed into the unlabelled ones
    foreign_root: str | None = None  # folder or file of the foreign source; None: $NPMATCH_DATA
    foreign_share: ShareBelowOne = 0.0  # share of foreign images among all training images
    validation: NonNegativeFloat = 0.0  # held out of training: below 1 a share of each class, from 2 a number of images
    include_labeled: bool = True  # whether labelled images are also in the unlabelled set, as in the literature
    split: str | None = None  # a split.json to reuse in place of drawing a new split
    given_labels: str | None = None  # CSV with the columns path,label: labels that replace those of the data
    image_size: Size | None = None  # side in pixels at which images from files are stored; None: the source's default
    check: bool = True  # folder and csv only: check every file before training and leave out unusable ones
    resident: Literal["auto", "always", "never"] = "auto"  # whether images are kept on the device as uint8, or streamed
    resident_share: Share = 0.25  # share of the device's free memory that images may use with `resident=auto`
    workers: Annotated[int, Field(ge=0, le=1000)] | None = None  # decoding processes; None: one per core, up to 16
