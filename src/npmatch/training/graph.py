"""A whole training step as one CUDA graph: recorded once, then replayed with new images in the same storage."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from npmatch.data import RawBatch
from npmatch.ranks import joined

WARM_UP = 3  # steps run before recording: libraries choose their kernels and allocate their workspaces then


class CapturedStep:
    """`compute` recorded as a graph; calling it copies a batch into the graph's own and replays.

    Draws follow the default generator's seed at each replay. What the warm-up did to `state` is undone.
    """

    def __init__(
        self, compute: Callable[[RawBatch], None], raw: RawBatch, state: Callable[[], Iterable[Tensor]]
    ) -> None:
        """`state` lists every tensor that a step changes and a later step reads."""
        self.raw = RawBatch(*(part.clone() for part in raw))
        before = {tensor.data_ptr(): tensor.clone() for tensor in state()}
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                compute(self.raw)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # A collective's backend has a thread of its own that looks at events meanwhile, which must not end the capture.
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local" if joined() else "global"):
            compute(self.raw)
        for tensor in state():
            # A tensor that the warm-up made, such as a sum that had not begun, begins at zero.
            tensor.copy_(before.get(tensor.data_ptr(), torch.zeros_like(tensor)))

    def __call__(self, raw: RawBatch) -> None:
        """One step on a new batch."""
        for mine, new in zip(self.raw, raw, strict=True):
            mine.copy_(new, non_blocking=True)
        self.graph.replay()
