"""A run at its start, or where it stopped: its data, split and pace, the trainer, its folder, the last checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from npmatch.assembly import Evaluator, assemble, refuse_unequal_shares
from npmatch.collective import copy_first_
from npmatch.config import Config
from npmatch.continuation import load_weights
from npmatch.data import Dataset, Split, Stream, load_configured
from npmatch.data.identity import describe_data, refuse_unequal
from npmatch.ranks import from_first, world
from npmatch.run_folder import find_split, is_run, refuse_other_data, start_folder
from npmatch.training import Checkpoints, Display, Recorder, Trainer, filled_decay
from npmatch.training.checkpoint import Parts
from npmatch.training.pace import AT_LEAST, steps_within
from npmatch.types import NPMatchError

LOOKS = 10  # evaluations and checkpoints along a run of some minutes


def build_trainer(
    config: Config,
    folder: Path,
    device: torch.device,
    quiet: bool,
    allow_change: bool = False,
    minutes: float | None = None,
) -> tuple[Trainer, Evaluator]:
    """Data → views → algorithm → loop, at the folder's newest checkpoint where it has one.

    The folder is touched last: where the data or a setting turns out to be unusable, no half-started run is left.
    With `minutes` given the trainer's configuration has as many iterations as fit into them.
    """
    refuse_unequal_shares(config.training.batch, world())  # before a look at all images, which may take long
    display = Display(config.recipe or config.data.source, config.training.iterations, quiet)
    dataset = load_configured(config.data)
    split, quarantine = from_first(lambda: find_split(dataset, config, folder, display, allow_change))
    data = describe_data(dataset, split)
    refuse_unequal(data)
    from_first(lambda: refuse_other_data(folder, data, allow_change, display))
    stream = None
    if minutes is not None:
        usual = config.training.ema
        config, stream = paced(config, dataset, split, device, minutes)
        display = Display(config.recipe or config.data.source, config.training.iterations, quiet)
        display.say(f"{config.training.iterations} steps should take {minutes:g} min here")
        if config.training.ema < usual:
            display.say(f"training.ema={config.training.ema}: so few steps do not fill an average of decay {usual}")
    trainer, evaluator = assemble(config, dataset, split, device, display, stream)
    checkpoints = Checkpoints(folder / "checkpoints")
    latest = from_first(lambda: checkpoints.load_latest(display.warn))  # not every machine need see the folder
    if latest is None and config.training.start_from is not None:
        source = Path(config.training.start_from)
        from_first(lambda: start_from(trainer, source))
        display.say(f"starting from {source} with {len(split.labeled)} labelled images")
    if latest is not None:
        take_up(trainer, checkpoints.folder, *latest)  # first: a folder whose state does not fit stays as it is
    resuming = is_run(folder)

    def open_log() -> None:
        start_folder(folder, config, split, data, quarantine, device)
        trainer.checkpoints = checkpoints
        step, parts = latest or (None, Parts())
        trainer.open_log(Recorder(folder, resume_at=step), parts.get("log", {}))

    from_first(open_log)
    if latest is not None:
        display.say(f"resuming {folder} at step {trainer.step}")
    elif resuming:
        display.say(f"{folder}: no checkpoint yet, starting at the first step")
    copy_first_(trainer.state())  # machines may differ in the last bit of a drawn weight
    return trainer, evaluator


def take_up(trainer: Trainer, folder: Path, step: int, parts: Parts) -> None:
    """The state of a checkpoint in `folder`."""
    try:
        trainer.restore(step, parts)
    except NPMatchError as error:
        raise NPMatchError(f"{folder}: {error}") from error
    if step > trainer.config.iterations:
        trainer.display.warn(
            f"{folder}: is at step {step}, beyond training.iterations={trainer.config.iterations}: no step is left to "
            "take, the model will be the one of that step"
        )


def paced(
    config: Config, dataset: Dataset, split: Split, device: torch.device, minutes: float
) -> tuple[Config, Stream]:
    """`config` with the iterations that fit into `minutes`, and the stream they were measured on: it has the images."""
    t = config.training
    long = replace(config, training=replace(t, iterations=max(AT_LEAST, t.iterations)))
    trainer, _ = assemble(long, dataset, split, device, Display("", 0, quiet=True))
    measured = steps_within(minutes, trainer, device)
    iterations = from_first(lambda: measured)
    # An interval longer than the run would leave it without a curve, and a stopped one with nothing to go on from.
    eval_every, checkpoint_every = (
        interval if interval <= iterations else max(1, iterations // LOOKS)
        for interval in (t.eval_every, t.checkpoint_every)
    )
    ema = filled_decay(t.ema, iterations)
    t = replace(t, iterations=iterations, eval_every=eval_every, checkpoint_every=checkpoint_every, ema=ema)
    return replace(config, training=t), trainer.stream


def start_from(trainer: Trainer, run: Path) -> None:
    """Another run's weights, as the weights and as their average; momentum and schedule stay at their beginning."""
    load_weights(trainer.algorithm, run)
    trainer.update.ema.load_state_dict(trainer.update.ema.live)
