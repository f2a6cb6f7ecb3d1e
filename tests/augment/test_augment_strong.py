"""RandAugment and cutout: draws, order, cutout against Pillow, and both implementations of RandAugment."""

import math
from typing import Literal

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from npmatch.augment import OPERATIONS, RANGES, AugmentConfig, apply_operation, make_policy, slice_draws
from npmatch.augment.strong import Strong, StrongDraws, apply_grouped, apply_static, cut_out
from npmatch.augment.weak import CropDraws, PadCrop, ResizedCrop

CPU = torch.device("cpu")
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
SHAPES = [(3, 32, 32), (1, 8, 8), (3, 9, 21), (1, 2, 2)]


def random_images(n: int, shape: tuple[int, int, int]) -> Tensor:
    return torch.randint(256, (n, *shape), dtype=torch.uint8)


def strong_view(shape: tuple[int, int, int], **changes: object) -> Strong:
    padding = min(4, shape[1] - 1, shape[2] - 1)
    config = AugmentConfig(padding=padding, **changes)  # type: ignore[arg-type]
    view = make_policy(config, shape, CIFAR10_MEAN[: shape[0]]).strong
    assert isinstance(view, Strong)
    return view


def test_draws_are_uniform_over_operations_and_magnitudes() -> None:
    torch.manual_seed(0)
    draws = strong_view((3, 32, 32)).draw(30_000, CPU)
    for slot in range(3):
        share = draws.operation[:, slot].bincount(minlength=14) / 30_000
        assert torch.allclose(share, torch.full((14,), 1 / 14), atol=0.008)
    for number, name in enumerate(OPERATIONS):
        magnitude, (low, high) = draws.magnitude[draws.operation == number], RANGES[name]
        assert magnitude.min() >= low - 1e-6
        assert magnitude.max() <= high + 1e-6
        quantiles = torch.tensor([0.25, 0.5, 0.75])
        expected = low + (high - low) * quantiles
        assert torch.allclose(magnitude.quantile(quantiles), expected, atol=0.03 * (high - low) + 1e-6)
    first, second = draws.operation[:, 0], draws.operation[:, 1]
    assert (first == second).float().mean().item() == pytest.approx(1 / 14, abs=0.01)  # with replacement


def test_operations_follow_each_other_in_the_order_drawn() -> None:
    torch.manual_seed(0)
    images = random_images(300, (3, 32, 32))
    draws = strong_view((3, 32, 32)).draw(300, CPU)
    result = apply_grouped(images, draws.operation, draws.magnitude)
    for i, image in enumerate(images):
        changed = image[None]
        for number, magnitude in zip(draws.operation[i], draws.magnitude[i], strict=True):
            changed = apply_operation(OPERATIONS[number], changed, magnitude[None])
        assert torch.equal(result[i], changed[0])


@pytest.mark.parametrize("slots", [0, 1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_grouped_and_static_give_the_same_images(shape: tuple[int, int, int], slots: int) -> None:
    torch.manual_seed(1)
    images = random_images(500, shape)
    draws = strong_view(shape, operations=slots).draw(500, CPU)
    before = images.clone()
    grouped = apply_grouped(images, draws.operation, draws.magnitude)
    assert torch.equal(grouped, apply_static(images, draws.operation, draws.magnitude))
    assert torch.equal(images, before)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 9, 21)], ids=str)
def test_cutout_is_the_rectangle_pillow_draws(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    channels, height, width = shape
    images = random_images(300, shape)
    square = torch.rand(300, 3) * torch.tensor([1, 1, 0.5])
    square[:4, :2] = torch.tensor([[0.0, 0.0], [0, 0.999], [0.999, 0], [0.999, 0.999]])  # the corners
    fill = (125, 123, 114)[:channels]
    for image, (x, y, side), result in zip(images, square.tolist(), cut_out(images, square, fill), strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy() if channels == 3 else image[0].numpy())
        x, y, half = x * width, y * height, side * width / 2
        corners = (math.floor(x - half), math.floor(y - half), math.floor(x + half), math.floor(y + half))
        ImageDraw.Draw(picture).rectangle(corners, fill=fill if channels == 3 else fill[0])
        oracle = torch.from_numpy(np.array(picture)).view(height, width, channels).permute(2, 0, 1)
        assert torch.equal(result, oracle)


def test_cutout_is_uniform_in_place_and_side() -> None:
    torch.manual_seed(0)
    square = strong_view((3, 32, 32)).draw(20_000, CPU).square
    for values, high in zip(square.unbind(1), (1, 1, 0.5), strict=True):
        assert values.min() >= 0
        assert values.max() <= high
        assert values.mean().item() == pytest.approx(high / 2, abs=0.01)


def test_cutout_fills_with_the_mean_colour_of_the_data() -> None:
    assert strong_view((3, 32, 32)).fill == (125, 123, 114)  # TorchSSL's constant for CIFAR-10


def test_without_operations_and_cutout_the_strong_view_is_the_weak_one() -> None:
    torch.manual_seed(0)
    images = random_images(20, (3, 16, 16))
    view = strong_view((3, 16, 16), operations=0, cutout=0.0)
    draws = view.draw(20, CPU)
    assert torch.equal(view.apply(images, draws), PadCrop(4).apply(images, CropDraws(*draws[3:])))


def test_crop_comes_after_the_operations() -> None:
    """Black pixels that an operation leaves are mirrored by the crop's padding."""
    image = torch.full((1, 1, 16, 16), 200, dtype=torch.uint8)
    draws = StrongDraws(
        operation=torch.tensor([[OPERATIONS.index("translate_x")]]),
        magnitude=torch.tensor([[0.25]]),
        square=torch.zeros(1, 3),
        flip=torch.tensor([False]),
        box=torch.tensor([[4, 8]]),
    )
    view = Strong(PadCrop(4), (0,), operations=1, cutout=0.0)
    columns = view.apply(image, draws)[0, 0, 0].tolist()
    # Moved left by 4, so black from column 12 on; then columns 4 … 19 of it, of which 16 … 19 are 14 … 11.
    assert columns == [200] * 8 + [0] * 7 + [200]


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8)], ids=str)
def test_views_depend_on_the_seed_alone_and_can_be_sliced(shape: tuple[int, int, int]) -> None:
    view, images = strong_view(shape), random_images(1, shape).expand(64, -1, -1, -1)
    torch.manual_seed(3)
    whole = view(images)
    torch.manual_seed(3)
    draws = view.draw(64, CPU)
    assert torch.equal(view.apply(images, draws), whole)
    assert torch.equal(view.apply(images[10:30], slice_draws(draws, slice(10, 30))), whole[10:30])
    assert len({tuple(image.flatten().tolist()) for image in whole}) > 50  # equal images, different views
    assert view(images[:0]).shape == (0, *shape)


def test_strong_view_can_be_resized() -> None:
    view = make_policy(AugmentConfig(crop="resized", size=24), (3, 32, 32), CIFAR10_MEAN).strong
    views = view(random_images(10, (3, 32, 32)))
    assert views.shape == (10, 3, 24, 24)
    assert views.dtype == torch.uint8


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize("weak", [PadCrop(4), ResizedCrop((24, 24))], ids=["pad", "resized"])
def test_the_static_path_is_one_graph(weak: PadCrop | ResizedCrop) -> None:
    """Tracing fails at an operation that reads a value or whose shape depends on values."""
    torch.manual_seed(0)
    images = random_images(32, (3, 32, 32))
    view = Strong(weak, (125, 123, 114))
    draws = view.draw(32, CPU)

    def static_views(images: Tensor, draws: StrongDraws) -> Tensor:
        changed = cut_out(apply_static(images, draws.operation, draws.magnitude), draws.square, view.fill)
        return weak.apply(changed, CropDraws(draws.flip, draws.box))

    traced = torch.compile(static_views, fullgraph=True, backend="eager", dynamic=False)
    assert torch.equal(traced(images, draws), view.apply(images, draws))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_device_gives_the_same_views_as_the_cpu(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    images = random_images(448, shape)
    view = strong_view(shape)
    draws = view.draw(448, CPU)
    moved = StrongDraws(*(values.cuda() for values in draws))
    assert torch.equal(view.apply(images.cuda(), moved).cpu(), view.apply(images, draws))


@pytest.mark.gpu
@pytest.mark.parametrize("crop", ["pad", "resized"])
def test_a_captured_graph_makes_new_draws_at_each_replay(crop: Literal["pad", "resized"]) -> None:
    policy = make_policy(AugmentConfig(crop=crop), (3, 32, 32), CIFAR10_MEAN)
    images = random_images(64, (3, 32, 32)).cuda()

    def views() -> tuple[Tensor, Tensor]:
        return policy.weak(images), policy.strong(images)

    views()  # constants are copied to the device once
    torch.cuda.set_sync_debug_mode("error")
    try:
        views()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = views()
    replays = []
    for seed in (0, 1, 0):
        torch.cuda.manual_seed(seed)
        graph.replay()
        replays.append([view.clone() for view in captured])
    torch.cuda.manual_seed(0)
    for first, other, again, eager in zip(*replays, views(), strict=True):
        assert torch.equal(first, again)
        assert torch.equal(first, eager)
        assert not torch.equal(first, other)
