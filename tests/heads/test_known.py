"""Which images count as known: against plain Python, and what unknown ones mean for training."""

import math

import pytest
import torch

from npmatch.heads import KnownImages
from npmatch.heads.known import DECAY

N, F, B, U, STEPS = 7, 3, 5, 6, 4


def batches(seed: int = 0):
    """Labelled features, which images they are (one may be there twice), and unlabelled features."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        labeled = torch.randint(N, (B,), generator=draw)
        yield torch.randn(B, F, generator=draw), labeled, 2 * torch.randn(U, F, generator=draw)


def plain(share: float):
    """The rule with a dictionary of the newest features and sorted lists."""
    memory, threshold, count = {}, 0.0, 0
    for f_x, labeled, f_u in batches():
        seen = set()
        for feature, image in zip(f_x, labeled.tolist(), strict=True):
            if image not in seen:
                memory[image] = feature
            seen.add(image)
        rho = math.sqrt(float((f_x - f_x.mean(0)).square().sum() / B))
        others = [
            [math.dist(feature, other) / rho for key, other in memory.items() if key != image]
            for feature, image in zip(f_x, labeled.tolist(), strict=True)
        ]
        nearest = sorted(min(distances) for distances in others if distances)
        if nearest:
            weight = max(1 / (count + 1), 1 - DECAY)
            threshold += weight * (nearest[round((len(nearest) - 1) * share)] - threshold)
            count += 1
        yield [min(math.dist(feature, other) for other in memory.values()) / rho <= threshold for feature in f_u]


@pytest.mark.parametrize("share", [0.0, 0.4, 0.9, 1.0])
def test_the_rule_in_plain_python(share):
    known = KnownImages(N, F, share)
    found = [known(*batch).tolist() for batch in batches()]
    assert found == list(plain(share))
    assert {value for row in found for value in row} == {True, False}


def test_while_two_labelled_images_cannot_be_compared_all_are_known():
    known = KnownImages(N, F, 0.5)
    one = torch.tensor([3, 3])
    assert known(torch.randn(2, F), one, 1e6 * torch.randn(U, F)).all()
    assert not known(torch.randn(2, F), torch.tensor([3, 4]), 1e6 * torch.randn(U, F)).any()


def test_the_scale_of_features_does_not_matter():
    plain_scale, large = KnownImages(N, F, 0.9), KnownImages(N, F, 0.9)
    for f_x, labeled, f_u in batches():
        assert torch.equal(plain_scale(f_x, labeled, f_u), large(1000 * f_x, labeled, 1000 * f_u))


def test_features_that_are_all_alike_are_finite():
    known = KnownImages(N, F, 0.9)
    same = torch.ones(B, F)
    assert known(same, torch.arange(B), torch.ones(U, F)).all()
    assert known.threshold.isfinite()
