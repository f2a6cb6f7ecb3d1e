"""Speed of a training step on CUDA: torch.compile, fused kernels, a captured graph; and determinism, at a cost."""

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

# Compiling takes about a minute and saves a fifth of each step: some 2 ms of the usual one. A run is compiled from that
# many iterations on, or that many minutes, if its time was given: before, it would lose more time than it saves.
COMPILE_FROM, COMPILE_FROM_MINUTES = 25_000, 10.0
COMPILE_OPTIONS: dict[str, Any] = {"fallback_random": True}  # torch's own generator, so that eager steps draw the same
WARM_UP = 3  # steps before the capture, in which libraries choose their kernels and allocate their workspaces


def is_compiled(config: TrainingConfig, device: torch.device, minutes: float | None = None) -> bool:
    """Whether a run is compiled: as training.compile says, by default on CUDA where the run is long enough.

    The `minutes` of a run, if given, decide in place of its iterations, which are not known yet.
    """
    if config.compile is not None:
        return config.compile
    if is_initialized() and config.sync_norm:
        return False  # torch.compile breaks its graph at every synchronised norm, and little is left to compile
    is_long = config.iterations >= COMPILE_FROM if minutes is None else minutes >= COMPILE_FROM_MINUTES
    return device.type == "cuda" and is_long


def compile_step(trainer: Trainer) -> None:
    """Compiles the views, one kernel instead of hundreds, and the loss, in which all but the convolutions is fused."""
    torch.set_float32_matmul_precision("high")  # heads multiply in TF32, finer than the backbone's bfloat16
    # Shapes never change, so cuDNN searches for the fastest kernel once; the choice may differ from run to run.
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    warnings.filterwarnings("ignore", message=".*lru_cache")  # the cached functions return constants
    # All blocks of a network share one function, which is compiled for each block and for each trainer of a process.
    # Past torch's default limit of 8 they would silently run eagerly.
    torch._dynamo.config.recompile_limit = 128
    views: Any = trainer.make_views
    trainer.make_views = torch.compile(views.__call__, dynamic=False, options=COMPILE_OPTIONS)
    algorithm = trainer.algorithm
    if type(algorithm).train_step is Algorithm.train_step:
        algorithm.loss = torch.compile(algorithm.loss, dynamic=False, options=COMPILE_OPTIONS)  # type: ignore[method-assign]
    else:  # several updates in one step: only the backbone, which all of them call, is compiled
        algorithm.model.backbone.compile(dynamic=False, options=COMPILE_OPTIONS)


def use_fused_kernels(trainer: Trainer, image_shape: tuple[int, int, int]) -> None:
    """Lets backbones/fused run the network's training passes on images C H W, where it computes the same result."""
    backbone = trainer.algorithm.model.backbone
    wanted = trainer.config.fused is not False and trainer.config.channels_last
    if not wanted or not isinstance(backbone, WideResNet):
        return
    if next(backbone.parameters()).is_cuda and trainer.algorithm.model.autocast is torch.bfloat16:
        from npmatch.backbones.fused import network  # needs Triton, which is installed only with CUDA

        if network.is_possible(backbone, image_shape):
            backbone.training_pass = torch.compiler.disable(network.features)  # type: ignore[no-untyped-call]


@contextmanager
def restoring(state: Callable[[], Iterable[Tensor]]) -> Iterator[None]:
    """Context for steps that leave no trace; `state` lists every tensor that a step changes and a later step reads."""
    before = {tensor.data_ptr(): tensor.clone() for tensor in state() if tensor.numel()}  # empty ones share an address
    yield
    for tensor in state():
        if tensor.numel():  # one that the steps have created, such as a sum of the log, starts at zero
            tensor.copy_(before.get(tensor.data_ptr(), torch.zeros_like(tensor)))


class CapturedStep:
    """`compute` captured as a CUDA graph; a call copies a batch into the graph's own batch and replays the graph.

    Random draws follow the seed of the default generator at each replay. The warm-up leaves `state` unchanged.
    """

    def __init__(
        self, compute: Callable[[RawBatch], None], raw: RawBatch, state: Callable[[], Iterable[Tensor]]
    ) -> None:
        """`state` is as in `restoring`."""
        self.raw = RawBatch(*(part.clone() for part in raw))
        with restoring(state):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    compute(self.raw)
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            # NCCL has a thread of its own that queries events meanwhile; in "global" mode that would end the capture.
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local" if is_initialized() else "global"):
                compute(self.raw)

    def __call__(self, raw: RawBatch) -> None:
        """One step on a new batch."""
        for captured, new in zip(self.raw, raw, strict=True):
            captured.copy_(new, non_blocking=True)
        self.graph.replay()


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Context in which, if `wanted`, torch uses deterministic algorithms only; restores the previous settings."""
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
