"""MixMatch's step against the paper, computed with loops."""

import math

import pytest
import torch

from npmatch.algorithms import check_algorithm
from npmatch.algorithms.check import BATCH, CLASSES, RATIO, make_algorithm, make_batch
from npmatch.algorithms.mixmatch import MixMatch

U = BATCH * RATIO


def probabilities(a, image) -> list[float]:
    """The class probabilities of one image, with the softmax in plain Python."""
    logits = a.model.head(a.model.features(image[None]))[0].tolist()
    total = sum(math.exp(v) for v in logits)
    return [math.exp(v) / total for v in logits]


def test_it_passes_all_checks():
    assert check_algorithm(MixMatch) is None


def test_the_guess_is_the_sharpened_average_over_views():
    a = make_algorithm(MixMatch)
    a.model.eval()  # without batch statistics, so that images can be passed one by one
    batch = make_batch(a)
    for i, q in enumerate(a.guess(batch.weak).tolist()):
        first, second = (probabilities(a, view[i]) for view in batch.weak)
        squares = [((p + r) / 2) ** 2 for p, r in zip(first, second, strict=True)]  # T = ½
        assert q == pytest.approx([s / sum(squares) for s in squares], rel=1e-4)


def test_the_loss_is_equation_5_in_loops():
    a = make_algorithm(MixMatch)
    a.model.eval()
    batch = make_batch(a, seed=1)
    q = a.guess(batch.weak).tolist()
    images = [*batch.x, *batch.weak[0], *batch.weak[1]]
    targets = [[float(k == y) for k in range(CLASSES)] for y in batch.y.tolist()] + q + q
    n = len(images)

    torch.manual_seed(3)
    a_half = torch.full((n,), 0.5)
    ratios = torch.distributions.Beta(a_half, a_half).sample().tolist()
    partners = torch.rand(n).argsort().tolist()
    loss_x = loss_u = 0.0
    for i in range(n):
        ratio, j = max(ratios[i], 1 - ratios[i]), partners[i]
        p = probabilities(a, ratio * images[i] + (1 - ratio) * images[j])
        target = [ratio * targets[i][k] + (1 - ratio) * targets[j][k] for k in range(CLASSES)]
        if i < BATCH:
            loss_x -= sum(t * math.log(v) for t, v in zip(target, p, strict=True)) / BATCH
        else:
            loss_u += sum((t - v) ** 2 for t, v in zip(target, p, strict=True)) / (CLASSES * 2 * U)

    torch.manual_seed(3)
    step = a.loss(batch, torch.tensor(0.1))  # a quarter of the ramp
    assert step.logs["loss_labeled"].item() == pytest.approx(loss_x, rel=1e-4)
    assert step.logs["loss_unlabeled"].item() == pytest.approx(loss_u, rel=1e-4)
    assert step.loss.item() == pytest.approx(loss_x + 25 * loss_u, rel=1e-4)
    assert step.pseudo.tolist() == [max(range(CLASSES), key=row.__getitem__) for row in q]
    assert step.keep.all()


@pytest.mark.parametrize(("progress", "weight"), [(0.0, 0.0), (0.2, 50.0), (0.4, 100.0), (0.5, 100.0), (1.0, 100.0)])
def test_the_weight_ramps_up(progress, weight):
    a = make_algorithm(MixMatch)
    step = a.loss(make_batch(a), torch.tensor(progress))
    assert step.logs["unlabeled_weight"].item() == pytest.approx(weight)
    expected = step.logs["loss_labeled"] + weight * step.logs["loss_unlabeled"]
    torch.testing.assert_close(step.loss.detach(), expected)


def test_all_mixed_images_share_one_batch_norm_batch_and_guesses_carry_no_gradient():
    a, sizes = make_algorithm(MixMatch), []
    a.model.backbone.norm.register_forward_hook(lambda module, x, out: sizes.append((len(out), out.requires_grad)))
    a.loss(make_batch(a), torch.tensor(0.5))
    assert sizes == [(2 * U, False), (BATCH + 2 * U, True)]
    assert a.model.backbone.norm.num_batches_tracked == 1, "the guesses' pass must not update the statistics"
