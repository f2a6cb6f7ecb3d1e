"""Augmentation policies by name: the weak and strong views of a data set's images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from npmatch.augment.strong import Strong
from npmatch.augment.views import FunctionView, Identity, View
from npmatch.augment.weak import CropDraws, PadCrop, ResizedCrop
from npmatch.errors import NoSuchChoiceError, NPMatchError
from npmatch.types import Share, Size
from npmatch.user_code import import_name

PartOfArea = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class AugmentConfig:
    """Settings of the augmentation."""

    policy: str = "natural"  # natural, digits (no flip), none, or package.module:name
    crop: Literal["pad", "resized"] = "pad"  # a crop after reflect padding, or of random area and aspect
    padding: Annotated[int, Field(ge=0, le=10**6)] = 4  # reflect padding in pixels, for `pad`
    crop_scale: tuple[PartOfArea, PartOfArea] = (0.2, 1.0)  # smallest and largest share of the area, for `resized`
    size: Size | None = None  # side of the views in pixels, for `resized` or your own policy; None: the images' own
    operations: Annotated[int, Field(ge=0, le=100)] = 3  # RandAugment operations on each strong view
    cutout: Share = 0.5  # largest side of the cutout, as a share of the image's width


@dataclass(frozen=True)
class Policy:
    """The weak and the strong view of an image."""

    weak: View[Any]
    strong: View[Any]


def make_policy(config: AugmentConfig, image_shape: tuple[int, int, int], mean: tuple[float, ...]) -> Policy:
    """The policy `config` names, for images C H W whose pixels in [0, 1] have that mean per channel."""
    check_size(config, image_shape)
    if ":" in config.policy:
        return _users_policy(config.policy, image_shape, mean)
    if config.policy == "none":
        return Policy(Identity(), Identity())
    if config.policy not in ("natural", "digits"):
        raise NoSuchChoiceError("augmentation policy", config.policy, ["natural", "digits", "none"])
    _check(config, image_shape)
    weak = _make_crop(config, image_shape, flip=config.policy == "natural")
    fill = tuple(round(255 * channel) for channel in mean)
    return Policy(weak, Strong(weak, fill, config.operations, config.cutout))


def check_size(config: AugmentConfig, image_shape: tuple[int, int, int]) -> None:
    """Refuses a size that the views do not have: evaluation and prediction take the centre crop of this size."""
    if config.size is None:
        return
    if config.size < 1:
        raise NPMatchError(f"augment.size={config.size}: must be at least 1 pixel")
    makes_own_views, is_resized = ":" in config.policy, config.policy != "none" and config.crop == "resized"
    if not makes_own_views and not is_resized:
        setting = "augment.policy=none" if config.policy == "none" else f"augment.crop={config.crop}"
        raise NPMatchError(
            f"augment.size={config.size}: {setting} keeps the size of the images; leave the size out "
            "(augment.size=none), or set augment.crop=resized"
        )
    if config.size > (side := min(image_shape[1:])):
        raise NPMatchError(
            f"augment.size={config.size}: larger than the images, which have {side} pixels; give {side} or less, or "
            "enlarge the images with data.image_size (files) or backbone.input_size"
        )


def _make_crop(config: AugmentConfig, image_shape: tuple[int, int, int], flip: bool) -> View[CropDraws]:
    """The weak view: a crop, with a flip if wanted."""
    _, height, width = image_shape
    if config.crop == "pad":
        return PadCrop(config.padding, flip)
    size = (height, width) if config.size is None else (config.size, config.size)
    return ResizedCrop(size, config.crop_scale, flip=flip)


def _check(config: AugmentConfig, image_shape: tuple[int, int, int]) -> None:
    """Raises an NPMatchError that names the first impossible value."""
    channels, height, width = image_shape
    smallest, largest = config.crop_scale
    if channels not in (1, 3):
        raise NPMatchError(f"augmentation takes images of 1 or 3 channels, not {channels}")
    if config.crop not in ("pad", "resized"):
        raise NoSuchChoiceError("crop", config.crop, ["pad", "resized"])
    if config.crop == "pad" and not 0 <= config.padding < min(height, width):
        raise NPMatchError(f"padding {config.padding} must be from 0 to {min(height, width) - 1}, under the side")
    if not 0 < smallest <= largest <= 1:
        raise NPMatchError(f"crop_scale {config.crop_scale} must be two rising shares of the area in (0, 1]")
    if config.operations < 0:
        raise NPMatchError(f"operations {config.operations} must not be negative")
    if not 0 <= config.cutout <= 1:
        raise NPMatchError(f"cutout {config.cutout} must be a share of the width, from 0 to 1")


def _users_policy(name: str, image_shape: tuple[int, int, int], mean: tuple[float, ...]) -> Policy:
    """The policy that a user's 'package.module:name' returns when called with (image_shape, mean)."""
    make = import_name(name, "augmentation policy")
    if not callable(make):
        raise NPMatchError(f"augmentation policy '{name}' cannot be called with (image_shape, mean)")
    policy = make(image_shape, mean)
    return Policy(_users_view(policy, "weak", name), _users_view(policy, "strong", name))


def _users_view(policy: object, kind: str, name: str) -> View[Any]:
    """A user's view, which may be a plain function of uint8 batches."""
    view = getattr(policy, kind, None)
    if not callable(view):
        raise NPMatchError(f"augmentation policy '{name}' returns an object without a callable '.{kind}'")
    return view if isinstance(view, View) else FunctionView(view)
