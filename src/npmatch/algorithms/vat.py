"""Virtual Adversarial Training: A Regularization Method for Supervised and Semi-Supervised Learning (VAT).
Miyato et al., TPAMI 2018.

Idea: a prediction must hold in the direction in which a small change of the image changes it most.

    L = L_s + λ(t) · L_u + λ_e · 1/U Σ_b H(p(y | u_b))
    L_s = 1/B Σ_b H(y_b, p(y | weak(x_b)))
    L_u = 1/U Σ_b KL(q_b ‖ p(y | u_b + r_b)),   q_b = p(y | u_b) without gradient,   u_b a weak view
    r_b = ε · g_b / ‖g_b‖,   g_b = ∇_d KL(q_b ‖ p(y | u_b + ξ·d)),   d a random direction of length 1

λ(t) grows linearly from 0 to λ_u over the first part of training. g_b is one step of the power method for the largest
eigenvector of the divergence's Hessian, with a finite difference of length ξ.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.distributed.collective import local_rows
from npmatch.heads import Model, frozen_statistics
from npmatch.objectives.losses import entropy, ramp_up
from npmatch.types import Batch, NonNegativeFloat, PositiveFloat, Share, Step, Views


class VAT(Algorithm):
    """Predictions that hold against virtual adversarial perturbations, and are certain."""

    views = Views(weak=1, strong=0)
    settings: ClassVar[dict[str, Any]] = {"training.unlabeled_ratio": 1}  # as many unlabelled as labelled images

    @dataclass(frozen=True)
    class Config:
        """The settings of TorchSSL, which gave the error rates that comparisons cite; USB has λ_u 1."""

        radius: PositiveFloat = 6.0  # ε, L2 norm of the perturbation of an image of normalised pixels
        # Paper: ξ 1e-6 (from memory; also in TorchSSL and USB); here: 1e-3, because in float32 so small a step leaves
        # three of four pixels of a 32×32 image as they are.
        step: PositiveFloat = 1e-3  # ξ, L2 norm of the step by which the direction is found
        unlabeled_weight: NonNegativeFloat = 0.3  # λ_u, weight of the divergence
        entropy_weight: NonNegativeFloat = 0.06  # λ_e, weight of the predictions' entropy
        ramp: Share = 0.4  # share of training over which λ_u grows from 0

    config: Config

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """One pass for the labelled images, one for the unlabelled, one for the perturbed."""
        c, head = self.config, self.model.head
        (u_weak,) = batch.weak
        loss_x = F.cross_entropy(head(self.model.features(batch.x)), batch.y)  # L_s

        # Every rank draws the directions of the whole batch and uses its own.
        drawn = local_rows(torch.randn(len(batch.index), *u_weak.shape[1:], dtype=u_weak.dtype, device=u_weak.device))
        # Not compiled: a compiler cannot trace the gradient in it. Disabled here, as a decorator would import it.
        find = torch.compiler.disable(self.perturbation)  # type: ignore[no-untyped-call]
        r_adv = find(u_weak, drawn)
        with frozen_statistics(self.model):  # only labelled images update the running statistics
            p = head(self.model.features(u_weak)).softmax(-1)
            log_p_adv = head(self.model.features(u_weak + r_adv)).log_softmax(-1)
        q = p.detach()
        loss_u = F.kl_div(log_p_adv, q, reduction="batchmean")  # L_u
        loss_entropy = entropy(p).mean()

        weight = c.unlabeled_weight * ramp_up(progress, c.ramp)  # λ(t)
        loss = loss_x + weight * loss_u + c.entropy_weight * loss_entropy
        logs = {
            "loss_labeled": loss_x,
            "loss_unlabeled": loss_u,
            "loss_entropy": loss_entropy,
            "unlabeled_weight": weight,
        }
        pseudo = q.argmax(-1)
        keep = torch.ones_like(pseudo, dtype=torch.bool)  # every prediction is a target
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, keep)

    def perturbation(self, u: Tensor, drawn: Tensor) -> Tensor:
        """r_adv for images n C H W of this rank, of length ε each, from random directions of the same shape."""
        c, head = self.config, self.model.head
        d = unit_length(drawn).requires_grad_()
        with exact_passes(self.model):
            with torch.no_grad():
                q = head(self.model.features(u)).softmax(-1)
            log_p = head(self.model.features(u + c.step * d)).log_softmax(-1)
            (g,) = torch.autograd.grad(F.kl_div(log_p, q, reduction="sum"), d)  # of d alone: no weight gets a gradient
        return c.radius * unit_length(g)


def unit_length(d: Tensor) -> Tensor:
    """Each image of n C H W scaled to an L2 norm of 1; an image of zeros stays as it is."""
    d = d / d.abs().amax((1, 2, 3), keepdim=True).clamp(min=torch.finfo(d.dtype).tiny)  # so that no square underflows
    return d / d.square().sum((1, 2, 3), keepdim=True).sqrt().clamp(min=1)  # the largest is 1, or all are 0


@contextmanager
def exact_passes(model: Model) -> Iterator[None]:
    """Context for finite differences: passes differ by their images alone, not by dropout, and change no statistics.

    They are in float32, as bfloat16 and TF32 would round a small step away.
    """
    dropping = [module for module in model.modules() if isinstance(module, nn.Dropout) and module.training]
    autocast, tf32, matmul = model.autocast, torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    model.autocast, torch.backends.cudnn.allow_tf32 = None, False
    torch.set_float32_matmul_precision("highest")
    for module in dropping:
        module.eval()
    try:
        with frozen_statistics(model):
            yield
    finally:
        model.autocast, torch.backends.cudnn.allow_tf32 = autocast, tf32
        torch.set_float32_matmul_precision(matmul)
        for module in dropping:
            module.train()
