"""An exponential moving average of the parameters. Buffers (norm statistics, banks) are the live model's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

LIVES = 5  # of an average within a run: e⁻⁵, less than 1 % of it, is then what the run started at


def filled_decay(decay: float, iterations: int) -> float:
    """`decay`, or as much less as a run of so few steps needs to end at what it learnt, not at what it started at."""
    return min(decay, round(max(0.0, 1 - LIVES / iterations), 4))


class EMA:
    """Averaged copies of a module's parameters, swapped in for evaluation."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        """Starts at the parameters as they are."""
        self.live = dict(module.named_parameters())
        self.average = {name: p.detach().clone() for name, p in self.live.items()}
        self.decay = decay

    @torch.no_grad()
    def update(self, where: Tensor | None = None) -> None:
        """average ← decay·average + (1 − decay)·live, where the 0-d bool holds if there is one."""
        average, live = list(self.average.values()), list[Tensor](self.live.values())
        if where is None:
            torch._foreach_lerp_(average, live, 1 - self.decay)
            return
        steps = torch._foreach_sub(live, average)  # type: ignore[arg-type]  # its stub knows numbers alone
        torch._foreach_mul_(steps, where * (1 - self.decay))
        torch._foreach_add_(average, steps)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module computes with the averages inside this context; storage stays where it is."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, p in self.live.items():
            held = p.clone()
            p.copy_(self.average[name])
            self.average[name].copy_(held)

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by parameter name."""
        return self.average

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes averages back in place."""
        for name, value in self.average.items():
            value.copy_(state[name])
