"""Pseudo-Label's step in plain Python, and the supervised run that remains where nothing is trusted."""

import math

import pytest
import torch
from logits_as_images import WEAK, X, Y, make_batch, make_transparent, mean_cross_entropy, softmax

from npmatch.algorithms import check
from npmatch.algorithms.pseudolabel import PseudoLabel
from npmatch.algorithms.supervised import Supervised
from npmatch.training import TrainingConfig, Update


@pytest.mark.parametrize("options", [{}, {"confidence": 0.3}, {"confidence": 0.0, "ramp": 0.0}])
def test_it_passes_all_checks(options):
    assert check.check_algorithm(PseudoLabel, PseudoLabel.Config(**options)) is None


@pytest.mark.parametrize(("progress", "weight"), [(0.0, 0.0), (0.1, 0.5), (0.4, 2.0), (1.0, 2.0)])
def test_the_loss_is_that_of_the_view_itself_with_loops_and_row_selection(progress, weight):
    total, trusted = 0.0, []
    for row in WEAK:
        q = softmax(row)
        trusted.append(max(q) >= 0.9)
        if trusted[-1]:
            total -= math.log(max(q))
    algorithm = make_transparent(PseudoLabel, confidence=0.9, unlabeled_weight=2.0)
    step = algorithm.loss(make_batch(X, Y, WEAK, WEAK), torch.tensor(progress))
    assert trusted == [True, False, False, True, False, True] == step.keep.tolist()
    assert step.pseudo.tolist() == [0, 1, 2, 2, 1, 1]
    assert step.logs["unlabeled_weight"].item() == pytest.approx(weight)
    assert step.logs["loss_unlabeled"].item() == pytest.approx(total / len(WEAK), rel=1e-4)  # over all, not 3
    assert step.loss.item() == pytest.approx(mean_cross_entropy(X, Y) + weight * total / len(WEAK), rel=1e-5)


def test_the_gradient_of_a_trusted_view_is_its_probabilities_less_the_label():
    batch = make_batch(X, Y, WEAK, WEAK)
    batch.weak[0].requires_grad_()
    make_transparent(PseudoLabel, confidence=0.9).loss(batch, torch.tensor(1.0)).loss.backward()
    for row, gradient in zip(WEAK, batch.weak[0].grad.flatten(1).tolist(), strict=True):
        q = softmax(row)
        trusted = float(max(q) >= 0.9)
        expected = [trusted * (p - (p == max(q))) / len(WEAK) for p in q]
        assert gradient == pytest.approx(expected, abs=1e-6)


def test_with_a_threshold_above_one_it_is_the_supervised_run_bit_for_bit():
    states = []
    for cls, config in ((PseudoLabel, PseudoLabel.Config(confidence=1.1)), (Supervised, None)):
        algorithm = check.make_algorithm(cls, config)
        update = Update(algorithm, TrainingConfig())
        for k in range(4):
            batch = check.make_batch(algorithm, k)
            step = algorithm.train_step(batch, torch.tensor(1.0), update)
        states.append((step.loss.detach(), algorithm.state_dict()))
    (loss, state), (supervised_loss, supervised) = states
    assert torch.equal(loss, supervised_loss)
    assert all(torch.equal(state[name], supervised[name]) for name in supervised)
    assert state.keys() == supervised.keys()


def test_unlabelled_images_are_normalised_by_themselves_and_leave_the_running_statistics():
    a, sizes = check.make_algorithm(PseudoLabel), []
    a.model.backbone.norm.register_forward_hook(lambda module, x, out: sizes.append((len(out), module.training)))
    a.loss(check.make_batch(a), torch.tensor(1.0))
    assert sizes == [(check.BATCH, True), (check.BATCH * check.RATIO, True)]
    assert a.model.backbone.norm.num_batches_tracked == 1
