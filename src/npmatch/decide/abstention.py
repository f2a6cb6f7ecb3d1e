"""Abstention: which predictions to withhold so that the error rate among the others stays below a target α.

A prediction is kept if its uncertainty is below a threshold. The threshold is chosen on n held-out images, sorted by
uncertainty, by fixed-sequence testing (Angelopoulos et al., Learn then Test, 2021): k errors among the j most certain
images show a risk of at most α if P(Binomial(j, α) ≤ k) ≤ δ, the Clopper–Pearson bound. For every k there is a smallest
such j. These j are tested in order, and the last one that passes before the first failure gives the threshold. No test
is spent on a j at which one more error would fail, and each test may use the whole of δ.

The guarantee: with probability 1 − δ over the held-out images, the error rate among kept images of the same kind is at
most α. It assumes that images more uncertain than the point where the risk passes α are wrong at a rate of at least α,
as for any model that is not more accurate where it is less certain. Then the errors at the first test past that point
are at least as many as Binomial(j, α), and that test passes with probability δ at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from npmatch.errors import NPMatchError

CONFIDENCE = 0.9  # 1 − δ
TARGETS = (0.01, 0.02, 0.05, 0.1)  # α that reports and summaries show


@dataclass(frozen=True)
class Abstention:
    """A threshold on the uncertainty; the counts are those of the held-out images it was chosen on."""

    target: float  # α, the highest error rate among kept predictions
    confidence: float  # 1 − δ
    threshold: float  # nats; inf keeps all predictions, 0 none
    kept: int
    errors: int  # among the kept predictions
    n: int  # number of held-out images

    def withheld(self, uncertainty: Tensor) -> Tensor:
        """Which predictions to withhold, N bool, by the uncertainty N in nats of the model without temperature."""
        return ~(uncertainty < self.threshold)

    def measured(self, uncertainty: Tensor, wrong: Tensor) -> tuple[float, float | None]:
        """Share of other images N that is kept, and the error among them in per cent, None if none is kept."""
        kept = ~self.withheld(uncertainty.double())
        error = 100 * float(wrong[kept].double().mean()) if bool(kept.any()) else None
        return float(kept.double().mean()), error


def fewest_labels(target: float, confidence: float = CONFIDENCE) -> int:
    """Smallest number of held-out labels with which anything can be kept, if the model is right on all of them."""
    return max(1, math.ceil(math.log(1 - confidence) / math.log(1 - target) - 1e-9))


def check_target(target: float, confidence: float) -> None:
    """Refuses a target or a confidence that is not between 0 and 1."""
    for name, value in (("abstain", target), ("confidence", confidence)):
        if not 0 < value < 1:
            raise NPMatchError(f"{name}={value}: give a number between 0 and 1, for example 0.05")


def choose_threshold(uncertainty: Tensor, wrong: Tensor, target: float, confidence: float = CONFIDENCE) -> Abstention:
    """The threshold chosen on held-out images: uncertainty n in nats, wrong n bool. Too few images are an error."""
    check_target(target, confidence)
    n, fewest = len(wrong), fewest_labels(target, confidence)
    if n < fewest:
        raise NPMatchError(
            f"abstain={target}: at least {fewest} held-out labels are needed to be {confidence:.0%} sure, even of a "
            f"model that is right on all of them; there are {n}, so {fewest - n} are missing"
        )
    ordered, order = uncertainty.double().sort(stable=True)
    errors = torch.cat([torch.zeros(1), wrong.double()[order].cumsum(0)])
    allowed = allowed_errors(n, target, confidence)
    best = Abstention(target, confidence, 0.0, 0, 0, n)
    for j in counts_to_test(allowed):
        # Equally uncertain images are kept together. The threshold is the uncertainty of the next image, which is not
        # counted itself: given its value, the images below it are independent draws from those that would be kept.
        kept = int(torch.searchsorted(ordered, ordered[j - 1], right=True))
        if errors[kept] > allowed[kept]:
            break
        threshold = float(ordered[kept]) if kept < n else math.inf
        best = Abstention(target, confidence, threshold, kept, int(errors[kept]), n)
    return best


def allowed_errors(n: int, target: float, confidence: float) -> npt.NDArray[np.int64]:
    """For j = 0…n, the largest number of errors among j images that shows a risk of at most `target`; −1: none does."""
    from scipy.stats import binom

    j, level = np.arange(n + 1), 1 - confidence + 1e-12
    most = binom.ppf(level, j, target).astype(np.int64) + 1
    while (above := binom.cdf(most, j, target) > level).any():
        most = most - above
    return np.asarray(most)


def counts_to_test(allowed: npt.NDArray[np.int64]) -> list[int]:
    """The numbers j of images to test, in order: those at which one more error is allowed, and n.

    The first is at least n/5: otherwise a single error among the few most certain images would end the search.
    """
    n = len(allowed) - 1
    counts = [int(j) + 1 for j in np.flatnonzero(np.diff(allowed) > 0) if j + 1 >= n / 5]
    return counts if counts and counts[-1] == n else [*counts, n]
