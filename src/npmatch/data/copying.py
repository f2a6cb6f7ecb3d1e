"""Batches on their way to a GPU: pinned buffers, a stream of their own for the copies, and a bound on how far ahead.

While the device computes a step, the next batch is copied beside it, and the host gets the one after that ready.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import cycle
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Parts = TypeVar("Parts", bound=tuple[Tensor, ...])  # a NamedTuple of tensors

SLOTS = (
    4  # batches under way at a time: one whose copy was begun early, one handed out, two that steps still compute on
)


def copied_ahead(batches: Iterable[Parts], device: torch.device) -> Iterator[Parts]:
    """The same batches on a GPU; the copy of each was begun before the one before it was handed out.

    A batch may be used on the stream that was current when it was handed out, for as long as it is held.
    """
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    begun: _Slot[Parts] | None = None
    for batch, slot in zip(batches, cycle([_Slot[Parts](device, stream) for _ in range(SLOTS)]), strict=False):
        slot.begin(batch)
        if begun is not None:
            yield begun.hand_out()
            begun.free()
        begun = slot
    if begun is not None:
        yield begun.hand_out()


class _Slot(Generic[Parts]):
    """A pinned buffer, the device's copy of what lies in it, and the events that say when each may be touched."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self.device, self.stream = device, stream
        self.pinned: Parts | None = None
        self.copy: Parts | None = None
        self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        # Waiting sleeps instead of spinning: the core is wanted for decoding.
        self.used = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def begin(self, batch: Parts) -> None:
        """Starts the copy of a batch, once the step on this slot's last one is done: so the host runs not too far."""
        self.used.synchronize()  # at once where the slot was never used
        if self.pinned is None:
            self.pinned = _rebuilt(batch, [torch.empty_like(part, pin_memory=True) for part in batch])
        for mine, part in zip(self.pinned, batch, strict=True):
            mine.copy_(part)
        with torch.cuda.stream(self.stream):
            self.copy = _rebuilt(batch, [part.to(self.device, non_blocking=True) for part in self.pinned])
            self.copied.record()

    def hand_out(self) -> Parts:
        """The batch on the device, for the current stream."""
        assert self.copy is not None
        current = torch.cuda.current_stream(self.device)
        current.wait_event(self.copied)
        batch, self.copy = self.copy, None
        for part in batch:
            part.record_stream(current)  # made on the other stream: its memory stays until this one is past it
        return batch

    def free(self) -> None:
        """Said when the step on the batch lies on the current stream."""
        self.used.record(torch.cuda.current_stream(self.device))


def _rebuilt(like: Parts, parts: list[Tensor]) -> Parts:
    kind: Any = type(like)
    rebuilt: Parts = kind(*parts)
    return rebuilt
