"""How a step is made fast on CUDA: hand-written kernels for the network, torch.compile for what is around it."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from npmatch.algorithms.base import Algorithm
from npmatch.backbones import WideResNet
from npmatch.ranks import joined
from npmatch.training.config import TrainingConfig
from npmatch.training.loop import Trainer

# Compiling takes about a minute and saves some milliseconds a step: a short run ends sooner without.
WORTH_COMPILING = 5000  # iterations

OPTIONS: dict[str, Any] = {"fallback_random": True}  # torch's own draws: a compiled step draws alike


def is_compiled(config: TrainingConfig, device: torch.device) -> bool:
    """Whether a run compiles: as it is told, else on CUDA when it is long enough."""
    if config.compile is not None:
        return config.compile
    if joined() and config.sync_norm:  # every synchronised norm cuts the program in two, and little is left to compile
        return False
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
