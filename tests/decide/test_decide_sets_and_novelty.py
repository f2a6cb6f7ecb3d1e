"""Prediction sets against the definition of split conformal prediction, novelty against scikit-learn's neighbours."""

import math
import sys

import pytest
import torch
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from npmatch.decide import Calibration, Decider, Novelty, Wishes
from npmatch.decide.conformal import PredictionSets, fewest_for_sets
from npmatch.errors import NPMatchError
from npmatch.types import Prediction


def drawn(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(n, 4, generator=g)).softmax(-1)
    return probs, torch.multinomial(probs.sqrt(), 1, generator=g)[:, 0]  # an overconfident model


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_sets_are_those_of_the_conformal_quantile(coverage):
    probs, y = drawn(150, 0)
    new, labels = drawn(4000, 1)
    sets = PredictionSets(probs, y, coverage)(new)
    # By definition: the classes no stranger than the ⌈(n + 1)·coverage⌉-th strangest true class.
    limit = (-probs.double()[torch.arange(150), y].log()).sort().values[math.ceil(151 * coverage) - 1]
    expected = (-new.double().log() <= limit) | (new == new.amax(-1, keepdim=True))
    assert torch.equal(sets, expected)
    held = sets[torch.arange(4000), labels].float().mean().item()
    assert coverage - 0.06 < held < coverage + 0.06
    assert sets.any(-1).all()


def test_too_few_labels_for_sets_are_refused():
    probs, y = drawn(9, 0)
    assert fewest_for_sets(0.9) == 10
    with pytest.raises(NPMatchError, match=r"at least 10 held-out labels.*there are 9, so 1 are missing"):
        PredictionSets(probs, y, 0.9)
    probs, y = drawn(10, 0)
    assert not PredictionSets(probs, y, 0.9)(torch.tensor([[1.0, 0.0, 0.0, 0.0]])).all()
    with pytest.raises(NPMatchError, match="between 0 and 1"):
        PredictionSets(probs, y, 90)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "crepes", None)
    with pytest.raises(NPMatchError, match=r"npmatch\[conformal\]"):
        PredictionSets(*drawn(50, 0), 0.9)


def test_novelty_is_the_fifth_neighbours_distance():
    g = torch.Generator().manual_seed(0)
    scale = torch.tensor([1.0, 10.0, 0.1])
    known, new = torch.randn(300, 3, generator=g) * scale, torch.randn(50, 3, generator=g) * scale
    novelty = Novelty.fit(known)
    standard = (known - known.mean(0)) / known.std(0)
    neighbours = NearestNeighbors(n_neighbors=5).fit(standard)
    distance = neighbours.kneighbors((new - known.mean(0)) / known.std(0))[0][:, -1]
    torch.testing.assert_close(novelty.score(new), torch.tensor(distance).float(), rtol=1e-3, atol=1e-4)
    assert (novelty.score(new, neighbours=6) > novelty.score(new)).all()
    own = neighbours.kneighbors()[0][:, -1]  # scikit-learn leaves a point out of its own neighbours
    torch.testing.assert_close(novelty.own, torch.tensor(own).float().sort().values, rtol=1e-3, atol=1e-4)
    far = novelty.score(new + 20 * scale)
    assert roc_auc_score([0] * 50 + [1] * 50, torch.cat([novelty.score(new), far])) > 0.99
    assert (novelty.own > novelty.limit(0.9)).float().mean().item() == pytest.approx(0.1, abs=0.01)


def test_what_has_no_basis_is_refused_before_the_first_image():
    for wishes, message in [
        (Wishes(abstain=0.05), "needs at least 45 held-out labels.*45 are missing.*data.validation=45.*--labeled"),
        (Wishes(coverage=0.9), "needs at least 10 held-out labels"),
        (Wishes(coverage=90), "between 0 and 1"),
        (Wishes(ood=True), "npmatch calibrate"),
    ]:
        with pytest.raises(NPMatchError, match=message):
            Decider(None, wishes)


def test_decisions_rest_on_the_models_own_uncertainty(tmp_path):
    """The labels that a temperature was fitted on must not be used a second time."""
    probs, y = drawn(400, 3)
    probs = probs.square() / probs.square().sum(-1, keepdim=True)
    prediction = Prediction(probs, torch.special.entr(probs).sum(-1))
    Calibration.fit(prediction, y, None, "data.validation").save(tmp_path)
    calibration = Calibration.load(tmp_path)
    assert calibration is not None
    assert calibration.temperature > 1.2
    with_t, without = (Decider(calibration, Wishes(calibrate=c, abstain=0.5, coverage=0.8)) for c in (True, False))
    one, other = with_t(prediction, torch.zeros(400, 1)), without(prediction, torch.zeros(400, 1))
    assert torch.equal(one.withheld, other.withheld)
    assert torch.equal(one.sets, other.sets)
    assert 0 < one.withheld.float().mean() < 1
    assert not torch.allclose(one.prediction.probs, other.prediction.probs)
    assert other.temperature is None
    assert with_t.warning is None
    assert "every prediction is withheld" in (Decider(calibration, Wishes(abstain=0.01)).warning or "")
