"""ECE and UCE against a plain-Python count, and constructed cases whose value is 0 or 1."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npmatch.errors import NPMatchError
from npmatch.metrics import (
    expected_calibration_error,
    reliability_bins,
    uncertainty_bins,
    uncertainty_calibration_error,
)


def uce_by_hand(entropy: list[float], wrong: list[bool], num_classes: int, bins: int) -> float:
    groups: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for h, w in zip(entropy, wrong, strict=True):
        u = min(max(h / math.log(num_classes), 0.0), 1.0)
        for m in range(bins):
            if m / bins < u <= (m + 1) / bins or (m == 0 and u == 0):
                groups[m].append((u, w))
    total = 0.0
    for group in groups:
        if group:
            error = sum(w for _, w in group) / len(group)
            mean = sum(u for u, _ in group) / len(group)
            total += len(group) / len(entropy) * abs(error - mean)
    return total


def ece_by_hand(probs: list[list[float]], y: list[int], bins: int) -> float:
    groups: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for row, label in zip(probs, y, strict=True):
        confidence = max(row)
        groups[min(int(confidence * bins), bins - 1)].append((confidence, row.index(confidence) == label))
    return sum(abs(sum(right for _, right in g) - sum(c for c, _ in g)) for g in groups) / len(y)


images = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


@given(images, st.integers(2, 20), st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_uce_is_a_fraction_and_agrees_with_a_plain_count(pairs, num_classes, bins):
    entropy = torch.tensor([u * math.log(num_classes) for u, _ in pairs], dtype=torch.float64)
    wrong = torch.tensor([w for _, w in pairs])
    uce = uncertainty_calibration_error(entropy, wrong, num_classes, bins)
    assert 0 <= uce <= 1
    # Values within rounding of an edge may fall to either side of it.
    positions = [h / math.log(num_classes) * bins for h in entropy.tolist()]
    if all(p == 0 or abs(p - round(p)) > 1e-9 for p in positions):
        assert uce == pytest.approx(uce_by_hand(entropy.tolist(), wrong.tolist(), num_classes, bins))


@given(images, st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_uce_ignores_the_order_of_images(pairs, rng: random.Random):
    def uce(rows):
        return uncertainty_calibration_error(
            torch.tensor([u for u, _ in rows]), torch.tensor([w for _, w in rows]), num_classes=10
        )

    shuffled = list(pairs)
    rng.shuffle(shuffled)
    assert uce(shuffled) == pytest.approx(uce(pairs), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uce_of_perfect_calibration_is_zero_and_of_its_reverse_is_not(dtype):
    # Ten images at each ũ = j/10, of which exactly j are wrong: error equals uncertainty in every bin.
    level = torch.arange(11).repeat_interleave(10)
    position = torch.arange(10).repeat(11)
    entropy = (level / 10 * math.log(7)).to(dtype)
    calibrated = uncertainty_calibration_error(entropy, position < level, num_classes=7)
    assert calibrated == pytest.approx(0, abs=1e-6)
    assert uncertainty_calibration_error(entropy, position >= level, num_classes=7) > 0.4


def test_uce_extremes():
    zeros, top = torch.zeros(4), torch.full((4,), math.log(10))
    right, wrong = torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)
    assert uncertainty_calibration_error(zeros, right, 10) == 0
    assert uncertainty_calibration_error(zeros, wrong, 10) == 1
    assert uncertainty_calibration_error(top, right, 10) == pytest.approx(1)
    # Rounding may push an entropy past log K: it is clamped, not given a bin of its own.
    assert uncertainty_calibration_error(top + 1e-3, wrong, 10) == 0
    with pytest.raises(NPMatchError, match="K ≥ 2"):
        uncertainty_calibration_error(zeros, right, 1)


def test_bin_edges_belong_to_the_lower_bin_for_uncertainty_and_to_the_upper_for_confidence():
    score = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    uncertainty = uncertainty_bins(score * math.log(2), torch.zeros(5, dtype=torch.bool), 2, bins=4)
    assert uncertainty.count.tolist() == [2, 1, 1, 1]
    probs = torch.stack([score, 1 - score], 1)  # confidences 1, ¾, ½, ¾, 1
    assert reliability_bins(probs, torch.zeros(5).long(), bins=4).count.tolist() == [0, 0, 1, 4]


@given(st.integers(2, 12), st.integers(1, 80), st.integers(0, 2**16), st.floats(0.1, 8))
@settings(max_examples=40, deadline=None)
def test_ece_agrees_with_a_plain_count_and_with_the_diagram(num_classes, n, seed, sharpness):
    draw = torch.Generator().manual_seed(seed)
    probs = (sharpness * torch.randn(n, num_classes, generator=draw)).softmax(-1)
    y = torch.randint(num_classes, (n,), generator=draw)
    ece = expected_calibration_error(probs, y)
    assert ece == pytest.approx(ece_by_hand(probs.tolist(), y.tolist(), 15), abs=1e-5)
    assert ece == pytest.approx(reliability_bins(probs, y).gap, abs=1e-5)
    assert ece == pytest.approx(expected_calibration_error(probs.double(), y), abs=1e-5)


def test_ece_accepts_probabilities_a_rounding_error_above_one():
    y = torch.tensor([0, 1])
    probs = torch.tensor([[1.0000001, 0.0], [0.0, 1.0]])
    assert expected_calibration_error(probs, y) == pytest.approx(0, abs=1e-6)


def test_a_confidence_of_one_is_in_the_last_bin():
    # Confidences 1 (wrong) and 0.98 (right) cancel in one bin of mean 0.99 and accuracy ½.
    probs = torch.tensor([[1.0, 0.0], [0.02, 0.98]])
    assert expected_calibration_error(probs, torch.tensor([1, 1])) == pytest.approx(0.49, abs=1e-6)


def test_diagram_counts_every_image_and_leaves_empty_bins_nan():
    probs = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.72, 0.28]])
    bins = reliability_bins(probs, torch.tensor([0, 1, 0]), bins=10)
    assert int(bins.count.sum()) == 3
    assert bins.score[7] == pytest.approx(0.71)
    assert bins.outcome[7] == pytest.approx(0.5)
    assert math.isnan(bins.score[0])
    assert bins.gap == pytest.approx((2 * 0.21 + 0.1) / 3)
