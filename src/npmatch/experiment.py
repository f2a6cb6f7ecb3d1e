"""One run from configuration to report: `fit`, which the command line calls and so may you."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from npmatch.algorithms import Algorithm, find_algorithm
from npmatch.augment import make_policy
from npmatch.backbones import make_backbone
from npmatch.config import (
    Config,
    differences,
    make_config,
    parse_overrides,
    read_config_file,
    write_config,
)
from npmatch.data import Dataset, ImageSet, Sampler, Split, load_configured, make_split, make_stream
from npmatch.draws import mix
from npmatch.metrics import scores
from npmatch.predict import (
    ModelCard,
    evaluation_set,
    load,
    predict_store,
    save_model,
    write_test_predictions,
)
from npmatch.recipes import FOLDER, recipe_layer
from npmatch.report import RunRecord, gallery_indices, write_report
from npmatch.training import (
    EMA,
    Checkpoints,
    Display,
    Meter,
    Recorder,
    Trainer,
    Update,
    ViewMaker,
    read_records,
    write_atomically,
)
from npmatch.types import NPMatchError, Prediction, Task
from npmatch.version import __version__

Overrides = Mapping[str, Any] | Iterable[str]


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    scores: dict[str, float]  # of the terminal averaged model on the test set; empty where there is none

    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return read_records(self.folder)


def resolve_config(
    recipe: str | None = None,
    data: str | Path | None = None,
    algorithm: str | None = None,
    seed: int | None = None,
    config_file: str | Path | None = None,
    overrides: Overrides = (),
) -> Config:
    """Defaults < recipe < preset < file < command line."""
    words = dict(overrides) if isinstance(overrides, Mapping) else parse_overrides(overrides)
    file = {} if config_file is None else read_config_file(Path(config_file))
    flags = {"data.root": None if data is None else str(data), "algorithm.name": algorithm, "seed": seed}
    words = {key: value for key, value in flags.items() if value is not None} | words
    name = str({**file, **words}.get("algorithm.name", Config.name))
    recipe = recipe or file.get("recipe")
    if recipe is not None:
        base = recipe_layer(recipe, name)
    elif {"data.root", "data.source"} & {**file, **words}.keys():
        base = {**FOLDER, **find_algorithm(name).settings}
    else:
        raise NPMatchError("nothing to train on: name a recipe (npmatch recipes lists them) or give --data DIR")
    return make_config(base, file, words)


def fit(
    recipe: str | None = None,
    *,
    data: str | Path | None = None,
    algorithm: str | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    device: str | None = None,
    resume: bool = False,
    config_file: str | Path | None = None,
    overrides: Overrides = (),
    quiet: bool = False,
) -> Run:
    """Trains and returns the finished run; its folder holds the model, the log, the split and a report.

    `overrides` are configuration keys, {"training.iterations": 200} or ["training.iterations=200"].
    """
    has_words = bool(recipe or data or algorithm or config_file or overrides) or seed is not None
    if resume and not has_words and out is not None and (Path(out) / "config.yaml").exists():
        config = make_config({}, read_config_file(Path(out) / "config.yaml"))
    else:
        config = resolve_config(recipe, data, algorithm, seed, config_file, overrides)
    folder = Path(out) if out is not None else default_folder(config)
    chosen = choose_device(device)
    if finished := open_folder(folder, config, resume, quiet):
        return finished
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        return train_run(config, folder, chosen, quiet)


def choose_device(name: str | None) -> torch.device:
    """The device asked for; where none was, CUDA if there is one."""
    chosen = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise NPMatchError("--device cuda: torch finds no CUDA device here; use --device cpu")
    return chosen


def default_folder(config: Config) -> Path:
    """runs/<recipe or source>-<algorithm>-<seed>."""
    name = config.name.replace(":", "-")
    return Path("runs") / f"{config.recipe or config.data.source}-{name}-{config.seed}"


def open_folder(folder: Path, config: Config, resume: bool, quiet: bool) -> Run | None:
    """Makes the folder ready for this run; returns the run where it is finished already."""
    path = folder / "config.yaml"
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise NPMatchError(f"{folder}: not empty and not a run; choose another --out")
        if resume:
            Display("", 0, quiet).say(f"nothing to resume in {folder}: starting afresh")
        folder.mkdir(parents=True, exist_ok=True)
        write_config(config, path)
        return None
    if not resume:
        raise NPMatchError(f"{folder}: holds a run already; add --resume to go on with it, or choose another --out")
    changed = differences(make_config({}, read_config_file(path)), config)
    if changed:
        raise NPMatchError(f"{folder}: was started with another configuration ({'; '.join(changed)})")
    final = [r for r in read_records(folder) if r["kind"] == "final"]
    if final:
        Display("", 0, quiet).say(f"{folder}: finished already")
        return Run(folder, score_fields(final[-1]))
    return None


def train_run(config: Config, folder: Path, device: torch.device, quiet: bool) -> Run:
    """A run from its data to what it leaves when finished."""
    trainer, evaluator = build_trainer(config, folder, device, quiet)
    held_out, card = evaluator.held_out, evaluator.card
    started = time.monotonic()
    try:
        trainer.run()
        with evaluator.ema.applied():
            save_model(folder, trainer.algorithm.model, card)
        prediction = evaluator.predict()
        final = evaluator.scores(prediction)
        final["seconds"] = trainer.recorder.seconds_before + time.monotonic() - started
        if held_out is not None and prediction is not None:
            write_test_predictions(folder, prediction, held_out, card.class_names)
        trainer.recorder.write("final", trainer.step, final)
    finally:
        trainer.recorder.close()
    if held_out is not None and prediction is not None:
        write_run_report(folder, config, card, prediction, held_out)
    return Run(folder, final)


def build_trainer(config: Config, folder: Path, device: torch.device, quiet: bool) -> tuple[Trainer, Evaluator]:
    """Data → views → algorithm → loop, at the folder's newest checkpoint where it has one."""
    dataset = load_configured(config.data)
    split = open_split(dataset, config, folder)
    write_atomically(folder / "environment.json", json.dumps(environment(config, device), indent=2).encode())
    algorithm = build_algorithm(config, dataset, split).to(device)
    if device.type == "cuda":
        algorithm = algorithm.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.training.precision == "bfloat16" or (config.training.precision == "auto" and device.type == "cuda"):
        algorithm.model.autocast = torch.bfloat16
    if config.training.compile or (config.training.compile is None and device.type == "cuda"):
        algorithm.model.backbone.compile(dynamic=False)
    update = Update(algorithm, config.training)
    card = make_card(config, dataset, split)
    held_out = evaluation_set(dataset, split)
    evaluator = Evaluator(algorithm, update.ema, held_out, card, device, config.training.eval_batch)
    trainer = make_trainer(config, dataset, split, algorithm, update, evaluator, folder, device, quiet)
    return trainer, evaluator


@dataclass
class Evaluator:
    """The averaged model on the held-out images."""

    algorithm: Algorithm
    ema: EMA
    held_out: ImageSet | None
    card: ModelCard
    device: torch.device
    batch: int

    def predict(self) -> Prediction | None:
        """What it says of them; nothing where there are none."""
        if self.held_out is None:
            return None
        self.algorithm.eval()
        with self.ema.applied(), torch.compiler.set_stance("force_eager"):  # compiled for training's shapes alone
            prediction = predict_store(self.algorithm.predict, self.held_out.images, self.card, self.device, self.batch)
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


def make_trainer(
    config: Config,
    dataset: Dataset,
    split: Split,
    algorithm: Algorithm,
    update: Update,
    evaluate: Evaluator,
    folder: Path,
    device: torch.device,
    quiet: bool,
) -> Trainer:
    """The loop and its parts, at the newest checkpoint where there is one."""
    t = config.training
    display = Display(config.recipe or config.data.source, t.iterations, quiet)
    unlabeled = t.batch * t.unlabeled_ratio if algorithm.views.weak + algorithm.views.strong else 0
    if unlabeled > len(split.unlabeled):
        display.say(f"unlabelled batch: all {len(split.unlabeled)} images, as there are fewer than {unlabeled}")
        unlabeled = len(split.unlabeled)
    sampler = Sampler(config.seed, len(split.labeled), len(split.unlabeled), t.batch, unlabeled)
    policy = make_policy(config.augment, dataset.train.images.shape, dataset.mean)
    checkpoints = Checkpoints(folder / "checkpoints")
    latest = checkpoints.load_latest()
    trainer = Trainer(
        algorithm=algorithm,
        update=update,
        stream=make_stream(dataset, split, sampler, device, config.data.resident, workers=config.data.workers),
        make_views=ViewMaker(policy, algorithm.views, dataset.mean, dataset.std),
        meter=Meter(len(dataset.class_names), dataset.train.labels[split.unlabeled].to(device)),
        recorder=Recorder(folder, resume_at=latest[0] if latest else None),
        checkpoints=checkpoints,
        display=display,
        evaluate=evaluate,
        config=t,
        seed=config.seed,
    )
    if latest is not None:
        trainer.restore(*latest)
        display.say(f"resuming {folder} at step {trainer.step}")
    return trainer


def build_algorithm(config: Config, dataset: Dataset, split: Split) -> Algorithm:
    """The algorithm with fresh weights, a function of the configuration and its seed."""
    torch.manual_seed(mix(config.seed, "weights"))
    task = Task(dataset.class_names, len(split.labeled), len(split.unlabeled))
    backbone = make_backbone(config.backbone, dataset.train.images.shape[0])
    return find_algorithm(config.name)(backbone, task, config.algorithm)


def open_split(dataset: Dataset, config: Config, folder: Path) -> Split:
    """The run's own split, the one the configuration names, or a fresh one; saved with the run."""
    d, path = config.data, folder / "split.json"
    if path.exists():
        return Split.load(path, dataset)
    if d.split is not None:
        split = Split.load(Path(d.split), dataset)
    else:
        split = make_split(dataset, d.labels, config.seed, d.validation, d.include_labeled)
    split.save(path)
    return split


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


def write_run_report(
    folder: Path,
    config: Config,
    card: ModelCard,
    prediction: Prediction,
    held_out: ImageSet,
    comparison: list[dict[str, Any]] | None = None,
) -> Path:
    """RUN/report.html."""
    shown = gallery_indices(prediction, held_out.labels)
    pictures = held_out.images.take(torch.tensor(shown))
    record = RunRecord(
        title=f"{config.recipe or config.data.source} · {config.name} · seed {config.seed}",
        config=config.nested(),
        records=read_records(folder),
        class_names=card.class_names,
        prediction=prediction,
        y=held_out.labels,
        gallery=dict(zip(shown, pictures, strict=True)),
        comparison=comparison or [],
        num_labeled=card.num_labeled,
    )
    return write_report(record, folder / "report.html")


@dataclass(frozen=True)
class Evaluation:
    """A finished run's model on its held-out images."""

    config: Config
    card: ModelCard
    held_out: ImageSet
    prediction: Prediction


def evaluate_run(folder: str | Path, data: str | Path | None = None, device: str | None = None) -> Evaluation:
    """Loads a run's model and data again and predicts the held-out images."""
    folder = Path(folder)
    classifier = load(folder, device)
    config = make_config({}, read_config_file(folder / "config.yaml"))
    dataset = load_configured(config.data if data is None else replace(config.data, root=str(data)))
    held_out = evaluation_set(dataset, Split.load(folder / "split.json", dataset))
    if held_out is None:
        raise NPMatchError(
            f"{folder}: its data has no test images and the run kept no validation share; put labelled images into "
            "test/<class>/ and give --data DIR"
        )
    prediction = predict_store(
        classifier.model, held_out.images, classifier.card, classifier.device, config.training.eval_batch
    )
    return Evaluation(config, classifier.card, held_out, prediction)


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
        "seed": config.seed,
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The commit npmatch runs from, where it runs from a checkout."""
    import subprocess

    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    found = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def score_fields(record: Mapping[str, Any]) -> dict[str, float]:
    """The scores among a record's fields."""
    return {key: value for key, value in record.items() if key not in ("kind", "step")}
