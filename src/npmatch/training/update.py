"""One step down a loss: backward, clipping, SGD; and the learning rate's schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.distributed.collective import all_reduce_mean_
from npmatch.training.config import Schedule, TrainingConfig
from npmatch.training.nonfinite import BadSteps, Copy, split_buffers
from npmatch.types import Step

LIVES = 10  # of an average within a run: the last tenth of the steps makes most of it, and e⁻¹⁰ is the start's share


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


def learning_rate_factor(schedule: Schedule, progress: float) -> float:
    """Share of the initial learning rate at `progress` in [0, 1]."""
    half_turns = {"cosine-7-16": 7 / 16, "cosine-63-128": 63 / 128, "constant": 0.0}[schedule]
    return math.cos(half_turns * math.pi * progress)


class Update:
    """Called with a loss, it moves the weights that the loss depends on; a non-finite loss or gradient moves nothing.

    A step of training may call it more than once. The loop calls `begin` before a step and `end` after it, and averages
    the weights once (`ema.update`); a step in which anything was not finite is then as if it had never been.
    """

    def __init__(self, algorithm: Algorithm, config: TrainingConfig) -> None:
        """Parameters of one dimension (norms, biases) get no weight decay."""
        self.config = config
        self.named = {name: p for name, p in algorithm.named_parameters() if p.requires_grad}
        device = next(iter(self.named.values())).device
        self.learning_rate = torch.tensor(config.learning_rate, device=device)
        self.progress = torch.zeros((), device=device)  # in [0, 1]
        self.sgd = torch.optim.SGD(
            [
                {
                    "params": [p for p in self.named.values() if p.dim() > 1],
                    "weight_decay": config.weight_decay,
                },
                {"params": [p for p in self.named.values() if p.dim() <= 1], "weight_decay": 0.0},
            ],
            lr=self.learning_rate,
            momentum=config.momentum,
            nesterov=config.nesterov and config.momentum > 0,  # without momentum torch refuses the word
            fused=True,
        )
        # Momentum exists from the start, so that every step runs the same operations on the same storage.
        for p in self.named.values():
            self.sgd.state[p]["momentum_buffer"] = torch.zeros_like(p)
        self.ema = EMA(algorithm, config.ema)
        in_backbone = {id(p) for p in algorithm.model.backbone.parameters()}
        backbone = [p for p in self.named.values() if id(p) in in_backbone]
        rest = [p for p in self.named.values() if id(p) not in in_backbone]
        self.clip_groups = [group for group in (backbone, rest) if group]
        self.gradient_norm = torch.zeros((), device=device)
        self.algorithm = algorithm
        self.bad = torch.zeros((), dtype=torch.float32, device=device)  # 1 once a step is not finite
        self.bad_steps = BadSteps(config.max_bad_steps, device)
        self.copy: Copy | None = None  # made at the first step, when the state is where it stays
        self.in_step = False

    def begin(self, index: Tensor) -> None:
        """Before a step on the unlabelled images at `index`: remembers what it may change before it is known good."""
        if self.copy is None:
            updates_once = type(self.algorithm).train_step is Algorithm.train_step
            weights = [] if updates_once else [*self.named.values(), *self.state_dict().values()]
            buffers, per_image = split_buffers(self.algorithm)
            self.copy = Copy([*buffers, *weights], per_image)
        self.copy.take(index)
        self.bad.zero_()
        self.in_step = True

    @torch.no_grad()
    def end(self, step: Step) -> Tensor:
        """After a step: takes a bad one back; 0-d bool, whether it was good."""
        assert self.copy is not None
        bad = self.bad > 0
        self.copy.put_back(bad)
        self.bad_steps.add(bad, step, self.gradient_norm)
        self.in_step = False
        return ~bad

    def set_progress(self, progress: float) -> None:
        """Moves the learning rate along its schedule; both stay where they are in memory."""
        self.progress.fill_(progress)
        self.learning_rate.fill_(self.config.learning_rate * learning_rate_factor(self.config.schedule, progress))

    def __call__(self, loss: Tensor) -> None:
        """Backward, clip, step."""
        self.sgd.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        # Over ranks, in one collective; what one rank alone found not finite is then known to all.
        not_finite = self._not_finite(loss.detach())
        all_reduce_mean_([*(p.grad for p in self.named.values() if p.grad is not None), not_finite])
        norms = []
        for group in self.clip_groups:
            gradients = [p.grad for p in group if p.grad is not None]
            if not gradients:
                continue
            norm = torch.nn.utils.get_total_norm(gradients)
            norms.append(norm)
            if self.config.clip is not None:
                torch.nn.utils.clip_grads_with_norm_(group, self.config.clip, norm)
        self.gradient_norm.copy_(torch.stack(norms).norm())
        bad = ((not_finite > 0) | ~self.gradient_norm.isfinite()).float()
        self.bad.copy_(torch.maximum(self.bad, bad) if self.in_step else bad)
        self.sgd.found_inf = self.bad  # type: ignore[attr-defined]  # the fused step reads it and stays put where it is 1
        self.sgd.step()

    @torch.no_grad()
    def _not_finite(self, loss: Tensor) -> Tensor:
        """0-d, 1 where the loss is not finite, or a buffer that it has changed on its way."""
        finite = loss.isfinite()
        if self.in_step and self.copy is not None:
            finite = finite & self.copy.is_finite()
        return (~finite).to(loss.dtype)

    def state_dict(self) -> dict[str, Tensor]:
        """Momentum by parameter name."""
        return {name: self.sgd.state[p]["momentum_buffer"] for name, p in self.named.items()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes momentum back in place."""
        for name, p in self.named.items():
            self.sgd.state[p]["momentum_buffer"].copy_(state[name])
