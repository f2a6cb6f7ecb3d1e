"""A run small enough to train in a test."""

from pathlib import Path

import npmatch

TINY = {
    "training.iterations": 24,
    "training.batch": 8,
    "training.unlabeled_ratio": 2,
    "training.log_every": 5,
    "training.eval_every": 10,
    "training.checkpoint_every": 7,
    "backbone.width": 4,
    "algorithm.samples": 3,
    "algorithm.bank": 512,
    # So few steps make nothing sure of itself: thresholds that let some images through and hold some back.
    "algorithm.confidence": 0.12,
    "algorithm.max_entropy": 2.3,
}


def train_tiny(folder: Path, **changes) -> npmatch.Run:
    keywords = {key: changes.pop(key) for key in ("seed", "resume", "algorithm", "device") if key in changes}
    settings = {**TINY, **{key.replace("__", "."): value for key, value in changes.items()}}
    if keywords.get("algorithm", "npmatch") != "npmatch":
        settings = {key: value for key, value in settings.items() if not key.startswith("algorithm.")}
    return npmatch.fit("digits-40", out=folder, quiet=True, overrides=settings, **{"device": "cpu", **keywords})
