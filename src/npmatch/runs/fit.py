"""One run from the request to the report: `fit`, which `npmatch train` calls and users may call too.

The steps: resolve the settings → open the data → check it → split it → build → train → finish. Each is done once.
With several ranks, rank zero decides and writes (`on_rank_zero`), and all ranks compute.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from npmatch.augment.policies import check_size
from npmatch.config.resolve import Overrides
from npmatch.config.tree import Config
from npmatch.data import Dataset, Split, load_configured
from npmatch.data.check.findings import Quarantined
from npmatch.data.fingerprint import check_same_on_all_ranks, describe_data
from npmatch.data.long_tail import draw_split, largest_class_ratio, thin_unlabeled
from npmatch.data.sources.listing import ListedDataset
from npmatch.data.split import OtherDataError, leave_out, test_set
from npmatch.data.stratify import keep_split
from npmatch.distributed.collective import broadcast_
from npmatch.distributed.devices import choose_device
from npmatch.distributed.ranks import barrier, is_rank_zero, launcher_id, on_rank_zero, process_group, world_size
from npmatch.errors import NPMatchError
from npmatch.predict.classifier import load_model
from npmatch.predict.saved import save_calibration, save_model
from npmatch.runs.baseline import probe_scores, show_probe
from npmatch.runs.build import Evaluator, build, normalised_for, refuse_unequal_shares
from npmatch.runs.calibrate import calibrate
from npmatch.runs.evaluate import Evaluation, independent_calibration, write_run_report, write_unmeasured_report
from npmatch.runs.features import fit_views
from npmatch.runs.folder import RunFolder
from npmatch.runs.memory import build_to_fit
from npmatch.runs.minutes import announce, decide_compilation, fit_into_minutes
from npmatch.runs.open import RunData, labels_at_start, listing_at_start
from npmatch.runs.quarantine import check_images, copies_of_held_out, find_copies, positions_of
from npmatch.runs.request import Request
from npmatch.runs.resume import check_folder, check_same_data, restore_checkpoint
from npmatch.runs.resume_from import given_labels_written, split_from_run, start_from_run
from npmatch.training import Checkpoints, Display, Recorder, Trainer
from npmatch.training.checkpoint import Parts
from npmatch.training.speed import deterministic
from npmatch.user_code import trusting


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    scores: dict[str, float]  # of the averaged model at the end of training; no error without held-out images

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
        recipe: a name that `npmatch recipes` lists; None to train on your own images, with `data`.
        data: a folder or a CSV of your images; with a recipe, the folder of its data set.
        algorithm: a name, or `package.module:Class`; None is NP-Match.
        out: the run's folder; None is `runs/<recipe>-<algorithm>-<seed>`.
        seed: the seed of the split and of all random numbers.
        device: `cpu` or `cuda`; None takes CUDA if it is available.
        resume: whether to resume the run in `out`.
        resume_from: another run to start from: its weights, configuration, split and labels, and labels given since.
        allow_change: whether a resumed run may have another configuration, data set or split.
        config_file: a YAML file with configuration keys.
        overrides: configuration keys that win, `{"training.iterations": 200}` or `["training.iterations=200"]`.
        minutes: time of the whole run, from the check of the images to the report; sets the number of steps.
        quiet: whether to show warnings only.
        trust_code: whether to import and run Python code that the files of a run name and this call does not.
    """
    request = Request(recipe, data, algorithm, out, seed, device, resume, resume_from, config_file, overrides, minutes)
    chosen = choose_device(device)
    with trusting(trust_code), process_group(chosen):
        return train_run(request, chosen, allow_change, Display("", 0, quiet))


def train_run(request: Request, device: torch.device, allow_change: bool, display: Display) -> Run:
    """The steps of a run in their order."""
    # Resolve the settings: what to train, and in which folder.
    clock = display.clock
    clock.enter("settings")
    config, path, choices = on_rank_zero(request.find_run)
    run = RunFolder(path)
    is_new, given = on_rank_zero(lambda: (not run.exists(), request.given))
    minutes = on_rank_zero(lambda: request.minutes) if is_new else None  # a resumed run keeps its number of steps
    if on_rank_zero(lambda: check_folder(run, config, request.resumes(run), allow_change, display)):
        return Run(run.path, on_rank_zero(run.final_scores))
    refuse_unequal_shares(config.training.batch, world_size())
    if minutes is not None:
        config = decide_compilation(config, minutes, device)
        announce(config, request.listing, minutes, device, display)
    if is_new:
        display.show_choices(choices)

    with _running(run, config, display):
        # Open the data, check it and split it.
        clock.enter("check")
        labels = on_rank_zero(lambda: earlier_labels(config, run, allow_change))
        dataset = load_configured(config.data, listing_at_start(config.data, labels) or request.listing)
        split, quarantine = on_rank_zero(lambda: check_and_split(dataset, config, run, allow_change, display))
        data = describe_data(dataset, split)
        check_same_on_all_ranks(data)
        on_rank_zero(lambda: check_same_data(run, data, allow_change, display))

        # Build the trainer, within the memory and the time there are, and load the state it starts from.
        clock.enter("build")
        if minutes is not None and config.backbone.frozen:
            left = minutes - clock.elapsed() / 60
            config = on_rank_zero(
                lambda: fit_views(config, normalised_for(config, dataset), split, left, given, display)
            )
        if is_new:
            config, trainer, evaluator = build_to_fit(config, dataset, split, device, display, given, run.features)
        else:
            begins = on_rank_zero(lambda: not Checkpoints(run.checkpoints).paths())
            trainer, evaluator = build(config, dataset, split, device, display, begins, run.features)
        if minutes is not None:
            clock.enter("timing of steps")
            config = fit_into_minutes(config, trainer, evaluator, minutes, given)
        checkpoint = _load_start(trainer, run, config, split)

        def write_start() -> None:
            table = dataset.listing.table if isinstance(dataset, ListedDataset) else None
            run.write_start(config, split, data, quarantine, device, table)
            trainer.checkpoints = Checkpoints(run.checkpoints)
            step, parts = checkpoint or (None, Parts())
            trainer.open_log(Recorder(run.log, run.tensorboard, resume_at=step), parts.get("log", {}))

        on_rank_zero(write_start)  # last, so that unusable data or settings leave no half-started run
        broadcast_(trainer.state())  # machines may differ in the last bit of a random weight

        # Train, then write the model, its predictions and a report.
        clock.enter("training")
        display.expect(config.recipe or config.data.source, config.training.iterations)
        try:
            started = time.monotonic()
            trainer.run()
            return finish(run, config, trainer, evaluator, started)
        finally:
            clock.enter(None)
            trainer.recorder.close()


def earlier_labels(config: Config, run: RunFolder, allow_change: bool) -> bytes | None:
    """The folder's table of labels when the run that is resumed, or started from, began; None to use today's."""
    if run.exists():
        return None if allow_change else labels_at_start(run)
    start = config.training.start_from
    return None if start is None else labels_at_start(RunFolder(start))


@contextmanager
def _running(run: RunFolder, config: Config, display: Display) -> Iterator[None]:
    """The surroundings of a run: a locked folder, its own random state, the file of given labels, clear disk errors."""
    with ExitStack() as contexts:
        on_rank_zero(lambda: contexts.enter_context(run.locked(launcher_id(), display.warn)))
        contexts.enter_context(deterministic(config.training.deterministic))
        contexts.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
        on_rank_zero(lambda: contexts.enter_context(given_labels_written(config, run)))
        contexts.enter_context(disk_errors_name_the_checkpoints(run))
        yield


@contextmanager
def disk_errors_name_the_checkpoints(run: RunFolder) -> Iterator[None]:
    """Turns a disk error into one line that names the checkpoints from which the run can be resumed."""
    try:
        yield
    except OSError as error:  # of the model, the predictions or the report; the training loop reports its own
        raise NPMatchError(
            f"{error.filename or run}: {error.strerror or error}; the checkpoints in {run.checkpoints} are intact: fix "
            "this, then add --resume to the same command"
        ) from error


def check_and_split(
    dataset: Dataset, config: Config, run: RunFolder, allow_change: bool, display: Display
) -> tuple[Split, list[Quarantined] | None]:
    """The split, and the files that it leaves out because they are unusable; None if the images were not checked.

    A run that exists keeps its split, and a run that starts from another one takes that one's. Otherwise all images are
    checked, and the split is the one that the configuration names, or a new one. If the data of an existing run has
    changed and `allow_change` is true, they are checked again, and every image stays in its part.
    """
    d, earlier = config.data, None
    check_size(config.augment, dataset.train.images.shape)  # said before all images are checked
    if run.exists():
        try:
            return Split.load(run.split, dataset), None
        except OtherDataError:
            if not allow_change:
                raise
            earlier = Split.load(run.split)
    elif config.training.start_from is not None:
        return split_from_run(config, dataset), None
    report = check_images(dataset, d, display)
    quarantine = [] if report is None else report.quarantine
    train, test = positions_of(quarantine, dataset)
    if earlier is None and d.split is not None:
        split = Split.load(Path(d.split).expanduser(), dataset)
        return leave_out(split, dataset, train, test), quarantine
    copies = find_copies(dataset, d, report)
    if earlier is not None:
        split = keep_split(earlier, dataset, d.labels is None and d.labels_head is None, train, copies)
    else:
        split = draw_split(d, dataset, config.seed, train, copies)
    held_copies = split.left_out[~torch.isin(split.left_out, train)]
    quarantine = quarantine + copies_of_held_out(dataset, held_copies, display)
    return thin_unlabeled(d, dataset, leave_out(split, dataset, train, test)), quarantine


def _load_start(trainer: Trainer, run: RunFolder, config: Config, split: Split) -> tuple[int, Parts] | None:
    """Loads the run's newest checkpoint, which is returned, or the weights of another run, if there is either."""
    display, start = trainer.display, config.training.start_from
    # Other ranks may be on machines that do not have the file.
    checkpoint = on_rank_zero(lambda: Checkpoints(run.checkpoints).load_latest(display.warn))
    if checkpoint is not None:
        restore_checkpoint(trainer, run, *checkpoint)
        display.say(f"resuming {run} at step {trainer.step}")
    elif start is not None:
        on_rank_zero(lambda: start_from_run(trainer, RunFolder(start)))
        display.say(f"starting from {start} with {len(split.labeled)} labelled images")
    elif on_rank_zero(run.exists):
        display.say(f"{run}: no checkpoint yet, starting at the first step")
    return checkpoint


def finish(run: RunFolder, config: Config, trainer: Trainer, evaluator: Evaluator, started: float) -> Run:
    """Writes model, calibration, predictions and report, and then the log's final line, which marks a finished run."""
    held_out, spec, calibration = evaluator.held_out, evaluator.spec, None
    clock = trainer.display.clock
    clock.enter("calibration")
    if is_rank_zero():
        with evaluator.averaged():
            save_model(run.path, trainer.algorithm.model, spec)
        saved = load_model(run.path, str(evaluator.device), calibrated=False)
        calibration = calibrate(saved, evaluator.dataset, evaluator.split, evaluator.batch)
        save_calibration(run.path, calibration)
    clock.enter("last evaluation")
    prediction = evaluator.predict()
    final = {**evaluator.scores(prediction), **evaluator.outlier_scores(prediction)}
    if held_out is not None:
        final["class_ratio"] = largest_class_ratio(evaluator.dataset, evaluator.split, held_out)
    final["seconds"] = trainer.recorder.seconds_before + time.monotonic() - started
    clock.enter("linear probe")
    final |= on_rank_zero(
        lambda: probe_scores(config, evaluator.dataset, evaluator.split, evaluator.device, trainer.display)
    )
    clock.enter("report")
    if is_rank_zero():
        trainer.recorder.sync()
        records = [*run.records(), {"kind": "final", "step": trainer.step, **final}]
        if held_out is not None and prediction is not None:
            run.write_test_predictions(prediction, held_out, spec.class_names)
            has_test = test_set(evaluator.dataset, evaluator.split) is not None
            evaluation = Evaluation(config, spec, held_out, prediction, independent_calibration(calibration, has_test))
            write_run_report(run.path, evaluation, records=records)
        else:
            data = RunData(run.path, config, evaluator.dataset, evaluator.split)
            write_unmeasured_report(load_model(run.path, str(evaluator.device)), data, records=records)
    trainer.recorder.write("final", trainer.step, final)
    show_probe(final, trainer.display)
    barrier()
    return Run(run.path, final)
