"""A teacher whose weights are a moving average of its student's (Mean Teacher)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from npmatch.heads.model import Model
from npmatch.types import Prediction


class AveragedTeacher(nn.Module):
    """θ' ← m·θ' + (1 − m)·θ, where θ are the weights of a student that is trained; no gradient reaches θ'.

    The first averages are plain means of all θ so far, until an exponential one is shorter. So a teacher forgets the
    initial weights even in a short run, and the first update makes it equal to its student, whatever it was before.
    """

    updates: Tensor  # 0-d int64: updates so far

    def __init__(self, student: Model, decay: float) -> None:
        """`decay` is m. The averages are buffers, named like the student's parameters with / in place of the dots."""
        super().__init__()
        self.decay = decay
        self.register_buffer("updates", torch.tensor(0))
        for name, weight in _trained(student).items():
            self.register_buffer(name.replace(".", "/"), weight.detach().clone())

    @torch.no_grad()
    def update(self, student: Model) -> None:
        """Takes the student's present weights into the averages."""
        live = _trained(student)
        average = [self.get_buffer(name.replace(".", "/")) for name in live]
        self.updates.add_(1)
        share = (1 / self.updates).clamp(min=1 - self.decay)  # 1 − m, or 1/k in the k-th of the first updates
        # As a step from θ' towards θ, so that a weight that does not change is not changed by rounding.
        steps = torch._foreach_sub(list(live.values()), average)  # type: ignore[arg-type]  # the stub allows numbers only
        torch._foreach_mul_(steps, share)
        torch._foreach_add_(average, steps)

    @torch.no_grad()
    def forward(self, student: Model, x: Tensor) -> Prediction:
        """What the student would predict with the averaged weights, for images N C H W; it keeps its own."""
        weights = {name: self.get_buffer(name.replace(".", "/")) for name in _trained(student)}
        prediction: Prediction = functional_call(student, weights, (x,))
        return prediction


def _trained(model: Model) -> dict[str, Tensor]:
    """The weights that change in training; those of a frozen network need no average."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
