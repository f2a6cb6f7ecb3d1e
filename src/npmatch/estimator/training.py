"""Training on arrays in memory, with the same defaults and the same loop as `npmatch train`."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from npmatch.algorithms import Algorithm, find_algorithm
from npmatch.backbones.weights import with_weights
from npmatch.config.choices import make_choices
from npmatch.config.facts import DataFacts
from npmatch.config.recipes import OWN_IMAGES
from npmatch.config.tree import Config, make_config
from npmatch.data import ArrayImages, make_split
from npmatch.errors import InterruptedRunError, NPMatchError
from npmatch.estimator.arrays import Rows
from npmatch.predict.saved import ModelSpec
from npmatch.runs.memory import build_to_fit
from npmatch.runs.resume_from import load_state
from npmatch.training import Display, TrainingConfig
from npmatch.training.nonfinite import NotFiniteError
from npmatch.types import Dataset, ImageSet

ITERATIONS = 1500  # of a network that starts from scratch


class Trained(NamedTuple):
    """The result of training: the algorithm with averaged weights, and the specification that prediction needs."""

    algorithm: Algorithm
    spec: ModelSpec
    iterations: int


def train_on_arrays(
    rows: Rows,
    pixels: Tensor,  # uint8 n C S S
    labels: Tensor,  # n, −1 if unlabelled
    *,
    class_names: tuple[str, ...],
    algorithm: str,
    iterations: int | None,
    seed: int,
    device: torch.device,
    warm_start: Algorithm | None = None,
) -> Trained:
    """Trains as `runs.fit` does, without files; with `warm_start`, from the state of that algorithm."""
    dataset = make_dataset(pixels, labels, class_names)
    config = choose_config(algorithm, iterations, seed, rows, dataset, device)
    split = make_split(dataset, None, seed)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        display = Display("", config.training.iterations, quiet=True)
        _, trainer, evaluator = build_to_fit(config, dataset, split, device, display)
        if warm_start is not None:
            load_state(trainer.algorithm, warm_start.state_dict(), origin="warm_start")
            trainer.update.ema.load_state_dict(trainer.update.ema.live)
        try:
            trainer.run()
        except NotFiniteError as error:
            raise NPMatchError(f"{error.what}: these images cannot be learnt with the default settings") from error
        except InterruptedRunError as error:  # its message is about resuming, but nothing was saved
            raise KeyboardInterrupt from error
    with evaluator.averaged():
        trained = deepcopy(trainer.algorithm)
    trained.model.autocast = None  # prediction is in float32, as with a saved model
    return Trained(trained.eval(), evaluator.spec, config.training.iterations)


def make_dataset(pixels: Tensor, labels: Tensor, class_names: tuple[str, ...]) -> Dataset:
    """Images in memory as a data set, with the mean and standard deviation of their own pixels."""
    scaled = pixels.float().div(255)
    mean, std = scaled.mean((0, 2, 3)), scaled.std((0, 2, 3), correction=0).clamp(min=1 / 255)
    images = ImageSet(ArrayImages(pixels), labels)
    return Dataset("arrays", class_names, images, mean=tuple(mean.tolist()), std=tuple(std.tolist()))


def choose_config(
    algorithm: str, iterations: int | None, seed: int, rows: Rows, dataset: Dataset, device: torch.device
) -> Config:
    """The settings that a folder of the same images would get, with the estimator's own parameters."""
    labels = dataset.train.labels
    channels, side, _ = dataset.train.images.shape
    facts = DataFacts(
        class_names=dataset.class_names,
        labels=torch.bincount(labels[labels >= 0], minlength=len(dataset.class_names)).tolist(),
        images=len(labels),
        side=side,
        is_grey=channels == 1,
        from_files=False,
    )
    given = {
        **find_algorithm(algorithm).settings,
        **rows.settings(),
        "algorithm.name": algorithm,
        "seed": seed,
        **({} if iterations is None else {"training.iterations": iterations}),
    }
    choices = {choice.key: choice.value for choice in make_choices(facts, given, device.type == "cuda")}
    own = {**OWN_IMAGES, "data.source": "arrays", "data.image_size": None, "training.iterations": ITERATIONS}
    config = make_config({**own, **choices}, given)
    bad_steps = min(TrainingConfig.max_bad_steps, config.training.iterations)
    training = replace(config.training, max_bad_steps=bad_steps)
    return replace(config, training=training, backbone=with_weights(config.backbone))
