"""One run from configuration to report: `fit`, which the command line calls and so may you."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from npmatch.config.resolve import Overrides
from npmatch.config.tree import Config, differences
from npmatch.data import Dataset, Split, Stream, load_configured
from npmatch.data.identity import describe_data, refuse_unequal
from npmatch.data.split import test_set
from npmatch.distributed.collective import copy_first_
from npmatch.distributed.devices import choose_device
from npmatch.distributed.ranks import from_first, group, is_first, launcher, wait_for_all, world
from npmatch.errors import NPMatchError
from npmatch.files import LOCK, TEMPORARY, locked
from npmatch.predict.classifier import load_uncalibrated, write_test_predictions
from npmatch.predict.saved import save_model
from npmatch.runs.build import Evaluator, assemble, refuse_unequal_shares
from npmatch.runs.calibrate import calibrate
from npmatch.runs.evaluate import Evaluation, honest_calibration, write_run_report
from npmatch.runs.folder import STARTED, find_split, is_run, read_run_config, refuse_other_data, start_folder
from npmatch.runs.request import Asked
from npmatch.runs.resume import GIVEN_LABELS, labels_laid_out, load_weights
from npmatch.training import Checkpoints, Display, Recorder, Trainer, filled_decay, last_record, read_records
from npmatch.training.checkpoint import Parts
from npmatch.training.log import final_scores
from npmatch.training.pace import AT_LEAST, steps_within
from npmatch.training.speed import deterministic
from npmatch.user_code import trusting

# Settings that change nothing in a run's result; where the data lies is one, because what it is is compared.
HARMLESS = (
    "data.root",
    "data.foreign_root",
    "data.workers",
    "data.resident",
    "data.resident_share",
    "training.on_save_error",
)


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    scores: dict[str, float]  # of the terminal averaged model on the test set; empty where there is none

    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return read_records(self.folder)


def fit(
    recipe: str | None = None,
    *,
    data: str | Path | None = None,
    algorithm: str | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    device: str | None = None,
    resume: bool = False,
    resume_from: str | Path | None = None,
    allow_change: bool = False,
    config_file: str | Path | None = None,
    overrides: Overrides = (),
    minutes: float | None = None,
    quiet: bool = False,
    trust_code: bool = False,
) -> Run:
    """Trains and returns the finished run; its folder holds the model, the log, the split and a report.

    Args:
        recipe: a name that `npmatch recipes` lists, or nothing, with `data`.
        data: a folder or a CSV of your images; with a recipe, where its files are.
        algorithm: a name, or `package.module:Class`; NP-Match where none is given.
        out: the run's folder; `runs/<recipe>-<algorithm>-<seed>` where none is given.
        seed: of the split and every draw.
        device: `cpu` or `cuda`; None takes CUDA where there is one.
        resume: whether to go on with the run that `out` holds.
        resume_from: another run, whose weights, configuration, split and labels, with those given since, this one has.
        allow_change: whether a resumed run may have another configuration, data set or split.
        config_file: keys of the configuration as YAML.
        overrides: keys that win, `{"training.iterations": 200}` or `["training.iterations=200"]`.
        minutes: take as many steps as fit into them.
        quiet: show warnings alone.
        trust_code: whether the files of a run may name Python of yours that you do not name here, which is then run.
    """
    asked = Asked(recipe, data, algorithm, out, seed, device, resume, resume_from, config_file, overrides, minutes)
    chosen = choose_device(device)
    display = Display("", 0, quiet)
    with trusting(trust_code), group(chosen), ExitStack() as held:
        config, folder, choices = from_first(asked.find_run)
        pace = from_first(lambda: minutes)  # machines may have been given different words
        is_new = from_first(lambda: not is_run(folder))
        if finished := from_first(lambda: open_folder(folder, config, asked.goes_on(folder), allow_change, display)):
            return finished
        if is_new:
            display.show_choices(choices)
        from_first(lambda: held.enter_context(locked(folder, launcher())))
        held.enter_context(deterministic(config.training.deterministic))
        held.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
        from_first(lambda: held.enter_context(labels_laid_out(config, folder)))
        held.enter_context(checkpoints_kept(folder))
        return train_run(config, folder, chosen, quiet, allow_change, pace if is_new else None)


def open_folder(folder: Path, config: Config, resume: bool, allow_change: bool, display: Display) -> Run | None:
    """Refuses a folder that is not for this run; returns the run where it is finished already."""
    if not is_run(folder):
        others = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        if not is_unfinished_start(others):
            raise NPMatchError(f"{folder}: not empty and not a run; choose another --out")
        if resume:
            display.say(f"nothing to resume in {folder}: starting afresh")
        return None
    if not resume:
        raise NPMatchError(f"{folder}: holds a run already; add --resume to go on with it, or choose another --out")
    changed = differences(read_run_config(folder), config, HARMLESS)
    if changed and not allow_change:
        raise NPMatchError(
            f"{folder}: was started with another configuration ({'; '.join(changed)}); leave the settings out, choose "
            "another --out, or add --allow-change"
        )
    if changed:
        display.warn(f"{folder}: going on with another configuration ({'; '.join(changed)})")
    elif finished := find_finished(folder):
        display.say(f"{folder}: finished already")
        return finished
    return None


def is_unfinished_start(names: Iterable[str]) -> bool:
    """Whether a folder holds nothing but what a run killed at its very start leaves."""
    return all(name.removesuffix(TEMPORARY) in (LOCK, GIVEN_LABELS, *STARTED, "config.yaml") for name in names)


def find_finished(folder: Path) -> Run | None:
    """The run in a folder, if all that it leaves is there; killed while it wrote the last of it, it is not finished."""
    records = read_records(folder)
    tested = (folder / "predictions" / "test.parquet").exists()
    needed = ["model.safetensors", "config.json", *(["report.html"] if tested else [])]
    whole = last_record(records, "final") is not None and all((folder / name).exists() for name in needed)
    return Run(folder, final_scores(records)) if whole else None


@contextmanager
def checkpoints_kept(folder: Path) -> Iterator[None]:
    """A disk that fails inside is one line, which says from where the run can go on."""
    try:
        yield
    except OSError as error:  # what the loop itself cannot write it reports; this is the rest: model, table, report
        where = error.filename or folder
        raise NPMatchError(
            f"{where}: {error.strerror or error}; the checkpoints in {folder / 'checkpoints'} are intact: put this "
            "right, then go on with --resume"
        ) from error


def train_run(
    config: Config, folder: Path, device: torch.device, quiet: bool, allow_change: bool, minutes: float | None
) -> Run:
    """A run from its data to what it leaves when finished."""
    trainer, evaluator = build_trainer(config, folder, device, quiet, allow_change, minutes)
    config = replace(config, training=trainer.config)
    held_out, card = evaluator.held_out, evaluator.card
    started, calibration = time.monotonic(), None
    try:
        trainer.run()
        if is_first():
            with evaluator.ema.applied():
                save_model(folder, trainer.algorithm.model, card)
            saved = load_uncalibrated(folder, str(device))
            calibration = calibrate(saved, evaluator.dataset, evaluator.split, evaluator.batch)
            calibration.save(folder)
        prediction = evaluator.predict()
        final = evaluator.scores(prediction)
        final["seconds"] = trainer.recorder.seconds_before + time.monotonic() - started
        if held_out is not None and prediction is not None and is_first():
            write_test_predictions(folder, prediction, held_out, card.class_names)
        trainer.recorder.write("final", trainer.step, final)
    finally:
        trainer.recorder.close()
    if held_out is not None and prediction is not None and is_first():
        tested = test_set(evaluator.dataset, evaluator.split) is not None
        found = Evaluation(config, card, held_out, prediction, honest_calibration(calibration, tested))
        write_run_report(folder, found)
    wait_for_all()
    return Run(folder, final)


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
