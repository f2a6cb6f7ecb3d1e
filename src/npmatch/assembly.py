"""A run's parts, put together from its configuration: data, views, algorithm, loop, evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from npmatch.algorithms import Algorithm, find_algorithm
from npmatch.augment import make_policy
from npmatch.backbones import make_backbone
from npmatch.collective import copy_first_
from npmatch.config import Config
from npmatch.continuation import load_weights
from npmatch.data import (
    Dataset,
    ImageSet,
    Sampler,
    Split,
    Stream,
    load_configured,
    make_stream,
)
from npmatch.data.held_out import evaluation_set
from npmatch.data.identity import describe_data, refuse_unequal
from npmatch.draws import mix
from npmatch.heads import synchronise_norms
from npmatch.metrics import scores
from npmatch.passes import predict_together
from npmatch.ranks import from_first, joined, my_share, world
from npmatch.run_folder import find_split, is_run, refuse_other_data, start_folder
from npmatch.saved_model import ModelCard
from npmatch.training import (
    EMA,
    Checkpoints,
    Display,
    Meter,
    Recorder,
    Trainer,
    Unrecorded,
    Unsaved,
    Update,
    ViewMaker,
    filled_decay,
)
from npmatch.training.checkpoint import Parts
from npmatch.training.compilation import compile_step, is_compiled, use_fused_kernels
from npmatch.training.pace import AT_LEAST, steps_within
from npmatch.types import NPMatchError, Prediction, Task, Views

LOOKS = 10  # evaluations and checkpoints along a run of some minutes


@dataclass
class Evaluator:
    """The averaged model on the held-out images."""

    algorithm: Algorithm
    ema: EMA
    held_out: ImageSet | None
    card: ModelCard
    device: torch.device
    batch: int
    dataset: Dataset
    split: Split

    def predict(self) -> Prediction | None:
        """What it says of them; nothing where there are none."""
        if self.held_out is None:
            return None
        self.algorithm.eval()
        with self.ema.applied(), torch.compiler.set_stance("force_eager"):  # compiled for training's shapes alone
            prediction = predict_together(
                self.algorithm.predict, self.held_out.images, self.card, self.device, self.batch
            )
        self.algorithm.train()
        return prediction

    def scores(self, prediction: Prediction | None) -> dict[str, float]:
        """What that is worth."""
        if self.held_out is None or prediction is None:
            return {}
        return scores(prediction, self.held_out.labels).asdict()

    def __call__(self) -> dict[str, float]:
        """Both, for the loop."""
        return self.scores(self.predict())


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


def assemble(
    config: Config,
    dataset: Dataset,
    split: Split,
    device: torch.device,
    display: Display,
    stream: Stream | None = None,
) -> tuple[Trainer, Evaluator]:
    """The loop at its first step, on data in memory; it leaves nothing on disk."""
    t = config.training
    algorithm = build_algorithm(config, dataset, split, device)
    make_views = ViewMaker(
        make_policy(config.augment, dataset.train.images.shape, dataset.mean),
        algorithm.views,
        dataset.mean,
        dataset.std,
        t.channels_last,
    )
    sampler = make_sampler(config, split, algorithm.views, display)
    d = config.data
    if stream is None:
        stream = make_stream(dataset, split, sampler, device, d.resident, d.resident_share, d.workers, my_share())
    update = Update(algorithm, t)
    evaluator = Evaluator(
        algorithm,
        update.ema,
        evaluation_set(dataset, split),
        make_card(config, dataset, split),
        device,
        t.eval_batch,
        dataset,
        split,
    )
    trainer = Trainer(
        algorithm=algorithm,
        update=update,
        stream=stream,
        make_views=make_views,
        meter=Meter(len(dataset.class_names), labels_to_judge_by(dataset, split).to(device)),
        recorder=Unrecorded(),
        checkpoints=Unsaved(),
        display=display,
        evaluate=evaluator,
        config=t,
        seed=config.seed,
    )
    use_fused_kernels(trainer, dataset.train.images.shape)
    if is_compiled(t, device):
        compile_step(trainer)
    return trainer, evaluator


def start_from(trainer: Trainer, run: Path) -> None:
    """Another run's weights, as the weights and as their average; momentum and schedule stay at their beginning."""
    load_weights(trainer.algorithm, run)
    trainer.update.ema.load_state_dict(trainer.update.ema.live)


def build_algorithm(config: Config, dataset: Dataset, split: Split, device: torch.device) -> Algorithm:
    """The algorithm with fresh weights, a function of the configuration and its seed."""
    torch.manual_seed(mix(config.seed, "weights"))
    task = Task(dataset.class_names, len(split.labeled), len(split.unlabeled))
    backbone = make_backbone(config.backbone, dataset.train.images.shape[0])
    algorithm = find_algorithm(config.name)(backbone, task, config.algorithm).to(device)
    t, on_cuda = config.training, device.type == "cuda"
    if joined() and t.sync_norm:
        synchronise_norms(algorithm)
    if on_cuda and t.channels_last:
        algorithm = algorithm.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if t.precision == "bfloat16" or (t.precision == "auto" and on_cuda):
        algorithm.model.autocast = torch.bfloat16
    return algorithm


def labels_to_judge_by(dataset: Dataset, split: Split) -> Tensor:
    """What is known of the unlabelled images, for the log alone: their labels, −1 where one is unknown or learnt from.

    The unlabelled set has the labelled images in it. That they get the right pseudo-labels says nothing of the others.
    """
    labels = dataset.train.labels.clone()
    labels[split.labeled] = -1
    return labels[split.unlabeled]


def make_sampler(config: Config, split: Split, views: Views, display: Display) -> Sampler:
    """Which images each step sees; an unlabelled batch is never larger than the unlabelled set."""
    t, available, ranks = config.training, len(split.unlabeled), world()
    if t.batch % ranks:
        near = max(t.batch // ranks, 1) * ranks
        raise NPMatchError(f"training.batch={t.batch}: {ranks} ranks take equal shares; use {near} or {near + ranks}")
    learns_from_unlabeled = views.weak + views.strong > 0
    if learns_from_unlabeled and available < ranks:
        raise NPMatchError(
            f"{config.data.source}: no unlabelled image is left to learn from; give some, set "
            "data.include_labeled=true, or --algorithm supervised"
        )
    unlabeled = t.batch * t.unlabeled_ratio if learns_from_unlabeled else 0
    if unlabeled > available:
        fewer = available - available % ranks
        display.say(f"unlabelled batch: {fewer} images, as there are fewer than {unlabeled}")
        unlabeled = fewer
    return Sampler(config.seed, len(split.labeled), available, t.batch, unlabeled)


def make_card(config: Config, dataset: Dataset, split: Split) -> ModelCard:
    """What prediction needs to know beside the weights."""
    channels, side, _ = dataset.train.images.shape
    return ModelCard(
        algorithm=config.name,
        algorithm_config=config.nested()["algorithm"],
        backbone_config=config.nested()["backbone"],
        class_names=tuple(dataset.class_names),
        channels=channels,
        stored_side=side,
        side=config.augment.size or side,
        mean=dataset.mean,
        std=dataset.std,
        num_labeled=len(split.labeled),
    )
