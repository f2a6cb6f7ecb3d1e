"""Predictions and features of images, computed batch by batch."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npmatch.augment import normalize
from npmatch.data import iterate_images
from npmatch.distributed.ranks import all_gather_object, local_share
from npmatch.errors import NPMatchError
from npmatch.heads import Model
from npmatch.predict.saved import ModelSpec
from npmatch.types import ImageStore, Prediction, Predictor

KINDS_OF_IMAGES = "file names, PIL images, or arrays of uint8 or of floats in [0, 1]"


def as_pixels(images: Tensor | np.ndarray[Any, Any], spec: ModelSpec) -> Tensor:
    """An array of images N H W [C] or N C H W as uint8 N C H W; an array that does not fit the model is an error."""
    if isinstance(images, np.ndarray) and images.dtype.kind not in "uifb":
        raise NPMatchError(f"images must be {KINDS_OF_IMAGES}, not an array of {images.dtype}")
    pixels = images if isinstance(images, Tensor) else torch.from_numpy(np.ascontiguousarray(images))
    if pixels.dim() == 3:
        pixels = pixels[:, None]
    elif pixels.dim() == 4 and pixels.shape[1] != spec.channels and pixels.shape[-1] == spec.channels:
        pixels = pixels.permute(0, 3, 1, 2)
    expected = (spec.channels, spec.stored_side, spec.stored_side)
    if tuple(pixels.shape[1:]) != expected:
        raise NPMatchError(f"images of shape {tuple(images.shape)}: this model takes N × {expected} (C H W)")
    if pixels.is_floating_point():
        if pixels.numel() and not (float(pixels.min()) >= 0 and float(pixels.max()) <= 1):
            raise NPMatchError("images as floats must lie in [0, 1]; pass uint8 for 0–255")
        return (pixels * 255).round().to(torch.uint8)
    if pixels.dtype != torch.uint8:
        raise NPMatchError(f"images must be uint8 or floats in [0, 1], not {pixels.dtype}")
    return pixels


def as_network_input(images: Tensor, spec: ModelSpec, device: torch.device) -> Tensor:
    """uint8 N C H W → the centre crops, normalised, on the device."""
    margin = (spec.stored_side - spec.side) // 2
    crop = images.to(device)[..., margin : margin + spec.side, margin : margin + spec.side]
    return normalize(crop, spec.mean, spec.std)


@torch.no_grad()
def predict_batch(model: Predictor, images: Tensor, spec: ModelSpec, device: torch.device) -> Prediction:
    """The prediction of uint8 images N C H W, on the CPU."""
    prediction: Prediction = model(as_network_input(images, spec, device))
    return _finite(prediction.to("cpu"))


@torch.no_grad()
def describe_batch(model: Model, images: Tensor, spec: ModelSpec, device: torch.device) -> tuple[Prediction, Tensor]:
    """The prediction of uint8 images N C H W and their features N F, on the CPU."""
    prediction, features = model.describe(as_network_input(images, spec, device))
    return _finite(prediction.to("cpu")), features.cpu()


def _finite(prediction: Prediction) -> Prediction:
    """The same prediction, or an error: a table that says `cat, nan` looks like an answer."""
    if not bool(prediction.probs.isfinite().all() & prediction.entropy.isfinite().all()):
        raise NPMatchError(
            "the model's predictions are not finite: it diverged in training, or its files were changed; train again "
            "with a lower training.learning_rate, or restore them"
        )
    return prediction


def predict_store(
    model: Predictor, images: ImageStore, spec: ModelSpec, device: torch.device, batch_size: int
) -> Prediction:
    """The prediction of all images in a store."""
    batches = iterate_images(images, batch_size)
    return Prediction.cat([predict_batch(model, batch, spec, device) for batch in batches])


def predict_together(
    model: Predictor, images: ImageStore, spec: ModelSpec, device: torch.device, batch_size: int
) -> Prediction:
    """As `predict_store`, with the batches shared between the ranks; every rank returns the whole prediction."""
    batches = iterate_images(images, batch_size, share=local_share())
    by_rank = all_gather_object([predict_batch(model, batch, spec, device) for batch in batches])
    in_order = (part for turn in zip_longest(*by_rank) for part in turn if part is not None)
    return Prediction.cat(list(in_order))


def describe_store(
    model: Model, images: ImageStore, spec: ModelSpec, device: torch.device, batch_size: int, workers: int = 2
) -> tuple[Prediction, Tensor]:
    """The prediction of all images in a store, and their features N F."""
    batches = iterate_images(images, batch_size, workers)
    parts = [describe_batch(model, batch, spec, device) for batch in batches]
    return Prediction.cat([prediction for prediction, _ in parts]), torch.cat([features for _, features in parts])
