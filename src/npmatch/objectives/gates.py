"""Gates: which of NP-Match's pseudo-labels are trusted, as one interface over the rules of several methods.

    pseudo, keep = gate(p, u, index)

p are the probabilities U K of the batch, u their uncertainties U in nats, `index` U the positions of its images in the
unlabelled set. `pseudo` U are the pseudo-labels; `keep` U says which of them are trusted, or is the weight of each in
[0, 1]. Two conditions must hold: the gate's own, on confidence, and the paper's, u < τ_u. A gate is the state of its
method (objectives/selection.py) with this one function added.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from npmatch.objectives.selection import Curriculum, SelfAdaptiveThresholds, TruncatedGaussian

SIGMAS = 2.0  # of SoftMatch: its weights are a Gaussian of standard deviation σ / 2


class GateSettings(NamedTuple):
    """What gates are made from; each takes what its rule needs."""

    num_unlabeled: int
    num_classes: int
    confidence: float  # τ_c
    decay: float  # of moving averages
    align: Callable[[Tensor], Tensor]  # distribution alignment of probabilities U K; may be a module with state
    max_entropy: float = math.inf  # τ_u, nats
    align_labels: bool = False  # softmatch: whether alignment concerns the labels too, and not the weights alone


class CurriculumGate(Curriculum):
    """FlexMatch's thresholds of the classes, which rise with the number of images that are confident and certain."""

    def __init__(self, settings: GateSettings) -> None:
        """Adds the alignment and τ_u to the curriculum."""
        super().__init__(settings.num_unlabeled, settings.num_classes, settings.confidence)
        self.align, self.max_entropy = settings.align, settings.max_entropy

    def forward(self, p: Tensor, u: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Trusts by the thresholds before this batch, then counts it."""
        confidence, pseudo = self.align(p).max(-1)
        keep = (confidence > self.thresholds()[pseudo]) & (u < self.max_entropy)
        self.update(index, pseudo, (confidence >= self.threshold) & (u <= self.max_entropy))
        return pseudo, keep


class FixedGate(nn.Module):
    """FixMatch's one threshold for all classes and all of training."""

    def __init__(self, settings: GateSettings) -> None:
        """Has no state of its own."""
        super().__init__()
        self.threshold, self.align, self.max_entropy = settings.confidence, settings.align, settings.max_entropy

    def forward(self, p: Tensor, u: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Trusts what reaches the threshold."""
        confidence, pseudo = self.align(p).max(-1)
        return pseudo, (confidence >= self.threshold) & (u < self.max_entropy)


class SelfAdaptiveGate(SelfAdaptiveThresholds):
    """FreeMatch's thresholds of the classes, which start at 1/K and follow the confidence that has been reached."""

    def __init__(self, settings: GateSettings) -> None:
        """Adds the alignment and τ_u to the thresholds."""
        super().__init__(settings.num_classes, settings.decay)
        self.align, self.max_entropy = settings.align, settings.max_entropy

    def forward(self, p: Tensor, u: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Takes all images of the batch into the thresholds first, as FreeMatch does, certain or not."""
        p = self.align(p)
        self.update(p)
        confidence, pseudo = p.max(-1)
        return pseudo, (confidence >= self.thresholds()[pseudo]) & (u < self.max_entropy)


class SoftGate(TruncatedGaussian):
    """SoftMatch's weights: 1 above the mean confidence, below it a Gaussian; 0 where the prediction is uncertain."""

    def __init__(self, settings: GateSettings) -> None:
        """Adds the alignment and τ_u to the weights."""
        super().__init__(settings.num_classes, settings.decay, SIGMAS)
        self.align, self.max_entropy = settings.align, settings.max_entropy
        self.align_labels = settings.align_labels

    def forward(self, p: Tensor, u: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Without `align_labels`, as in SoftMatch, labels, mean and variance are those of p and not aligned."""
        aligned = self.align(p)
        confidence, pseudo = (aligned if self.align_labels else p).max(-1)
        self.update(confidence)
        return pseudo, self.weights(aligned.amax(-1)) * (u < self.max_entropy)


GATES: dict[str, Callable[[GateSettings], nn.Module]] = {
    "curriculum": CurriculumGate,
    "fixed": FixedGate,
    "freematch": SelfAdaptiveGate,
    "softmatch": SoftGate,
}
