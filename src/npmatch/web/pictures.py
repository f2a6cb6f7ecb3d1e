"""Images as a browser shows them, asked for by their position and never by a path."""

from __future__ import annotations

import io

import torch
from torch import Tensor

from npmatch.data import decode_image
from npmatch.data.given import file_of
from npmatch.report.gallery import LARGEST_SIDE, as_picture, is_crisp
from npmatch.types import ImageStore


def picture(store: ImageStore, position: int) -> tuple[bytes, str]:
    """One image, encoded, and its media type."""
    image = thumbnail(store, position)
    buffer = io.BytesIO()
    small = is_crisp(image)
    as_picture(image).save(buffer, "PNG" if small else "JPEG", quality=88)  # PNG has no quality and ignores it
    return buffer.getvalue(), "image/png" if small else "image/jpeg"


def thumbnail(store: ImageStore, position: int) -> Tensor:
    """An image large enough to be looked at: from its file where it has one, else as the model's data holds it."""
    channels, side, _ = store.shape
    file = file_of(store, position)
    if file is not None:
        return decode_image(file, max(LARGEST_SIDE, side), channels)
    return store.take(torch.tensor([position]))[0]
