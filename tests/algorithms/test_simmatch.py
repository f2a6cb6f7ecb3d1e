"""SimMatch's pseudo-labels, losses and memory against explicit loops, and against soft FixMatch without a memory."""

import dataclasses
import math

import pytest
import torch
from logits_as_images import STRONG, WEAK, X, Y, make_batch, make_transparent, mean_cross_entropy, softmax

from npmatch.algorithms import check
from npmatch.algorithms.check import BATCH, CLASSES, LABELED, RATIO, check_algorithm, make_algorithm, take_steps
from npmatch.algorithms.simmatch import SimMatch

U = BATCH * RATIO


def dot(a, b) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def unit(v: list[float]) -> list[float]:
    return [x / math.sqrt(dot(v, v)) for x in v]


def predict_each(a, images) -> tuple[list[list[float]], list[list[float]]]:
    """Probabilities and unit embeddings of images, one by one."""
    features = [a.model.features(image[None]) for image in images]
    p = [softmax(a.model.head(f)[0].tolist()) for f in features]
    return p, [unit(a.projection(f)[0].tolist()) for f in features]


@pytest.mark.parametrize("weak_norm", ["joint", "own", "running"])
def test_it_passes_all_checks(weak_norm):
    assert check_algorithm(SimMatch, SimMatch.Config(confidence=0.3, embedding=5, weak_norm=weak_norm)) is None


@pytest.mark.parametrize("steps", [1, 3])
def test_pseudo_labels_losses_and_memory_against_loops(steps):
    a = make_algorithm(
        SimMatch, SimMatch.Config(embedding=5, smoothing=0.8, unlabeled_weight=0.7, instance_weight=5.0, window=8)
    )
    take_steps(a, range(steps))
    a.model.eval()  # without batch statistics, so that images can be passed one by one
    batch = check.make_batch(a, seed=9)
    p_x, z_x = predict_each(a, batch.x)
    p_weak, z_weak = predict_each(a, batch.weak[0])
    p_strong, z_strong = predict_each(a, batch.strong[0])

    before = a.memory.embeddings.tolist()
    known = {j: y for j, y in enumerate(a.memory.labels.tolist()) if y < CLASSES}
    assert 0 < len(known) < LABELED or steps == 3, "one step must leave images out"
    sums = [[sum(row[k] for row in p_weak) / U for k in range(CLASSES)], *a.alignment.means[:steps].tolist()]
    window = [sum(row[k] for row in sums) / len(sums) for k in range(CLASSES)]
    p, loss_in = [], 0.0
    for i in range(U):
        ratios = [p_weak[i][k] / window[k] for k in range(CLASSES)]
        aligned = [r / sum(ratios) for r in ratios]
        near = {j: math.exp(dot(z_weak[i], before[j]) / 0.1) for j in known}
        h = {j: weight / sum(near.values()) for j, weight in near.items()}
        of_class = [sum(h[j] for j in known if known[j] == k) for k in range(CLASSES)]
        p.append([0.8 * aligned[k] + 0.2 * of_class[k] for k in range(CLASSES)])
        target = {j: h[j] * aligned[known[j]] for j in known}
        strong = {j: math.exp(dot(z_strong[i], before[j]) / 0.1) for j in known}
        for j in known:
            loss_in -= target[j] / sum(target.values()) * math.log(strong[j] / sum(strong.values())) / U
    threshold = sorted(max(row) for row in p)[U // 2] - 1e-6  # half of them are confident enough
    a.config = dataclasses.replace(a.config, confidence=threshold)
    loss_x = -sum(math.log(row[y]) for row, y in zip(p_x, batch.y.tolist(), strict=True)) / BATCH
    loss_u = -sum(dot(p[i], map(math.log, p_strong[i])) for i in range(U) if max(p[i]) >= threshold) / U

    step = a.loss(batch, torch.tensor(0.5))
    assert step.logs["loss_unlabeled"].item() == pytest.approx(loss_u, rel=1e-4)
    assert step.logs["loss_instance"].item() == pytest.approx(loss_in, rel=1e-4)
    assert step.loss.item() == pytest.approx(loss_x + 0.7 * loss_u + 5 * loss_in, rel=1e-4)
    assert step.keep.tolist() == [max(row) >= threshold for row in p]
    assert step.pseudo.tolist() == [max(range(CLASSES), key=row.__getitem__) for row in p]

    written: dict[int, int] = {}  # labelled image → its first place in the batch
    for place, j in enumerate(batch.labeled.tolist()):
        written.setdefault(j, place)
    for j in range(LABELED):
        expected = before[j]
        if j in written:
            expected = unit([0.7 * old + 0.3 * new for old, new in zip(before[j], z_x[written[j]], strict=True)])
            assert a.memory.labels[j] == batch.y[written[j]]
        assert a.memory.embeddings[j].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("progress", "held"), [(0.0, True), (0.5, False)])
def test_before_the_memory_is_used_it_is_soft_fixmatch_with_alignment(progress, held):
    a = make_transparent(SimMatch, confidence=0.7, embedding=3)
    if held:
        a.memory.write(torch.tensor([0, 1]), torch.randn(2, 3), torch.tensor(Y), 0.0)
    predictions = [softmax(row) for row in WEAK]
    mean = [sum(row[k] for row in predictions) / len(WEAK) for k in range(3)]
    total, trusted = 0.0, []
    for row, strong in zip(predictions, STRONG, strict=True):
        ratios = [row[k] / mean[k] for k in range(3)]
        p = [r / sum(ratios) for r in ratios]
        trusted.append(max(p) >= 0.7)
        total -= dot(p, map(math.log, softmax(strong))) if trusted[-1] else 0.0
    step = a.loss(make_batch(X, Y, WEAK, STRONG), torch.tensor(progress))
    assert step.keep.tolist() == trusted
    assert 0 < sum(trusted) < len(trusted)
    assert step.logs["loss_instance"] == 0
    assert step.loss.item() == pytest.approx(mean_cross_entropy(X, Y) + total / len(WEAK), rel=1e-5)
    assert a.memory.held().all(), "the memory is written from the first step on"


def test_a_memory_of_unit_vectors_by_hand():
    """Image 0 is along the first axis, image 1 along the second; similarities are 1 and 0."""
    a = make_transparent(SimMatch, smoothing=0.9, temperature=1.0, embedding=2)
    a.memory.write(torch.tensor([0, 1]), torch.eye(2), torch.tensor([2, 0]), 0.0)
    a.embed = lambda f: torch.tensor([[1.0, 0.0]]).expand(len(f), 2)
    p, h = a.pseudo_labels(torch.zeros(1, 3), torch.tensor(True))  # aligned prediction: a third each
    e = math.e
    assert p[0].tolist() == pytest.approx([0.3 + 0.1 / (1 + e), 0.3, 0.3 + 0.1 * e / (1 + e)], rel=1e-5)
    assert h[0].tolist() == pytest.approx([e / (1 + e), 1 / (1 + e)], rel=1e-5)


def test_only_strong_views_learn_from_pseudo_labels():
    a = make_transparent(SimMatch, confidence=0.7, embedding=3)
    a.projection = torch.nn.Identity()
    a.memory.write(torch.tensor([0, 1]), torch.tensor([[3.0, 1.0, 2.0], [-1.0, 2.0, 0.0]]), torch.tensor(Y), 0.0)
    batch = make_batch(X, Y, WEAK, STRONG)
    batch.weak[0].requires_grad_()
    batch.strong[0].requires_grad_()
    step = a.loss(batch, torch.tensor(0.5))
    step.loss.backward()
    assert not step.keep.all()
    assert not batch.weak[0].grad.any()
    assert batch.strong[0].grad.flatten(1).any(1).all(), "similarities are learnt from all images, trusted or not"


def test_projection_and_memory_are_not_part_of_the_model():
    assert not any("projection" in name or "memory" in name for name in make_algorithm(SimMatch).model.state_dict())
