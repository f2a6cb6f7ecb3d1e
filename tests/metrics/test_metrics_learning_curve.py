"""The posterior of a learning curve: it finds the curve that made the data, and says nothing where they say nothing."""

import numpy as np
import pytest
from scipy.stats import norm

from npmatch.metrics.learning_curve import fit_curve, prior_curve, weighted_quantiles

SIZES = np.array([10.0, 14, 20, 26, 32])


@pytest.mark.parametrize(("a", "b", "c"), [(1.0, 0.5, 0.0), (0.8, 0.3, 0.05), (2.0, 0.8, 0.02)])
def test_exact_points_give_the_curve_back(a, b, c):
    curve = fit_curve(SIZES, a * SIZES**-b + c, np.full(5, 1e-4))
    true = (a * 160**-b + c) / (a * 40**-b + c)
    low, middle, high = weighted_quantiles(curve.falls_to(40, 160), curve.weight, (0.1, 0.5, 0.9))
    assert low - 0.02 <= true <= high + 0.02
    assert middle == pytest.approx(true, abs=0.05)
    assert high - low < 0.15


def test_noise_leaves_the_prior():
    b = np.array(weighted_quantiles(prior_curve().falls_to(40, 80), prior_curve().weight, (0.1, 0.5, 0.9)))
    assert b == pytest.approx(2 ** -norm.ppf((0.9, 0.5, 0.1), 0.5, 0.2), abs=0.01)
    curve = fit_curve(SIZES, np.full(5, 0.2), np.full(5, 10.0))
    low, _, high = weighted_quantiles(curve.falls_to(40, 80), curve.weight, (0.1, 0.5, 0.9))
    assert high - low > 0.2


def test_the_weights_are_a_distribution_over_falling_curves():
    curve = fit_curve(SIZES, np.array([0.5, 0.45, 0.4, 0.35, 0.33]), np.full(5, 0.03))
    assert curve.weight.sum() == pytest.approx(1)
    assert (curve.falls_to(32, 64) <= 1 + 1e-12).all()
    assert (curve.falls_to(32, 128) <= curve.falls_to(32, 64) + 1e-12).all()


def test_quantiles_of_equal_weights_are_the_usual_ones():
    values = np.arange(1001.0)
    found = weighted_quantiles(values, np.full(1001, 1 / 1001), (0.1, 0.5, 0.9))
    assert found == pytest.approx([100, 500, 900], abs=1)
