"""How fast a step is: compiled, captured as one CUDA graph, or deterministic at a cost."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from npmatch.algorithms.base import Algorithm
from npmatch.backbones import WideResNet
from npmatch.data import RawBatch
from npmatch.distributed.ranks import is_initialized
from npmatch.errors import NPMatchError
from npmatch.training.config import TrainingConfig

if TYPE_CHECKING:
    from npmatch.training.loop import Trainer


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """With `wanted`, only operations that give the same bits every time; what was set before comes back."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    cudnn = torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise NPMatchError(f"training.deterministic=true: {str(error).splitlines()[0]}; set it to false") from error
    finally:
        torch.use_deterministic_algorithms(before[0])
        cudnn.deterministic, cudnn.benchmark = before[1:]


# Compiling takes about a minute and saves some milliseconds a step: a short run ends sooner without.
WORTH_COMPILING = 5000  # iterations

OPTIONS: dict[str, Any] = {"fallback_random": True}  # torch's own draws: a compiled step draws alike


def is_compiled(config: TrainingConfig, device: torch.device) -> bool:
    """Whether a run compiles: as it is told, else on CUDA when it is long enough."""
    if config.compile is not None:
        return config.compile
    if is_initialized() and config.sync_norm:
        return False  # every synchronised norm cuts the program in two, and little is left to compile
    return device.type == "cuda" and config.iterations >= WORTH_COMPILING


def compile_step(trainer: Trainer) -> None:
    """Views become one kernel where they were hundreds; so does what surrounds the convolutions in a loss."""
    torch.set_float32_matmul_precision("high")  # heads multiply in TF32, finer than the network's bfloat16
    # Shapes never change, so the fastest kernel is looked for once; which that is may change from run to run.
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    warnings.filterwarnings("ignore", message=".*lru_cache")  # constants are cached, and compiled as what they are
    # A network's blocks are one function, compiled for each of them and for each trainer of a process: past torch's
    # limit of 8 they would silently run eagerly.
    torch._dynamo.config.recompile_limit = 128
    views: Any = trainer.make_views
    trainer.make_views = torch.compile(views.__call__, dynamic=False, options=OPTIONS)
    algorithm = trainer.algorithm
    if type(algorithm).train_step is Algorithm.train_step:
        algorithm.loss = torch.compile(algorithm.loss, dynamic=False, options=OPTIONS)  # type: ignore[method-assign]
    else:  # several updates in one step: only what all of them call is compiled
        algorithm.model.backbone.compile(dynamic=False, options=OPTIONS)


def use_fused_kernels(trainer: Trainer, image_shape: tuple[int, int, int]) -> None:
    """The network's training passes by backbones/fused, where they compute the same."""
    backbone = trainer.algorithm.model.backbone
    wanted = trainer.config.fused is not False and trainer.config.channels_last
    if not wanted or not isinstance(backbone, WideResNet):
        return
    if next(backbone.parameters()).is_cuda and trainer.algorithm.model.autocast is torch.bfloat16:
        from npmatch.backbones.fused import network  # Triton is there only where CUDA is

        if network.is_possible(backbone, image_shape):
            backbone.training_pass = torch.compiler.disable(network.features)  # type: ignore[no-untyped-call]


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
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local" if is_initialized() else "global"):
            compute(self.raw)
        for tensor in state():
            # A tensor that the warm-up made, such as a sum that had not begun, begins at zero.
            tensor.copy_(before.get(tensor.data_ptr(), torch.zeros_like(tensor)))

    def __call__(self, raw: RawBatch) -> None:
        """One step on a new batch."""
        for mine, new in zip(self.raw, raw, strict=True):
            mine.copy_(new, non_blocking=True)
        self.graph.replay()
