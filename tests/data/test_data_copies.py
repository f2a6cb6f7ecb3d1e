"""Copies among images: equal pixels, or the same look under one label."""

import numpy as np
import torch
from sklearn.datasets import load_digits

from npmatch.data import ArrayImages, ImageSet
from npmatch.data.copies import copies_in_images, picture_of_each


def images_of(pixels: torch.Tensor, labels: list[int]) -> ImageSet:
    return ImageSet(ArrayImages(pixels), torch.tensor(labels))


def test_equal_pixels_are_copies_under_any_label_and_look_alikes_under_one():
    pixels = torch.randint(40, 200, (6, 3, 24, 24), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    pixels[1] = pixels[0]  # equal, under two labels
    pixels[3] = pixels[2] + 9  # brighter, and unlabelled
    pixels[5] = pixels[4] + 9  # brighter, under another label
    groups = copies_in_images(images_of(pixels, [0, 1, 0, -1, 0, 1]), workers=0)
    assert sorted(map(sorted, groups)) == [[0, 1], [2, 3]]


def test_hardly_any_two_of_1797_digits_are_taken_for_copies():
    digits = load_digits()
    pixels = torch.from_numpy(np.minimum(digits.images * 16, 255).astype(np.uint8))[:, None]
    assert sum(map(len, copies_in_images(images_of(pixels, digits.target.tolist()), workers=0))) <= 4


def test_groups_that_share_an_image_are_one_picture():
    picture = picture_of_each(6, [[0, 3], [3, 5], [1, 2]])
    assert picture[0] == picture[3] == picture[5]
    assert picture[1] == picture[2]
    assert len(set(picture)) == 3
