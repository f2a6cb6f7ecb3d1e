"""How a run is trained: batches, optimiser, schedule, averaging, and how often it looks up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from npmatch.types import NonNegativeFloat, PositiveFloat, PositiveInt, Share, ShareBelowOne, Size

Schedule = Literal["cosine-7-16", "cosine-63-128", "constant"]


@dataclass(frozen=True)
class TrainingConfig:
    """The training part of a run's configuration; the defaults are the paper's for CIFAR-10."""

    iterations: PositiveInt = 2**20  # steps in all
    batch: Size = 64  # B, labelled images per step
    unlabeled_ratio: Size = 7  # μ, unlabelled images per labelled one: U = μ·B
    learning_rate: Annotated[float, Field(gt=0, le=1000)] = 0.03  # at the start of the schedule
    momentum: Share = 0.9  # of SGD
    nesterov: bool = True  # Nesterov's form of it
    weight_decay: NonNegativeFloat = 5e-4  # not on norms and biases
    schedule: Schedule = "cosine-7-16"  # the two cosines fall to 20 % and to 2 % of the rate
    clip: PositiveFloat | None = None  # largest gradient norm, of the backbone and of the rest apart
    ema: ShareBelowOne = 0.999  # decay of the averaged weights that evaluation and prediction use
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # of the backbone; auto: bfloat16 on CUDA
    graph: bool | None = None  # the step as one captured CUDA graph; None: on CUDA
    compile: bool | None = None  # views and loss through torch.compile; None: on CUDA, from 5000 iterations on
    start_from: str | None = None  # a run whose weights and split this one begins with
    deterministic: bool = False  # the same bits every time on a GPU too, at a cost
    sync_norm: bool = True  # on several ranks: batch norm over the global batch; false: over each rank's share
    max_bad_steps: PositiveInt = 10  # so many in a row whose loss or gradient is not finite end the run
    channels_last: bool = True  # on CUDA: the layout that bfloat16 convolutions want
    fused: bool | None = None  # a WRN's passes by our own kernels; None: on CUDA in bfloat16
    log_every: PositiveInt = 50  # steps between two lines of the log
    eval_every: PositiveInt = 5000  # steps between two looks at the test images
    checkpoint_every: PositiveInt = 5000  # steps between two checkpoints
    on_save_error: Literal["stop", "continue"] = "stop"  # where a checkpoint or the log cannot be written
    eval_batch: Size = 1024  # images at a time in evaluation
