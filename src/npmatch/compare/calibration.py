"""Equal wall time for every method: how many steps of a configuration fit into some minutes.

`python -m npmatch.compare.calibration` is the child process that a comparison measures in; it reads JSON, prints JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from npmatch.assembly import build_trainer
from npmatch.config import Config
from npmatch.experiment import resolve_config
from npmatch.predict import choose_device
from npmatch.types import NPMatchError

WARM_UP = 5  # steps that are not timed: libraries choose their kernels, a graph is captured
MOST_STEPS = 200  # timed
ENOUGH_SECONDS = 10.0  # of timed steps; a few slow ones tell as much as many fast ones


def iterations_for(config: Config, minutes: float, device: str | None = None) -> int:
    """The number of training steps of `config` that take `minutes` on the device; at least one."""
    chosen, most = choose_device(device), WARM_UP + MOST_STEPS
    config = replace(config, training=replace(config.training, iterations=max(most, config.training.iterations)))
    with TemporaryDirectory(prefix="npmatch-") as folder:
        trainer, _ = build_trainer(config, Path(folder), chosen, quiet=True)
        try:
            trainer.algorithm.train()
            started, steps = 0.0, 0
            for raw in trainer.stream.batches(0, most):
                trainer.take_step(raw)
                if trainer.step == WARM_UP:
                    started = _now(chosen)
                elif trainer.step > WARM_UP:
                    steps += 1
                    if time.monotonic() - started > ENOUGH_SECONDS:
                        break
            seconds = (_now(chosen) - started) / steps
        finally:
            trainer.recorder.close()
    return max(1, round(60 * minutes / seconds))


def _now(device: torch.device) -> float:
    """The time once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


def main() -> int:
    """Reads {recipe, algorithm, seed, overrides, minutes, device}, prints {iterations}."""
    asked = json.load(sys.stdin)
    minutes, device = asked.pop("minutes"), asked.pop("device")
    try:
        iterations = iterations_for(resolve_config(**asked), minutes, device)
    except NPMatchError as error:
        sys.stderr.write(f"npmatch: {error}\n")
        return 2
    sys.stdout.write(json.dumps({"iterations": iterations}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
