"""The error rate of a pool from a sample in which doubtful images are more probable.

The m-th of M images is drawn among the N − m + 1 that are left, with probability q_m. Its loss ℓ is 1 if the model is
wrong on it, and its doubt s is the model's own probability of that. Farquhar et al. (On Statistical Bias in Active
Learning, 2021) and Kossen et al. (Active Testing, 2021) weight it so that the mean is unbiased for any q > 0 (LURE);
the doubts, which are known of the whole pool, take most of the variance away:

    R̂ = mean s + 1/M Σ v_m (ℓ_m − s_m),   v_m = 1 + (N − M)/(N − m) · (1/((N − m + 1) q_m) − 1)

Its t-interval is too narrow. The interval here is that of bets (Waudby-Smith and Ramdas, 2024, for samples drawn
without repetition and with weights by Shekhar et al., 2023). It is valid at every sample size at once: one may look
after each label, and stop whenever one likes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from npmatch.draws import mix
from npmatch.metrics.intervals import Interval

Floats = npt.NDArray[np.float64]

# γ: the share of q that is equal for all images. The interval's width goes with 1/γ, the spread hardly with γ.
UNIFORM = 0.5
STAKES = np.arange(0.05, 1, 0.1)  # c: shares of the wealth that are bet, and of which the mean wealth is taken


class Draw(NamedTuple):
    """One image of a sample."""

    position: int  # in the pool
    q: float  # its probability among the images left
    smallest_q: float  # that of the most improbable image left


def sampling_weights(doubt: Floats) -> Floats:
    """r = √(s(1 − 2R₀) + R₀²) with R₀ = mean s: the best weights for a 0/1 loss if the doubts N are true."""
    mean = doubt.mean()
    weights: Floats = np.sqrt(np.maximum(doubt * (1 - 2 * mean) + mean**2, 0))
    return weights if weights.sum() > 0 else np.ones_like(doubt)


def draw_weighted(doubt: Floats, drawn: Sequence[int], seed: int) -> Iterator[Draw]:
    """Draws images by their doubt until none is left; `drawn` are the positions of the draws before these.

    The m-th draw depends on the seed and m alone, so a sample can be continued later.
    """
    weights = sampling_weights(doubt)
    is_left = np.ones(len(doubt), dtype=bool)
    is_left[list(drawn)] = False
    for m in range(len(drawn), len(doubt)):
        left = np.flatnonzero(is_left)
        r = weights[left]
        share: Floats = r / r.sum() if r.sum() > 0 else np.full(len(left), 1 / len(left))
        q: Floats = (1 - UNIFORM) * share + UNIFORM / len(left)
        at = np.searchsorted(q.cumsum(), np.random.default_rng(mix(seed, "weighted", m)).random() * q.sum())
        chosen = min(int(at), len(left) - 1)
        is_left[left[chosen]] = False
        yield Draw(int(left[chosen]), float(q[chosen]), float(q.min()))


def lure_weights(q: Floats, pool: int) -> Floats:
    """v of M draws from a pool of N images."""
    n_draws = len(q)
    m = np.arange(1, n_draws + 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # the last image of the pool: 0/0, its weight is 1
        v: Floats = 1 + (pool - n_draws) / (pool - m) * (1 / ((pool - m + 1) * q) - 1)
    return np.where(m < pool, v, 1.0)


def weighted_error(wrong: Floats, doubt: Floats, q: Floats, pool: int, mean_doubt: float) -> float:
    """R̂, the unbiased estimate from the losses, doubts and probabilities of M draws; it may lie outside [0, 1]."""
    return mean_doubt + float((lure_weights(q, pool) * (wrong - doubt)).mean())


def betting_interval(wrong: Floats, q: Floats, smallest_q: Floats, pool: int, level: float = 0.9) -> Interval:
    """The interval that contains the pool's error rate at all sample sizes at once with probability `level`.

    X_m = (S_{m−1} + ℓ_m/q_m)/N, with S the errors so far, has the mean R given the draws before it, and lies between 0
    and B_m = (S_{m−1} + 1/min q)/N. Who bets against a rate R₀ that is true hardly ever multiplies his wealth by 2/α:

        against R ≥ R₀:   Π (1 − c (X_m − R₀)/(B_m − R₀)),      against R ≤ R₀:   Π (1 + c (X_m/R₀ − 1))

    The limits are the rates against which nobody has won so much, at any m. They are compared with what is certain:
    the errors that were seen, and the images that were not.
    """
    n_draws, errors = len(wrong), float(wrong.sum())
    seen = Interval(errors / pool, (errors + pool - n_draws) / pool)
    if not n_draws:
        return seen
    before = np.concatenate([[0], wrong.cumsum()[:-1]])
    x, largest = (before + wrong / q) / pool, (before + 1 / smallest_q) / pool
    needed = np.log(2 / (1 - level))

    def wealth_against_high(rate: float) -> float:
        room = largest - rate  # 0 at most at the highest possible rate, against which there is then no bet
        return _best_log_wealth(np.where(room > 0, (rate - x) / np.where(room > 0, room, 1.0), 0.0))

    def wealth_against_low(rate: float) -> float:
        return _best_log_wealth(x / rate - 1)

    high = _turning_point(lambda rate: wealth_against_high(rate) < needed, seen.low, seen.high)
    low = _turning_point(lambda rate: wealth_against_low(rate) >= needed, seen.low, seen.high)
    return Interval(low, high)


def _best_log_wealth(gain: Floats) -> float:
    """The largest logarithm over m of the mean wealth of all stakes after m bets; `gain` M is that of a stake of 1."""
    each = np.log1p(STAKES[:, None] * gain).cumsum(1)  # stakes M
    most = each.max(0)
    return float((most + np.log(np.exp(each - most).mean(0))).max())


def _turning_point(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The rate between two up to which `holds` is true, found by halving."""
    if holds(high):
        return high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(max(middle, 1e-12)) else (low, middle)
    return low
