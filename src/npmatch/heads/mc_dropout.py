"""MC dropout (Gal & Ghahramani, ICML 2016): a network's predictions under dropout as samples of the posterior.

In training this is ordinary dropout. In prediction each of T passes is one sampled sub-network: a dropout layer has
one mask per pass, which depends only on the pass and the layer's place in it and is shared by all images, so that
batch size, order and repetition change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.distributed.ranks import local_share
from npmatch.draws import mix
from npmatch.heads.linear import LinearHead
from npmatch.heads.model import Model
from npmatch.objectives.losses import mean_prediction
from npmatch.types import Prediction


@dataclass
class _Pass:
    number: int
    calls: int = 0  # of dropout layers so far: a layer's place in the pass, also where one module is used twice


# The current pass. A context variable, so that threads that share a model do not share a pass.
_current: ContextVar[_Pass | None] = ContextVar("mc_dropout_pass", default=None)


class MCDropout(nn.Dropout):
    """Per-element dropout in training; in evaluation the mask of the current pass, the identity outside a pass."""

    def __init__(self, p: float) -> None:
        """`p` is the share of elements dropped."""
        super().__init__(p)
        self.sharded = False  # whether its input is this rank's share of a batch (in a backbone) and not all of it
        self.masks: dict[tuple[int, int], Tensor] = {}  # (pass, place) → bool; a cache of draws, not state

    def forward(self, x: Tensor) -> Tensor:
        """N ... → N ..., with the expectation kept."""
        current = _current.get()
        if self.training and self.sharded and local_share().world > 1:
            return self.forward_share(x)
        if self.training or current is None or self.p == 0:
            return super().forward(x)
        key = (current.number, current.calls)
        current.calls += 1
        kept = self.masks.get(key)
        if kept is None or kept.shape != x.shape[1:] or kept.device != x.device:
            # Drawn on the CPU from its own generator: the same on every device, and no other draws are affected.
            generator = torch.Generator().manual_seed(mix(0, "dropout", *key))
            kept = (torch.rand(x.shape[1:], generator=generator) >= self.p).to(x.device)
            self.masks[key] = kept
        return x * kept / (1 - self.p)

    def forward_share(self, x: Tensor) -> Tensor:
        """Every rank draws the masks of all ranks and uses its own, so that the ranks' generators stay in step."""
        share = local_share()
        masks = F.dropout(torch.ones((share.world, *x.shape), dtype=x.dtype, device=x.device), self.p)
        return x * masks[share.rank]


class DropoutHead(LinearHead):
    """A linear head whose features pass through dropout."""

    def __init__(self, num_features: int, num_classes: int, dropout: float) -> None:
        """`dropout` is the share of features dropped."""
        super().__init__(num_features, num_classes)
        self.dropout = MCDropout(dropout)

    def forward(self, features: Tensor) -> Tensor:
        """N F → N K."""
        return super().forward(self.dropout(features))


class MCDropoutModel(Model):
    """A backbone and a linear head under dropout, which predict as T sampled sub-networks."""

    def __init__(self, backbone: nn.Module, num_classes: int, dropout: float, samples: int) -> None:
        """Every nn.Dropout of the backbone becomes an MCDropout of rate `dropout`, and one precedes the classifier."""
        replace_dropout(backbone, dropout)
        super().__init__(backbone, DropoutHead(int(backbone.num_features), num_classes, dropout))  # type: ignore[arg-type]
        self.samples = samples

    def logits(self, x: Tensor) -> Tensor:
        """One pass: N C H W → N K."""
        logits: Tensor = self.head(self.features(x))
        return logits

    def describe(self, x: Tensor) -> tuple[Prediction, Tensor]:
        """N C H W → the prediction, and the features N F of a pass without dropout."""
        return self(x), self.features(x)

    def forward(self, x: Tensor) -> Prediction:
        """Average of the T predictions, its entropy, and the samples' disagreement about it."""
        passes = []
        for number in range(self.samples):
            with _in_pass(number):
                passes.append(self.logits(x))
        return mean_prediction(torch.stack(passes).softmax(-1))


def replace_dropout(network: nn.Module, p: float) -> None:
    """Replaces every nn.Dropout of a network by an MCDropout of rate `p`."""
    for name, child in network.named_children():
        if isinstance(child, nn.Dropout):
            replacement = MCDropout(p)
            replacement.sharded = True
            setattr(network, name, replacement)
        else:
            replace_dropout(child, p)


@contextmanager
def _in_pass(number: int) -> Iterator[None]:
    token = _current.set(_Pass(number))
    try:
        yield
    finally:
        _current.reset(token)
