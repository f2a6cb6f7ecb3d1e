"""The parts of a run, built from its configuration and its data: views, algorithm, training loop, evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from npmatch.algorithms import Algorithm, find_algorithm
from npmatch.augment import make_policy
from npmatch.backbones import make_backbone
from npmatch.backbones.frozen import FrozenTrunk
from npmatch.backbones.weights import input_facts
from npmatch.config.tree import Config
from npmatch.data import Dataset, ImageSet, Sampler, Split, make_stream
from npmatch.data.images import SelectedImages
from npmatch.data.split import evaluation_set
from npmatch.distributed.ranks import is_initialized, is_rank_zero, local_share, world_size
from npmatch.draws import mix
from npmatch.errors import NPMatchError
from npmatch.heads import ContextHead, backbones_in, synchronise_norms
from npmatch.metrics import outlier_auroc, scores
from npmatch.predict.batches import describe_store, predict_together
from npmatch.predict.saved import ModelSpec
from npmatch.runs.cluster_labels import pretrained_views, wants_cluster_labels, with_cluster_labels
from npmatch.runs.features import ViewActivations, learnt_from, view_activations
from npmatch.training import EMA, Display, Meter, Trainer, Unrecorded, Unsaved, Update, ViewMaker
from npmatch.training.cached_views import CachedViews, rows_as_images
from npmatch.training.speed import compile_step, is_compiled, use_fused_kernels
from npmatch.types import ImageStore, Prediction, Task, Views


@dataclass
class Evaluator:
    """Evaluates the averaged weights on the held-out images."""

    algorithm: Algorithm
    ema: EMA
    held_out: ImageSet | None
    spec: ModelSpec
    device: torch.device
    batch: int
    dataset: Dataset
    split: Split

    def predict(self) -> Prediction | None:
        """The prediction of the held-out images with the averaged weights; None if there are no such images."""
        return None if self.held_out is None else self._predict(self.held_out.images)

    def _predict(self, images: ImageStore) -> Prediction:
        with self.averaged():
            return predict_together(self.algorithm.predict, images, self.spec, self.device, self.batch)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Context in which the algorithm predicts with the averaged weights, as a saved model does."""
        self.algorithm.eval()
        with self.ema.applied(), torch.compiler.set_stance("force_eager"):  # it is compiled for training's shapes only
            head = self.algorithm.model.head
            if isinstance(head, ContextHead):
                head.set_context(*self._context())
                head.freeze()
            try:
                yield
            finally:
                self.algorithm.train()

    def _context(self) -> tuple[Tensor, Tensor, Tensor]:
        """The images that a process predicts from, with the averaged weights: features N F, labels N, trusted N."""
        positions, y = self.split.labeled, self.dataset.train.labels[self.split.labeled]
        trusted = torch.zeros_like(y, dtype=torch.bool)
        if (found := self.algorithm.trusted_images()) is not None:
            index, pseudo = (part.cpu() for part in found)
            positions, y = torch.cat([positions, self.split.unlabeled[index]]), torch.cat([y, pseudo])
            trusted = torch.cat([trusted, torch.ones_like(pseudo, dtype=torch.bool)])
        images = SelectedImages(self.dataset.train.images, positions)
        _, features = describe_store(self.algorithm.model, images, self.spec, self.device, self.batch)
        return features.to(self.device), y.to(self.device), trusted.to(self.device)

    def scores(self, prediction: Prediction | None) -> dict[str, float]:
        """Error and calibration error of a prediction of the held-out images; empty without a prediction."""
        if self.held_out is None or prediction is None:
            return {}
        return scores(prediction, self.held_out.labels).asdict()

    def outlier_scores(self, prediction: Prediction | None) -> dict[str, float]:
        """How well foreign test images are told from those of `prediction`; empty without such images."""
        foreign = self.dataset.foreign_test
        if prediction is None or foreign is None:
            return {}
        return {"outlier_auroc": outlier_auroc(prediction, self._predict(foreign.images))}

    def __call__(self) -> dict[str, float]:
        """The scores of the current averaged weights, for the training loop."""
        return self.scores(self.predict())


def build(
    config: Config,
    dataset: Dataset,
    split: Split,
    device: torch.device,
    display: Display,
    load_weights: bool = True,
    features: Path | None = None,
) -> tuple[Trainer, Evaluator]:
    """The training loop at its first step, and its evaluator; nothing is written to disk before a log is opened.

    A run that starts from a checkpoint or from another run does not need `load_weights`, its pretrained weights. The
    folder `features` keeps the activations of a frozen network.
    """
    t, d = config.training, config.data
    dataset = normalised_for(config, dataset)
    cached, learnt_set, learnt = prepare_views(config, dataset, split, device, display, features)
    algorithm = build_algorithm(config, learnt_set, learnt, device, load_weights)
    make_views, streamed, positions = make_view_maker(config, learnt_set, learnt, algorithm, cached)
    sampler = make_sampler(config, learnt, algorithm.views, display)
    stream = make_stream(streamed, positions, sampler, device, d.resident, d.resident_share, d.workers, local_share())
    update = Update(algorithm, t)
    evaluator = Evaluator(
        algorithm,
        update.ema,
        evaluation_set(dataset, split),
        make_spec(config, dataset, split),
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
        meter=Meter(len(dataset.class_names), diagnostic_labels(dataset, split).to(device)),
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


def prepare_views(
    config: Config, dataset: Dataset, split: Split, device: torch.device, display: Display, features: Path | None
) -> tuple[ViewActivations | None, Dataset, Split]:
    """The views that are computed before training, for a frozen network, and what is learnt from: data set and split.

    Where the configuration asks for labels from clusters, images that have got one are among the labelled ones.
    """
    used = learnt_from(split, find_algorithm(config.name).views)
    cached = view_activations(config, dataset, used, device, features, display) if config.backbone.frozen else None
    if not wants_cluster_labels(config):
        return cached, dataset, split
    if cached is None:
        f = pretrained_views(config, dataset, used, device, features, display)
    else:
        f = cached.weak.mean(0, dtype=torch.float32)
    return cached, *with_cluster_labels(config, dataset, split, used, f, display)


def make_view_maker(
    config: Config, dataset: Dataset, split: Split, algorithm: Algorithm, cached: ViewActivations | None
) -> tuple[ViewMaker | CachedViews, Dataset, Split]:
    """What makes a step's views, and the data set and split whose images are streamed to it.

    From a frozen network the views are cached activations, and row numbers are streamed in place of images.
    """
    if cached is None:
        policy = make_policy(config.augment, dataset.train.images.shape, dataset.mean)
        channels_last = config.training.channels_last
        return ViewMaker(policy, algorithm.views, dataset.mean, dataset.std, channels_last), dataset, split
    used = learnt_from(split, algorithm.views)
    examples = cached.weak.flatten(0, 1).float()
    for module in backbones_in(algorithm):  # more than one where there is a teacher
        assert isinstance(module, FrozenTrunk)
        module.standardise(examples)
    train = ImageSet(rows_as_images(len(used)), dataset.train.labels[used])
    parts = (part[torch.isin(part, used)] for part in (split.labeled, split.unlabeled))
    labeled, unlabeled = (torch.searchsorted(used, part) for part in parts)
    rows = replace(split, labeled=labeled, unlabeled=unlabeled)
    return CachedViews(cached.weak, cached.strong, algorithm.views), replace(dataset, train=train), rows


def normalised_for(config: Config, dataset: Dataset) -> Dataset:
    """The data set with the mean and standard deviation of the images that pretrained weights were learnt from."""
    facts = input_facts(config.backbone)
    if facts is None:
        return dataset
    channels = dataset.train.images.shape[0]
    mean, std = (values if channels == len(values) else values[:1] for values in facts)
    return replace(dataset, mean=mean, std=std)


def build_algorithm(
    config: Config, dataset: Dataset, split: Split, device: torch.device, load_weights: bool = True
) -> Algorithm:
    """The algorithm with initial weights, which follow from the configuration and its seed."""
    torch.manual_seed(mix(config.seed, "weights"))
    labels = torch.bincount(dataset.train.labels[split.labeled], minlength=len(dataset.class_names))
    task = Task(dataset.class_names, len(split.labeled), len(split.unlabeled), tuple(labels.tolist()))
    # Other ranks may be on machines that do not have the file; they get the weights from rank zero. A frozen network is
    # used before that.
    load = config.backbone.frozen or (load_weights and is_rank_zero())
    backbone = make_backbone(config.backbone, dataset.train.images.shape[0], load)
    algorithm = find_algorithm(config.name)(backbone, task, config.algorithm).to(device)
    t, on_cuda = config.training, device.type == "cuda"
    if is_initialized() and not t.sync_norm and getattr(config.algorithm, "weak_norm", None) == "shared":
        raise NPMatchError(
            "training.sync_norm=false: algorithm.weak_norm=shared normalises over all ranks; set it to joint or own"
        )
    if is_initialized() and t.sync_norm:
        for module in backbones_in(algorithm):  # each sees this rank's share of a batch only
            synchronise_norms(module)
    if on_cuda and t.channels_last:
        algorithm = algorithm.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if t.precision == "bfloat16" or (t.precision == "auto" and on_cuda):
        algorithm.model.autocast = torch.bfloat16
    return algorithm


def diagnostic_labels(dataset: Dataset, split: Split) -> Tensor:
    """Labels of the unlabelled set, U, with which the log measures pseudo-labels; −1 where unknown or trained on.

    The unlabelled set contains the labelled images. Correct pseudo-labels of those say nothing about the others.
    """
    labels = dataset.train.labels.clone()
    labels[split.labeled] = -1
    return labels[split.unlabeled]


def refuse_unequal_shares(batch: int, ranks: int) -> None:
    """Refuses a global batch that cannot be divided into equal shares, and suggests one that can."""
    if batch % ranks:
        near = max(batch // ranks, 1) * ranks
        raise NPMatchError(f"training.batch={batch}: {ranks} ranks take equal shares; use {near} or {near + ranks}")


def make_sampler(config: Config, split: Split, views: Views, display: Display) -> Sampler:
    """The sampler of each step's images; an unlabelled batch is never larger than the unlabelled set."""
    t, available, ranks = config.training, len(split.unlabeled), world_size()
    refuse_unequal_shares(t.batch, ranks)
    if views.uses_unlabeled and available < ranks:
        raise NPMatchError(
            f"{config.data.source}: there are no unlabelled images to learn from; give some, set "
            "data.include_labeled=true, or use --algorithm supervised"
        )
    unlabeled = t.batch * t.unlabeled_ratio if views.uses_unlabeled else 0
    if unlabeled > available:
        fewer = available - available % ranks
        display.say(f"unlabelled batch: {fewer} images, because there are fewer than {unlabeled}")
        unlabeled = fewer
    return Sampler(config.seed, len(split.labeled), available, t.batch, unlabeled)


def make_spec(config: Config, dataset: Dataset, split: Split) -> ModelSpec:
    """The model's specification, which prediction needs besides the weights."""
    channels, side, _ = dataset.train.images.shape
    return ModelSpec(
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
