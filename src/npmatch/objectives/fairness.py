"""FreeMatch's fairness loss with the moving averages that it needs (Wang et al., ICLR 2023).

    L_f = Σ_c N(p̃ / h̃)_c · log N(p̄ / h̄)_c                                              N: normalise to sum 1

It keeps the predictions of trusted images from collapsing to few classes. p̃ and h̃ are moving averages over weak views,
of the mean prediction and of the histogram of predicted classes; p̄ and h̄ are the same of the trusted strong views of
this batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from npmatch.objectives.losses import fairness_loss, one_hot, per_prediction
from npmatch.objectives.selection import MovingAverage


class Fairness(nn.Module):
    """The fairness loss of predictions that are means of T samples."""

    def __init__(self, num_classes: int, decay: float) -> None:
        """The averages start from uniform predictions."""
        super().__init__()
        uniform = torch.full((num_classes,), 1 / num_classes)
        self.class_probs = MovingAverage(uniform, decay)  # p̃
        self.histogram = MovingAverage(uniform, decay)  # h̃

    @torch.no_grad()
    def update(self, p_weak: Tensor) -> None:
        """Takes in the predictions of a batch, U K, as they are before alignment: p̄ and h̄ are not aligned either."""
        self.class_probs(p_weak.mean(0))
        self.histogram(one_hot(p_weak.argmax(-1), p_weak.shape[-1]).mean(0))

    def forward(self, logits: Tensor, keep: Tensor) -> Tensor:
        """L_f of logits T U K of strong views, of which `keep` U says how far each is trusted; 0-d."""
        target = per_prediction(self.class_probs.value, self.histogram.value)  # N(p̃ / h̃)
        log_mean = logits.log_softmax(-1).logsumexp(0)  # logarithm of the mean prediction, but for a constant
        return fairness_loss(log_mean, keep, target)
