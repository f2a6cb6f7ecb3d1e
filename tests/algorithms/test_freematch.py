"""FreeMatch's step against its definition in plain Python: thresholds, trusted images, fairness loss."""

import math

import pytest
import torch
from logits_as_images import STRONG, WEAK, X, Y, make_batch, make_transparent, mean_cross_entropy, softmax

from npmatch.algorithms.check import check_algorithm
from npmatch.algorithms.fixmatch import FixMatch
from npmatch.algorithms.freematch import FreeMatch
from npmatch.objectives.losses import fairness_loss

K, N = 3, len(WEAK)


@pytest.mark.parametrize("weak_norm", ["joint", "own", "running"])
def test_it_passes_all_checks(weak_norm):
    assert check_algorithm(FreeMatch, FreeMatch.Config(weak_norm=weak_norm)) is None


def normalised_ratio(p, h):
    ratio = [a / b if b else 0.0 for a, b in zip(p, h, strict=True)]
    return [r / sum(ratio) for r in ratio]


def plain_fairness(strong, kept, target):
    """L_f with row selection; 0 if no image is trusted."""
    rows = [softmax(row) for row, keep in zip(strong, kept, strict=True) if keep]
    if not rows:
        return 0.0
    p_mean = [sum(row[k] for row in rows) / len(rows) for k in range(K)]
    histogram = [sum(row.index(max(row)) == k for row in rows) / len(rows) for k in range(K)]
    now = normalised_ratio(p_mean, histogram)
    return sum(t * math.log(n + 1e-12) for t, n in zip(target, now, strict=True))


@pytest.mark.parametrize(("lowest", "highest"), [(0.0, 1.0), (0.6, 1.0), (0.0, 0.5)])
def test_four_steps_are_the_papers_algorithm_with_loops_and_row_selection(lowest, highest):
    m, w_f = 0.6, 0.3
    algorithm = make_transparent(
        FreeMatch, decay=m, fairness_weight=w_f, unlabeled_weight=0.5, min_threshold=lowest, max_threshold=highest
    )
    tau, p_tilde, h_tilde = 1 / K, [1 / K] * K, [1 / K] * K
    kept_counts = []
    for turn in range(4):
        weak = [[(1 + turn) * z for z in row] for row in WEAK]  # more confident in every step
        q = [softmax(row) for row in weak]
        labels = [row.index(max(row)) for row in q]
        tau = m * tau + (1 - m) * sum(max(row) for row in q) / N
        p_tilde = [m * p + (1 - m) * sum(row[k] for row in q) / N for k, p in enumerate(p_tilde)]
        h_tilde = [m * h + (1 - m) * labels.count(k) / N for k, h in enumerate(h_tilde)]
        kept, total = [], 0.0
        for row, label, strong in zip(q, labels, STRONG, strict=True):
            threshold = min(max(tau * p_tilde[label] / max(p_tilde), lowest), highest)
            kept.append(max(row) >= threshold)
            total += -math.log(softmax(strong)[label]) if kept[-1] else 0.0
        fairness = plain_fairness(STRONG, kept, normalised_ratio(p_tilde, h_tilde))
        step = algorithm.loss(make_batch(X, Y, weak, STRONG), torch.tensor(0.0))
        assert step.keep.tolist() == kept
        assert step.pseudo.tolist() == labels
        assert step.logs["loss_unlabeled"].item() == pytest.approx(total / N, rel=1e-5)
        assert step.logs["loss_fairness"].item() == pytest.approx(fairness, rel=1e-5)
        expected = mean_cross_entropy(X, Y) + 0.5 * total / N + w_f * fairness
        assert step.loss.item() == pytest.approx(expected, rel=1e-5)
        kept_counts.append(sum(kept))
    assert min(kept_counts) < N


def test_the_fairness_loss_of_trusted_images_has_the_gradient_of_finite_differences():
    """In float64; the histogram h̄ is constant, and a class that no strong view has gets no gradient by itself."""
    strong = [[1.0, 0.2, 0.0], [0.0, 0.3, 2.0], [0.4, 0.0, 1.0], [3.0, 0.0, 0.0]]
    kept, target = [True, True, False, True], [0.5, 0.3, 0.2]
    logits = torch.tensor(strong, dtype=torch.float64, requires_grad=True)
    loss = fairness_loss(logits, torch.tensor(kept), torch.tensor(target, dtype=torch.float64))
    assert loss.item() == pytest.approx(plain_fairness(strong, kept, target), rel=1e-9)
    loss.backward()
    for i in range(4):
        for k in range(K):
            ends = []
            for sign in (1, -1):
                moved = [list(row) for row in strong]
                moved[i][k] += sign * 1e-5
                ends.append(plain_fairness(moved, kept, target))
            assert logits.grad[i, k].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-6)
    assert not logits.grad[2].any()
    assert logits.grad[0].any()


def test_without_trusted_images_the_fairness_loss_is_zero_and_its_gradient_finite():
    logits = torch.tensor(STRONG, requires_grad=True)
    loss = fairness_loss(logits, torch.zeros(N, dtype=torch.bool), torch.full((K,), 1 / K))
    loss.backward()
    assert loss == 0
    assert not logits.grad.any()


def test_with_equal_limits_and_without_fairness_it_is_fixmatch():
    free = make_transparent(FreeMatch, min_threshold=0.9, max_threshold=0.9, fairness_weight=0.0)
    batch = make_batch(X, Y, WEAK, STRONG)
    one = free.loss(batch, torch.tensor(0.0))
    other = make_transparent(FixMatch, confidence=0.9).loss(batch, torch.tensor(0.0))
    assert torch.equal(one.keep, other.keep)
    assert torch.equal(one.loss, other.loss)
