"""One batch-norm batch for all views, gradients through those alone that have a loss.

Weak views are there to be predicted; nothing is learnt from them. Normalised with the views that are learnt from, they
would get gradients all the same, because they moved the mean and the variance: for nearly half of a batch the backward
pass has no other reason. Here they move both and pass none on. The learning rows' gradient takes itself for that of the
whole batch: dx = scale · (d − mean of d − x̂ · mean of d·x̂) with means over the learning rows. So a weight's gradient
stays at a right angle to the weight, as a normalised weight's must: with the means over all rows it would not, and
weights would grow without bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_learning: int | None = None


@contextmanager
def only_first_learn(rows: int) -> Iterator[None]:
    """Within, batch norms pass gradients to the first `rows` rows of what they normalise."""
    global _learning
    _learning, before = rows, _learning
    try:
        with _Intercept():
            yield
    finally:
        _learning = before


def learning_rows(batch: int) -> int:
    """How many rows of a batch get gradients: all of them, unless `only_first_learn` says otherwise."""
    return batch if _learning is None else _learning


class _Intercept(TorchFunctionMode):
    """Takes the place of F.batch_norm, whichever network calls it."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return (_batch_norm if func is F.batch_norm else func)(*args, **(kwargs or {}))


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training:
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    y: Tensor = _Normalise.apply(input, running_mean, running_var, weight, bias, momentum, eps)  # type: ignore[no-untyped-call]
    return y


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor:
        y, mean, rstd = torch.native_batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps)
        ctx.rows, ctx.eps = learning_rows(len(x)), eps
        ctx.save_for_backward(x, weight, mean, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        x, weight, mean, rstd = ctx.saved_tensors
        affine = weight is not None
        dx, d_weight, d_bias = torch.ops.aten.native_batch_norm_backward(
            dy[: ctx.rows], x[: ctx.rows], weight, None, None, mean, rstd, True, ctx.eps, [True, affine, affine]
        )
        return torch.cat([dx, torch.zeros_like(x[ctx.rows :])]), None, None, d_weight, d_bias, None, None
