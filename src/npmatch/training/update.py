"""Moving the weights down a loss: gradients, clipping, SGD, the learning rate's schedule, averaged weights (EMA)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.distributed.collective import all_reduce_mean_
from npmatch.training.config import Schedule, TrainingConfig
from npmatch.training.nonfinite import BadStepCounter, Snapshot, split_buffers
from npmatch.types import Step


class Update:
    """Called with a loss, it moves the weights that the loss depends on; a non-finite loss or gradient moves nothing.

    A step of training may call it more than once. The loop calls `begin` before a step and `end` after it, and averages
    the weights once (`ema.update`). A step in which anything was not finite changes no state at all.
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
            nesterov=config.nesterov and config.momentum > 0,  # torch refuses Nesterov without momentum
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
        self.bad = torch.zeros((), dtype=torch.float32, device=device)  # 1 once anything in a step is not finite
        self.bad_steps = BadStepCounter(config.max_bad_steps, device)
        self.snapshot: Snapshot | None = None  # made at the first step, when all tensors have their final storage
        self.in_step = False

    def begin(self, index: Tensor) -> None:
        """Before a step on the unlabelled images at `index`: takes a snapshot of what the step may change."""
        if self.snapshot is None:
            updates_once = type(self.algorithm).train_step is Algorithm.train_step
            weights = [] if updates_once else [*self.named.values(), *self.state_dict().values()]
            buffers, per_image = split_buffers(self.algorithm)
            self.snapshot = Snapshot([*buffers, *weights], per_image)
        self.snapshot.take(index)
        self.bad.zero_()
        self.in_step = True

    @torch.no_grad()
    def end(self, step: Step) -> Tensor:
        """After a step: restores the snapshot if the step was bad; returns whether it was good, 0-d bool."""
        assert self.snapshot is not None
        bad = self.bad > 0
        self.snapshot.restore_where(bad)
        self.bad_steps.add(bad, step, self.gradient_norm)
        self.in_step = False
        return ~bad

    def set_progress(self, progress: float) -> None:
        """Sets the progress, from 0 to 1, and the learning rate that the schedule has there; both in place."""
        self.progress.fill_(progress)
        self.learning_rate.fill_(self.config.learning_rate * learning_rate_factor(self.config.schedule, progress))

    def __call__(self, loss: Tensor) -> None:
        """Backward pass, mean of the gradients over ranks, clipping, SGD step."""
        self.sgd.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        # In one collective with the gradients, so that all ranks know what was not finite on one of them.
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
        self.sgd.found_inf = self.bad  # type: ignore[attr-defined]  # where it is 1, the fused step changes nothing
        self.sgd.step()

    @torch.no_grad()
    def _not_finite(self, loss: Tensor) -> Tensor:
        """0-d: 1 where the loss, or a buffer that its computation has changed, is not finite, else 0."""
        finite = loss.isfinite()
        if self.in_step and self.snapshot is not None:
            finite = finite & self.snapshot.is_finite()
        return (~finite).to(loss.dtype)

    def state_dict(self) -> dict[str, Tensor]:
        """Momentum by parameter name."""
        return {name: self.sgd.state[p]["momentum_buffer"] for name, p in self.named.items()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copies momentum from `state`, in place."""
        for name, p in self.named.items():
            self.sgd.state[p]["momentum_buffer"].copy_(state[name])


def learning_rate_factor(schedule: Schedule, progress: float) -> float:
    """Share of the initial learning rate at `progress` in [0, 1]."""
    half_turns = {"cosine-7-16": 7 / 16, "cosine-63-128": 63 / 128, "constant": 0.0}[schedule]
    return math.cos(half_turns * math.pi * progress)


class EMA:
    """Exponential moving averages of a module's parameters, swapped in for evaluation."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        """The averages start at the present parameters."""
        self.live = dict(module.named_parameters())
        self.average = {name: p.detach().clone() for name, p in self.live.items()}
        self.decay = decay

    @torch.no_grad()
    def update(self, where: Tensor | None = None) -> None:
        """average ← decay·average + (1 − decay)·live; with the 0-d bool `where`, only if it holds."""
        average, live = list(self.average.values()), list[Tensor](self.live.values())
        if where is None:
            torch._foreach_lerp_(average, live, 1 - self.decay)
            return
        steps = torch._foreach_sub(live, average)  # type: ignore[arg-type]  # the stub allows numbers only
        torch._foreach_mul_(steps, where * (1 - self.decay))
        torch._foreach_add_(average, steps)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context in which the module computes with the averages; parameters keep their storage."""
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
        """Copies averages from `state`, in place."""
        for name, value in self.average.items():
            value.copy_(state[name])


# An average of decay 1 − 10/n spans a tenth of a run of n steps; the weights it started at are left with a share of
# (1 − 10/n)ⁿ ≈ e⁻¹⁰.
SPANS_PER_RUN = 10


def limit_ema_decay(decay: float, iterations: int) -> float:
    """`decay`, lowered for a short run so that its averaged weights forget the initial ones."""
    return min(decay, round(max(0.0, 1 - SPANS_PER_RUN / iterations), 4))
