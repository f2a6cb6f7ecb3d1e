"""Steps whose loss or gradient is not finite: their effect on the state is undone, and they are counted.

Before a step a snapshot is taken of what the step may change: every buffer (norm statistics, banks, curriculum,
windows, queues); where a step updates several times, weights and momentum as well. After a bad step the snapshot is
restored. The host never reads a value from the device for this. Both are a few operations on flat storage, however many
tensors there are, so a CUDA graph can capture them. Of a buffer with one row for each of the N unlabelled images only
the rows of the batch are copied, so the cost of a step does not depend on N.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from npmatch.errors import NPMatchError
from npmatch.types import Step


class NotFiniteError(NPMatchError):
    """Too many bad steps in a row; `what` says which quantity was not finite, `details` when, and the remedy."""

    def __init__(self, what: str, details: str) -> None:
        """The message is `what` followed by `details`."""
        super().__init__(f"{what} {details}")
        self.what = what


class Snapshot:
    """Copies of tensors in flat storage, one piece for each dtype; of tensors per image only the rows of a batch."""

    def __init__(self, tensors: Iterable[Tensor], per_image: Iterable[Tensor] = ()) -> None:
        """The tensors must keep their storage; those in `per_image` have one row per unlabelled image, N ...."""
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor.detach())
        self.groups = [(part, torch.cat([t.flatten() for t in part])) for part in by_type.values()]
        self.per_image = list(per_image)

    def take(self, index: Tensor) -> None:
        """Copies the present values; of tensors per image the rows at `index`, which holds no image twice."""
        for tensors, kept in self.groups:
            torch._foreach_copy_(_views(kept, tensors), tensors)
        self.index, self.rows = index, [tensor[index] for tensor in self.per_image]

    def restore_where(self, bad: Tensor) -> None:
        """Puts the copied values back where the 0-d bool holds; chosen by torch.where, as NaN survives a product."""
        for tensors, kept in self.groups:
            chosen = torch.where(bad, kept, torch.cat([t.flatten() for t in tensors]))
            torch._foreach_copy_(tensors, _views(chosen, tensors))
        for tensor, rows in zip(self.per_image, self.rows, strict=True):
            tensor[self.index] = torch.where(bad, rows, tensor[self.index])

    def is_finite(self) -> Tensor:
        """0-d bool: whether the present values of all tensors (not those per image) are finite."""
        floats = [tensors for tensors, kept in self.groups if kept.is_floating_point()]
        finite = [torch.cat([t.flatten() for t in tensors]).isfinite().all() for tensors in floats]
        return torch.stack(finite).all() if finite else torch.tensor(True)


def _views(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    pieces = torch.split(flat, [t.numel() for t in tensors])
    return [piece.view(t.shape) for piece, t in zip(pieces, tensors, strict=True)]


def split_buffers(module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """A module's buffers without and with one row per unlabelled image; modules declare the latter in `per_image`."""
    per_image = [getattr(m, name) for m in module.modules() for name in getattr(m, "per_image", ())]
    ids = {id(tensor) for tensor in per_image}
    return [tensor for tensor in module.buffers() if id(tensor) not in ids], per_image


class BadStepCounter:
    """Counts bad steps on the device: how many, how many in a row, and which quantity failed first."""

    def __init__(self, limit: int, device: torch.device) -> None:
        """`limit` bad steps in a row end a run; the quantity that failed first is not replaced after that."""
        self.limit = limit
        self.terms: list[str] = []  # names of quantities; counts["first"] is a position in it
        self.counts = {
            "number": torch.zeros((), dtype=torch.int64, device=device),  # since the last reading
            "in_a_row": torch.zeros((), dtype=torch.int64, device=device),  # up to the last step
            "longest": torch.zeros((), dtype=torch.int64, device=device),  # most in a row since the last reading
            "first": torch.zeros((), dtype=torch.int64, device=device),  # term that failed first in that row
        }

    def add(self, bad: Tensor, step: Step, gradient_norm: Tensor) -> None:
        """Counts one step, of which the 0-d bool `bad` says whether it was bad."""
        values = {**step.logs, "loss": step.loss.detach(), "the gradient": gradient_norm}
        self.terms = [*values, "a buffer"]
        finite = torch.stack([value.float() for value in values.values()]).isfinite()  # together: in a few operations
        failed = torch.cat([~finite, torch.ones_like(bad)[None]])
        number, in_a_row, longest, first = self.counts.values()
        begins = bad & (in_a_row == 0) & (longest < self.limit)
        first.copy_(torch.where(begins, failed.long().argmax(), first))
        number.add_(bad)
        in_a_row.copy_((in_a_row + 1) * bad)
        torch.maximum(longest, in_a_row, out=longest)

    def read(self) -> tuple[int, int, str]:
        """Bad steps since the last reading, the most of them in a row, what failed first; waits for the device."""
        number, _, longest, first = torch.stack(list(self.counts.values())).tolist()
        self.counts["number"].zero_()
        self.counts["longest"].zero_()
        return number, longest, self.terms[first] if self.terms else ""
