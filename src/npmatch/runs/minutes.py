"""The time of a run with --minutes: from the start of the command to its report.

What comes before training has passed when the steps are timed, and what comes after is estimated; training gets the
rest, but never less than half of the minutes.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace

import torch

from npmatch.config.tree import Config
from npmatch.data.check.inspection import inspect_file
from npmatch.data.loading import workers_or_default
from npmatch.data.sources.listing import Listing
from npmatch.data.split import trained_on
from npmatch.decide.novelty import MAX_IMAGES
from npmatch.distributed.ranks import on_rank_zero
from npmatch.predict.batches import predict_batch
from npmatch.report.formatting import duration
from npmatch.runs.build import Evaluator
from npmatch.training import Display, Trainer
from npmatch.training.pace import ENOUGH_SECONDS, fill_seconds, seconds_per_step
from npmatch.training.speed import is_compiled

ENOUGH_STEPS = 1000  # of the small layer on a frozen network
LEAST_SHARE = 0.5  # of the minutes: what training gets however long the rest takes
TIMED_SHARE, LEAST_TIMED = 0.02, 2.0  # of the minutes, and in seconds: how long steps are timed, at most ENOUGH_SECONDS
SAMPLED_FILES = 16  # that are inspected to estimate the time of the check
CHECKED_ON_TOP = 0.2e-3  # seconds for each file: its way between two processes, and the search for copies of it
PREDICTED_IMAGES = 64  # by which the time of a prediction is measured
# The estimate before anything was measured, on the CPU (False) and on CUDA (True): seconds to build a trainer, and to
# predict an image.
BUILDING = {False: 4.0, True: 15.0}
PREDICTION = {False: 2e-3, True: 0.2e-3}
SLOWER = 5  # times as long: the prediction by a network with learnt weights
WRITING = 3.0  # seconds: to write the model, the predictions and the report


def announce(config: Config, listing: Listing | None, minutes: float, device: torch.device, display: Display) -> None:
    """Says how long the run will take, as the first line of a command; `listing` names the files it will check."""
    files = [] if listing is None or not config.data.check else listing.files
    on_cuda = device.type == "cuda"
    before, after = BUILDING[on_cuda] + timed_seconds(minutes), WRITING
    if listing is not None:
        labeled, unlabeled, test = (listing.count(part).total() for part in ("labeled", "unlabeled", "test"))
        image = PREDICTION[on_cuda] * (SLOWER if config.backbone.pretrained else 1)
        after += image * predicted_images(config, labeled, labeled + unlabeled, test)
        before += seconds_to_check(listing, config) if files else 0.0
    training = training_seconds(minutes, before + after)
    checked = f"check and decode {len(files):,} images and to " if files else ""
    frozen = config.backbone.frozen
    work = f"for the features of the views and {ENOUGH_STEPS:,} steps" if frozen else "of training"
    display.say(
        f"{'at most' if frozen else 'about'} {about(before + training + after)} in all: {about(before)} to {checked}"
        f"get ready, {about(training)} {work}, {about(after)} to evaluate and report"
    )


def about(seconds: float) -> str:
    """A time that is not known exactly, in words: in whole seconds, from a minute on in multiples of five."""
    rounded = max(1, round(seconds)) if seconds < 57.5 else 5 * round(seconds / 5)
    return duration(rounded).replace(".0 s", " s").removesuffix(" 00 s")


def timed_seconds(minutes: float) -> float:
    """How long steps are timed."""
    return min(max(TIMED_SHARE * 60 * minutes, LEAST_TIMED), ENOUGH_SECONDS)


def predicted_images(config: Config, labeled: int, train: int, held_out: int, validation: int = 0) -> int:
    """Number of images that are predicted after training: by calibration, the last evaluation and the linear probe."""
    probe = labeled + held_out if config.backbone.pretrained else 0
    return min(train, MAX_IMAGES) + validation + held_out + probe


def training_seconds(minutes: float, others: float) -> float:
    """What training gets of the minutes, if everything else takes `others` seconds."""
    return max(60 * minutes - others, LEAST_SHARE * 60 * minutes)


def seconds_to_check(listing: Listing, config: Config) -> float:
    """Time of the check, estimated from some of the files."""
    sample = listing.files[:: max(1, len(listing.files) // SAMPLED_FILES)]
    inspect_file(listing.path(sample[0]), config.data.image_size)  # loads Pillow's decoders
    started = time.monotonic()
    for file in sample:
        inspect_file(listing.path(file), config.data.image_size)
    each = (time.monotonic() - started) / len(sample)
    workers = max(1, workers_or_default(config.data.workers))
    return len(listing.files) * (each / workers + CHECKED_ON_TOP)


def decide_compilation(config: Config, minutes: float, device: torch.device) -> Config:
    """The configuration that says whether the run is compiled, as its number of steps is not known yet."""
    if device.type != "cuda":
        return config
    compiled = is_compiled(config.training, device, minutes)
    return replace(config, training=replace(config.training, compile=compiled))


def fit_into_minutes(
    config: Config, trainer: Trainer, evaluator: Evaluator, minutes: float, given: Collection[str]
) -> Config:
    """The configuration with the number of steps that fits into what is left of the minutes, for the trainer too."""
    device, display, ema = evaluator.device, trainer.display, config.training.ema
    step, image = seconds_per_step(trainer, device, timed_seconds(minutes)), seconds_per_image(evaluator)
    split, held_out = evaluator.split, 0 if evaluator.held_out is None else len(evaluator.held_out)
    predicted = predicted_images(config, len(split.labeled), len(trained_on(split)), held_out, len(split.validation))
    after = WRITING + image * predicted
    # All ranks take the steps that rank zero has found.
    seconds, step, image = on_rank_zero(
        lambda: (training_seconds(minutes, display.clock.elapsed() + after), step, image)
    )
    if config.backbone.frozen and seconds > ENOUGH_STEPS * step:
        seconds = ENOUGH_STEPS * step
        display.say(f"{ENOUGH_STEPS:,} steps on a frozen network are enough: more would not lower the error")
    training = fill_seconds(trainer, seconds, step, image * held_out, given)
    display.say(f"{training.iterations:,} steps in {about(seconds)} of training")
    if training.ema < ema:
        display.say(f"training.ema={training.ema}: so few steps do not allow an average of decay {ema}")
    return replace(config, training=training)


def seconds_per_image(evaluator: Evaluator) -> float:
    """Time to predict one image in evaluation, of two attempts the faster."""
    store = evaluator.dataset.train.images
    index = torch.cat([evaluator.split.labeled, evaluator.split.unlabeled])[:PREDICTED_IMAGES]
    evaluator.algorithm.eval()
    taken = []
    with torch.compiler.set_stance("force_eager"):
        for _ in range(2):
            started = time.monotonic()
            predict_batch(evaluator.algorithm.predict, store.take(index), evaluator.spec, evaluator.device)
            taken.append(time.monotonic() - started)
    evaluator.algorithm.train()
    return min(taken) / len(index)
