"""Temperature scaling against closed forms and a grid."""

import math

import pytest
import torch

from npmatch.decide import fit_temperature, tempered
from npmatch.metrics import scores
from npmatch.types import Prediction


def overconfident(n: int, temperature: float, seed: int = 0) -> tuple[Prediction, torch.Tensor]:
    """Labels drawn from p, and a model that predicts p^temperature, normalised."""
    g = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(n, 5, generator=g)
    y = torch.multinomial(logits.softmax(-1), 1, generator=g)[:, 0]
    probs = (temperature * logits).softmax(-1)
    return Prediction(probs, torch.special.entr(probs).sum(-1)), y


@pytest.mark.parametrize("truth", [0.5, 1.0, 3.0])
def test_the_temperature_that_was_put_in_comes_out(truth):
    prediction, y = overconfident(20_000, truth)
    assert fit_temperature(prediction.probs, y) == pytest.approx(truth, rel=0.05)


def test_it_is_the_least_nll_of_a_grid_and_leaves_the_answers_alone():
    prediction, y = overconfident(300, 2.5)
    fitted = fit_temperature(prediction.probs, y)
    grid = [0.9**k for k in range(-20, 5)]
    best = min(grid, key=lambda t: scores(tempered(prediction, t), y).nll)
    assert best / 1.1 < fitted < best * 1.1
    after = tempered(prediction, fitted)
    assert torch.equal(after.label, prediction.label)
    before, then = scores(prediction, y), scores(after, y)
    assert then.nll < before.nll
    assert then.ece < before.ece


def test_of_two_classes_it_is_the_logit_divided():
    p = torch.tensor([[0.9, 0.1], [0.3, 0.7]])
    cooled = tempered(Prediction(p, torch.zeros(2)), 2.0)
    expected = 1 / (1 + math.exp(-math.log(9) / 2))
    assert cooled.probs[0, 0].item() == pytest.approx(expected)
    entropy = -(expected * math.log(expected) + (1 - expected) * math.log(1 - expected))
    assert cooled.entropy[0].item() == pytest.approx(entropy)
    same = tempered(Prediction(p, torch.zeros(2)), 1.0)
    torch.testing.assert_close(same.probs, p)


def test_a_model_without_an_error_is_not_made_bolder():
    probs = torch.tensor([[0.8, 0.2], [0.4, 0.6]] * 20)
    assert fit_temperature(probs, torch.tensor([0, 1] * 20)) == 1.0


def test_probabilities_of_zero_stay_finite():
    probs = torch.tensor([[1.0, 0.0, 0.0]] * 30)
    y = torch.tensor([0] * 25 + [1] * 5)
    temperature = fit_temperature(probs, y)
    assert math.isfinite(temperature)
    assert tempered(Prediction(probs, torch.zeros(30)), temperature).probs.isfinite().all()
