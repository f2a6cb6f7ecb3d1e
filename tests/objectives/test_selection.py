"""Curriculum thresholds against FlexMatch's definition in plain Python; alignment against loops and by hand."""

import math
from collections import Counter, deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npmatch.objectives.selection import (
    Curriculum,
    MovingAverage,
    SelfAdaptiveThresholds,
    TruncatedGaussian,
    WindowAlignment,
    align,
    align_to_uniform,
)


def plain_thresholds(assigned: list[int | None], classes: int, threshold: float) -> list[float]:
    """The thresholds from the assignments of all images, as FlexMatch's paper defines them."""
    counts = Counter(assigned)
    largest = max(max(counts[c] for c in range(classes)), counts[None])
    betas = [counts[c] / largest for c in range(classes)]
    return [threshold * beta / (2 - beta) for beta in betas]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 5),
    st.lists(
        st.lists(st.tuples(st.integers(0, 11), st.integers(0, 4), st.booleans()), min_size=1, max_size=12),
        max_size=8,
    ),
)
def test_curriculum_agrees_with_a_rebuild_from_all_images(classes, steps):
    curriculum = Curriculum(12, classes, 0.95)
    assigned: list[int | None] = [None] * 12
    for step in steps:
        rows = {image: (label % classes, confident) for image, label, confident in step}  # no image twice
        for image, (label, confident) in rows.items():
            if confident:
                assigned[image] = label
        labels, confident = zip(*rows.values(), strict=True)
        curriculum.update(torch.tensor(list(rows)), torch.tensor(labels), torch.tensor(confident))
        expected = plain_thresholds(assigned, classes, 0.95)
        assert curriculum.thresholds().tolist() == pytest.approx(expected, rel=1e-6)
    assert int(curriculum.counts.sum()) == 12
    assert curriculum.assigned.tolist() == [classes if a is None else a for a in assigned]


def test_thresholds_start_at_zero_and_reach_the_fixed_one():
    curriculum = Curriculum(10, 2, 0.95)
    assert curriculum.thresholds().tolist() == [0, 0]
    curriculum.update(torch.arange(10), torch.arange(10) % 2, torch.ones(10, dtype=torch.bool))
    assert curriculum.thresholds().tolist() == pytest.approx([0.95, 0.95])


def test_state_is_saved():
    curriculum = Curriculum(10, 2, 0.95)
    curriculum.update(torch.arange(4), torch.ones(4, dtype=torch.long), torch.ones(4, dtype=torch.bool))
    other = Curriculum(10, 2, 0.95)
    other.load_state_dict(curriculum.state_dict())
    assert other.thresholds().tolist() == curriculum.thresholds().tolist() != [0, 0]


def test_alignment_divides_by_the_batch_mean_and_normalises():
    probs = torch.softmax(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), -1)
    mean = [sum(float(p[k]) for p in probs) / 5 for k in range(3)]
    for row, aligned in zip(probs, align_to_uniform(probs), strict=True):
        ratios = [float(row[k]) / mean[k] for k in range(3)]
        assert aligned.tolist() == pytest.approx([r / sum(ratios) for r in ratios], rel=1e-5)
    assert align_to_uniform(torch.tensor([[1.0, 0.0], [1.0, 0.0]])).isfinite().all()


@pytest.mark.parametrize("target", [None, [0.5, 0.3, 0.2]])
def test_window_alignment_agrees_with_a_deque_of_batch_means(target):
    g = torch.Generator().manual_seed(0)
    alignment, window = WindowAlignment(4, 3), deque(maxlen=4)
    for _ in range(11):
        probs = torch.softmax(2 * torch.randn(5, 3, generator=g), -1)
        window.append([sum(float(p[k]) for p in probs) / 5 for k in range(3)])
        mean = [sum(m[k] for m in window) / len(window) for k in range(3)]
        aligned = alignment(probs, None if target is None else torch.tensor(target))
        for row, found in zip(probs, aligned, strict=True):
            ratios = [float(row[k]) * (target or [1, 1, 1])[k] / mean[k] for k in range(3)]
            assert found.tolist() == pytest.approx([r / sum(ratios) for r in ratios], rel=1e-5)
        restored = WindowAlignment(4, 3)
        restored.load_state_dict(alignment.state_dict())
        assert restored.mean().tolist() == pytest.approx(mean, rel=1e-5)


def test_window_alignment_by_hand():
    alignment = WindowAlignment(2, 2)
    alignment(torch.tensor([[0.9, 0.1], [0.7, 0.3]]))  # mean 0.8, 0.2
    aligned = alignment(torch.tensor([[0.4, 0.6]]), torch.tensor([0.5, 0.5]))  # window's mean 0.6, 0.4
    assert aligned.tolist()[0] == pytest.approx([4 / 13, 9 / 13])  # in the ratio 0.4 / 0.6 : 0.6 / 0.4 = 4 : 9
    assert WindowAlignment(2, 2)(torch.tensor([[1.0, 0.0]])).tolist() == [[1, 0]]


@pytest.mark.parametrize("steps", [1, 5, 40])
def test_a_moving_average_of_equal_values_has_a_closed_form(steps):
    average = MovingAverage(torch.tensor([1.0, -2.0]), decay=0.9)
    for _ in range(steps):
        found = average(torch.tensor([3.0, 0.5]))
    assert found.tolist() == pytest.approx([3 - 2 * 0.9**steps, 0.5 - 2.5 * 0.9**steps], rel=1e-5)
    restored = MovingAverage(torch.zeros(2), decay=0.9)
    restored.load_state_dict(average.state_dict())
    assert torch.equal(restored.value, average.value)


def test_self_adaptive_thresholds_of_equal_batches_have_a_closed_form():
    """τ = mⁿ/K + (1 − mⁿ)·mean confidence, p̃ = mⁿ/K + (1 − mⁿ)·mean prediction, τ(c) = τ·p̃(c) / max p̃."""
    m, n = 0.95, 30
    adaptive = SelfAdaptiveThresholds(3, m)
    assert adaptive.thresholds().tolist() == pytest.approx([1 / 3] * 3)
    for _ in range(n):
        adaptive.update(torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.1, 0.4]]))
    start = m**n / 3
    tau = start + (1 - m**n) * 0.6
    p = [start + (1 - m**n) * mean for mean in (0.6, 0.15, 0.25)]
    assert adaptive.confidence.value.item() == pytest.approx(tau, rel=1e-5)
    assert adaptive.thresholds().tolist() == pytest.approx([tau, tau * p[1] / p[0], tau * p[2] / p[0]], rel=1e-5)


@pytest.mark.parametrize("target", [None, [0.2, 0.5, 0.3]])
def test_align_divides_by_the_mean_and_multiplies_by_the_target(target):
    probs, mean = [[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]], [0.5, 0.3, 0.2]
    aligned = align(torch.tensor(probs), torch.tensor(mean), None if target is None else torch.tensor(target))
    for row, found in zip(probs, aligned, strict=True):
        ratios = [p * t / m for p, t, m in zip(row, target or [1, 1, 1], mean, strict=True)]
        assert found.tolist() == pytest.approx([r / sum(ratios) for r in ratios], rel=1e-5)


def test_truncated_gaussian_weights_by_hand():
    gaussian = TruncatedGaussian(4, decay=0.5, sigmas=2.0)
    assert gaussian.weights(torch.tensor([0.25, 0.9])).tolist() == [1, 1]  # μ = 1/4
    gaussian.update(torch.tensor([0.5, 0.7, 0.9]))  # mean 0.7, unbiased variance 0.04
    mu, variance = 0.475, 0.52
    assert gaussian.mean.value.item() == pytest.approx(mu)
    assert gaussian.variance.value.item() == pytest.approx(variance)
    expected = [math.exp(-2 * (0.3 - mu) ** 2 / variance), 1, 1]
    assert gaussian.weights(torch.tensor([0.3, mu, 0.8])).tolist() == pytest.approx(expected, rel=1e-5)


def test_truncated_gaussian_of_one_image_or_of_equal_ones_is_finite():
    gaussian = TruncatedGaussian(4, decay=0.0, sigmas=2.0)
    gaussian.update(torch.tensor([0.5]))
    assert gaussian.variance.value == 0
    assert gaussian.weights(torch.tensor([0.4, 0.5, 0.6])).tolist() == [0, 1, 1]


def test_a_window_that_starts_full_holds_uniform_predictions():
    alignment, window = WindowAlignment(4, 2, starts_full=True), deque([0.5] * 4, maxlen=4)
    assert alignment.mean().tolist() == [0.5, 0.5]
    for first in (0.9, 0.8, 0.1, 0.3, 0.7, 0.6):
        alignment(torch.tensor([[first, 1 - first]]))
        window.append(first)
        assert alignment.mean()[0].item() == pytest.approx(sum(window) / 4, rel=1e-5)
