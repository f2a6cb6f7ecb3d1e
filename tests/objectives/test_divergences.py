"""Divergences against torch.distributions, numerical quadrature and Theorem 1 as printed."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from npmatch.objectives.divergences import (
    DIVERGENCES,
    Gaussian,
    geometric_mean,
    js_geometric,
    js_geometric_dual,
    kl,
    renyi,
    skew_from_uncertainty,
)

means = st.floats(-3, 3)
stds = st.floats(0.1, 3)
alphas = st.floats(0, 1)


def gaussian(*pairs: tuple[float, float]) -> Gaussian:
    mean, std = zip(*pairs, strict=True)
    return Gaussian(torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64))


def random_gaussian(dimensions: int, seed: int) -> Gaussian:
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(dimensions, generator=g, dtype=torch.float64)
    return Gaussian(mean, 0.1 + torch.rand(dimensions, generator=g, dtype=torch.float64))


def integral_js(p: Gaussian, q: Gaussian, alpha: float, dual: bool) -> float:
    """Definition 1 by quadrature in one dimension, the normaliser of G included."""

    def log_density(g: Gaussian, x: float) -> float:
        mean, std = float(g.mean[0]), float(g.std[0])
        return -0.5 * ((x - mean) / std) ** 2 - math.log(std * math.sqrt(2 * math.pi))

    def log_unnormalised(x: float) -> float:
        return (1 - alpha) * log_density(p, x) + alpha * log_density(q, x)

    low = min(float(p.mean), float(q.mean)) - 12 * max(float(p.std), float(q.std))
    high = max(float(p.mean), float(q.mean)) + 12 * max(float(p.std), float(q.std))
    # The positions of the peaks, so that the quadrature does not miss a narrow one.
    grid = np.linspace(low, high, 20_001)
    heights = [log_unnormalised(x) for x in grid]
    peak = max(heights)
    points = sorted({float(p.mean), float(q.mean), grid[np.argmax(heights)]})

    def integrate(f) -> float:
        return quad(f, low, high, points=points, limit=400)[0]

    log_z = peak + math.log(integrate(lambda x: math.exp(log_unnormalised(x) - peak)))

    def integrand(x: float) -> float:
        a, b, g = log_density(p, x), log_density(q, x), log_unnormalised(x) - log_z
        if dual:
            return math.exp(g) * ((1 - alpha) * (g - a) + alpha * (g - b))
        return (1 - alpha) * math.exp(a) * (a - g) + alpha * math.exp(b) * (b - g)

    return integrate(integrand)


@pytest.mark.parametrize("seed", range(5))
def test_kl_agrees_with_torch_distributions(seed):
    p, q = random_gaussian(7, seed), random_gaussian(7, seed + 100)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(p.mean, p.std), torch.distributions.Normal(q.mean, q.std)
    ).sum()
    torch.testing.assert_close(kl(p, q), expected)


@settings(max_examples=25, deadline=None)
@given(means, stds, means, stds, st.floats(0.02, 0.98), st.booleans())
def test_js_agrees_with_quadrature(m1, s1, m2, s2, alpha, dual):
    p, q = gaussian((m1, s1)), gaussian((m2, s2))
    ours = (js_geometric_dual if dual else js_geometric)(p, q, alpha)
    assert float(ours) == pytest.approx(integral_js(p, q, alpha, dual), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("alpha", [0.0, 0.02, 0.3, 0.5, 0.9, 1.0])
def test_js_agrees_with_theorem_1_as_printed(alpha):
    p, q = random_gaussian(5, 1), random_gaussian(5, 2)
    s1, s2 = torch.diag(p.std**2), torch.diag(q.std**2)
    s_a = torch.linalg.inv((1 - alpha) * torch.linalg.inv(s1) + alpha * torch.linalg.inv(s2))
    m_a = s_a @ ((1 - alpha) * torch.linalg.inv(s1) @ p.mean + alpha * torch.linalg.inv(s2) @ q.mean)
    inverse, log_det = torch.linalg.inv(s_a), torch.linalg.slogdet
    log_ratio = log_det(s_a)[1] - (1 - alpha) * log_det(s1)[1] - alpha * log_det(s2)[1]
    js = 0.5 * (
        torch.trace(inverse @ ((1 - alpha) * s1 + alpha * s2))
        + (1 - alpha) * (m_a - p.mean) @ inverse @ (m_a - p.mean)
        + alpha * (m_a - q.mean) @ inverse @ (m_a - q.mean)
        + log_ratio
        - 5
    )
    dual = 0.5 * (
        -log_ratio
        + alpha * q.mean @ torch.linalg.inv(s2) @ q.mean
        - m_a @ inverse @ m_a
        + (1 - alpha) * p.mean @ torch.linalg.inv(s1) @ p.mean
    )
    torch.testing.assert_close(js_geometric(p, q, alpha), js)
    torch.testing.assert_close(js_geometric_dual(p, q, alpha), dual)
    torch.testing.assert_close(geometric_mean(p, q, alpha).mean, m_a)


@settings(max_examples=200, deadline=None)
@given(means, stds, means, stds, alphas, st.sampled_from(sorted(DIVERGENCES)))
def test_divergences_are_not_negative_and_finite(m1, s1, m2, s2, alpha, name):
    value = DIVERGENCES[name](gaussian((m1, s1)), gaussian((m2, s2)), torch.tensor(alpha, dtype=torch.float64))
    assert value.isfinite()
    assert value >= -1e-12


@settings(max_examples=200, deadline=None)
@given(means, stds, means, stds, alphas, st.booleans())
def test_js_is_symmetric_under_exchange_and_one_minus_alpha(m1, s1, m2, s2, alpha, dual):
    js = js_geometric_dual if dual else js_geometric
    p, q = gaussian((m1, s1)), gaussian((m2, s2))
    torch.testing.assert_close(js(p, q, alpha), js(q, p, 1 - alpha), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", sorted(DIVERGENCES))
def test_equal_gaussians_have_no_divergence(name):
    p = random_gaussian(64, 3)
    p = Gaussian(p.mean.float(), p.std.float())
    assert float(DIVERGENCES[name](p, p, torch.tensor(0.3))) == pytest.approx(0, abs=1e-5)


def test_the_elbo_kl_is_from_targets_to_context():
    """KL(N(1, ½²) ‖ N(0, 1)) = log 2 + (¼ + 1) / 2 − ½; the other direction would be 2.81."""
    context, targets = gaussian((0.0, 1.0)), gaussian((1.0, 0.5))
    assert float(DIVERGENCES["kl"](context, targets, torch.tensor(0.5))) == pytest.approx(0.8181472)


def test_skew_is_the_share_of_the_context_without_gradient():
    u = torch.tensor(0.3, requires_grad=True)
    alpha = skew_from_uncertainty(u, torch.tensor(0.1))
    assert float(alpha) == pytest.approx(0.75)
    assert not alpha.requires_grad
    zero = torch.tensor(0.0)
    assert float(skew_from_uncertainty(zero, zero)) == 0.5
    assert float(skew_from_uncertainty(zero, u)) == 0.0


@given(means, stds, means, stds, st.floats(0.05, 0.95))
@settings(deadline=None, max_examples=25)
def test_renyi_is_its_integral(mean_p, std_p, mean_q, std_q, alpha):
    p, q = gaussian((mean_p, std_p)), gaussian((mean_q, std_q))

    grid = np.linspace(-45, 45, 400_001)
    heights = np.array(alpha * log_density_of(p, grid) + (1 - alpha) * log_density_of(q, grid))
    integral = np.exp(heights).sum() * (grid[1] - grid[0])
    assert float(renyi(p, q, alpha)) == pytest.approx(math.log(integral) / (alpha - 1), abs=1e-6)


def log_density_of(g: Gaussian, x: np.ndarray) -> np.ndarray:
    mean, std = float(g.mean[0]), float(g.std[0])
    return -0.5 * ((x - mean) / std) ** 2 - math.log(std * math.sqrt(2 * math.pi))


def test_renyi_lies_between_nothing_and_kl():
    p, q = random_gaussian(6, 1), random_gaussian(6, 2)
    values = [float(renyi(p, q, alpha)) for alpha in (0.0, 0.2, 0.5, 0.9, 0.999)]
    assert values == sorted(values)
    assert values[0] == 0
    assert values[-1] == pytest.approx(float(kl(p, q)), rel=0.01)
    assert float(renyi(p, q, 1.0)) == pytest.approx(values[-1]), "α = 1 is kept finite"
    assert float(renyi(p, p, 0.5)) == 0
