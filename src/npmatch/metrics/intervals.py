"""How sure an error rate is that was counted on a random sample: the exact interval of Clopper and Pearson (1934)."""

from __future__ import annotations

from typing import NamedTuple


class Interval(NamedTuple):
    """Limits of an error rate, as shares."""

    low: float
    high: float


def clopper_pearson(errors: int, n: int, level: float = 0.9) -> Interval:
    """The interval that contains the error rate with a probability of at least `level`, whatever that rate is.

    The n images are a random sample. Drawn from a finite pool without repetition, the interval is a little wider than
    it needs to be.
    """
    from scipy.stats import beta

    if not 0 <= errors <= n:
        raise ValueError(f"{errors} errors among {n} images")
    tail = (1 - level) / 2
    low = float(beta.ppf(tail, errors, n - errors + 1)) if errors else 0.0
    high = float(beta.ppf(1 - tail, errors + 1, n - errors)) if errors < n else 1.0
    return Interval(low, high)
