"""Every operation against Pillow, image by image, to the last bit."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from npmatch.augment import OPERATIONS, RANGES, apply_operation

AFFINE = Image.Transform.AFFINE
PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "autocontrast": lambda image, m: ImageOps.autocontrast(image),
    "brightness": lambda image, m: ImageEnhance.Brightness(image).enhance(m),
    "color": lambda image, m: ImageEnhance.Color(image).enhance(m),
    "contrast": lambda image, m: ImageEnhance.Contrast(image).enhance(m),
    "equalize": lambda image, m: ImageOps.equalize(image),
    "identity": lambda image, m: image,
    "posterize": lambda image, m: ImageOps.posterize(image, int(m)),
    "rotate": lambda image, m: image.rotate(m),
    "sharpness": lambda image, m: ImageEnhance.Sharpness(image).enhance(m),
    "shear_x": lambda image, m: image.transform(image.size, AFFINE, (1, m, 0, 0, 1, 0)),
    "shear_y": lambda image, m: image.transform(image.size, AFFINE, (1, 0, 0, m, 1, 0)),
    "solarize": lambda image, m: ImageOps.solarize(image, m),  # type: ignore[arg-type]
    "translate_x": lambda image, m: image.transform(image.size, AFFINE, (1, 0, m * image.width, 0, 1, 0)),
    "translate_y": lambda image, m: image.transform(image.size, AFFINE, (1, 0, 0, 0, 1, m * image.height)),
}
SHAPES = [(c, h, w) for c in (1, 3) for h, w in ((8, 8), (32, 32), (13, 40), (33, 20), (2, 5), (1, 1))]


def noise(n: int, shape: tuple[int, int, int]) -> Tensor:
    """All levels, or only those of a narrow band per channel."""
    low = torch.randint(200, (n, shape[0], 1, 1))
    band = torch.randint(1, 256, (n, shape[0], 1, 1))
    return (low + torch.randint(1 << 20, (n, *shape)) % band).clamp(max=255).to(torch.uint8)


def gradients(n: int, shape: tuple[int, int, int]) -> Tensor:
    """Smooth ramps of random slope and direction, wavy so that the levels are not evenly spread."""
    channels, height, width = shape
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    slope = 90 * torch.randn(2, n, channels, 1, 1)
    wave = 20 * torch.sin(6 * torch.rand(n, channels, 1, 1) * (x + y))
    return (128 + slope[0] * x + slope[1] * y + wave).clamp(0, 255).to(torch.uint8)


def constants(n: int, shape: tuple[int, int, int]) -> Tensor:
    """One level per channel, the darkest and the lightest among them."""
    level = torch.randint(256, (n, shape[0], 1, 1), dtype=torch.uint8)
    level[0], level[1] = 0, 255
    return level.expand(n, *shape).contiguous()


def two_levels(n: int, shape: tuple[int, int, int]) -> Tensor:
    """Two levels per channel in random shares; equalize often leaves them unchanged."""
    dark, light = torch.randint(256, (2, n, shape[0], 1, 1), dtype=torch.uint8)
    return torch.where(torch.rand(n, *shape) < torch.rand(n, 1, 1, 1), dark, light)


PICTURES = {f.__name__: f for f in (noise, gradients, constants, two_levels)}


def with_pillow(name: str, images: Tensor, magnitude: Tensor) -> Tensor:
    """The same operation by Pillow, one image at a time."""
    done = []
    for image, amount in zip(images, magnitude.tolist(), strict=True):
        pixels = image.permute(1, 2, 0).numpy() if len(image) == 3 else image[0].numpy()
        result = np.array(PILLOW[name](Image.fromarray(pixels), amount))
        done.append(torch.from_numpy(result).permute(2, 0, 1) if len(image) == 3 else torch.from_numpy(result)[None])
    return torch.stack(done)


def magnitudes(name: str, n: int) -> Tensor:
    """Random magnitudes of the operation's range, with its two ends and its middle."""
    low, high = RANGES[name]
    values = low + (high - low) * torch.rand(n)
    values[:3] = torch.tensor([low, high, (low + high) / 2])
    return values


def test_the_oracle_covers_all_fourteen_operations() -> None:
    assert len(OPERATIONS) == 14
    assert set(PILLOW) == set(OPERATIONS) == set(RANGES)


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_is_what_pillow_computes(name: str, picture: str) -> None:
    torch.manual_seed(0)
    for shape in SHAPES:
        images, magnitude = PICTURES[picture](24, shape), magnitudes(name, 24)
        before = images.clone()
        result = apply_operation(name, images, magnitude)
        assert result.dtype == torch.uint8
        assert torch.equal(result, with_pillow(name, images, magnitude)), f"{name} on {picture} {shape}"
        assert torch.equal(images, before), f"{name} changed its input"


@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    name=st.sampled_from(OPERATIONS),
    picture=st.sampled_from(sorted(PICTURES)),
    shape=st.tuples(st.sampled_from([1, 3]), st.integers(1, 40), st.integers(1, 40)),
    share=st.lists(st.floats(0, 1, width=32), min_size=4, max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_operation_is_what_pillow_computes_for_any_size_and_magnitude(
    name: str, picture: str, shape: tuple[int, int, int], share: list[float], seed: int
) -> None:
    torch.manual_seed(seed)
    low, high = RANGES[name]
    magnitude = torch.lerp(torch.tensor(float(low)), torch.tensor(float(high)), torch.tensor(share))
    images = PICTURES[picture](4, shape)
    assert torch.equal(apply_operation(name, images, magnitude), with_pillow(name, images, magnitude))


@pytest.mark.parametrize("name", ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"])
def test_geometry_is_exact_at_half_pixels_and_large_sides(name: str) -> None:
    torch.manual_seed(0)
    images = noise(9, (3, 160, 160))
    low, high = RANGES[name]
    magnitude = torch.tensor([low, high, 0.0, 0.5 / 160, -0.5 / 160, 1.5 / 160, -1.5 / 160, 1 / 160, 1e-9])
    assert torch.equal(apply_operation(name, images, magnitude), with_pillow(name, images, magnitude))


@pytest.mark.parametrize("name", OPERATIONS)
def test_batch_of_zero_images(name: str) -> None:
    images = torch.empty(0, 3, 8, 8, dtype=torch.uint8)
    assert apply_operation(name, images, torch.empty(0)).shape == images.shape
