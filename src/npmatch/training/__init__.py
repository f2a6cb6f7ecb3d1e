"""The loop and what it turns: update, averages, checkpoints, logs, display."""

from npmatch.training.checkpoint import Checkpoints, Unsaved, load_tensors, save_tensors
from npmatch.training.config import TrainingConfig
from npmatch.training.display import Display
from npmatch.training.log import Meter, Recorder, Unrecorded, last_record, read_log
from npmatch.training.loop import Trainer, ViewMaker
from npmatch.training.update import EMA, Update, filled_decay

__all__ = [
    "EMA",
    "Checkpoints",
    "Display",
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
    "read_log",
    "save_tensors",
]
