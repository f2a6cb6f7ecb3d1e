"""The test images with the most and the least certain predictions, and images as PNG."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from npmatch.metrics.matching import matched
from npmatch.types import Prediction

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

LARGEST_SIDE = 224  # pixels; larger images are scaled down, so that a page stays small
CRISP_BELOW = 97  # pixels; images this small are enlarged without smoothing


def gallery_indices(prediction: Prediction, y: Tensor, count: int = 12) -> list[int]:
    """Positions of `count` test images: the most certain half, most certain first, then the least, least first."""
    matched(prediction, y)
    order: list[int] = prediction.entropy.sort(stable=True).indices.tolist()
    count = min(count, len(order))
    least = count // 2
    return order[: count - least] + order[::-1][:least]


def as_picture(image: Tensor) -> Picture:
    """A uint8 image C H W as a Pillow image of at most LARGEST_SIDE pixels a side; one channel is grey."""
    from PIL import Image

    channels = image[:3] if image.shape[0] >= 3 else image[:1]  # channels beyond three are not shown
    pixels = np.ascontiguousarray(channels.permute(1, 2, 0).cpu().numpy())
    picture = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    return picture


def png_data_uri(image: Tensor) -> str:
    """A uint8 image C H W as a data: URI."""
    buffer = io.BytesIO()
    as_picture(image).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def is_crisp(image: Tensor) -> bool:
    """Whether an image C H W is so small that it is enlarged without smoothing."""
    return max(image.shape[1:]) < CRISP_BELOW
