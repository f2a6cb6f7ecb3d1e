"""Logit adjustment for uneven classes (Menon et al., ICLR 2021), of labelled and of pseudo-labelled images.

A network that learns from uneven classes answers with the frequent ones where it is unsure. Here the loss compares the
labels with shifted logits, and the network itself answers as if all classes were equally frequent:

    H(y, softmax(z_x + τ · log π_x)),   H(ŷ, softmax(z_u + τ · log π_u))

π_x are the shares of the classes among the labels, and π_u those among all pseudo-labels, a moving average. π_u may
differ from π_x, as unlabelled images may be distributed otherwise. Pseudo-labels and predictions are made from z as it
is.
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
    pseudo_shares: Tensor  # K: π_u

    def __init__(self, labels_per_class: Sequence[int], strength: float, decay: float = 0.99) -> None:
        """π_u starts as π_x; `decay` is that of its moving average."""
        super().__init__()
        self.strength, self.decay = strength, decay
        if strength:
            counts = torch.tensor(labels_per_class, dtype=torch.float32).clamp(min=1)
            shares = counts / counts.sum()
            # Not stored: a run that starts from another one may have more labels.
            self.register_buffer("labeled_shift", strength * shares.log(), persistent=False)
            self.register_buffer("pseudo_shares", shares)

    def labeled(self, logits: Tensor) -> Tensor:
        """Logits of labelled images, [...] K, for their cross-entropy."""
        return logits + self.labeled_shift if self.strength else logits

    def unlabeled(self, logits: Tensor, pseudo: Tensor) -> Tensor:
        """Logits of images with pseudo-labels, [...] U K and U, for their cross-entropy; takes the labels into π_u.

        All of them count, trusted or not. Shares among the trusted ones run away: a class that is rarely trusted would
        get a shift that lets others be learnt without regard to it, and would be trusted still less.
        """
        if not self.strength:
            return logits
        with torch.no_grad():
            classes = self.pseudo_shares.shape[0]
            in_batch = one_hot(pseudo, classes).mean(0).to(self.pseudo_shares.dtype)
            self.pseudo_shares.lerp_(in_batch, 1 - self.decay)
            shift = self.strength * self.pseudo_shares.clamp(min=SMALLEST / classes).log()
        return logits + shift
