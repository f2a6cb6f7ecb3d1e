"""The loop and what it turns: update, averages, checkpoints, logs, display."""

from npmatch.training.checkpoint import Checkpoints, Unsaved, load_tensors, save_tensors
from npmatch.training.config import TrainingConfig
from npmatch.training.display import Display
from npmatch.training.ema import EMA, filled_decay
from npmatch.training.interrupt import InterruptedRunError
from npmatch.training.loop import Trainer, ViewMaker
from npmatch.training.meter import Meter
from npmatch.training.recorder import Recorder, Unrecorded, last_record, read_records
from npmatch.training.update import Update

__all__ = [
    "EMA",
    "Checkpoints",
    "Display",
    "InterruptedRunError",
    "Meter",
    "Recorder",
    "Trainer",
    "TrainingConfig",
    "Unrecorded",
    "Unsaved",
    "Update",
    "ViewMaker",
    "filled_decay",
    "last_record",
    "load_tensors",
    "read_records",
    "save_tensors",
]
