"""Settings of training: batches, optimiser, schedule, averaged weights, speed, log, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from npmatch.types import NonNegativeFloat, PositiveFloat, PositiveInt, Share, ShareBelowOne, Size

Schedule = Literal["cosine-7-16", "cosine-63-128", "constant"]


@dataclass(frozen=True)
class TrainingConfig:
    """The training part of a run's configuration; the defaults are the paper's for CIFAR-10."""

    iterations: PositiveInt = 2**20  # number of training steps
    batch: Size = 64  # B, labelled images per step
    unlabeled_ratio: Size = 7  # μ, unlabelled images per labelled one: U = μ·B
    optimizer: Literal["sgd", "adamw", "muon"] = "sgd"  # adamw suits transformers; muon: of convolutions, SGD of others
    filter_angle: Annotated[float, Field(gt=0, le=3)] = 0.02  # muon: radians that filters turn by, at the start
    learning_rate: Annotated[float, Field(gt=0, le=1000)] = 0.03  # learning rate at the start of the schedule
    backbone_rate: Share = 1.0  # learning rate of the backbone, as a share of the head's
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0  # timm only: factor of the rate from layer to layer
    head_first: ShareBelowOne = 0.0  # share of the steps in which the head alone is trained
    warm_up: ShareBelowOne = 0.0  # share of the steps in which the learning rate rises from zero
    momentum: Share = 0.9  # momentum of SGD
    nesterov: bool = True  # whether the momentum is Nesterov's
    weight_decay: NonNegativeFloat = 5e-4  # weight decay; norms, biases and filters turned by muon have none
    schedule: Schedule = "cosine-7-16"  # of the learning rate; the cosines end at 20 % and 2 % of its start
    clip: PositiveFloat | None = None  # largest gradient norm, applied to the backbone and to the rest separately
    ema: ShareBelowOne = 0.999  # decay of the averaged weights that evaluation and prediction use
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # arithmetic of the backbone; auto: bfloat16 on CUDA
    graph: bool | None = None  # replay each step as one captured CUDA graph; None: on CUDA
    compile: bool | None = None  # compile views and loss by torch.compile; None: on CUDA, from 25000 iterations on
    cluster_labels: Annotated[int, Field(ge=0, le=10**6)] = 0  # unlabelled images of each class that clusters label
    start_from: str | None = None  # a run whose weights and split this one starts with
    deterministic: bool = False  # repeat a run to the bit on a GPU too, at a cost in speed
    sync_norm: bool = True  # on several ranks: batch norm over the global batch; false: over each rank's share
    max_bad_steps: PositiveInt = 10  # stop after this many steps in a row whose loss or gradient is not finite
    channels_last: bool = True  # memory layout of images on CUDA; faster for bfloat16 convolutions
    fused: bool | None = None  # run a WRN's training passes by fused kernels; None: on CUDA in bfloat16
    log_every: PositiveInt = 50  # steps between two lines of the log
    eval_every: PositiveInt = 5000  # steps between two evaluations on the test images
    checkpoint_every: PositiveInt = 5000  # steps between two checkpoints
    on_save_error: Literal["stop", "continue"] = "stop"  # what to do where a checkpoint or the log cannot be written
    eval_batch: Size = 1024  # images per batch in evaluation
