"""Clopper–Pearson against the binomial distribution it inverts, and its coverage."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from npmatch.metrics import clopper_pearson


@pytest.mark.parametrize(
    ("errors", "n", "low", "high"),
    [(0, 30, 0, 0.0950), (2, 50, 0.0072, 0.1206), (3, 100, 0.0082, 0.0757), (5, 5, 0.5493, 1)],
)
def test_known_intervals(errors, n, low, high):
    assert clopper_pearson(errors, n, 0.9) == pytest.approx((low, high), abs=6e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.floats(0, 1), st.sampled_from((0.8, 0.9, 0.95)))
def test_it_is_what_scipys_exact_test_gives(n, share, level):
    errors = round(share * n)
    exact = binomtest(errors, n).proportion_ci(level, method="exact")
    assert clopper_pearson(errors, n, level) == pytest.approx((exact.low, exact.high), abs=1e-9)


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2, 0.5, 0.97])
@pytest.mark.parametrize("n", [5, 30, 60])
def test_it_covers_at_least_its_level(rate, n):
    covered = sum(
        float(binom.pmf(k, n, rate)) for k in range(n + 1) if (i := clopper_pearson(k, n, 0.9)).low <= rate <= i.high
    )
    assert covered >= 0.9


def test_more_errors_than_images_are_refused():
    with pytest.raises(ValueError, match="3 errors among 2"):
        clopper_pearson(3, 2)
