"""IOMatch's step against loops over images and classes, and against FixMatch where all images are inliers."""

import dataclasses
import math

import pytest
import torch

from npmatch.algorithms.check import BATCH, CLASSES, RATIO, check_algorithm, make_algorithm, make_batch, take_steps
from npmatch.algorithms.iomatch import IOMatch, open_target
from npmatch.algorithms.uda import UDA

U = BATCH * RATIO


@pytest.mark.parametrize(
    "options", [{}, {"alignment": False}, {"weak_norm": "running"}, {"confidence": 0.0, "max_outlier": 1.0}]
)
def test_it_passes_all_checks(options):
    assert check_algorithm(IOMatch, IOMatch.Config(**options)) is None


def algorithm(warm: int = 3, **options) -> IOMatch:
    """Some steps old, and without batch statistics, so that images can be passed one by one."""
    a = make_algorithm(IOMatch, IOMatch.Config(**options))
    take_steps(a, range(warm))
    a.model.eval()
    with torch.no_grad():
        a.model.head.detector.weight.mul_(5)  # detectors that differ
    return a


def softmax(row: list[float]) -> list[float]:
    total = sum(math.exp(z) for z in row)
    return [math.exp(z) / total for z in row]


def look_at(a: IOMatch, images) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
    """Class probabilities, inlier probabilities o and open-set probabilities of images, one by one."""
    head, features = a.model.head, [a.model.features(image[None]) for image in images]
    projected = [head.projection[2](head.projection[0](f).clamp(min=0)) for f in features]
    pairs = [head.detector(z)[0].tolist() for z in projected]
    o = [[1 / (1 + math.exp(row[k] - row[CLASSES + k])) for k in range(CLASSES)] for row in pairs]
    classes = [softmax(head.classifier(f)[0].tolist()) for f in features]
    return classes, o, [softmax(head.open_classifier(z)[0].tolist()) for z in projected]


@pytest.mark.parametrize("aligned", [False, True])
def test_the_step_against_loops(aligned):
    a = algorithm(alignment=aligned, detector_weight=0.3, unlabeled_weight=0.7, open_weight=0.9)
    batch = make_batch(a, seed=9)
    loss_x = loss_ova = 0.0
    for p, o, _, y in zip(*look_at(a, batch.x), batch.y.tolist(), strict=True):
        loss_x -= math.log(p[y]) / BATCH
        loss_ova += (max(-math.log(1 - o[k]) for k in range(CLASSES) if k != y) - math.log(o[y])) / BATCH

    p_weak, o_weak, _ = look_at(a, batch.weak[0])
    p_strong, _, open_strong = look_at(a, batch.strong[0])
    if aligned:
        means = [*a.alignment.means[:3].tolist(), [sum(row[k] for row in p_weak) / U for k in range(CLASSES)]]
        ratios = [[row[k] / sum(mean[k] for mean in means) for k in range(CLASSES)] for row in p_weak]
        p_weak = [[r / sum(row) for r in row] for row in ratios]
    targets = [
        [*(p * o for p, o in zip(row, each, strict=True)), sum(p * (1 - o) for p, o in zip(row, each, strict=True))]
        for row, each in zip(p_weak, o_weak, strict=True)
    ]
    assert [sum(q) for q in targets] == pytest.approx([1.0] * U)
    confidences, outliers = [max(row) for row in p_weak], [q[-1] for q in targets]
    largest = [max(q) for q in targets]
    tau, limit, tau_open = (sorted(values)[U // 2] + 1e-6 for values in (confidences, outliers, largest))
    a.config = dataclasses.replace(a.config, confidence=tau, max_outlier=limit, open_confidence=tau_open)

    kept = [i for i in range(U) if confidences[i] >= tau and outliers[i] < limit]
    kept_open = [i for i in range(U) if largest[i] >= tau_open]
    assert kept
    assert kept_open
    loss_u = -sum(p_weak[i][k] * math.log(p_strong[i][k]) for i in kept for k in range(CLASSES)) / U
    loss_open = -sum(targets[i][k] * math.log(open_strong[i][k]) for i in kept_open for k in range(CLASSES + 1)) / U
    step = a.loss(batch, torch.tensor(0.5))
    expected = {
        "loss_labeled": loss_x,
        "loss_detector": loss_ova,
        "loss_unlabeled": loss_u,
        "loss_open": loss_open,
        "inliers": sum(s < limit for s in outliers) / U,
        "trusted_open": len(kept_open) / U,
    }
    assert {name: value.item() for name, value in step.logs.items()} == pytest.approx(expected, rel=1e-4)
    assert step.loss.item() == pytest.approx(loss_x + 0.3 * loss_ova + 0.7 * loss_u + 0.9 * loss_open, rel=1e-4)
    assert step.keep.nonzero().flatten().tolist() == kept
    assert step.pseudo.tolist() == [max(range(CLASSES), key=row.__getitem__) for row in p_weak]


def test_the_target_by_hand():
    probs, inlier = torch.tensor([[0.75, 0.25]]), torch.tensor([[0.5, 0.2]])
    target = open_target(probs, torch.stack([1 - inlier, inlier], 1).log())
    assert target[0].tolist() == pytest.approx([0.375, 0.05, 0.375 + 0.2])


def test_where_all_are_inliers_it_is_fixmatch_with_soft_targets():
    """The detectors accept everything, so S = 0; UDA at temperature 1 is FixMatch with soft targets."""
    a = algorithm(alignment=False, detector_weight=0.0, open_weight=0.0, confidence=0.3)
    with torch.no_grad():
        a.model.head.detector.weight[:CLASSES] = a.model.head.detector.weight[CLASSES:]
        detect = a.model.head.detect
        a.model.head.detect = lambda f: detect(f) + torch.tensor([-200.0, math.log(2.0)])[:, None]  # ō = 0, o = 1
    uda = make_algorithm(UDA, UDA.Config(temperature=1.0, confidence=0.3))
    uda.model.backbone.load_state_dict(a.model.backbone.state_dict())
    uda.model.head.load_state_dict(a.model.head.classifier.state_dict())
    uda.model.eval()
    batch = make_batch(a, seed=9)
    step, expected = a.loss(batch, torch.tensor(0.5)), uda.loss(batch, torch.tensor(0.5))
    assert step.keep.sum() > 0
    assert torch.equal(step.keep, expected.keep)
    torch.testing.assert_close(step.loss, expected.loss)


def test_the_open_set_classifier_waits_and_its_targets_have_no_gradient():
    a = algorithm(confidence=0.0, max_outlier=1.0, open_confidence=0.0)
    batch = make_batch(a, seed=9)
    batch.weak[0].requires_grad_()
    for progress, starts in ((0.0, False), (0.9 / 256, False), (1.1 / 256, True)):
        step = a.loss(batch, torch.tensor(progress))
        assert (float(step.logs["loss_open"]) > 0) == starts
        assert float(step.logs["loss_unlabeled"]) > 0
    step.loss.backward()
    assert batch.weak[0].grad is None or bool((batch.weak[0].grad == 0).all())


def test_a_prediction_is_of_the_classifier_and_its_outlier_of_the_open_one():
    a = algorithm()
    x = make_batch(a, seed=9).x
    classes, _, opened = look_at(a, x)
    prediction = a.predict(x)
    torch.testing.assert_close(prediction.probs, torch.tensor(classes), rtol=1e-4, atol=1e-6)
    assert prediction.outlier.tolist() == pytest.approx([row[-1] for row in opened], rel=1e-4)
