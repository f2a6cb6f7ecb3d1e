"""RegMixMatch's step against loops that mix image by image with the draws of the step."""

import dataclasses
import math

import pytest
import torch
from logits_as_images import STRONG, WEAK, X, Y, make_batch, make_transparent, mean_cross_entropy, softmax

from npmatch.algorithms import check, regmixmatch
from npmatch.algorithms.check import BATCH, CLASSES, RATIO, SIDE, check_algorithm, make_algorithm
from npmatch.algorithms.regmixmatch import RegMixMatch

U = BATCH * RATIO


@pytest.mark.parametrize(
    "options",
    [{}, {"weak_norm": "own", "labeled_mixing": 1}, {"weak_norm": "running"}, {"class_aware": False}],
)
def test_it_passes_all_checks(options):
    for confidence in (0.3, 0.999):
        assert check_algorithm(RegMixMatch, RegMixMatch.Config(mixing_confidence=confidence, **options)) is None


@pytest.fixture
def drawn(monkeypatch):
    """The results of the step's draws by function, in order, and what draw_each was allowed."""
    found = {"draw_box": [], "shuffle_within": [], "draw_each": [], "allowed": []}

    def record(name, function):
        def call(*args):
            found[name].append(function(*args))
            if name == "draw_each":
                found["allowed"].append(args[0])
            return found[name][-1]

        return call

    for name in ("draw_box", "shuffle_within", "draw_each"):
        monkeypatch.setattr(regmixmatch, name, record(name, getattr(regmixmatch, name)))
    return found


def paste_by_hand(image, other, box):
    """One image 1 S S with another in its box, and the share of the pixels that it keeps."""
    (top, bottom), (left, right) = ((int(part.start), int(part.stop)) for part in box)
    mixed, kept, taken = image.clone(), int(0.9 * SIDE), 0
    margin = (SIDE - kept) // 2
    for row in range(top, bottom):
        for column in range(left, right):
            source = margin + (row - top) * kept // (bottom - top), margin + (column - left) * kept // (right - left)
            mixed[:, row, column] = other[:, source[0], source[1]]
            taken += 1
    return mixed, 1 - taken / SIDE**2


def predict(a, image) -> list[float]:
    return softmax(a.model.head(a.model.features(image[None]))[0].tolist())


def blend(share, one, other) -> list[float]:
    return [share * p + (1 - share) * r for p, r in zip(one, other, strict=True)]


@pytest.mark.parametrize("mixes_labeled", [False, True])
@pytest.mark.parametrize("class_aware", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_mixed_losses_against_loops(drawn, mixes_labeled, class_aware, seed):
    a = make_algorithm(RegMixMatch, RegMixMatch.Config(labeled_mixing=3 if mixes_labeled else 4))  # it has 3 per class
    a.model.eval()  # without batch statistics, so that images can be passed one by one
    batch = check.make_batch(a, seed=seed)
    with torch.no_grad():
        a.model.head.weight.mul_(20)  # so that pseudo-labels are of several classes
    q = [predict(a, image) for image in batch.weak[0]]
    threshold = sorted(max(row) for row in q)[U // 2] - 1e-6  # half of them are confident enough
    a.config = dataclasses.replace(a.config, mixing_confidence=threshold, class_aware=class_aware)
    torch.manual_seed(seed)
    step = a.loss(batch, torch.tensor(0.5))

    images = [*batch.x, *batch.strong[0]]
    labels = batch.y.tolist() + [row.index(max(row)) for row in q]
    one_hot = [[float(k == label) for k in range(CLASSES)] for label in labels]
    confident = [i for i in range(U) if max(q[i]) >= threshold]
    trusted = [*range(BATCH), *(BATCH + i for i in confident)]
    hard = trusted if mixes_labeled else [BATCH + i for i in confident]
    offset = 0 if mixes_labeled else BATCH
    partners = [offset + int(j) for j in drawn["shuffle_within"][0]]
    assert sorted(partners[i - offset] for i in hard) == hard, "confident images are shuffled among themselves"
    loss_hard = 0.0
    for i in hard:
        j = partners[i - offset]
        mixed, share = paste_by_hand(images[i], images[j], drawn["draw_box"][0])
        target = blend(share, one_hot[i], one_hot[j])
        loss_hard -= sum(t * math.log(p) for t, p in zip(target, predict(a, mixed), strict=True)) / U
    assert step.logs["loss_mixed_confident"].item() == pytest.approx(loss_hard, rel=1e-4)

    if not class_aware:
        assert step.logs["loss_mixed_others"] == 0
        assert not drawn["draw_each"]
        return
    errors, cubes = [], []
    for i in (i for i in range(U) if i not in confident):
        view, target = images[BATCH + i], q[i]
        allowed = {j for j in range(BATCH + U) if drawn["allowed"][0][i, j]}
        if allowed:
            j = int(drawn["draw_each"][0][i])
            assert j in allowed
            assert j in trusted
            view, share = paste_by_hand(view, images[j], drawn["draw_box"][1])
            target = blend(share, q[i], one_hot[j])
        errors += [(p - t) ** 2 for p, t in zip(predict(a, view), target, strict=True)]
        cubes.append(max(q[i]) ** 3)
    expected = sum(errors) / len(errors) * sum(cubes) / len(cubes)
    assert step.logs["loss_mixed_others"].item() == pytest.approx(expected, rel=1e-3)


def test_a_coin_decides_whether_partners_have_the_same_class(drawn):
    a = make_algorithm(RegMixMatch)
    x, strong, y = torch.randn(3, 1, SIDE, SIDE), torch.randn(2, 1, SIDE, SIDE), torch.tensor([0, 1, 1])
    q = torch.tensor([[0.1, 0.8, 0.1, 0.0], [0.0, 0.0, 0.0, 1.0]])  # the second is confident, of class 3
    for seed in range(40):
        torch.manual_seed(seed)
        a.mix(x, y, strong, q)
    found = [tuple(allowed[0].tolist()) for allowed in drawn["allowed"]]
    same, every = (False, True, True, False, False), (True, True, True, False, True)
    assert set(found) == {same, every}
    assert 8 < found.count(same) < 32


def test_an_image_without_a_partner_of_its_class_stays_as_it_is():
    a = make_algorithm(RegMixMatch)
    x, strong = torch.randn(1, 1, SIDE, SIDE), torch.randn(1, 1, SIDE, SIDE)
    q, changes = torch.tensor([[0.1, 0.8, 0.1, 0.0]]), []
    for seed in range(20):
        torch.manual_seed(seed)
        mixed = a.mix(x, torch.tensor([0]), strong, q)
        assert not mixed.is_hard.any()
        assert torch.equal(mixed.images, strong) == torch.equal(mixed.targets, q)
        changes.append(not torch.equal(mixed.images, strong))
    assert 0 < sum(changes) < 20, "half of the steps allow any class"


def test_without_mixed_images_three_steps_are_freematch_with_loops():
    m, k, n = 0.6, 3, len(WEAK)
    a = make_transparent(RegMixMatch, decay=m, fairness_weight=0.3, unlabeled_weight=0.5, class_aware=False)
    tau, p_tilde, h_tilde = 1 / k, [1 / k] * k, [1 / k] * k
    counts = []
    for turn in range(3):
        q = [softmax([z * (0.5 + 0.3 * turn) for z in row]) for row in WEAK]
        labels = [row.index(max(row)) for row in q]
        tau = m * tau + (1 - m) * sum(map(max, q)) / n
        p_tilde = [m * p_tilde[c] + (1 - m) * sum(row[c] for row in q) / n for c in range(k)]
        h_tilde = [m * h_tilde[c] + (1 - m) * labels.count(c) / n for c in range(k)]
        kept = [i for i in range(n) if max(q[i]) >= tau * p_tilde[labels[i]] / max(p_tilde)]
        p_strong = [softmax(row) for row in STRONG]
        loss_u = -sum(math.log(p_strong[i][labels[i]]) for i in kept) / n
        tops = [p_strong[i].index(max(p_strong[i])) for i in kept]
        p_bar = [sum(p_strong[i][c] for i in kept) / len(kept) for c in range(k)]
        now = [p_bar[c] * len(kept) / tops.count(c) if c in tops else 0.0 for c in range(k)]
        fair = [p_tilde[c] / h_tilde[c] for c in range(k)]
        loss_f = sum(f / sum(fair) * math.log(p / sum(now) + 1e-12) for f, p in zip(fair, now, strict=True))
        weak = [[z * (0.5 + 0.3 * turn) for z in row] for row in WEAK]
        step = a.loss(make_batch(X, Y, weak, STRONG), torch.tensor(0.0))
        assert step.keep.nonzero().flatten().tolist() == kept
        assert step.pseudo.tolist() == labels
        assert step.logs["loss_fairness"].item() == pytest.approx(loss_f, rel=1e-5)
        assert step.logs["loss_mixed_confident"] == 0, "none is that confident"
        assert step.loss.item() == pytest.approx(mean_cross_entropy(X, Y) + 0.5 * loss_u + 0.3 * loss_f, rel=1e-5)
        counts.append(len(kept))
    assert all(0 < count < n for count in counts)


def test_mixed_images_have_a_pass_of_their_own_and_targets_carry_no_gradient():
    for options, mixed in (({}, U), ({"labeled_mixing": 1}, BATCH + U)):
        a, sizes = make_algorithm(RegMixMatch, RegMixMatch.Config(**options)), []
        a.model.backbone.norm.register_forward_hook(lambda module, x, out, sizes=sizes: sizes.append(len(out)))
        a.loss(check.make_batch(a), torch.tensor(0.5))
        assert sizes == [BATCH + 2 * U, mixed]
    a = make_transparent(RegMixMatch, mixing_confidence=0.8)
    batch = make_batch(X, Y, WEAK, STRONG)
    batch.weak[0].requires_grad_()
    batch.strong[0].requires_grad_()
    a.loss(batch, torch.tensor(0.0)).loss.backward()
    assert not batch.weak[0].grad.any()
    assert batch.strong[0].grad.any()
