"""Which predictions to withhold so that the error among the others stays below a target.

Images are kept where the model's uncertainty is below a threshold. The threshold comes from n held-out images, surest
first, by fixed-sequence testing (Angelopoulos et al., Learn then Test, 2021): among the j surest, k errors speak for a
risk of at most α when P(Binomial(j, α) ≤ k) ≤ δ, the Clopper–Pearson bound. For every k there is a smallest such j;
these are looked at in turn, and the last that holds before the first that fails is the answer. No look is spent on a j
at which the next error would be one too many, and each may use the whole of δ.

The guarantee: with probability 1 − δ over the held-out images, the error rate among kept images of the same kind is at
most α. It takes for granted that images less sure than where the risk passes α are wrong at a rate of at least α, as
with any model whose doubtful answers are not its better ones: then the errors at the first look past that point are at
least as many as Binomial(j, α), and that look holds with probability δ at most.
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
    """Keep what is surer than the threshold; the counts are of the held-out images it was chosen on."""

    target: float  # α, the highest error rate among the kept
    confidence: float  # 1 − δ
    threshold: float  # nats; inf keeps all, 0 none
    kept: int
    errors: int  # among the kept
    n: int

    def withheld(self, uncertainty: Tensor) -> Tensor:
        """Which predictions must be withheld, N bool; uncertainty N in nats, of the model itself."""
        return ~(uncertainty < self.threshold)

    def measured(self, uncertainty: Tensor, wrong: Tensor) -> tuple[float, float | None]:
        """On other images: the share kept, and the error among it in per cent, None where nothing is kept."""
        kept = ~self.withheld(uncertainty.double())
        error = 100 * float(wrong[kept].double().mean()) if bool(kept.any()) else None
        return float(kept.double().mean()), error


def fewest_labels(target: float, confidence: float = CONFIDENCE) -> int:
    """The held-out labels without which nothing could be kept, even if the model were right on all of them."""
    return max(1, math.ceil(math.log(1 - confidence) / math.log(1 - target) - 1e-9))


def check_target(target: float, confidence: float) -> None:
    """Both are shares between 0 and 1."""
    for name, value in (("abstain", target), ("confidence", confidence)):
        if not 0 < value < 1:
            raise NPMatchError(f"{name}={value}: give a number between 0 and 1, for example 0.05")


def choose_threshold(uncertainty: Tensor, wrong: Tensor, target: float, confidence: float = CONFIDENCE) -> Abstention:
    """The threshold for held-out images: uncertainty n in nats, wrong n bool; fails where there are too few of them."""
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
    for look in looks(allowed):
        # Equally sure images are kept together. The threshold is the next surest image, which is itself not counted:
        # given where it lies, the images above it are independent draws from those that would be kept.
        kept = int(torch.searchsorted(ordered, ordered[look - 1], right=True))
        if errors[kept] > allowed[kept]:
            break
        threshold = float(ordered[kept]) if kept < n else math.inf
        best = Abstention(target, confidence, threshold, kept, int(errors[kept]), n)
    return best


def allowed_errors(n: int, target: float, confidence: float) -> npt.NDArray[np.int64]:
    """For j = 0…n the most errors among j images that still speak for a risk of at most the target; −1: none do."""
    from scipy.stats import binom

    j, level = np.arange(n + 1), 1 - confidence + 1e-12
    most = binom.ppf(level, j, target).astype(np.int64) + 1
    while (above := binom.cdf(most, j, target) > level).any():
        most = most - above
    return np.asarray(most)


def looks(allowed: npt.NDArray[np.int64]) -> list[int]:
    """The numbers of images at which one error more is allowed than before, and all of them.

    The first is a fifth of them or more: one error among a handful of the surest would otherwise end the search.
    """
    last = len(allowed) - 1
    steps = [int(j) + 1 for j in np.flatnonzero(np.diff(allowed) > 0) if j + 1 >= last / 5]
    return steps if steps and steps[-1] == last else [*steps, last]
