"""Images as a browser shows them, asked for by their position and never by a path."""

from __future__ import annotations

import io

import torch
from torch import Tensor

from npmatch.data import FileImages, decode_image
from npmatch.data.subset import SelectedImages
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
    if isinstance(store, SelectedImages):
        return thumbnail(store.store, int(store.index[position]))
    if isinstance(store, FileImages):
        return decode_image(store.path(position), max(LARGEST_SIDE, store.shape[-1]), store.shape[0])
    return store.take(torch.tensor([position]))[0]
