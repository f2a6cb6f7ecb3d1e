"""The training loop and its parts: update of the weights, checkpoints, log, display, speed."""

from npmatch.training.checkpoint import Checkpoints, Unsaved, load_tensors, save_tensors
from npmatch.training.config import TrainingConfig
from npmatch.training.display import Display
from npmatch.training.log import Meter, Recorder, Unrecorded, last_record, read_log
from npmatch.training.loop import Trainer, ViewMaker
from npmatch.training.update import EMA, Update, limit_ema_decay

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
    "last_record",
    "limit_ema_decay",
    "load_tensors",
    "read_log",
    "save_tensors",
]
