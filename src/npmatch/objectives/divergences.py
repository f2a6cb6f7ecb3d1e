"""Divergences between diagonal Gaussians: KL (Eq. 4), the skew-geometric JS^{G_α} and its dual (Theorem 1), Rényi's.

A Gaussian is its mean and its standard deviation, each [..., M]; the divergences sum over the last dimension.
They are written through the differences of the two Gaussians, not through Theorem 1's expanded squares, whose
terms cancel: the values agree, and equal Gaussians give exactly 0 in any precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Gaussian(NamedTuple):
    """N(mean, diag(std²)), both [..., M]."""

    mean: Tensor
    std: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """Reparameterised samples mean + std·noise; noise is T M of N(0, 1)."""
        return self.mean + self.std * noise


def kl(p: Gaussian, q: Gaussian) -> Tensor:
    """KL(p ‖ q), [...]."""
    ratio = (p.std / q.std).square()
    shift = ((p.mean - q.mean) / q.std).square()
    return 0.5 * (ratio + shift - 1 - ratio.log()).sum(-1)


def geometric_mean(p: Gaussian, q: Gaussian, alpha: Tensor | float) -> Gaussian:
    """G(p, q)_α = p^{1−α} q^α, normalised: N(μ_α, Σ_α) of Theorem 1."""
    precision_p, precision_q = p.std.square().reciprocal(), q.std.square().reciprocal()
    precision = (1 - alpha) * precision_p + alpha * precision_q
    # μ_α as a step from μ₁ towards μ₂, so that equal means stay equal to the bit.
    mean = p.mean + alpha * precision_q / precision * (q.mean - p.mean)
    return Gaussian(mean, precision.rsqrt())


def js_geometric(p: Gaussian, q: Gaussian, alpha: Tensor | float = 0.5) -> Tensor:
    """JS^{G_α}(p, q) = (1−α) KL(p ‖ G_α) + α KL(q ‖ G_α), [...]."""
    g = geometric_mean(p, q, alpha)
    return (1 - alpha) * kl(p, g) + alpha * kl(q, g)  # Eq. 5


def js_geometric_dual(p: Gaussian, q: Gaussian, alpha: Tensor | float = 0.5) -> Tensor:
    """JS*^{G_α}(p, q) = (1−α) KL(G_α ‖ p) + α KL(G_α ‖ q), [...]."""
    g = geometric_mean(p, q, alpha)
    return (1 - alpha) * kl(g, p) + alpha * kl(g, q)  # Eq. 6


def renyi(p: Gaussian, q: Gaussian, alpha: Tensor | float = 0.5) -> Tensor:
    """Rényi's D_α(p ‖ q), 0 ≤ α < 1, [...]: 0 at α = 0, KL(p ‖ q) in the limit α → 1."""
    # Variance of the mixture of exponents, in units of q's; α is kept below 1, where the formula is 0 / 0.
    alpha = torch.as_tensor(alpha, dtype=p.mean.dtype, device=p.mean.device).clamp(max=MAX_RENYI)
    ratio = (p.std / q.std).square()
    mixed = alpha + (1 - alpha) * ratio
    shift = alpha * ((p.mean - q.mean) / q.std).square() / mixed
    spread = (mixed.log() - (1 - alpha) * ratio.log()) / (1 - alpha)
    return 0.5 * (shift + spread).sum(-1)


def skew_from_uncertainty(u_context: Tensor, u_target: Tensor) -> Tensor:
    """α_u = ū_c / (ū_c + ū_t), 0-d, without gradient; ½ when both mean entropies are 0."""
    u_context, u_target = u_context.detach(), u_target.detach()
    total = u_context + u_target
    return torch.where(total > 0, u_context / total.clamp(min=torch.finfo(total.dtype).tiny), 0.5)


MAX_RENYI = 0.999  # closer to 1, float32 loses digits of Rényi's divergence

Divergence = Callable[[Gaussian, Gaussian, Tensor], Tensor]

# D(q(z | context), q(z | targets), α) by name; the ELBO's KL is from targets to context (Eq. 4) and has no α, and
# Rényi's divergence generalises it.
DIVERGENCES: dict[str, Divergence] = {
    "kl": lambda context, targets, alpha: kl(targets, context),
    "js": js_geometric,
    "js_dual": js_geometric_dual,
    "renyi": lambda context, targets, alpha: renyi(targets, context, alpha),
}
