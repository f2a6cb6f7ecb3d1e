"""The one-vs-all head and its losses against loops over images and classes in plain Python."""

import math

import pytest
import torch

from npmatch.heads import OneVsAllHead
from npmatch.heads.one_vs_all import (
    detector_consistency,
    detector_entropy,
    detector_log_probs,
    linear_detector,
    one_vs_all_loss,
    outlier_score,
)
from npmatch.types import Prediction

N, K = 9, 4
LOGITS = 3 * torch.randn(N, 2 * K, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
OTHER = LOGITS + torch.randn(N, 2 * K, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.arange(N) % K


def inliers(logits: torch.Tensor) -> list[list[float]]:
    """o_k of each image: of 2K logits the first K are of outliers, and detector k is a softmax over its two."""
    return [[1 / (1 + math.exp(row[k] - row[K + k])) for k in range(K)] for row in logits.tolist()]


def test_the_detector_of_class_k_has_logits_k_and_K_plus_k():
    log_o = detector_log_probs(LOGITS)
    assert log_o.shape == (N, 2, K)
    torch.testing.assert_close(log_o[:, 1].exp(), torch.tensor(inliers(LOGITS), dtype=torch.float64))
    torch.testing.assert_close(log_o.exp().sum(1), torch.ones(N, K, dtype=torch.float64))


def test_of_the_other_classes_the_worst_detector_learns():
    total = 0.0
    for o, y in zip(inliers(LOGITS), Y.tolist(), strict=True):
        total += -math.log(o[y]) + max(-math.log(1 - o[k]) for k in range(K) if k != y)
    assert one_vs_all_loss(detector_log_probs(LOGITS), Y).item() == pytest.approx(total / N)


def test_entropy_is_a_mean_over_classes_and_consistency_a_sum():
    found, other = inliers(LOGITS), inliers(OTHER)
    entropies = [-(o * math.log(o) + (1 - o) * math.log(1 - o)) for row in found for o in row]
    assert detector_entropy(detector_log_probs(LOGITS)).item() == pytest.approx(sum(entropies) / (N * K))
    squares = [2 * (found[n][k] - other[n][k]) ** 2 for n in range(N) for k in range(K)]  # of o and of 1 − o
    log_o, log_other = detector_log_probs(LOGITS), detector_log_probs(OTHER)
    assert detector_consistency(log_o, log_other).item() == pytest.approx(sum(squares) / N)
    assert detector_consistency(log_o, log_o) == 0


def test_sure_detectors_have_finite_losses_and_gradients():
    logits = torch.tensor([[200.0, -200.0, -200.0, 200.0]], requires_grad=True)
    log_o = detector_log_probs(logits)
    loss = one_vs_all_loss(log_o, torch.tensor([0])) + detector_entropy(log_o)
    loss = loss + detector_consistency(log_o, log_o.detach().flip(1))
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


def test_the_outlier_probability_is_that_of_the_most_probable_class():
    torch.manual_seed(0)
    head = OneVsAllHead(torch.nn.Linear(5, K), linear_detector(5, K)).double()
    assert head.detector.bias is None
    features = torch.randn(N, 5, dtype=torch.float64)
    prediction = head.predict(features)
    torch.testing.assert_close(prediction.probs, head.classifier(features).softmax(-1))
    o = inliers(head.detector(features))
    expected = [1 - o[n][label] for n, label in enumerate(prediction.label.tolist())]
    assert prediction.outlier.tolist() == pytest.approx(expected)
    assert outlier_score(head.detect(features), prediction.label).tolist() == pytest.approx(expected)


def test_parts_of_a_prediction_are_joined_with_their_outlier_probabilities():
    p, score = torch.full((3, 2), 0.5), torch.tensor([0.1, 0.2, 0.3])
    whole = Prediction(p, torch.zeros(3), outlier=score)
    parts = [Prediction(p[rows], torch.zeros(len(p[rows])), outlier=score[rows]) for rows in (slice(2), slice(2, 3))]
    assert torch.equal(Prediction.cat(parts).outlier, score)
    assert torch.equal(whole.to("cpu").outlier, score)
    assert Prediction.cat([parts[0], Prediction(p, torch.zeros(3))]).outlier is None
