"""One run from the request to the report: `fit`, which the command line calls and so may you.

The road: resolve the settings → open the data → check it → split it → build → train → finish. Each is done once.
Of several ranks the first decides, asks and writes (`from_first`), and all compute.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from npmatch.config.resolve import Overrides
from npmatch.config.tree import Config
from npmatch.data import Dataset, Split, load_configured, make_split
from npmatch.data.check.findings import Quarantined
from npmatch.data.fingerprint import check_same_on_all_ranks, dataset_fingerprint, describe_data
from npmatch.data.split import leave_out, test_set
from npmatch.distributed.collective import broadcast_
from npmatch.distributed.devices import choose_device
from npmatch.distributed.ranks import barrier, is_rank_zero, launcher_id, on_rank_zero, process_group, world_size
from npmatch.errors import NPMatchError
from npmatch.predict.classifier import load_model
from npmatch.predict.saved import save_model
from npmatch.runs.build import Evaluator, build, refuse_unequal_shares
from npmatch.runs.calibrate import calibrate
from npmatch.runs.evaluate import Evaluation, honest_calibration, write_run_report
from npmatch.runs.folder import RunFolder
from npmatch.runs.quarantine import check_images, positions_of
from npmatch.runs.request import Request
from npmatch.runs.resume import check_folder, check_same_data, restore_checkpoint
from npmatch.runs.resume_from import given_labels_written, split_from_run, start_from_run
from npmatch.training import Checkpoints, Display, Recorder, Trainer
from npmatch.training.checkpoint import Parts
from npmatch.training.pace import fill_minutes
from npmatch.training.speed import deterministic
from npmatch.user_code import trusting


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    scores: dict[str, float]  # of the terminal averaged model on the test set; empty where there is none

    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return RunFolder(self.folder).records()


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
    request = Request(recipe, data, algorithm, out, seed, device, resume, resume_from, config_file, overrides, minutes)
    chosen = choose_device(device)
    with trusting(trust_code), process_group(chosen):
        return train_run(request, chosen, allow_change, Display("", 0, quiet))


def train_run(request: Request, device: torch.device, allow_change: bool, display: Display) -> Run:
    """Every step of a run in its order."""
    with ExitStack() as held:
        # Resolve the settings: what to train, and in which folder.
        config, path, choices = on_rank_zero(request.find_run)
        run = RunFolder(path)
        minutes = on_rank_zero(lambda: None if run.exists() else request.minutes)  # a resumed run has its iterations
        if on_rank_zero(lambda: check_folder(run, config, request.resumes(run), allow_change, display)):
            return Run(run.path, on_rank_zero(run.final_scores))
        refuse_unequal_shares(config.training.batch, world_size())
        if on_rank_zero(lambda: not run.exists()):
            display.show_choices(choices)
        _hold_folder(run, config, display, held)

        # Open the data, check it and split it.
        dataset = load_configured(config.data, request.listing)
        split, quarantine = on_rank_zero(lambda: check_and_split(dataset, config, run, allow_change, display))
        data = describe_data(dataset, split)
        check_same_on_all_ranks(data)
        on_rank_zero(lambda: check_same_data(run, data, allow_change, display))

        # Build the trainer, with as many steps as fit into the minutes, at the checkpoint it goes on from.
        trainer, evaluator = build(config, dataset, split, device, display)
        if minutes is not None:
            config = _with_minutes(config, trainer, minutes, device)
        latest = _take_up(trainer, run, config, split)

        def write_start() -> None:
            run.write_start(config, split, data, quarantine, device)
            trainer.checkpoints = Checkpoints(run.checkpoints)
            step, parts = latest or (None, Parts())
            trainer.open_log(Recorder(run.log, run.tensorboard, resume_at=step), parts.get("log", {}))

        on_rank_zero(write_start)  # last: where the data or a setting is unusable, no half-started run is left
        broadcast_(trainer.state())  # machines may differ in the last bit of a drawn weight

        # Train, then leave a model, its predictions and a report.
        display.expect(config.recipe or config.data.source, config.training.iterations)
        try:
            started = time.monotonic()
            trainer.run()
            return finish(run, config, trainer, evaluator, started)
        finally:
            trainer.recorder.close()


def _hold_folder(run: RunFolder, config: Config, display: Display, held: ExitStack) -> None:
    """What lasts as long as the run: its lock, the random generators, its labels, what a failing disk is told as."""
    on_rank_zero(lambda: held.enter_context(run.locked(launcher_id(), display.warn)))
    held.enter_context(deterministic(config.training.deterministic))
    held.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
    on_rank_zero(lambda: held.enter_context(given_labels_written(config, run)))
    held.enter_context(disk_errors_name_the_checkpoints(run))


@contextmanager
def disk_errors_name_the_checkpoints(run: RunFolder) -> Iterator[None]:
    """A disk that fails inside is one line, which says from where the run can go on."""
    try:
        yield
    except OSError as error:  # what the loop itself cannot write it reports; this is the rest: model, table, report
        raise NPMatchError(
            f"{error.filename or run}: {error.strerror or error}; the checkpoints in {run.checkpoints} are intact: put "
            "this right, then go on with --resume"
        ) from error


def check_and_split(
    dataset: Dataset, config: Config, run: RunFolder, allow_change: bool, display: Display
) -> tuple[Split, list[Quarantined] | None]:
    """The run's own split, that of the run it starts from, the one the configuration names, or a fresh one.

    The latter two with the files that a look at all images found unusable; None where nobody had to look.
    """
    d = config.data
    if run.exists() and not (allow_change and Split.load(run.split).fingerprint != dataset_fingerprint(dataset)):
        return Split.load(run.split, dataset), None
    if config.training.start_from is not None:
        return split_from_run(config, dataset), None
    quarantine = check_images(dataset, d, display)
    train, test = positions_of(quarantine, dataset)
    if d.split is not None:
        split = Split.load(Path(d.split).expanduser(), dataset)
    else:
        split = make_split(dataset, d.labels, config.seed, d.validation, d.include_labeled, train)
    return leave_out(split, train, test), quarantine


def _with_minutes(config: Config, trainer: Trainer, minutes: float, device: torch.device) -> Config:
    """The configuration with the iterations that were measured to fit into `minutes`."""
    usual = config.training.ema
    training = fill_minutes(trainer, minutes, device)
    trainer.display.say(f"{training.iterations} steps should take {minutes:g} min here")
    if training.ema < usual:
        trainer.display.say(f"training.ema={training.ema}: so few steps do not fill an average of decay {usual}")
    return replace(config, training=training)


def _take_up(trainer: Trainer, run: RunFolder, config: Config, split: Split) -> tuple[int, Parts] | None:
    """The state the trainer goes on from: the run's newest checkpoint, another run's weights, or none."""
    display, start = trainer.display, config.training.start_from
    latest = on_rank_zero(lambda: Checkpoints(run.checkpoints).load_latest(display.warn))  # not every machine has it
    if latest is not None:
        restore_checkpoint(trainer, run, *latest)
        display.say(f"resuming {run} at step {trainer.step}")
    elif start is not None:
        on_rank_zero(lambda: start_from_run(trainer, RunFolder(start)))
        display.say(f"starting from {start} with {len(split.labeled)} labelled images")
    elif on_rank_zero(run.exists):
        display.say(f"{run}: no checkpoint yet, starting at the first step")
    return latest


def finish(run: RunFolder, config: Config, trainer: Trainer, evaluator: Evaluator, started: float) -> Run:
    """What a run leaves: model, calibration, predictions and report; then the log's final line, once all are there."""
    held_out, spec, calibration = evaluator.held_out, evaluator.spec, None
    if is_rank_zero():
        with evaluator.ema.applied():
            save_model(run.path, trainer.algorithm.model, spec)
        saved = load_model(run.path, str(evaluator.device), calibrated=False)
        calibration = calibrate(saved, evaluator.dataset, evaluator.split, evaluator.batch)
        calibration.save(run.path)
    prediction = evaluator.predict()
    final = evaluator.scores(prediction)
    final["seconds"] = trainer.recorder.seconds_before + time.monotonic() - started
    if held_out is not None and prediction is not None and is_rank_zero():
        run.write_test_predictions(prediction, held_out, spec.class_names)
        tested = test_set(evaluator.dataset, evaluator.split) is not None
        found = Evaluation(config, spec, held_out, prediction, honest_calibration(calibration, tested))
        trainer.recorder.sync()
        write_run_report(run.path, found, records=[*run.records(), {"kind": "final", "step": trainer.step, **final}])
    trainer.recorder.write("final", trainer.step, final)
    barrier()
    return Run(run.path, final)
