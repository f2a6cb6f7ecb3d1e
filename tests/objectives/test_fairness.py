"""The fairness loss of means of T predictions against plain Python, and its gradient against finite differences."""

import math

import pytest
import torch

from npmatch.objectives.fairness import Fairness

K, T, U, DECAY = 3, 2, 4, 0.7
WEAK = [[[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.1, 0.3, 0.6]], [[0.2, 0.7, 0.1], [0.6, 0.3, 0.1], [0.3, 0.3, 0.4]]]


def normalised_ratio(p, h):
    ratio = [a / b if b else 0.0 for a, b in zip(p, h, strict=True)]
    return [r / sum(ratio) for r in ratio]


def plain_target(batches):
    """N(p̃ / h̃) after batches of predictions of weak views."""
    p_tilde, h_tilde = [1 / K] * K, [1 / K] * K
    for rows in batches:
        labels = [row.index(max(row)) for row in rows]
        p_tilde = [DECAY * p + (1 - DECAY) * sum(r[c] for r in rows) / len(rows) for c, p in enumerate(p_tilde)]
        h_tilde = [DECAY * h + (1 - DECAY) * labels.count(c) / len(rows) for c, h in enumerate(h_tilde)]
    return normalised_ratio(p_tilde, h_tilde)


def plain_fairness(logits, weights, target):
    """L_f of logits T U K, nested lists: the mean prediction of every image first, then the means over images."""
    predictions = []
    for i in range(len(weights)):
        samples = [[math.exp(z) for z in logits[t][i]] for t in range(len(logits))]
        predictions.append([sum(s[c] / sum(s) for s in samples) / len(samples) for c in range(K)])
    total = sum(weights)
    p_mean = [sum(w * p[c] for w, p in zip(weights, predictions, strict=True)) / total for c in range(K)]
    in_class = [[w for w, p in zip(weights, predictions, strict=True) if p.index(max(p)) == c] for c in range(K)]
    now = normalised_ratio(p_mean, [sum(of_class) / total for of_class in in_class])
    return sum(t * math.log(n + 1e-12) for t, n in zip(target, now, strict=True))


def make() -> Fairness:
    fairness = Fairness(K, DECAY).double()
    for rows in WEAK:
        fairness.update(torch.tensor(rows, dtype=torch.float64))
    return fairness


@pytest.mark.parametrize("weights", [[1, 1, 0, 1], [1, 1, 1, 1], [0.2, 1.0, 0.5, 0.1]])
def test_loss_and_gradient_are_those_of_the_mean_prediction(weights):
    logits = torch.randn(T, U, K, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 2
    logits.requires_grad_()
    loss = make()(logits, torch.tensor(weights, dtype=torch.float64))
    target = plain_target(WEAK)
    assert loss.item() == pytest.approx(plain_fairness(logits.tolist(), weights, target), rel=1e-7)
    loss.backward()
    for t in range(T):
        for i in range(U):
            for k in range(K):
                ends = []
                for sign in (1, -1):
                    moved = logits.tolist()
                    moved[t][i][k] += sign * 1e-5
                    ends.append(plain_fairness(moved, weights, target))
                assert logits.grad[t, i, k].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-6)


def test_without_trusted_images_it_is_zero_and_its_gradient_finite():
    logits = torch.randn(T, U, K, dtype=torch.float64, requires_grad=True)
    loss = make()(logits, torch.zeros(U, dtype=torch.bool))
    loss.backward()
    assert loss == 0
    assert not logits.grad.any()


def test_it_goes_on_from_its_saved_state():
    fairness, other = make(), Fairness(K, DECAY).double()
    logits, keep = torch.randn(T, U, K, dtype=torch.float64), torch.ones(U, dtype=torch.bool)
    assert other(logits, keep) != fairness(logits, keep)
    other.load_state_dict(fairness.state_dict())
    assert other(logits, keep) == fairness(logits, keep)
