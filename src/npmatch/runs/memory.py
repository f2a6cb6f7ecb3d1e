"""Batches that fit into a GPU's memory: tried before a run starts, and made smaller until they fit."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from npmatch.config.tree import Config
from npmatch.data import Dataset, RawBatch, Split
from npmatch.data.streams import free_memory
from npmatch.distributed.ranks import world_size
from npmatch.errors import NPMatchError
from npmatch.predict.batches import predict_batch
from npmatch.runs.build import Evaluator, build
from npmatch.training import Display, Trainer, TrainingConfig

EVALUATION = 1 / 8  # share of the free memory that a batch of evaluation may take
LEFT_FREE = 1 / 5  # share of the free memory that a step leaves to evaluation and to what falls between the blocks
FEWEST = 8  # labelled images of a step; where even so few do not fit, it takes fewer unlabelled ones for each
FEWEST_EVALUATED = 16  # images of a batch in evaluation
BATCH, RATIO, EVALUATED = "training.batch", "training.unlabeled_ratio", "training.eval_batch"
FITTED_KEYS = frozenset({BATCH, RATIO, EVALUATED})  # the keys that may be set here


def build_to_fit(
    config: Config,
    dataset: Dataset,
    split: Split,
    device: torch.device,
    display: Display,
    given: Collection[str] = (),
    features: Path | None = None,
) -> tuple[Config, Trainer, Evaluator]:
    """Builds the trainer and the evaluator of a new run, with batches that the device has the memory for.

    What does not fit is made smaller, which is shown and part of the configuration that is returned. A batch among the
    `given` keys, which a user has set, is an error in this case. The batches of several ranks are not tried.
    """
    trainer, evaluator = build(config, dataset, split, device, display, features=features)
    if not is_limited(device) or world_size() > 1:
        return config, trainer, evaluator
    before, fitting = config.training, fit_batches(trainer, evaluator, given)
    if fitting == before:
        return config, trainer, evaluator
    sizes = {
        BATCH: (before.batch, fitting.batch),
        RATIO: (before.unlabeled_ratio, fitting.unlabeled_ratio),
        EVALUATED: (before.eval_batch, fitting.eval_batch),
    }
    smaller = ", ".join(f"{key}={new} in place of {old}" for key, (old, new) in sizes.items() if new != old)
    display.say(f"{smaller}: more does not fit into the {total_memory(device)} of this GPU")
    config = replace(config, training=fitting)
    if (fitting.batch, fitting.unlabeled_ratio) == (before.batch, before.unlabeled_ratio):
        trainer.config, evaluator.batch = fitting, fitting.eval_batch
        return config, trainer, evaluator
    del trainer, evaluator  # their memory is needed
    clear_memory(device)
    return config, *build(config, dataset, split, device, display, features=features)


def fit_batches(trainer: Trainer, evaluator: Evaluator, given: Collection[str]) -> TrainingConfig:
    """The trainer's configuration with the largest of its halved batches that fit; leaves the trainer unchanged."""
    t, device = trainer.config, evaluator.device
    eval_batch = t.eval_batch
    while EVALUATED not in given and eval_batch > FEWEST_EVALUATED and not evaluation_fits(evaluator, eval_batch):
        eval_batch //= 2
    raw = next(iter(trainer.stream.batches(0, 1)))
    per_labeled = len(raw.index) / max(1, t.batch * t.unlabeled_ratio)  # below 1 if there are few unlabelled images

    def step_of_size_fits(size: tuple[int, int]) -> bool:
        batch, ratio = size
        unlabeled = round(per_labeled * batch * ratio)
        part = RawBatch(raw.x[:batch], raw.y[:batch], raw.u[:unlabeled], raw.index[:unlabeled], raw.labeled[:batch])
        return step_fits(trainer, part)

    size = next(filter(step_of_size_fits, smaller_steps(t, given)), None)
    if size is None:
        possible = next(filter(step_of_size_fits, smaller_steps(t, ())), None)
        needs = f"{BATCH}={t.batch} with {RATIO}={t.unlabeled_ratio} needs more memory than the {total_memory(device)}"
        if possible is None:
            raise NPMatchError(
                f"{needs} of this GPU, and so does every smaller batch; lower data.image_size, choose a smaller "
                "backbone.name, or --device cpu"
            )
        raise NPMatchError(f"{needs} of this GPU; {BATCH}={possible[0]} {RATIO}={possible[1]} would fit")
    return replace(t, batch=size[0], unlabeled_ratio=size[1], eval_batch=eval_batch)


def smaller_steps(training: TrainingConfig, given: Collection[str]) -> Iterator[tuple[int, int]]:
    """Labelled images of a step and unlabelled ones for each: as configured, then fewer and fewer."""
    batch, ratio = training.batch, training.unlabeled_ratio
    yield batch, ratio
    while BATCH not in given and batch >= 2 * FEWEST:
        batch //= 2
        yield batch, ratio
    while RATIO not in given and ratio > 1:
        ratio //= 2
        yield batch, ratio


def step_fits(trainer: Trainer, raw: RawBatch) -> bool:
    """Whether a step on this batch can be taken, and enough memory is left for evaluation."""
    device = raw.x.device

    def take_step() -> None:
        with torch.compiler.set_stance("force_eager"):  # needs at least the memory of a compiled step
            trainer.compute(raw)

    with trainer.trial(1):
        return fits(take_step, device, int(LEFT_FREE * free_memory(device)))


def evaluation_fits(evaluator: Evaluator, images: int) -> bool:
    """Whether so many images can be predicted at a time in the memory that a step leaves."""
    algorithm, spec, device = evaluator.algorithm, evaluator.spec, evaluator.device
    batch = torch.zeros((images, spec.channels, spec.stored_side, spec.stored_side), dtype=torch.uint8)
    precision = algorithm.model.autocast
    algorithm.eval()
    algorithm.model.autocast = None  # a finished model predicts in float32
    with torch.compiler.set_stance("force_eager"):
        result = fits(
            lambda: predict_batch(algorithm.predict, batch, spec, device),
            device,
            int((1 - EVALUATION) * free_memory(device)),
        )
    algorithm.model.autocast = precision
    algorithm.train()
    return result


def fits(work: Callable[[], object], device: torch.device, taken: int) -> bool:
    """Whether `work` can be done while `taken` bytes of the device's memory are not available."""
    held, fitted = None, True
    try:
        held = torch.empty(taken, dtype=torch.uint8, device=device)
        work()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        fitted = False
    del held
    clear_memory(device)
    return fitted


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device has run out of memory; cuDNN says instead that it finds no algorithm whose workspace fits."""
    signs = ("out of memory", "ALLOC_FAILED", "unable to find an engine")
    return isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in signs)


def is_limited(device: torch.device) -> bool:
    """Whether the device's memory is its own, and ends where a computation asks for too much."""
    return device.type == "cuda"


def clear_memory(device: torch.device) -> None:
    """Gives back the memory that nothing uses any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def total_memory(device: torch.device) -> str:
    """The memory that this process may use of a GPU, in words."""
    if device.type != "cuda":
        return "memory"
    share = torch.cuda.get_per_process_memory_fraction(device.index)
    return f"{share * torch.cuda.get_device_properties(device).total_memory / 2**30:.1f} GiB"
