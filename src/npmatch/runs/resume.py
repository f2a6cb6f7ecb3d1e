"""Going on with the run that a folder holds: what it refuses, and the checkpoint it takes up."""

from __future__ import annotations

from typing import Any

from npmatch.config.tree import Config, differences
from npmatch.data.fingerprint import list_changes
from npmatch.errors import NPMatchError
from npmatch.runs.folder import RunFolder
from npmatch.training import Display, Trainer
from npmatch.training.checkpoint import Parts

# Settings that change nothing in a run's result; where the data lies is one, because what it is is compared.
HARMLESS = (
    "data.root",
    "data.foreign_root",
    "data.workers",
    "data.resident",
    "data.resident_share",
    "training.on_save_error",
)


def check_folder(run: RunFolder, config: Config, resume: bool, allow_change: bool, display: Display) -> bool:
    """Refuses a folder that is not for this run; whether the run in it is finished already."""
    if not run.exists():
        if not run.holds_only_a_start():
            raise NPMatchError(f"{run}: not empty and not a run; choose another --out")
        if resume:
            display.say(f"nothing to resume in {run}: starting afresh")
        return False
    if not resume:
        raise NPMatchError(f"{run}: holds a run already; add --resume to go on with it, or choose another --out")
    changed = differences(run.read_config(), config, HARMLESS)
    if changed and not allow_change:
        raise NPMatchError(
            f"{run}: was started with another configuration ({'; '.join(changed)}); leave the settings out, choose "
            "another --out, or add --allow-change"
        )
    if changed:
        display.warn(f"{run}: going on with another configuration ({'; '.join(changed)})")
        return False
    if run.is_finished():
        display.say(f"{run}: finished already")
    return run.is_finished()


def check_same_data(run: RunFolder, data: dict[str, Any], allow_change: bool, display: Display) -> None:
    """A run goes on with the data and the split it was started with, unless told otherwise."""
    before = run.read_data() if run.exists() else None
    changed = [] if before is None else list_changes(before, data)
    if changed and not allow_change:
        raise NPMatchError(
            f"{run}: was started with other data ({'; '.join(changed)}); bring that back, choose another --out, or add "
            "--allow-change"
        )
    if changed:
        display.warn(f"{run}: going on with other data ({'; '.join(changed)})")


def restore_checkpoint(trainer: Trainer, run: RunFolder, step: int, parts: Parts) -> None:
    """Gives a trainer the state that a checkpoint of the run has kept."""
    try:
        trainer.restore(step, parts)
    except NPMatchError as error:
        raise NPMatchError(f"{run.checkpoints}: {error}") from error
    if step > trainer.config.iterations:
        trainer.display.warn(
            f"{run.checkpoints}: is at step {step}, beyond training.iterations={trainer.config.iterations}: no step is "
            "left to take, the model will be the one of that step"
        )
