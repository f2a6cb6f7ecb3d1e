"""OpenMatch's step against loops over images and classes."""

import dataclasses
import math

import pytest
import torch

from npmatch.algorithms.check import BATCH, CLASSES, RATIO, check_algorithm, make_algorithm, make_batch, take_steps
from npmatch.algorithms.openmatch import OpenMatch

U = BATCH * RATIO


@pytest.mark.parametrize("options", [{}, {"max_outlier": 1.0}, {"max_outlier": 0.0}, {"entropy_weight": 0.0}])
def test_it_passes_all_checks(options):
    assert check_algorithm(OpenMatch, OpenMatch.Config(**options)) is None


def algorithm(**options) -> OpenMatch:
    """Three steps old, and without batch statistics, so that images can be passed one by one."""
    a = make_algorithm(OpenMatch, OpenMatch.Config(**options))
    take_steps(a, range(3))
    a.model.eval()
    with torch.no_grad():
        a.model.head.detector.weight.mul_(5)  # detectors that differ
    return a


def look_at(a: OpenMatch, images) -> tuple[list[list[float]], list[list[float]]]:
    """Class probabilities and inlier probabilities o of images, one by one."""
    features = [a.model.features(image[None]) for image in images]
    classes = [a.model.head.classifier(f)[0].double().softmax(-1).tolist() for f in features]
    pairs = [a.model.head.detector(f)[0].tolist() for f in features]
    return classes, [[1 / (1 + math.exp(row[k] - row[CLASSES + k])) for k in range(CLASSES)] for row in pairs]


def test_the_step_against_loops():
    a = algorithm(entropy_weight=0.3, consistency_weight=0.7, unlabeled_weight=0.9)
    batch = make_batch(a, seed=9)
    loss_x = loss_ova = 0.0
    for images in (batch.x, *batch.x_weak):
        for p, o, y in zip(*look_at(a, images), batch.y.tolist(), strict=True):
            loss_x -= math.log(p[y]) / (2 * BATCH)
            hardest = max(-math.log(1 - o[k]) for k in range(CLASSES) if k != y)
            loss_ova += (hardest - math.log(o[y])) / (2 * BATCH)
    (p_weak, o_weak), (_, o_other), (p_strong, _) = (look_at(a, v) for v in (*batch.weak, *batch.strong))
    entropies = [-(o * math.log(o) + (1 - o) * math.log(1 - o)) for row in o_weak + o_other for o in row]
    squares = [2 * (o_weak[i][k] - o_other[i][k]) ** 2 for i in range(U) for k in range(CLASSES)]
    pseudo = [max(range(CLASSES), key=row.__getitem__) for row in p_weak]
    scores = [1 - o_weak[i][pseudo[i]] for i in range(U)]
    a.config = dataclasses.replace(a.config, max_outlier=sorted(scores)[U // 3] + 1e-6)
    kept = [i for i in range(U) if scores[i] < a.config.max_outlier]
    assert len(kept) == U // 3 + 1
    loss_u = sum(-math.log(p_strong[i][pseudo[i]]) for i in kept) / len(kept)

    step = a.loss(batch, torch.tensor(0.5))
    expected = {
        "loss_labeled": loss_x,
        "loss_detector": loss_ova,
        "loss_entropy": sum(entropies) / len(entropies),
        "loss_consistency": sum(squares) / U,
        "loss_unlabeled": loss_u,
    }
    assert {name: value.item() for name, value in step.logs.items()} == pytest.approx(expected, rel=1e-4)
    weighted = 0.3 * expected["loss_entropy"] + 0.7 * expected["loss_consistency"] + 0.9 * loss_u
    assert step.loss.item() == pytest.approx(loss_x + loss_ova + weighted, rel=1e-4)
    assert step.keep.nonzero().flatten().tolist() == kept
    assert step.pseudo.tolist() == pseudo


def test_inliers_are_learnt_from_after_a_fiftieth_of_training():
    a = algorithm()
    batch = make_batch(a, seed=9)
    for progress, starts in ((0.0, False), (9.9 / 512, False), (10.1 / 512, True)):
        step = a.loss(batch, torch.tensor(progress))
        assert step.keep.any()  # so that the log shows the detectors' choice from the beginning
        assert (float(step.logs["loss_unlabeled"]) > 0) == starts


def test_equal_views_are_consistent_and_both_views_have_a_gradient():
    a = algorithm(unlabeled_weight=0.0, entropy_weight=0.0)
    batch = make_batch(a, seed=9)
    same = batch._replace(weak=(batch.weak[0], batch.weak[0]))
    assert a.loss(same, torch.tensor(0.5)).logs["loss_consistency"] == 0
    for view in batch.weak:
        view.requires_grad_()
    a.loss(batch, torch.tensor(0.5)).loss.backward()
    assert all(bool((view.grad != 0).any()) for view in batch.weak)


def test_a_prediction_has_an_outlier_probability_for_each_image():
    a = algorithm()
    x = make_batch(a, seed=9).x
    prediction = a.predict(x)
    classes, o = look_at(a, x)
    assert prediction.label.tolist() == [max(range(CLASSES), key=row.__getitem__) for row in classes]
    expected = [1 - o[i][label] for i, label in enumerate(prediction.label.tolist())]
    assert prediction.outlier.tolist() == pytest.approx(expected, rel=1e-4)
