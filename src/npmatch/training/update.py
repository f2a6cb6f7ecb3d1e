"""Moving the weights down a loss: gradients, clipping, optimiser, learning rates, averaged weights (EMA)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.backbones.prepared import Prepared
from npmatch.distributed.collective import all_reduce_mean_
from npmatch.errors import NPMatchError
from npmatch.heads import backbones_in
from npmatch.training.config import Schedule, TrainingConfig
from npmatch.training.muon import Muon
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
        self.learning_rate = torch.tensor(config.learning_rate, device=device)  # of the head
        self.progress = torch.zeros((), device=device)  # in [0, 1]
        self.groups = make_groups(algorithm, self.named, config)
        self.optimizers = make_optimizers(self.groups, config)
        self.ema = EMA(algorithm, config.ema)
        backbone = [p for group in self.groups if group.in_backbone for p in group.parameters]
        rest = [p for group in self.groups if not group.in_backbone for p in group.parameters]
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
        """Sets the progress, from 0 to 1, and the learning rates that the schedule has there; all in place."""
        c = self.config
        self.progress.fill_(progress)
        rate = c.learning_rate * learning_rate_factor(c.schedule, progress)
        rate *= min(1.0, progress / c.warm_up) if c.warm_up else 1.0
        self.learning_rate.fill_(rate)
        for group in self.groups:
            waits = group.in_backbone and progress < c.head_first
            group.rate.fill_(0.0 if waits else rate * group.scale)

    def __call__(self, loss: Tensor) -> None:
        """Backward pass, mean of the gradients over ranks, clipping, step of the optimiser."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
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
        for optimizer in self.optimizers:
            optimizer.found_inf = self.bad  # type: ignore[attr-defined]  # where it is 1, the step changes nothing
            optimizer.step()

    @torch.no_grad()
    def _not_finite(self, loss: Tensor) -> Tensor:
        """0-d: 1 where the loss, or a buffer that its computation has changed, is not finite, else 0."""
        finite = loss.isfinite()
        if self.in_step and self.snapshot is not None:
            finite = finite & self.snapshot.is_finite()
        return (~finite).to(loss.dtype)

    def state_dict(self) -> dict[str, Tensor]:
        """The optimiser's state: momentum by parameter name; AdamW's second moment and count with a suffix."""
        state = {}
        parts = {p: values for optimizer in self.optimizers for p, values in optimizer.state.items()}
        for name, p in self.named.items():
            for part, value in parts[p].items():
                state[name if part in ("momentum_buffer", "exp_avg") else f"{name}.{part}"] = value
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copies the optimiser's state from `state`, in place."""
        for name, value in self.state_dict().items():
            value.copy_(state[name])


@dataclass
class Group:
    """Parameters that share a learning rate and a weight decay."""

    parameters: list[nn.Parameter]
    in_backbone: bool
    weight_decay: float
    scale: float  # of the learning rate
    rate: Tensor  # the learning rate now, 0-d on the device
    turns: int = 0  # filters that Muon turns: the number of their backbone, from 1 on; 0: other parameters


def make_groups(algorithm: Algorithm, named: Mapping[str, nn.Parameter], config: TrainingConfig) -> list[Group]:
    """The parameters by learning rate and weight decay; those of one dimension (norms, biases) have no decay."""
    # More than one where there is a teacher; in the same order in every process.
    backbones = list(dict.fromkeys([algorithm.model.backbone, *backbones_in(algorithm)]))
    scales = {id(p): config.backbone_rate for backbone in backbones for p in backbone.parameters()}
    if config.layer_decay < 1:
        for backbone in backbones:
            for p, scale in layer_scales(backbone, config.layer_decay):
                scales[id(p)] *= scale
    filters = dict[int, int]()
    if config.optimizer == "muon":  # those of two networks may get their gradients in different updates
        filters = {id(p): n for n, net in enumerate(backbones, 1) for p in net.parameters() if p.dim() == 4}
    groups: dict[tuple[bool, bool, float, int], Group] = {}
    for p in named.values():
        in_backbone, decays, scale, turns = id(p) in scales, p.dim() > 1, scales.get(id(p), 1.0), filters.get(id(p), 0)
        if turns:
            scale *= config.filter_angle / config.learning_rate
        if (key := (decays, in_backbone, scale, turns)) not in groups:
            rate = torch.tensor(config.learning_rate * scale, device=p.device)
            groups[key] = Group([], in_backbone, config.weight_decay if decays else 0.0, scale, rate, turns)
        groups[key].parameters.append(p)
    return list(groups.values())


def layer_scales(backbone: nn.Module, decay: float) -> Iterator[tuple[nn.Parameter, float]]:
    """Each parameter of a timm network with the factor of its layer's learning rate, decay^(layers above it)."""
    from timm.optim import param_groups_layer_decay

    network = backbone.network if isinstance(backbone, Prepared) else backbone
    if not hasattr(network, "group_matcher"):
        raise NPMatchError("training.layer_decay: only networks of timm know their layers; leave it out")
    for group in param_groups_layer_decay(network, layer_decay=decay):
        # timm only notes the factor; without its schedulers nothing else applies it.
        yield from ((p, float(group["lr_scale"])) for p in group["params"])


def make_optimizers(groups: list[Group], config: TrainingConfig) -> list[torch.optim.Optimizer]:
    """The optimisers, whose state exists from the start, so that every step runs the same operations on it."""
    if turning := [group for group in groups if group.turns]:
        rest = [group for group in groups if not group.turns]
        muon = Muon([{"params": g.parameters, "lr": g.rate} for g in turning], config.momentum)
        return [muon, *make_optimizers(rest, config)]
    parameters: Any = [{"params": g.parameters, "weight_decay": g.weight_decay, "lr": g.rate} for g in groups]
    if config.optimizer == "adamw":
        adamw = torch.optim.AdamW(parameters, fused=True)
        for group in groups:
            for p in group.parameters:
                zero = torch.zeros((), dtype=torch.float32, device=p.device)
                adamw.state[p].update(step=zero, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        return [adamw]
    nesterov = config.nesterov and config.momentum > 0  # torch refuses Nesterov without momentum
    sgd = torch.optim.SGD(parameters, momentum=config.momentum, nesterov=nesterov, fused=True)
    for group in groups:
        for p in group.parameters:
            sgd.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return [sgd]


def learning_rate_factor(schedule: Schedule, progress: float) -> float:
    """Share of the initial learning rate at `progress` in [0, 1]."""
    half_turns = {"cosine-7-16": 7 / 16, "cosine-63-128": 63 / 128, "constant": 0.0}[schedule]
    return math.cos(half_turns * math.pi * progress)


class EMA:
    """Exponential moving averages of the parameters that are trained, swapped in for evaluation."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        """The averages start at the present parameters."""
        self.live = {name: p for name, p in module.named_parameters() if p.requires_grad}
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
