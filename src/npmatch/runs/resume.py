"""Resuming the run in a folder: what is refused, and how a checkpoint is restored."""

from __future__ import annotations

from typing import Any

from npmatch.config.tree import Config, differences
from npmatch.data.fingerprint import list_changes
from npmatch.errors import NPMatchError
from npmatch.runs.folder import RunFolder
from npmatch.training import Display, Trainer
from npmatch.training.checkpoint import Parts

# Settings that do not change a run's result. The data's path is one of them: the data itself is compared.
HARMLESS = (
    "data.root",
    "data.foreign_root",
    "data.workers",
    "data.resident",
    "data.resident_share",
    "training.on_save_error",
)


def check_folder(run: RunFolder, config: Config, resume: bool, allow_change: bool, display: Display) -> bool:
    """Refuses a folder that cannot be used for this run; returns whether the run in it is finished already."""
    if not run.exists():
        if not run.holds_only_a_start():
            raise NPMatchError(f"{run}: not empty and not a run; choose another --out")
        if resume:
            display.say(f"{run}: nothing to resume, starting a new run")
        return False
    if not resume:
        raise NPMatchError(f"{run}: holds a run already; add --resume to continue it, or choose another --out")
    changed = differences(run.read_config(), config, HARMLESS)
    if changed and not allow_change:
        raise NPMatchError(
            f"{run}: was started with another configuration ({'; '.join(changed)}); leave the settings out, choose "
            "another --out, or add --allow-change"
        )
    if changed:
        display.warn(f"{run}: resuming with another configuration ({'; '.join(changed)})")
        return False
    if run.is_finished():
        display.say(f"{run}: finished already")
    return run.is_finished()


def check_same_data(run: RunFolder, data: dict[str, Any], allow_change: bool, display: Display) -> None:
    """Refuses to resume a run with data or a split that differ from those at its start, unless `allow_change`."""
    at_start = run.read_data() if run.exists() else None
    changed = [] if at_start is None else list_changes(at_start, data)
    if changed and not allow_change:
        raise NPMatchError(
            f"{run}: was started with other data ({'; '.join(changed)}); restore that data, choose another --out, or "
            "add --allow-change"
        )
    if changed:
        display.warn(f"{run}: resuming with other data ({'; '.join(changed)})")


def restore_checkpoint(trainer: Trainer, run: RunFolder, step: int, parts: Parts) -> None:
    """Restores a trainer to the state in a checkpoint of the run."""
    try:
        trainer.restore(step, parts)
    except NPMatchError as error:
        raise NPMatchError(f"{run.checkpoints}: {error}") from error
    if step > trainer.config.iterations:
        trainer.display.warn(
            f"{run.checkpoints}: is at step {step}, beyond training.iterations={trainer.config.iterations}: there is "
            "no training left, the model will be that of the checkpoint"
        )
