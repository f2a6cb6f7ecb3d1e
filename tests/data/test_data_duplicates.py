"""Pictures that look the same, against a comparison of all pairs."""

import io

import numpy as np
import pytest
from PIL import Image

from npmatch.data import load_dataset
from npmatch.data.check.duplicates import SIDE, group_alike


def thumbnail(image):
    return np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def saved_again(image, share, quality, brightness):
    width, height = (round(share * side) for side in image.size)
    changed = image.resize((width, height)).point(lambda level: min(255, int(brightness * level)))
    file = io.BytesIO()
    changed.save(file, "JPEG", quality=quality)
    return Image.open(file)


@pytest.fixture(scope="module")
def digits():
    pixels = load_dataset("digits").train.images.pixels[:600, 0].numpy()
    return [Image.fromarray(one).resize((64, 64), Image.Resampling.BICUBIC) for one in pixels]


@pytest.mark.parametrize("change", [(1.0, 90, 1.0), (0.75, 60, 1.0), (1.5, 50, 0.9), (0.6, 50, 1.1)])
def test_a_picture_saved_again_is_found_and_others_of_its_class_are_not(digits, change):
    copies = [saved_again(image, *change) for image in digits[:200]]
    groups = group_alike(np.stack([thumbnail(image) for image in digits + copies]))
    found = {tuple(group) for group in groups}
    assert sum((i, 600 + i) in found for i in range(200)) >= 198
    assert sum(len(group) != 2 or group[1] - group[0] != 600 for group in groups) <= 3


def test_candidates_equal_those_of_comparing_all_pairs():
    """The candidates are exactly the pairs of hashes that differ in at most seven bits."""
    from npmatch.data.check.duplicates import BANDS, _candidates

    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**16, (40, BANDS)).astype(np.uint16)
    near = np.repeat(hashes, 10, 0)
    for row in near:
        for bit in rng.choice(16 * BANDS, rng.integers(0, 12), replace=False):
            row[bit // 16] ^= np.uint16(1 << (bit % 16))
    distance = np.bitwise_count(near[:, None] ^ near[None]).sum(-1)
    expected = {(i, j) for i, j in zip(*np.nonzero(distance < BANDS), strict=True) if i < j}
    found = {tuple(sorted(pair)) for pairs in _candidates(near) for pair in pairs.tolist()}
    first_of = {}
    for i, row in enumerate(near):
        first_of.setdefault(row.tobytes(), i)
    copies = {(first_of[row.tobytes()], i) for i, row in enumerate(near) if first_of[row.tobytes()] != i}
    firsts = set(first_of.values())
    assert found == {pair for pair in expected if set(pair) <= firsts} | copies


def test_an_empty_set_and_flat_pictures_have_no_duplicates():
    assert group_alike(np.zeros((0, SIDE, SIDE), np.uint8)) == []
    assert group_alike(np.full((5, SIDE, SIDE), 200, np.uint8)) == []
