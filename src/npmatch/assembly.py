"""A run's parts, put together from its configuration: data, views, algorithm, loop, evaluation."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from npmatch.algorithms import Algorithm, find_algorithm
from npmatch.augment import make_policy
from npmatch.backbones import make_backbone
from npmatch.collective import copy_first_
from npmatch.config import Config, write_config
from npmatch.continuation import continued_split, load_weights
from npmatch.data import (
    Dataset,
    ImageSet,
    Sampler,
    Split,
    Stream,
    fingerprint,
    load_configured,
    make_split,
    make_stream,
)
from npmatch.data.findings import Quarantined
from npmatch.data.held_out import evaluation_set
from npmatch.data.identity import changes, describe_data
from npmatch.data.split import without
from npmatch.draws import mix
from npmatch.heads import synchronise_norms
from npmatch.metrics import scores
from npmatch.predict import ModelCard, predict_together
from npmatch.quarantine import check_first, positions_of, write_quarantine
from npmatch.ranks import from_first, is_first, joined, my_share, rank, world
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
    write_atomically,
)
from npmatch.training.compilation import compile_step, is_compiled, use_fused_kernels
from npmatch.training.pace import AT_LEAST, steps_within
from npmatch.types import NPMatchError, Prediction, Task, Views
from npmatch.version import __version__

STARTED = (
    "split.json",
    "data.json",
    "quarantine.json",
    "environment.json",
)  # written, in this order, before config.yaml
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
    split = share_split(dataset, split)
    data = describe_data(dataset, split)
    from_first(lambda: refuse_other_data(folder, data, allow_change, display))
    stream = None
    if minutes is not None:
        config, stream = paced(config, dataset, split, device, minutes)
        display = Display(config.recipe or config.data.source, config.training.iterations, quiet)
        display.say(f"{config.training.iterations} steps should take {minutes:g} min here")
    trainer, evaluator = assemble(config, dataset, split, device, display, stream)
    checkpoints = Checkpoints(folder / "checkpoints")
    latest = from_first(lambda: checkpoints.load_latest(display.warn))  # not every machine need see the folder
    if latest is None and config.training.start_from is not None:
        source = Path(config.training.start_from)
        from_first(lambda: start_from(trainer, source))
        display.say(f"starting from {source} with {len(split.labeled)} labelled images")
    resuming = is_run(folder)
    from_first(lambda: start_folder(folder, config, split, data, quarantine, device))
    if is_first():
        trainer.checkpoints = checkpoints
        trainer.recorder = Recorder(folder, resume_at=latest[0] if latest else None)
    if latest is not None:
        trainer.restore(*latest)
        display.say(f"resuming {folder} at step {trainer.step}")
    elif resuming:
        display.say(f"{folder}: no checkpoint yet, starting at the first step")
    copy_first_(trainer.state())  # machines may differ in the last bit of a drawn weight
    return trainer, evaluator


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
    t = replace(t, iterations=iterations, eval_every=eval_every, checkpoint_every=checkpoint_every)
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
        meter=Meter(len(dataset.class_names), dataset.train.labels[split.unlabeled].to(device)),
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


def make_sampler(config: Config, split: Split, views: Views, display: Display) -> Sampler:
    """Which images each step sees; an unlabelled batch is never larger than the unlabelled set."""
    t, available, ranks = config.training, len(split.unlabeled), world()
    if t.batch % ranks:
        near = max(t.batch // ranks, 1) * ranks
        raise NPMatchError(f"training.batch={t.batch}: {ranks} ranks take equal shares; use {near} or {near + ranks}")
    unlabeled = t.batch * t.unlabeled_ratio if views.weak + views.strong else 0
    if unlabeled > available:
        fewer = available - available % ranks
        display.say(f"unlabelled batch: {fewer} images, as there are fewer than {unlabeled}")
        unlabeled = fewer
    return Sampler(config.seed, len(split.labeled), available, t.batch, unlabeled)


def is_run(folder: Path) -> bool:
    """Whether a run was started there: config.yaml is the last thing its start writes."""
    return (folder / "config.yaml").exists()


def share_split(dataset: Dataset, split: Split) -> Split:
    """The first rank's split, where this rank has the data it was made for."""
    if not is_first() and split.fingerprint != fingerprint(dataset):
        raise NPMatchError(
            f"rank {rank()}: images, labels, classes or file names differ from the first rank's; "
            "give every machine the same data"
        )
    return split


def find_split(
    dataset: Dataset, config: Config, folder: Path, display: Display, allow_change: bool = False
) -> tuple[Split, list[Quarantined] | None]:
    """The run's own split, that of the run it starts from, the one the configuration names, or a fresh one.

    The latter two with the files that a look at all images found unusable; None where nobody had to look.
    """
    d, own = config.data, folder / "split.json"
    if is_run(folder) and not (allow_change and Split.load(own).fingerprint != fingerprint(dataset)):
        return Split.load(own, dataset), None
    if config.training.start_from is not None:
        return continued_split(config, dataset), None
    quarantine = check_first(config, display)
    train, test = positions_of(quarantine, dataset)
    if d.split is not None:
        split = Split.load(Path(d.split), dataset)
    else:
        split = make_split(dataset, d.labels, config.seed, d.validation, d.include_labeled, train)
    return without(split, train, test), quarantine


def refuse_other_data(folder: Path, data: dict[str, Any], allow_change: bool, display: Display) -> None:
    """A run goes on with the data and the split it was started with, unless told otherwise."""
    path = folder / "data.json"
    if not is_run(folder) or not path.exists():
        return
    try:
        changed = changes(json.loads(path.read_text(encoding="utf-8")), data)
    except (ValueError, AttributeError) as error:
        raise NPMatchError(f"{path}: not what npmatch wrote ({error}); restore or remove it") from error
    if changed and not allow_change:
        raise NPMatchError(
            f"{folder}: was started with other data ({'; '.join(changed)}); bring that back, choose another --out, or "
            "add --allow-change"
        )
    if changed:
        display.warn(f"{folder}: going on with other data ({'; '.join(changed)})")


def start_folder(
    folder: Path,
    config: Config,
    split: Split,
    data: dict[str, Any],
    quarantine: list[Quarantined] | None,
    device: torch.device,
) -> None:
    """What a run's folder holds from its first step on; config.yaml last, because it is what makes it a run."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        split.save(folder / "split.json")
        write_atomically(folder / "data.json", json.dumps(data, indent=2).encode())
        write_quarantine(folder, quarantine)
        write_atomically(folder / "environment.json", json.dumps(environment(config, device), indent=2).encode())
        write_config(config, folder / "config.yaml")
    except OSError as error:
        raise NPMatchError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from error


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


def environment(config: Config, device: torch.device) -> dict[str, Any]:
    """Versions, device and seed of a run."""
    import torchvision

    return {
        "npmatch": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "ranks": world(),
        "seed": config.seed,
        "commit": _commit(),
    }


def written_version(folder: Path) -> str | None:
    """The version of npmatch that wrote a run's folder, where it says so."""
    try:
        return str(json.loads((folder / "environment.json").read_text(encoding="utf-8"))["npmatch"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _commit() -> str | None:
    """The commit npmatch runs from, where it runs from a checkout."""
    import subprocess

    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    found = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
