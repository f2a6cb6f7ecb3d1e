"""One rank, in its own process: 20 steps of every algorithm on one global batch."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from npmatch import Algorithm
from npmatch.config.resolve import resolve_config
from npmatch.data import load_dataset, make_split
from npmatch.runs.build import build
from npmatch.training import Display, save_tensors
from npmatch.types import Batch, Step

STEPS = 20
# After so few steps predictions are uncertain: these thresholds trust some images and not others.
NP = {"algorithm.confidence": 0.13, "algorithm.max_entropy": 2.285, "algorithm.samples": 3, "algorithm.bank": 200}
CASES = {
    "npmatch-js": ("npmatch", {**NP, "algorithm.divergence": "js"}),
    "npmatch-js_dual": (
        "npmatch",
        {**NP, "algorithm.divergence": "js_dual", "algorithm.targets": "split", "algorithm.weak_norm": "running"},
    ),
    "npmatch-kl": (
        "npmatch",
        {**NP, "algorithm.divergence": "kl", "algorithm.targets": "trusted", "algorithm.weak_norm": "own"},
    ),
    "npmatch-kernel": (
        "npmatch",
        {**NP, "algorithm.process": "kernel", "algorithm.scale": 10.0, "algorithm.known_share": 0.8},
    ),
    "npmatch-attentive": ("npmatch", {**NP, "algorithm.process": "attentive", "algorithm.adjustment": 1.0}),
    "npmatch-freematch": (
        "npmatch",
        {**NP, "algorithm.gate": "freematch", "algorithm.fairness_weight": 0.1, "algorithm.decay": 0.9},
    ),
    "npmatch-softmatch": (
        "npmatch",
        {
            **NP,
            "algorithm.gate": "softmatch",
            "algorithm.decay": 0.9,
            "algorithm.alignment": "window",
            "algorithm.window": 4,
            "algorithm.targets": "trusted",
        },
    ),
    "with-a-norm-behind": ("rank_worker:WithANormBehind", {}),
    "supervised": ("supervised", {}),
    "fixmatch": ("fixmatch", {"algorithm.confidence": 0.18}),
    "flexmatch": ("flexmatch", {"algorithm.confidence": 0.18}),
    "flexmatch-shared": ("flexmatch", {"algorithm.confidence": 0.18, "algorithm.weak_norm": "shared"}),
    "uda": ("uda", {"algorithm.confidence": 0.18, "algorithm.annealing": "linear"}),
    "mixmatch": ("mixmatch", {}),
    "remixmatch": ("remixmatch", {}),
    "comatch": ("comatch", {"algorithm.confidence": 0.18, "algorithm.graph_threshold": 0.1, "algorithm.bank": 200}),
    "semco": ("semco", {"algorithm.confidence": 0.18, "algorithm.similarity": 0.3, "algorithm.hidden": 16}),
    "mpl": ("mpl", {"algorithm.confidence": 0.18}),
    "ups": (
        "ups",
        {
            "algorithm.confidence": 0.18,
            "algorithm.dropout": 0.0,
            "algorithm.samples": 2,
            "algorithm.negative_confidence": 0.09,
        },
    ),
    "dash": ("dash", {"algorithm.warm_up": 0.2, "algorithm.interval": 0.5}),
    "adamatch": ("adamatch", {"algorithm.window": 4}),
    "adamatch-own": ("adamatch", {"algorithm.window": 4, "algorithm.weak_norm": "own"}),
    "freematch": ("freematch", {"algorithm.decay": 0.9}),
    "defixmatch": ("defixmatch", {"algorithm.confidence": 0.18}),
    "softmatch": ("softmatch", {"algorithm.decay": 0.9}),
    "simmatch": ("simmatch", {"algorithm.confidence": 0.18}),
    "crmatch": ("crmatch", {"algorithm.confidence": 0.18}),
    "regmixmatch": ("regmixmatch", {"algorithm.mixing_confidence": 0.18, "algorithm.labeled_mixing": 1}),
    "pseudolabel": ("pseudolabel", {"algorithm.confidence": 0.18}),
    "pimodel": ("pimodel", {}),
    "meanteacher": ("meanteacher", {"algorithm.teacher_decay": 0.8}),
    "vat": ("vat", {"algorithm.radius": 1.0}),
}


class WithANormBehind(Algorithm):
    """A user's algorithm with a batch norm on the features of the whole batch, on every rank."""

    def __init__(self, backbone, task, config=None):
        super().__init__(backbone, task, config)
        self.projection = nn.Sequential(nn.Linear(int(backbone.num_features), 8), nn.BatchNorm1d(8))

    def loss(self, batch, progress):
        f_x, f_weak, f_strong = self.model.features_together(batch.x, *batch.weak, *batch.strong)
        apart = (self.projection(f_weak) - self.projection(f_strong)).square().mean()
        loss = F.cross_entropy(self.model.head(f_x), batch.y) + apart
        return Step(loss, {"loss_apart": apart.detach()})


def train_cases(rank: int, world: int, folder: Path) -> None:
    """Writes losses and final state of every case; world 0 is one process without a process group."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    if world:
        store = dist.FileStore(str(folder / f"store-{world}"), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    for name in CASES:
        save_tensors(folder / f"{name}-{world}-{rank}.safetensors", train_case(name))
    if world:
        dist.destroy_process_group()
    os._exit(0)  # the exit handlers of libraries take longer than the test


def train_case(name: str) -> dict[str, torch.Tensor]:
    algorithm, settings = CASES[name]
    sizes = {"training.batch": 24, "training.unlabeled_ratio": 2, "training.iterations": 40, "backbone.width": 4}
    config = resolve_config("digits-40", algorithm=algorithm, overrides={**sizes, **settings})
    dataset = load_dataset("digits")
    split = make_split(dataset, config.data.labels, config.seed)
    trainer, _ = build(config, dataset, split, torch.device("cpu"), Display("", 0, quiet=True))
    trainer.algorithm.double().train()  # also buffers that were created in float32
    trainer.make_views = in_double(trainer.make_views)
    values: dict[str, list[float]] = {}
    for raw in trainer.stream.batches(0, STEPS):
        trainer.take_step(raw)
        for key, value in trainer.meter.read().items():
            values.setdefault(f"log/{key}", []).append(value)
    logs = {key: torch.tensor(column) for key, column in values.items()}
    return logs | {f"state/{key}": value for key, value in trainer.algorithm.state_dict().items()}


def in_double(make_views):
    """Makes the views in float32, as usual, and converts them to float64."""

    def make(raw) -> Batch:
        torch.set_default_dtype(torch.float32)
        batch = make_views(raw)
        torch.set_default_dtype(torch.float64)
        names = ("weak", "strong", "x_weak", "x_strong")
        views = {name: tuple(view.double() for view in getattr(batch, name)) for name in names}
        return batch._replace(x=batch.x.double(), **views)

    return make
