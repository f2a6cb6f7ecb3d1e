"""Which images step k sees: a pure function of (seed, k), so that any process can draw any step."""

from __future__ import annotations

import torch
from torch import Tensor

from npmatch.draws import mix
from npmatch.types import NPMatchError


class Sampler:
    """Labelled images with replacement; unlabelled ones in passes over the set, no two alike in a batch."""

    def __init__(
        self, seed: int, num_labeled: int, num_unlabeled: int, batch_labeled: int, batch_unlabeled: int
    ) -> None:
        """`batch_unlabeled` may be 0, for training on labels alone."""
        if batch_labeled and not num_labeled:
            raise NPMatchError("there is no labelled image; label some, or raise the number of labels")
        if batch_unlabeled > num_unlabeled:
            raise NPMatchError(
                f"an unlabelled batch of {batch_unlabeled} is larger than the set of {num_unlabeled}; "
                "lower training.unlabeled_ratio or training.batch"
            )
        self.seed = seed
        self.num_labeled, self.num_unlabeled = num_labeled, num_unlabeled
        self.batch_labeled, self.batch_unlabeled = batch_labeled, batch_unlabeled
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)  # the set shuffled for `_epoch`: a cache, not state

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Positions in the labelled set, B, and in the unlabelled set, U; int64."""
        return self._labeled(step), self._unlabeled(step)

    def _labeled(self, step: int) -> Tensor:
        shape = (self.batch_labeled,)
        return torch.randint(max(self.num_labeled, 1), shape, generator=self._generator("labeled", step))

    def _unlabeled(self, step: int) -> Tensor:
        if not self.batch_unlabeled:
            return torch.empty(0, dtype=torch.int64)
        steps_per_epoch = self.num_unlabeled // self.batch_unlabeled
        epoch, place = divmod(step, steps_per_epoch)
        if epoch != self._epoch:  # so that a step costs the batch, and only an epoch costs the set
            self._order = torch.randperm(self.num_unlabeled, generator=self._generator("unlabeled", epoch))
            self._epoch = epoch
        first = place * self.batch_unlabeled
        return self._order[first : first + self.batch_unlabeled].clone()

    def _generator(self, stream: str, counter: int) -> torch.Generator:
        return torch.Generator().manual_seed(mix(self.seed, stream, counter))
