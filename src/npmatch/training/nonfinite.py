"""A step whose loss or gradient is not finite leaves no trace, without the host ever asking the device about it.

Before a step the guard copies what the step may change: every buffer (norm statistics, banks, curriculum, windows,
queues); where a step updates several times, weights and momentum as well. After it, the copy is put back where the step
was bad. Both are a handful of operations on flat storage, whatever the number of tensors, so they can be captured.
Of a buffer with a row for every unlabelled image only the batch's rows are copied: a step costs the same for any N.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from npmatch.errors import NPMatchError
from npmatch.types import Step


class NotFiniteError(NPMatchError):
    """Too many steps in a row were bad; `what` names the quantity, and the rest of the message what to do."""

    def __init__(self, what: str, rest: str) -> None:
        """Both in words."""
        super().__init__(f"{what}, {rest}")
        self.what = what


class Copy:
    """Copies of some tensors, in flat storage of one piece for each type; of others, of a batch's rows alone."""

    def __init__(self, tensors: Iterable[Tensor], per_image: Iterable[Tensor] = ()) -> None:
        """The tensors stay where they are; `per_image` have a row for every unlabelled image, N ...."""
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor.detach())
        self.groups = [(part, torch.cat([t.flatten() for t in part])) for part in by_type.values()]
        self.per_image = list(per_image)

    def take(self, index: Tensor) -> None:
        """Remembers the values as they are now, and of what is per image the rows at `index`, no two alike."""
        for tensors, kept in self.groups:
            torch._foreach_copy_(_views(kept, tensors), tensors)
        self.index, self.rows = index, [tensor[index] for tensor in self.per_image]

    def put_back(self, where: Tensor) -> None:
        """The remembered values, where the 0-d bool holds; a choice and not a product, which NaN would survive."""
        for tensors, kept in self.groups:
            chosen = torch.where(where, kept, torch.cat([t.flatten() for t in tensors]))
            torch._foreach_copy_(tensors, _views(chosen, tensors))
        for tensor, rows in zip(self.per_image, self.rows, strict=True):
            tensor[self.index] = torch.where(where, rows, tensor[self.index])

    def is_finite(self) -> Tensor:
        """0-d bool: whether all values are now."""
        floats = [tensors for tensors, kept in self.groups if kept.is_floating_point()]
        verdicts = [torch.cat([t.flatten() for t in tensors]).isfinite().all() for tensors in floats]
        return torch.stack(verdicts).all() if verdicts else torch.tensor(True)


def split_buffers(module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """All buffers of a module: those of any size, and those that modules declare `per_image`."""
    per_image = [getattr(m, name) for m in module.modules() for name in getattr(m, "per_image", ())]
    known = {id(tensor) for tensor in per_image}
    return [tensor for tensor in module.buffers() if id(tensor) not in known], per_image


def _views(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    pieces = torch.split(flat, [t.numel() for t in tensors])
    return [piece.view(t.shape) for piece, t in zip(pieces, tensors, strict=True)]


class BadSteps:
    """How many steps were bad, how many in a row, and what failed first; on the device, read with the log."""

    def __init__(self, limit: int, device: torch.device) -> None:
        """`limit`: so many in a row end a run."""
        self.limit = limit
        self.terms: list[str] = []  # what `first` counts in
        self.counts = {
            "number": torch.zeros((), dtype=torch.int64, device=device),  # since the last reading
            "in_a_row": torch.zeros((), dtype=torch.int64, device=device),  # up to now
            "longest": torch.zeros((), dtype=torch.int64, device=device),  # in a row, since the last reading
            "first": torch.zeros((), dtype=torch.int64, device=device),  # the term that failed first in that row
        }

    def add(self, bad: Tensor, step: Step, gradient_norm: Tensor) -> None:
        """Counts one step; `bad` is a 0-d bool."""
        values = {**step.logs, "loss": step.loss.detach(), "the gradient": gradient_norm}
        self.terms = [*values, "a buffer"]
        failed = torch.stack([~value.isfinite() for value in values.values()] + [torch.ones_like(bad)])
        number, in_a_row, longest, first = self.counts.values()
        begins = bad & (in_a_row == 0) & (longest < self.limit)
        first.copy_(torch.where(begins, failed.long().argmax(), first))
        number.add_(bad)
        in_a_row.copy_((in_a_row + 1) * bad)
        torch.maximum(longest, in_a_row, out=longest)

    def read(self) -> tuple[int, int, str]:
        """Bad steps since the last reading, the most in a row, and what failed first; this waits for the device."""
        number, _, longest, first = torch.stack(list(self.counts.values())).tolist()
        self.counts["number"].zero_()
        self.counts["longest"].zero_()
        return number, longest, self.terms[first] if self.terms else ""
