"""AdaMatch's step against NumPy: both mean predictions, the relative threshold, the interpolated logits, the ramp."""

import math
from collections import deque

import numpy as np
import pytest
import torch
from logits_as_images import (
    STRONG,
    WEAK,
    X_STRONG,
    Flatten,
    X,
    Y,
    make_batch,
    make_transparent,
    mean_cross_entropy,
    softmax,
)

from npmatch.algorithms.adamatch import AdaMatch
from npmatch.algorithms.check import check_algorithm
from npmatch.algorithms.fixmatch import FixMatch
from npmatch.types import Task

K, N = 3, len(WEAK)
END = torch.tensor(1.0)


@pytest.mark.parametrize("weak_norm", ["joint", "own", "running"])
def test_it_passes_all_checks(weak_norm):
    assert check_algorithm(AdaMatch, AdaMatch.Config(weak_norm=weak_norm)) is None


def test_five_steps_are_the_authors_algorithm_with_numpy():
    """Without batch norm both passes give the same logits, so nothing is random."""
    m, tau = 0.6, 0.95
    algorithm = make_transparent(AdaMatch, decay=m, window=3, relative_confidence=tau, unlabeled_weight=0.5)
    labeled, window = np.full(K, 1 / K), deque([np.full(K, 1 / K)] * 3, maxlen=3)
    kept_counts = []
    for turn in range(5):
        weak = WEAK[turn:] + WEAK[:turn]
        x = [[z * (1 + turn / 4) for z in row] for row in X]
        p_x, q = np.array([softmax(row) for row in x]), np.array([softmax(row) for row in weak])
        labeled = m * labeled + (1 - m) * p_x.mean(0)
        window.append(q.mean(0))
        aligned = q * (labeled + 1e-6) / (np.mean(window, 0) + 1e-6)
        aligned /= aligned.sum(1, keepdims=True)
        kept = aligned.max(1) >= tau * p_x.max(1).mean()
        total = 0.0
        for row, keep, strong in zip(aligned, kept, STRONG, strict=True):
            total += -math.log(softmax(strong)[int(row.argmax())]) if keep else 0.0
        step = algorithm.loss(make_batch(x, Y, weak, STRONG, X_STRONG), END)
        assert step.keep.tolist() == kept.tolist()
        assert step.pseudo.tolist() == aligned.argmax(1).tolist()
        assert step.logs["threshold"].item() == pytest.approx(tau * p_x.max(1).mean(), rel=1e-5)
        loss_x = (mean_cross_entropy(x, Y) + mean_cross_entropy(X_STRONG, Y)) / 2
        assert step.logs["loss_labeled"].item() == pytest.approx(loss_x, rel=1e-5)
        assert step.loss.item() == pytest.approx(loss_x + 0.5 * total / N, rel=1e-5)
        kept_counts.append(int(kept.sum()))
    assert 0 < min(kept_counts) < N


def test_with_equal_means_it_is_fixmatch_with_a_relative_threshold():
    """A long window and a slow average leave both means at 1/K, so that alignment changes nothing."""
    threshold = 0.9 * sum(max(softmax(row)) for row in X) / len(X)
    batch = make_batch(X, Y, WEAK, STRONG, X)
    ada = make_transparent(AdaMatch, decay=1 - 1e-7, window=10**6).loss(batch, END)
    fix = make_transparent(FixMatch, confidence=threshold).loss(batch, END)
    assert 0 < fix.keep.sum() < N
    assert torch.equal(ada.keep, fix.keep)
    assert ada.loss.item() == pytest.approx(fix.loss.item(), rel=1e-5)


@pytest.mark.parametrize(("progress", "weight"), [(0.0, 0.0), (0.125, 0.146447), (0.25, 0.5), (0.5, 1.0), (0.9, 1.0)])
def test_the_weight_grows_along_a_cosine_over_half_of_the_training(progress, weight):
    step = make_transparent(AdaMatch).loss(make_batch(X, Y, WEAK, STRONG, X_STRONG), torch.tensor(progress))
    unlabeled = step.loss - step.logs["loss_labeled"]
    assert unlabeled.item() == pytest.approx(weight * step.logs["loss_unlabeled"].item(), abs=1e-5)


class Normalised(Flatten):
    """Logits that depend on the other images of the pass."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3, affine=False, momentum=0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.flatten(1))


def test_logits_of_labelled_images_lie_between_those_of_two_passes():
    algorithm = AdaMatch(Normalised(), Task(("a", "b", "c"), num_labeled=2, num_unlabeled=6)).train()
    with torch.no_grad():
        algorithm.model.head.weight.copy_(torch.eye(3))
    batch = make_batch(X, Y, WEAK, STRONG, X_STRONG)
    torch.manual_seed(0)
    step = algorithm.loss(batch, torch.tensor(0.0))

    def normalised(rows):
        rows = np.array(rows)
        return (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-5)

    joint = normalised(X + WEAK + STRONG + X_STRONG)[[0, 1, -2, -1]]
    alone = normalised(X + X_STRONG)
    torch.manual_seed(0)
    z = joint + torch.rand(4, 3).numpy() * (alone - joint)
    expected = mean_cross_entropy(z.tolist(), Y + Y)
    assert step.loss.item() == pytest.approx(expected, rel=1e-4)
    assert abs(mean_cross_entropy(joint.tolist(), Y + Y) - expected) > 0.01
    mean = np.mean(X + WEAK + STRONG + X_STRONG, 0) / 2  # running statistics: of the joint pass only
    assert algorithm.model.backbone.norm.running_mean.tolist() == pytest.approx(mean.tolist(), abs=1e-5)


def test_gradients_reach_labelled_and_strong_views_but_not_the_pseudo_labels():
    batch = make_batch(X, Y, WEAK, STRONG, X_STRONG)
    views = {"x": batch.x, "x_strong": batch.x_strong[0], "weak": batch.weak[0], "strong": batch.strong[0]}
    for view in views.values():
        view.requires_grad_()
    make_transparent(AdaMatch).loss(batch, END).loss.backward()
    assert {name for name, view in views.items() if view.grad.any()} == {"x", "x_strong", "strong"}
