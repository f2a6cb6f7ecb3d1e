"""SSB's step against loops over images and classes, and its classifier against FixMatch."""

import dataclasses
import math

import pytest
import torch

from npmatch.algorithms.check import BATCH, CLASSES, RATIO, check_algorithm, make_algorithm, make_batch, take_steps
from npmatch.algorithms.fixmatch import FixMatch
from npmatch.algorithms.ssb import SSB

U = BATCH * RATIO


@pytest.mark.parametrize("options", [{}, {"detectors_from": 0.0}, {"negative_confidence": 1.0, "hidden": 8}])
def test_it_passes_all_checks(options):
    assert check_algorithm(SSB, SSB.Config(**options)) is None


def algorithm(**options) -> SSB:
    """Three steps old, and without batch statistics, so that images can be passed one by one."""
    a = make_algorithm(SSB, SSB.Config(hidden=16, **options))
    take_steps(a, range(3))
    a.model.eval()
    with torch.no_grad():
        a.model.head.detector[-1].weight.mul_(5)  # detectors that differ
    return a


def look_at(a: SSB, images) -> tuple[list[list[float]], list[list[float]]]:
    """Class probabilities and inlier probabilities o of images, one by one."""
    features = [a.model.features(image[None]) for image in images]
    classes = [a.model.head.classifier(f)[0].double().softmax(-1).tolist() for f in features]
    pairs = [a.model.head.detector(f)[0].tolist() for f in features]
    return classes, [[1 / (1 + math.exp(row[k] - row[CLASSES + k])) for k in range(CLASSES)] for row in pairs]


def test_the_step_against_loops():
    a = algorithm(unlabeled_weight=0.6, entropy_weight=0.3, consistency_weight=0.7, negative_weight=0.9)
    batch = make_batch(a, seed=9)
    labels = batch.y.tolist()
    loss_x = positive = negative = 0.0
    for images in (batch.x, *batch.x_weak):
        for p, o, y in zip(*look_at(a, images), labels, strict=True):
            loss_x -= math.log(p[y]) / (2 * BATCH)
            positive -= math.log(o[y]) / (2 * BATCH)
    for images in (batch.x, *batch.x_weak, *batch.x_strong):
        for o, y in zip(look_at(a, images)[1], labels, strict=True):
            negative -= sum(math.log(1 - o[k]) for k in range(CLASSES) if k != y) / (4 * BATCH * CLASSES)

    (p_weak, o_weak), (_, o_other), (p_strong, o_strong) = (look_at(a, v) for v in (*batch.weak, *batch.strong))
    tau = sorted(max(row) for row in p_weak)[U // 2] - 1e-6
    theta = sorted(o for row in o_weak for o in row)[U] + 1e-6
    a.config = dataclasses.replace(a.config, confidence=tau, negative_confidence=theta)
    pseudo = [max(range(CLASSES), key=row.__getitem__) for row in p_weak]
    kept = [i for i in range(U) if p_weak[i][pseudo[i]] >= tau]
    entropies = [-(o * math.log(o) + (1 - o) * math.log(1 - o)) for row in o_weak + o_other for o in row]
    squares = [2 * (o_weak[i][k] - o_other[i][k]) ** 2 for i in range(U) for k in range(CLASSES)]
    rejected = [(i, k) for i in range(U) for k in range(CLASSES) if o_weak[i][k] <= theta]
    expected = {
        "loss_labeled": loss_x,
        "loss_unlabeled": -sum(math.log(p_strong[i][pseudo[i]]) for i in kept) / U,
        "loss_detector": positive + negative,
        "loss_entropy": sum(entropies) / len(entropies),
        "loss_consistency": sum(squares) / U,
        "loss_negative": -sum(math.log(1 - o_strong[i][k]) for i, k in rejected) / U,
        "negative_share": len(rejected) / (U * CLASSES),
    }
    step = a.loss(batch, torch.tensor(0.99))
    assert {name: value.item() for name, value in step.logs.items()} == pytest.approx(expected, rel=1e-4)
    weights = {"loss_labeled": 1, "loss_unlabeled": 0.6, "loss_detector": 1, "loss_entropy": 0.3}
    weights |= {"loss_consistency": 0.7, "loss_negative": 0.9}
    assert step.loss.item() == pytest.approx(sum(w * expected[name] for name, w in weights.items()), rel=1e-4)
    assert step.keep.nonzero().flatten().tolist() == kept
    assert step.pseudo.tolist() == pseudo


def test_the_classifier_learns_as_fixmatch_does():
    """With equal labelled views the classifier's losses are those of FixMatch on the same network."""
    a = algorithm(confidence=0.3)
    batch = make_batch(a, seed=9)
    batch = batch._replace(x_weak=(batch.x,))
    fixmatch = make_algorithm(FixMatch, FixMatch.Config(confidence=0.3))
    fixmatch.model.backbone, fixmatch.model.head = a.model.backbone, a.model.head.classifier
    fixmatch.model.eval()
    step = a.loss(batch, torch.tensor(0.5))
    alone = fixmatch.loss(batch._replace(weak=batch.weak[:1]), torch.tensor(0.5))
    assert torch.equal(step.keep, alone.keep)
    for name in ("loss_labeled", "loss_unlabeled"):
        torch.testing.assert_close(step.logs[name], alone.logs[name])


@pytest.mark.parametrize(("progress", "reaches"), [(0.5, False), (474.9 / 512, False), (475.1 / 512, True)])
def test_the_detectors_reach_the_backbone_at_the_end_only(progress, reaches):
    a, classifier_alone = algorithm(), algorithm()
    classifier_alone.model.head.detect = lambda f: torch.zeros(len(f), 2, CLASSES)
    for each in (a, classifier_alone):
        each.loss(make_batch(each, seed=9), torch.tensor(progress)).loss.backward()
    assert all(p.grad.abs().sum() > 0 for p in a.model.head.detector.parameters())
    found, expected = (
        torch.cat([p.grad.flatten() for p in each.model.backbone.parameters()]) for each in (a, classifier_alone)
    )
    assert torch.allclose(found, expected, atol=1e-6) != reaches


def test_without_sure_rejections_there_are_no_pseudo_negatives():
    a = algorithm(negative_confidence=0.0)
    step = a.loss(make_batch(a, seed=9), torch.tensor(1.0))
    assert step.logs["loss_negative"] == 0
    assert step.logs["negative_share"] == 0


def test_a_prediction_has_an_outlier_probability_for_each_image():
    a = algorithm()
    x = make_batch(a, seed=9).x
    prediction = a.predict(x)
    classes, o = look_at(a, x)
    assert prediction.label.tolist() == [max(range(CLASSES), key=row.__getitem__) for row in classes]
    expected = [1 - o[i][label] for i, label in enumerate(prediction.label.tolist())]
    assert prediction.outlier.tolist() == pytest.approx(expected, rel=1e-4)
