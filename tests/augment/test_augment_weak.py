"""Flip and crop against plain loops over images, and normalisation against torchvision."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from npmatch.augment import normalize, slice_draws
from npmatch.augment.weak import CropDraws, PadCrop, ResizedCrop

CPU = torch.device("cpu")


def random_images(n: int, *shape: int) -> Tensor:
    return torch.randint(256, (n, *shape), dtype=torch.uint8)


@pytest.mark.parametrize("padding", [0, 1, 4, 7])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 9, 21)])
def test_pad_crop_agrees_with_a_loop_with_reflect_padding(shape: tuple[int, int, int], padding: int) -> None:
    torch.manual_seed(0)
    images = random_images(60, *shape)
    view = PadCrop(padding)
    draws = view.draw(60, CPU)
    _, height, width = shape
    for image, flip, (top, left), result in zip(images, *draws, view.apply(images, draws), strict=True):
        flipped = image.flip(2) if flip else image
        padded = F.pad(flipped[None].float(), (padding,) * 4, mode="reflect")[0].to(torch.uint8)
        assert torch.equal(result, padded[:, top : top + height, left : left + width])


def test_pad_crop_draws_every_offset_and_flips_half() -> None:
    torch.manual_seed(0)
    draws = PadCrop(4).draw(20_000, CPU)
    assert draws.flip.float().mean().item() == pytest.approx(0.5, abs=0.02)
    for offsets in draws.box.unbind(1):
        share = offsets.bincount(minlength=9) / 20_000
        assert len(share) == 9
        assert torch.allclose(share, torch.full((9,), 1 / 9), atol=0.01)


def test_resized_crop_of_the_whole_image_is_the_image() -> None:
    torch.manual_seed(0)
    for side in (8, 32, 57, 224):
        images = random_images(4, 3, side, side)
        view = ResizedCrop((side, side), scale=(1, 1), ratio=(1, 1), flip=False)
        assert torch.equal(view(images), images)
        mirrored = ResizedCrop((side, side), flip=True)
        draws = CropDraws(torch.ones(4, dtype=torch.bool), torch.tensor([[1.0, 1, 0, 0]]).repeat(4, 1))
        assert torch.equal(mirrored.apply(images, draws), images.flip(3))


def test_resized_crop_of_a_whole_image_is_a_bilinear_resize() -> None:
    torch.manual_seed(0)
    images = random_images(3, 3, 20, 20)
    result = ResizedCrop((47, 47), scale=(1, 1), ratio=(1, 1), flip=False)(images)
    oracle = F.interpolate(images.float(), (47, 47), mode="bilinear", align_corners=False)
    assert (result.float() - oracle).abs().max() <= 0.501


@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 40)])
def test_resized_crop_takes_the_box_it_drew(height: int, width: int) -> None:
    """The levels of the image are its coordinates, so the corners of a view show the position of its box."""
    torch.manual_seed(0)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    ramps = torch.stack([5 * y, 5 * x]).to(torch.uint8).expand(500, 2, height, width)
    view = ResizedCrop((16, 16), scale=(0.2, 0.5), flip=False)
    draws = view.draw(500, CPU)
    views = view.apply(ramps, draws).float() / 5
    # In pixels; a view shows its box less half an output pixel on each side.
    rows = (views[:, 0, -1, 8] - views[:, 0, 0, 8]) * 16 / 15
    columns = (views[:, 1, 8, -1] - views[:, 1, 8, 0]) * 16 / 15
    area, aspect = draws.box[:, 0], draws.box[:, 1]
    assert torch.allclose(rows, (area / aspect * height * width).sqrt().clamp(max=height), atol=0.8)
    assert torch.allclose(columns, (area * aspect * height * width).sqrt().clamp(max=width), atol=0.8)
    assert area.min() >= 0.2
    assert area.max() <= 0.5
    assert aspect.min() >= 3 / 4
    assert aspect.max() <= 4 / 3 + 1e-6


def test_resized_crop_changes_the_size_and_keeps_the_range() -> None:
    torch.manual_seed(0)
    images = torch.randint(40, 200, (10, 3, 32, 48), dtype=torch.uint8)
    views = ResizedCrop((24, 24))(images)
    assert views.shape == (10, 3, 24, 24)
    assert views.dtype == torch.uint8
    assert views.min() >= 40
    assert views.max() < 200


@pytest.mark.parametrize("view", [PadCrop(4), ResizedCrop((16, 16))], ids=["pad", "resized"])
def test_views_depend_on_the_seed_alone_and_can_be_sliced(view: PadCrop | ResizedCrop) -> None:
    images = random_images(1, 3, 16, 16).expand(12, -1, -1, -1)
    torch.manual_seed(3)
    whole = view(images)
    torch.manual_seed(3)
    draws = view.draw(12, CPU)
    assert torch.equal(view.apply(images, draws), whole)
    assert torch.equal(view.apply(images[4:9], slice_draws(draws, slice(4, 9))), whole[4:9])
    assert len({tuple(image.flatten().tolist()) for image in whole}) > 6  # equal images, different views
    assert view(images[:0]).shape == (0, 3, 16, 16)


@pytest.mark.parametrize("channels", [1, 3])
def test_normalize_agrees_with_torchvision(channels: int) -> None:
    torch.manual_seed(0)
    images = random_images(5, channels, 6, 7)
    mean, std = (0.4914, 0.4822, 0.4465)[:channels], (0.2471, 0.2435, 0.2616)[:channels]
    oracle = tv.normalize(tv.to_dtype(images, torch.float32, scale=True), list(mean), list(std))
    result = normalize(images, mean, std)
    assert result.dtype == torch.float32
    assert torch.allclose(result, oracle, atol=1e-6)
