"""Policies by name, a user's own policy, and error messages."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from npmatch.augment import AugmentConfig, make_policy
from npmatch.errors import NoSuchChoiceError, NPMatchError

CPU = torch.device("cpu")
CIFAR = ((3, 32, 32), (0.4914, 0.4822, 0.4465))
DIGITS = ((1, 8, 8), (0.3,))


def test_none_is_the_identity() -> None:
    images = torch.randint(256, (5, *CIFAR[0]), dtype=torch.uint8)
    policy = make_policy(AugmentConfig(policy="none"), *CIFAR)
    assert torch.equal(policy.weak(images), images)
    assert torch.equal(policy.strong(images), images)
    assert all(len(values) == 7 for values in policy.weak.draw(7, CPU))


@pytest.mark.parametrize("crop", ["pad", "resized"])
def test_digits_never_flip_and_natural_images_do(crop: str) -> None:
    torch.manual_seed(0)
    for name, share in (("digits", 0.0), ("natural", 0.5)):
        config = AugmentConfig(policy=name, crop=crop)  # type: ignore[arg-type]
        policy = make_policy(config, *DIGITS)
        for view in (policy.weak, policy.strong):
            assert view.draw(4000, CPU).flip.float().mean().item() == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("policy", ["natural", "digits", "none"])
@pytest.mark.parametrize("data", [CIFAR, DIGITS], ids=["cifar", "digits"])
def test_views_keep_shape_and_type(policy: str, data: tuple[tuple[int, int, int], tuple[float, ...]]) -> None:
    made = make_policy(AugmentConfig(policy=policy), *data)
    for n in (0, 1, 9):
        images = torch.randint(256, (n, *data[0]), dtype=torch.uint8)
        for view in (made.weak, made.strong):
            assert view(images).shape == images.shape
            assert view(images).dtype == torch.uint8


def test_resized_views_have_the_size_asked_for() -> None:
    images = torch.randint(256, (4, 3, 40, 40), dtype=torch.uint8)
    for size, side in ((None, 40), (24, 24)):
        policy = make_policy(AugmentConfig(crop="resized", size=size), (3, 40, 40), CIFAR[1])
        assert policy.weak(images).shape == policy.strong(images).shape == (4, 3, side, side)


def test_unknown_policy_suggests_the_nearest() -> None:
    with pytest.raises(NoSuchChoiceError, match="unknown augmentation policy 'natral'; did you mean 'natural'"):
        make_policy(AugmentConfig(policy="natral"), *CIFAR)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"crop": "padd"}, "unknown crop"),
        ({"padding": 32}, "padding 32"),
        ({"padding": -1}, "padding -1"),
        ({"crop_scale": (0.5, 0.2)}, "crop_scale"),
        ({"size": 0}, "augment.size=0: must be at least 1 pixel"),
        ({"size": 24}, "augment.size=24: augment.crop=pad keeps the size of the images"),
        ({"size": 24, "policy": "none", "crop": "resized"}, "augment.size=24: augment.policy=none keeps the size"),
        ({"size": 33, "crop": "resized"}, "augment.size=33: larger than the images, which have 32 pixels"),
        ({"operations": -1}, "operations -1"),
        ({"cutout": 1.5}, "cutout 1.5"),
    ],
)
def test_impossible_values_are_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(NPMatchError, match=words):
        make_policy(replace(AugmentConfig(), **change), *CIFAR)  # type: ignore[arg-type]


def test_two_channels_are_refused() -> None:
    with pytest.raises(NPMatchError, match="1 or 3 channels, not 2"):
        make_policy(AugmentConfig(), (2, 8, 8), (0.5, 0.5))


@pytest.fixture
def my_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_views.py").write_text(
        "from npmatch.augment.weak import PadCrop\n"
        "class Mirror:\n"
        "    def __init__(self, image_shape, mean):\n"
        "        self.image_shape, self.mean = image_shape, mean\n"
        "        self.weak = PadCrop(1)\n"
        "    def strong(self, images):\n"
        "        return images.flip(3)\n"
        "class Half:\n"
        "    def __init__(self, image_shape, mean):\n"
        "        self.weak = PadCrop(1)\n"
        "number = 7\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_views", raising=False)
    return "my_views"


def test_a_users_own_policy(my_views: str) -> None:
    images = torch.randint(256, (5, *CIFAR[0]), dtype=torch.uint8)
    policy = make_policy(AugmentConfig(policy=f"{my_views}:Mirror"), *CIFAR)
    assert torch.equal(policy.strong(images), images.flip(3))
    assert torch.equal(policy.strong.apply(images, policy.strong.draw(5, CPU)), images.flip(3))
    assert policy.weak.draw(5, CPU).box.shape == (5, 2)  # a View of ours is not wrapped


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module_here:Policy", "no_such_module_here"),
        ("my_views:Missing", "Missing"),
        ("my_views:number", "cannot be called"),
        ("my_views:Half", r"without a callable '\.strong'"),
    ],
)
def test_an_error_in_a_users_policy_is_one_line(my_views: str, name: str, words: str) -> None:
    with pytest.raises(NPMatchError, match=words) as caught:
        make_policy(AugmentConfig(policy=name), *CIFAR)
    assert "\n" not in str(caught.value)
