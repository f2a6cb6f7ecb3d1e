"""CR-Match's step against loops, torch's cosine embedding loss and PIL's rotations, and against FixMatch."""

import math

import numpy as np
import pytest
import torch
from logits_as_images import STRONG, WEAK, X, Y, make_batch, make_transparent, mean_cross_entropy, softmax
from PIL import Image

from npmatch.algorithms import check
from npmatch.algorithms.check import BATCH, RATIO, check_algorithm, make_algorithm
from npmatch.algorithms.crmatch import CRMatch
from npmatch.algorithms.fixmatch import FixMatch

U = BATCH * RATIO


def transparent(**options) -> CRMatch:
    """Images are their own logits, and the vectors that are pushed apart."""
    algorithm = make_transparent(CRMatch, **options)
    with torch.no_grad():
        algorithm.distance_map.weight.copy_(torch.eye(3))
        algorithm.distance_map.bias.zero_()
    return algorithm


@pytest.mark.parametrize("weak_norm", ["joint", "own", "running"])
def test_it_passes_all_checks(weak_norm):
    assert check_algorithm(CRMatch, CRMatch.Config(confidence=0.3, weak_norm=weak_norm)) is None


def test_losses_of_trusted_images_with_loops():
    total_u, total_d = 0.0, 0.0
    for weak, strong in zip(WEAK, STRONG, strict=True):
        q = softmax(weak)
        if max(q) < 0.8:
            continue
        total_u -= math.log(softmax(strong)[q.index(max(q))])
        cosine = sum(a * b for a, b in zip(weak, strong, strict=True)) / (math.hypot(*weak) * math.hypot(*strong))
        total_d += max(0.0, cosine)
    step = transparent(confidence=0.8, unlabeled_weight=0.7, distance_weight=2.0, rotation_weight=0.0).loss(
        make_batch(X, Y, WEAK, STRONG), torch.tensor(0.0)
    )
    assert 0 < step.keep.sum() < len(WEAK)
    assert step.logs["loss_distance"].item() == pytest.approx(total_d / len(WEAK), rel=1e-5)  # over all μB
    expected = mean_cross_entropy(X, Y) + (0.7 * total_u + 2 * total_d) / len(WEAK)
    assert step.loss.item() == pytest.approx(expected, rel=1e-5)


def test_the_distance_is_torchs_cosine_embedding_loss_of_dissimilar_pairs():
    step = transparent(confidence=0.0).loss(make_batch(X, Y, WEAK, STRONG), torch.tensor(0.0))
    expected = torch.nn.functional.cosine_embedding_loss(torch.tensor(WEAK), torch.tensor(STRONG), -torch.ones(6))
    torch.testing.assert_close(step.logs["loss_distance"], expected)


def test_equal_views_have_the_distance_loss_of_their_trusted_share():
    step = transparent(confidence=0.8).loss(make_batch(X, Y, WEAK, WEAK), torch.tensor(0.0))
    assert step.logs["loss_distance"].item() == pytest.approx(step.keep.float().mean().item(), rel=1e-5)
    assert 0 < step.keep.sum() < len(WEAK)


def test_a_step_down_the_distance_moves_features_apart_by_both_views():
    algorithm = transparent(confidence=0.0, unlabeled_weight=0.0, rotation_weight=0.0)
    batch = make_batch(X, Y, WEAK, STRONG)
    batch.weak[0].requires_grad_()
    batch.strong[0].requires_grad_()
    step = algorithm.loss(batch, torch.tensor(0.0))
    step.loss.backward()
    with torch.no_grad():
        batch.weak[0].sub_(batch.weak[0].grad)
        batch.strong[0].sub_(batch.strong[0].grad)
    assert batch.weak[0].grad.any()
    assert batch.strong[0].grad.any()
    assert algorithm.loss(batch, torch.tensor(0.0)).logs["loss_distance"] < step.logs["loss_distance"]


def test_four_rotations_of_as_many_unlabelled_images_as_there_are_labelled_ones():
    a = make_algorithm(CRMatch)
    a.model.eval()  # without batch statistics, so that images can be passed one by one
    batch = check.make_batch(a, seed=1)
    total = 0.0
    for image in batch.weak[0][::RATIO]:
        for turn in range(4):
            turned = np.array(Image.fromarray(image[0].numpy()).rotate(90 * turn))
            logits = a.rotation_head(a.model.features(torch.from_numpy(turned)[None, None]))[0].tolist()
            total -= math.log(softmax(logits)[turn])
    step = a.loss(batch, torch.tensor(0.5))
    assert len(batch.weak[0][::RATIO]) == BATCH
    assert step.logs["loss_rotation"].item() == pytest.approx(total / (4 * BATCH), rel=1e-4)


def test_all_views_share_one_batch_norm_batch():
    a, sizes = make_algorithm(CRMatch), []
    a.model.backbone.norm.register_forward_hook(lambda module, x, out: sizes.append(len(out)))
    a.loss(check.make_batch(a), torch.tensor(0.5))
    assert sizes == [BATCH + 2 * U + 4 * BATCH]


def test_without_its_two_losses_it_is_fixmatch():
    batch = make_batch(X, Y, WEAK, STRONG)
    one = transparent(confidence=0.8, distance_weight=0.0, rotation_weight=0.0).loss(batch, torch.tensor(0.0))
    other = make_transparent(FixMatch, confidence=0.8).loss(batch, torch.tensor(0.0))
    assert torch.equal(one.loss, other.loss)
    assert torch.equal(one.keep, other.keep)


def test_map_and_rotation_head_are_not_part_of_the_model():
    names = list(make_algorithm(CRMatch).model.state_dict())
    assert not any("rotation" in name or "distance" in name for name in names)
