"""ReMixMatch's step against the paper, computed with loops; rotations against PIL."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from npmatch.algorithms import check_algorithm
from npmatch.algorithms.check import BATCH, CLASSES, RATIO, make_algorithm, make_batch, take_steps
from npmatch.algorithms.remixmatch import ReMixMatch, rotate_quarters

U = BATCH * RATIO


def log_softmax(head, a, image) -> list[float]:
    """Log-probabilities of one image, with the softmax in plain Python."""
    logits = head(a.model.features(image[None]))[0].tolist()
    total = math.log(sum(math.exp(v) for v in logits))
    return [v - total for v in logits]


def cross_entropy(target, log_p) -> float:
    return -sum(t * v for t, v in zip(target, log_p, strict=True))


def test_it_passes_all_checks():
    assert check_algorithm(ReMixMatch) is None


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_rotations_agree_with_pil(turn):
    pixels = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)
    turned = rotate_quarters(pixels, torch.full((5,), turn))
    for image, found in zip(pixels, turned, strict=True):
        expected = Image.fromarray(image.permute(1, 2, 0).numpy()).rotate(90 * turn)
        assert np.array_equal(found.permute(1, 2, 0).numpy(), np.asarray(expected))


def test_each_image_has_its_own_rotation():
    images, turns = torch.randn(6, 1, 4, 4), torch.tensor([3, 0, 2, 1, 1, 0])
    for image, turn, found in zip(images, turns.tolist(), rotate_quarters(images, turns), strict=True):
        assert torch.equal(found, torch.rot90(image, turn, (1, 2)))


def test_the_guess_is_aligned_with_the_labels_seen_and_sharpened():
    a = make_algorithm(ReMixMatch)
    a.model.eval()  # without batch statistics, so that images can be passed one by one
    counts, means = Counter(range(CLASSES)), []  # counts start at one for each class
    for seed in range(3):
        batch = make_batch(a, seed)
        counts.update(batch.y.tolist())
        p = [[math.exp(v) for v in log_softmax(a.model.head, a, image)] for image in batch.weak[0]]
        means.append([sum(row[k] for row in p) / U for k in range(CLASSES)])
        mean = [sum(m[k] for m in means) / len(means) for k in range(CLASSES)]
        for row, q in zip(p, a.guess(batch.weak[0], batch.y).tolist(), strict=True):
            squares = [(row[k] * counts[k] / counts.total() / mean[k]) ** 2 for k in range(CLASSES)]  # T = ½
            assert q == pytest.approx([s / sum(squares) for s in squares], rel=1e-4)


def test_the_loss_has_four_terms_in_loops():
    a, reference = make_algorithm(ReMixMatch), make_algorithm(ReMixMatch)
    a.model.eval()
    reference.model.eval()
    batch = make_batch(a, seed=1)
    q = reference.guess(batch.weak[0], batch.y).tolist()
    images = [*batch.x, *batch.strong[0], *batch.strong[1], *batch.weak[0]]
    targets = [[float(k == y) for k in range(CLASSES)] for y in batch.y.tolist()] + q + q + q
    n = len(images)

    torch.manual_seed(3)
    concentration = torch.full((n,), 0.75)
    ratios = torch.distributions.Beta(concentration, concentration).sample().tolist()
    partners = torch.rand(n).argsort().tolist()
    turns = torch.randint(4, (U,)).tolist()
    mixed = []
    for i, j in enumerate(partners):
        ratio = max(ratios[i], 1 - ratios[i])
        log_p = log_softmax(a.model.head, a, ratio * images[i] + (1 - ratio) * images[j])
        mixed.append(sum(w * cross_entropy(targets[m], log_p) for w, m in ((ratio, i), (1 - ratio, j))))
    loss_x, loss_u = sum(mixed[:BATCH]) / BATCH, sum(mixed[BATCH:]) / (3 * U)
    strong = [cross_entropy(q[i], log_softmax(a.model.head, a, batch.strong[0][i])) for i in range(U)]
    turned = [torch.rot90(batch.strong[0][i], turns[i], (1, 2)) for i in range(U)]
    rotation = [-log_softmax(a.rotation_head, a, turned[i])[turns[i]] for i in range(U)]

    torch.manual_seed(3)
    step = a.loss(batch, torch.tensor(1 / 128))  # half of the ramp
    assert step.logs["loss_labeled"].item() == pytest.approx(loss_x, rel=1e-4)
    assert step.logs["loss_unlabeled"].item() == pytest.approx(loss_u, rel=1e-4)
    assert step.logs["loss_strong"].item() == pytest.approx(sum(strong) / U, rel=1e-4)
    assert step.logs["loss_rotation"].item() == pytest.approx(sum(rotation) / U, rel=1e-4)
    expected = loss_x + 0.75 * loss_u + 0.25 * sum(strong) / U + 0.5 * sum(rotation) / U
    assert step.loss.item() == pytest.approx(expected, rel=1e-4)
    assert step.pseudo.tolist() == [max(range(CLASSES), key=row.__getitem__) for row in q]
    assert step.keep.all()


@pytest.mark.parametrize(("progress", "ramp"), [(0.0, 0.0), (1 / 128, 0.5), (1 / 64, 1.0), (0.5, 1.0), (1.0, 1.0)])
def test_both_unlabelled_weights_ramp_up_and_rotation_does_not(progress, ramp):
    a = make_algorithm(ReMixMatch)
    step = a.loss(make_batch(a), torch.tensor(progress))
    logs = step.logs
    unlabeled = ramp * (1.5 * logs["loss_unlabeled"] + 0.5 * logs["loss_strong"])
    torch.testing.assert_close(step.loss.detach(), logs["loss_labeled"] + unlabeled + 0.5 * logs["loss_rotation"])


def test_all_images_share_one_batch_norm_batch_and_guesses_carry_no_gradient():
    a, sizes = make_algorithm(ReMixMatch), []
    a.model.backbone.norm.register_forward_hook(lambda module, x, out: sizes.append((len(out), out.requires_grad)))
    a.loss(make_batch(a), torch.tensor(0.5))
    assert sizes == [(U, False), (BATCH + 5 * U, True)]
    assert a.model.backbone.norm.num_batches_tracked == 1, "the guesses' pass must not update the statistics"


def test_the_alignment_is_saved_and_the_rotation_head_is_not_part_of_the_model():
    a, b = make_algorithm(ReMixMatch), make_algorithm(ReMixMatch)
    take_steps(a, range(3))
    b.load_state_dict(a.state_dict())
    assert torch.equal(b.alignment.mean(), a.alignment.mean())
    assert int(b.label_counts.sum()) == CLASSES + 3 * BATCH
    assert not any("rotation" in name for name in a.model.state_dict())
