"""Logit adjustment for uneven classes (Menon et al., ICLR 2021), of labelled and of pseudo-labelled images.

A network that learns from uneven classes answers with the frequent ones where it is unsure. Here the loss compares the
labels with shifted logits, and the network itself answers as if all classes were equally frequent:

    H(y, softmax(z_x + τ · log π_x)),   H(ŷ, softmax(z_u + τ · log π_u))

π_x are the shares of the classes among the labels, and π_u those among the pseudo-labels that are trained on, a moving
average. π_u need not resemble π_x, as unlabelled images may be distributed otherwise. Pseudo-labels and predictions are
made from z as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from npmatch.objectives.losses import one_hot

SMALLEST = 0.01  # of the shares in π_u, relative to equal shares: the logarithm of 0 is not finite


class LogitAdjustment(nn.Module):
    """Shifts logits by the shares of the classes, with strength τ; at τ = 0 it changes nothing and has no state."""

    labeled_shift: Tensor  # K: τ · log π_x
    trained_on: Tensor  # K: moving average of how many trusted pseudo-labels of each class there are per image

    def __init__(self, labels_per_class: Sequence[int], strength: float, decay: float = 0.99) -> None:
        """π_u starts as π_x; `decay` is that of its moving average."""
        super().__init__()
        self.strength, self.decay = strength, decay
        if strength:
            counts = torch.tensor(labels_per_class, dtype=torch.float32).clamp(min=1)
            shares = counts / counts.sum()
            # Not stored: a run that starts from another one may have more labels.
            self.register_buffer("labeled_shift", strength * shares.log(), persistent=False)
            self.register_buffer("trained_on", shares)

    def labeled(self, logits: Tensor) -> Tensor:
        """Logits of labelled images, [...] K, for their cross-entropy."""
        return logits + self.labeled_shift if self.strength else logits

    def unlabeled(self, logits: Tensor, pseudo: Tensor, keep: Tensor) -> Tensor:
        """Logits of pseudo-labelled images, [...] U K, for their cross-entropy; takes pseudo and keep, U, into π_u.

        `keep` says which pseudo-labels are trained on, or with which weights.
        """
        if not self.strength:
            return logits
        with torch.no_grad():
            classes = self.trained_on.shape[0]
            per_class = (one_hot(pseudo, classes) * keep[:, None]).mean(0)
            self.trained_on.lerp_(per_class.to(self.trained_on.dtype), 1 - self.decay)
            shares = self.trained_on / self.trained_on.sum().clamp(min=1e-12)
            shift = self.strength * shares.clamp(min=SMALLEST / classes).log()
        return logits + shift
