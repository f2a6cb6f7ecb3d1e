"""The threshold against the Clopper–Pearson bound, and its guarantee against a simulation."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import beta

from npmatch.decide import choose_threshold, fewest_labels
from npmatch.decide.abstention import allowed_errors, counts_to_test
from npmatch.errors import NPMatchError


def upper_bound(errors: int, n: int, confidence: float) -> float:
    """Clopper–Pearson by the beta quantile, the textbook's other form."""
    return 1.0 if errors == n else float(beta.ppf(confidence, errors + 1, n - errors))


@pytest.mark.parametrize(("target", "confidence"), [(0.05, 0.9), (0.01, 0.9), (0.2, 0.99), (0.05, 0.5)])
def test_allowed_errors_are_those_whose_clopper_pearson_bound_holds(target, confidence):
    allowed = allowed_errors(300, target, confidence)
    for n in range(1, 301):
        bounds = beta.ppf(confidence, np.arange(n) + 1, n - np.arange(n))  # of 0…n−1 errors; n of them are too many
        assert allowed[n] == (bounds <= target + 1e-9).sum() - 1


def test_fewest_labels_is_where_no_error_is_enough():
    assert fewest_labels(0.05, 0.9) == 45
    assert fewest_labels(0.05, 0.95) == 59
    for target, confidence in [(0.05, 0.9), (0.1, 0.95), (0.5, 0.5)]:
        n = fewest_labels(target, confidence)
        assert upper_bound(0, n, confidence) <= target + 1e-9
        assert n == 1 or upper_bound(0, n - 1, confidence) > target
    assert counts_to_test(allowed_errors(200, 0.05, 0.9)) == [45, 77, 105, 132, 158, 184, 200]
    assert counts_to_test(allowed_errors(45, 0.05, 0.9)) == [45]
    assert counts_to_test(allowed_errors(1000, 0.05, 0.9))[:2] == [209, 234]


def test_too_few_labels_are_refused_with_the_number_missing():
    with pytest.raises(NPMatchError, match=r"at least 45 held-out labels.*there are 20, so 25 are missing"):
        choose_threshold(torch.rand(20), torch.zeros(20, dtype=torch.bool), 0.05)
    for target, confidence in [(0.0, 0.9), (1.0, 0.9), (0.05, 1.0)]:
        with pytest.raises(NPMatchError, match="between 0 and 1"):
            choose_threshold(torch.rand(99), torch.zeros(99, dtype=torch.bool), target, confidence)


def test_counts_and_threshold_agree_and_order_does_not_matter():
    g = torch.Generator().manual_seed(1)
    u = torch.rand(200, generator=g)
    wrong = torch.rand(200, generator=g) < 0.3 * u**2
    found = choose_threshold(u, wrong, 0.05)
    assert 0 < found.kept < 200
    kept = ~found.withheld(u)
    assert int(kept.sum()) == found.kept
    assert int(wrong[kept].sum()) == found.errors
    assert upper_bound(found.errors, found.kept, 0.9) <= 0.05
    shuffle = torch.randperm(200, generator=g)
    assert choose_threshold(u[shuffle], wrong[shuffle], 0.05) == found
    assert found.withheld(torch.tensor([math.nan])).item(), "what is not known to be sure is withheld"


def test_all_right_keeps_all_and_all_wrong_keeps_none():
    u = torch.rand(100)
    everything = choose_threshold(u, torch.zeros(100, dtype=torch.bool), 0.05)
    assert everything.kept == 100
    assert not everything.withheld(torch.tensor([9.9])).any()
    nothing = choose_threshold(u, torch.ones(100, dtype=torch.bool), 0.05)
    assert nothing.kept == 0
    assert nothing.withheld(torch.tensor([0.0])).all()


def test_equally_sure_images_are_kept_or_withheld_together():
    u = torch.tensor([0.0] * 80 + [1.0] * 40)
    wrong = torch.tensor([False] * 80 + [True] * 20 + [False] * 20)
    found = choose_threshold(u, wrong, 0.05)
    assert found.kept == 80
    assert found.withheld(torch.tensor([0.0, 0.5, 1.0])).tolist() == [False, False, True]


@pytest.mark.parametrize(("error", "steepness"), [(0.06, 0.01), (0.1, 3.0), (0.2, 2.0)])
def test_the_guarantee_holds_in_nine_of_ten_draws(error, steepness):
    """The true risk of kept predictions, for models of known risk R(c) = error · c^steepness at coverage c."""
    rng = np.random.default_rng(0)
    broken, draws = 0, 600
    for _ in range(draws):
        u = rng.random(200)
        wrong = rng.random(200) < np.minimum(1, error * (steepness + 1) * u**steepness)
        found = choose_threshold(torch.from_numpy(u), torch.from_numpy(wrong), 0.05)
        coverage = min(found.threshold, 1.0)
        broken += error * coverage**steepness > 0.05 if coverage else 0
    # The guarantee is 0.1; three standard deviations of 600 draws are added.
    assert broken / draws < 0.1 + 3 * math.sqrt(0.1 * 0.9 / draws)
    if steepness < 1:
        assert broken, "a model whose risk is above the target everywhere is caught only so often: the test can fail"
