"""How an error rate falls with the number of labels n: the posterior of err(n) = a n^−b + c, on a grid.

The priors are those of learning curves in general: b ~ N(0.5, 0.2), c exponential with a mean of a quarter of the
errors seen and of 3 points at least, a by weighted least squares given both. With few noisy points the posterior is
nearly the prior, and forecasts are as wide as that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

B_MEAN, B_DEVIATION = 0.5, 0.2
C_MEAN, C_SHARE = 0.03, 0.25  # of the errors seen: heads on fixed features do not become perfect
B_GRID = np.linspace(0.0, 1.3, 66)
C_GRID = np.concatenate([[0.0], np.geomspace(0.001, 0.5, 60)])


@dataclass(frozen=True)
class LearningCurve:
    """Curves a n^−b + c with their posterior weights, G of each."""

    a: Floats
    b: Floats
    c: Floats
    weight: Floats  # of sum 1

    def at(self, n: float) -> Floats:
        """The error rates at n labels, G."""
        values: Floats = self.a * n**-self.b + self.c
        return values

    def falls_to(self, now: float, then: float) -> Floats:
        """The share of the error at `now` labels that is left at `then`, G."""
        at_now = self.at(now)
        share: Floats = np.divide(self.at(then), at_now, out=np.ones_like(at_now), where=at_now > 0)
        return share


def fit_curve(n: Floats, error: Floats, deviation: Floats) -> LearningCurve:
    """The posterior from error rates at several numbers of labels n, each with its standard deviation."""
    b, c = (grid.ravel() for grid in np.meshgrid(B_GRID, C_GRID, indexing="ij"))
    x = n[None] ** -b[:, None]  # G P
    weight = 1 / np.square(np.maximum(deviation, 1e-6))[None]
    above = error[None] - c[:, None]
    a = np.maximum((weight * x * above).sum(1) / (weight * x * x).sum(1), 0)
    misfit = (weight * np.square(above - a[:, None] * x)).sum(1)
    c_mean = max(C_MEAN, C_SHARE * float(error.mean()))
    # The grid of c is not even: each point stands for the interval around it.
    width = np.tile(np.gradient(C_GRID), len(B_GRID))
    log = -misfit / 2 - np.square((b - B_MEAN) / B_DEVIATION) / 2 - c / c_mean + np.log(width)
    posterior = np.exp(log - log.max())
    return LearningCurve(a, b, c, posterior / posterior.sum())


def prior_curve() -> LearningCurve:
    """The curves that are expected where no label says anything, with c = 0, of which the data would have to tell."""
    weight = np.exp(-np.square((B_GRID - B_MEAN) / B_DEVIATION) / 2)
    ones = np.ones_like(B_GRID)
    return LearningCurve(ones, B_GRID, 0 * ones, weight / weight.sum())


def weighted_quantiles(values: Floats, weight: Floats, quantiles: tuple[float, ...]) -> list[float]:
    """Quantiles of values with weights of sum 1."""
    order = np.argsort(values)
    cumulated = weight[order].cumsum() - weight[order] / 2
    return [float(np.interp(q, cumulated, values[order])) for q in quantiles]
