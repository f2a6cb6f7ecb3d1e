"""SemCo's step against the paper, computed one image at a time."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from npmatch.algorithms import check_algorithm
from npmatch.algorithms.check import TinyBackbone, make_algorithm, make_batch, take_steps
from npmatch.algorithms.label_embeddings import load_label_embeddings
from npmatch.algorithms.semco import SemCo, group_classes, spread
from npmatch.errors import NPMatchError
from npmatch.types import Task

TWO_CLOSE_TWO_FAR = np.array([[1, 0.05, 0], [1, -0.05, 0], [0, 1, 0], [0, 0, 1]])


@pytest.fixture
def two_close(tmp_path):
    """A file in which cat and dog have almost the same embedding, and frog and ship others."""
    path = tmp_path / "close.npz"
    np.savez(path, names=np.array(["cat", "dog", "frog", "ship"]), vectors=TWO_CLOSE_TWO_FAR)
    return str(path)


def algorithm(**options) -> SemCo:
    return make_algorithm(SemCo, SemCo.Config(**{"hidden": 16, **options}))


@pytest.mark.parametrize("own_labels", [True, False])
@pytest.mark.parametrize("weak_norm", ["joint", "own"])
def test_it_passes_all_checks(own_labels, weak_norm):
    # With these thresholds some images are trusted and some are not.
    config = SemCo.Config(own_labels=own_labels, weak_norm=weak_norm, confidence=0.3, similarity=0.05)
    assert check_algorithm(SemCo, config) is None


def test_groups_by_hand():
    expected = [[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert group_classes(torch.tensor(TWO_CLOSE_TWO_FAR), 0.2).tolist() == expected
    assert torch.equal(group_classes(torch.tensor(TWO_CLOSE_TWO_FAR), 1e-4), torch.eye(4))


def test_groups_are_chained():
    """A class that is close to two others joins them, though those are not close to each other."""
    angles = torch.tensor([0.0, 0.6, 1.2, 3.0])  # 1 − cos 0.6 = 0.17, 1 − cos 1.2 = 0.64
    points = torch.stack([angles.cos(), angles.sin()], -1)
    expected = torch.block_diag(torch.full((3, 3), 1 / 3), torch.ones(1, 1))
    torch.testing.assert_close(group_classes(points, 0.2), expected)


@pytest.mark.parametrize("own_labels", [True, False])
@torch.no_grad()
def test_loss_is_the_papers_with_loops_over_images(two_close, own_labels):
    a = algorithm(own_labels=own_labels, label_embeddings=two_close)
    a.model.eval()  # without batch statistics, so that images can be passed one by one
    batch, e, members = make_batch(a, seed=1), a.embeddings, [[0, 1], [0, 1], [2], [3]]

    def cos(u, v):
        return float(sum(u * v)) / math.sqrt(sum(u * u)) / math.sqrt(sum(v * v))

    def both(image):
        f = a.model.features(image[None])
        return a.model.head(f)[0], a.semantic(f)[0]

    labels = []  # of weak views: confidence, label; similarity, label, target
    for image in batch.weak[0]:
        logits, s = both(image)
        cosines = [cos(s, e[k]) for k in range(4)]
        means = [sum(cosines[j] for j in members[k]) / len(members[k]) for k in range(4)]
        group = members[means.index(max(means))]
        weight = {k: math.exp(cosines[k]) / sum(math.exp(cosines[j]) for j in group) for k in group}
        nearest, target = max(group, key=lambda k: cosines[k]), sum(weight[k] * e[k] for k in group)
        labels.append((float(logits.softmax(-1).max()), int(logits.argmax()), max(means), nearest, target))
    # Thresholds at the median, so that each classifier trusts half of the images.
    enough, enough_s = (sum(sorted(label[i] for label in labels)[8:10]) / 2 for i in (0, 2))
    a.config = dataclasses.replace(a.config, confidence=enough, similarity=enough_s)

    loss_x = loss_s_x = loss_u = loss_s_u = 0.0
    for image, y in zip(batch.x, batch.y, strict=True):
        logits, s = both(image)
        loss_x += -float(logits.log_softmax(-1)[y]) / 6
        loss_s_x += (1 - cos(e[y], s)) / 6
    for image, (confidence, pseudo, similarity, pseudo_s, target) in zip(batch.strong[0], labels, strict=True):
        logits, s = both(image)
        if confidence >= enough:
            loss_s_u += (1 - cos(e[pseudo], s)) / 18
            loss_u += -float(logits.log_softmax(-1)[pseudo]) / 18 * own_labels
        if similarity >= enough_s:
            loss_u += -float(logits.log_softmax(-1)[pseudo_s]) / 18
            loss_s_u += (1 - cos(target, s)) / 18 * own_labels

    step = a.loss(batch, torch.tensor(0.0))
    assert float(step.loss) == pytest.approx(loss_x + loss_u + 3 * (loss_s_x + loss_s_u), rel=1e-4)
    assert step.keep.tolist() == [label[0] >= enough or label[2] >= enough_s for label in labels]
    assert step.logs["trusted_softmax"] == step.logs["trusted_semantic"] == 0.5


@pytest.mark.parametrize("teacher", ["softmax", "semantic"])
def test_each_classifier_teaches_the_other(teacher):
    """With pseudo-labels of one classifier only, the strong views train the other."""
    never = 2.0
    a = algorithm(
        own_labels=False,
        confidence=0.0 if teacher == "softmax" else never,
        similarity=-1.0 if teacher == "semantic" else never,
    )
    step = a.loss(make_batch(a), torch.tensor(0.0))
    assert step.keep.all()
    taught = "loss_semantic_unlabeled" if teacher == "softmax" else "loss_unlabeled"
    other = "loss_unlabeled" if teacher == "softmax" else "loss_semantic_unlabeled"
    assert step.logs[taught] > 0
    assert step.logs[other] == 0


def test_no_gradient_flows_through_pseudo_labels():
    a = algorithm(confidence=0.0, similarity=-1.0, weak_norm="own")
    batch = make_batch(a)
    batch = batch._replace(weak=(batch.weak[0].requires_grad_(),), strong=(batch.strong[0].requires_grad_(),))
    a.loss(batch, torch.tensor(0.0)).loss.backward()
    assert batch.weak[0].grad is None
    assert batch.strong[0].grad.abs().sum() > 0


def test_a_group_shares_its_confidence(two_close):
    """A point between two classes of one group is trusted; one equally far between two groups is not."""
    grouped = algorithm(label_embeddings=two_close)
    e = grouped.embeddings
    similarity, label, target = grouped.semantic_label(torch.stack([e[0] + e[1], e[0] + e[2], 0.9 * e[1] + 0.1 * e[0]]))
    assert (similarity >= 0.7).tolist() == [True, False, True]
    assert label[2] == 1  # the nearest class of the group
    torch.testing.assert_close(F.cosine_similarity(target[2], e[0] + e[1], dim=0), torch.tensor(1.0), atol=1e-3, rtol=0)


def test_similarity_is_the_mean_over_the_group():
    """A point on the far side of one member is close to that member but not to the group."""
    a, angles = algorithm(), torch.tensor([0.0, 0.6, 2.5, 4.0])
    a.embeddings = torch.stack([angles.cos(), angles.sin()], -1)
    a.groups = group_classes(a.embeddings, 0.2)
    point = torch.tensor([[math.cos(-0.7), math.sin(-0.7)]])
    similarity, label, _ = a.semantic_label(point)
    assert similarity.item() == pytest.approx((math.cos(0.7) + math.cos(1.3)) / 2)
    assert label.item() == 0


def test_a_point_between_all_digits_is_not_trusted():
    """Number words have similar embeddings; without their mean, a point between all of them is close to none."""
    raw = F.normalize(load_label_embeddings([str(digit) for digit in range(10)]), dim=-1)
    apart = spread(raw)
    assert (F.normalize(raw.mean(0), dim=-1) @ raw.T).max() > 0.7
    assert (F.normalize(raw.mean(0), dim=-1) @ apart.T).max() < 0.7
    torch.testing.assert_close(apart.norm(dim=-1), torch.ones(10))


def test_an_unknown_class_is_an_error_that_names_it():
    task = Task(("cat", "flumph"), num_labeled=4, num_unlabeled=10)
    with pytest.raises(NPMatchError, match=r"'flumph'.*algorithm\.label_embeddings"):
        SemCo(TinyBackbone(), task)


def test_a_saved_model_predicts_without_embeddings():
    a = algorithm()
    take_steps(a, range(1))
    task = Task(("flumph", "grell", "otyugh", "roper"), num_labeled=4, num_unlabeled=0)
    model = SemCo.make_model(TinyBackbone(), task, SemCo.Config(label_embeddings="gone.npz"))
    model.load_state_dict(a.model.state_dict())
    x = make_batch(a).x
    a.eval()
    assert torch.equal(model.eval()(x).probs, a.predict(x).probs)
