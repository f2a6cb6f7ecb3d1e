"""The training loop: batch → views → step → log, evaluate, checkpoint. It never imports an algorithm."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from npmatch.algorithms.base import Algorithm
from npmatch.augment import Policy, normalize
from npmatch.data import RawBatch, Stream
from npmatch.distributed.collective import broadcast_
from npmatch.distributed.ranks import barrier
from npmatch.draws import mix
from npmatch.errors import InterruptedRunError, NPMatchError
from npmatch.heads import average_statistics
from npmatch.training.checkpoint import Checkpoints
from npmatch.training.config import TrainingConfig
from npmatch.training.display import Display
from npmatch.training.interrupt import StopAgreement, catch_stop_signals
from npmatch.training.log import Meter, PseudoLabelMonitor, Recorder
from npmatch.training.nonfinite import NotFiniteError
from npmatch.training.speed import CapturedStep, restoring
from npmatch.training.update import Update
from npmatch.types import Batch, Views


@dataclass
class ViewMaker:
    """Makes an algorithm's batch of raw images: augmented, normalised, on the device."""

    policy: Policy
    views: Views
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels_last: bool = True  # memory layout of the views on CUDA

    def __call__(self, raw: RawBatch) -> Batch:
        """The batch's views; each image of each view has its own random draws."""
        return Batch(
            x=self._normalised(self.policy.weak(raw.x)),
            y=raw.y,
            weak=tuple(self._normalised(self.policy.weak(raw.u)) for _ in range(self.views.weak)),
            strong=tuple(self._normalised(self.policy.strong(raw.u)) for _ in range(self.views.strong)),
            index=raw.index,
            labeled=raw.labeled,
            x_weak=tuple(self._normalised(self.policy.weak(raw.x)) for _ in range(self.views.labeled_weak)),
            x_strong=tuple(self._normalised(self.policy.strong(raw.x)) for _ in range(self.views.labeled_strong)),
        )

    def _normalised(self, images: Tensor) -> Tensor:
        x = normalize(images, self.mean, self.std)
        return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and self.channels_last else x


@dataclass
class Trainer:
    """The parts of one run and its training loop."""

    algorithm: Algorithm
    update: Update
    stream: Stream
    make_views: Callable[[RawBatch], Batch]  # a ViewMaker, compiled or not
    meter: Meter
    recorder: Recorder
    checkpoints: Checkpoints
    display: Display
    evaluate: Callable[[], dict[str, float]]  # scores of the averaged model; {} without a test set
    config: TrainingConfig
    seed: int
    step: int = 0  # steps taken
    captured: CapturedStep | None = None

    def run(self) -> None:
        """Trains from the current step to the last; a signal to stop saves the state and raises InterruptedRunError."""
        total, c = self.config.iterations, self.config
        monitor = PseudoLabelMonitor(self.meter.num_classes)
        started, logged = time.monotonic(), time.monotonic()
        self.algorithm.train()
        with self.display, catch_stop_signals() as stop:
            agreement = StopAgreement(stop, self.step)
            for raw in self.stream.batches(self.step, total):
                self.take_step(raw)
                done = self.step == total
                if self.step % c.log_every == 0 or done:
                    now = time.monotonic()
                    means = self.read_meter(now - logged, raw.size)
                    means["seconds"] = self.recorder.seconds_before + now - started
                    self.record("train", means)
                    self.display.show(self.step, means)
                    for warning in monitor.warnings_after(means):
                        self.display.warn(f"step {self.step}: {warning}")
                    logged = now
                if self.step % c.eval_every == 0 and not done:
                    with self.display.clock.during("evaluations"):
                        scores = self.evaluate()
                    if scores:
                        self.record("eval", scores)
                        self.display.show(self.step, scores)
                signum = agreement.signal(self.step)
                if self.step % c.checkpoint_every == 0 or done or signum is not None:
                    with self.display.clock.during("saving"):
                        saved = self.save()
                    if signum is not None and not done:
                        barrier()  # torchrun kills all ranks once one has ended, and rank zero may still be writing
                        raise InterruptedRunError(self.step, signum, saved)

    @contextmanager
    def trial(self, steps: int) -> Iterator[None]:
        """Context for up to `steps` steps on trial from the first one on; afterwards all is as it was before."""
        step, config = self.step, self.config
        self.step, self.config = 0, replace(config, iterations=max(steps, config.iterations))
        self.algorithm.train()
        with restoring(self.state):
            yield
        self.step, self.config = step, config

    def take_step(self, raw: RawBatch) -> None:
        """One step, a function of the state, the data and (seed, step) alone."""
        if self.captures and self.captured is None:
            self.captured = CapturedStep(self.compute, raw, self.state)
        torch.manual_seed(mix(self.seed, "step", self.step))
        self.update.set_progress(self.step / self.config.iterations)
        (self.captured or self.compute)(raw)
        self.step += 1

    def compute(self, raw: RawBatch) -> None:
        """The part of a step that runs on the device only, so that a CUDA graph can capture it."""
        self.update.begin(raw.index)
        step = self.algorithm.train_step(self.make_views(raw), self.update.progress, self.update)
        average_statistics(self.algorithm)
        good = self.update.end(step)
        self.update.ema.update(good)
        self.meter.add(step, raw.index, {"gradient_norm": self.update.gradient_norm}, good)

    @property
    def captures(self) -> bool:
        """Whether steps are replayed as one CUDA graph."""
        on_cuda = self.update.learning_rate.is_cuda
        return on_cuda if self.config.graph is None else self.config.graph and on_cuda

    def state(self) -> list[Tensor]:
        """Every tensor that a step changes and a later step reads."""
        parts = (self.algorithm, self.update.ema, self.update, self.meter)
        counts = self.update.bad_steps.counts.values()
        return [*counts, *(tensor for part in parts for tensor in part.state_dict().values())]

    def read_meter(self, seconds: float, images: int) -> dict[str, float]:
        """Means since the last log line; warns of bad steps, and raises NotFiniteError for too many of them in a row.

        `seconds` is the length of the interval, `images` the number of images in a step.
        """
        steps = float(self.meter.totals["steps"])
        means = self.meter.read()
        for name in [name for name, value in means.items() if not math.isfinite(value)]:
            del means[name]  # JSON cannot express it
            self.display.warn(f"step {self.step}: {name} was not finite in the log, though the loss was")
        number, longest, first = self.update.bad_steps.read()
        if longest >= self.config.max_bad_steps:
            raise NotFiniteError(
                f"{first} was not finite",
                f"in {longest} steps in a row before step {self.step}; these steps changed neither the weights nor any "
                "other state. Lower training.learning_rate or set training.clip=3, then go on with --resume "
                "--allow-change",
            )
        if number:
            means["bad_steps"] = number
            left_out = f"{number} of the steps since the last line were left out, because {first} was not finite"
            self.display.warn(f"step {self.step}: {left_out}")
        means["learning_rate"] = float(self.update.learning_rate)
        means["images_per_second"] = (steps + number) * images / max(seconds, 1e-9)
        return means

    def save(self) -> bool:
        """Writes a checkpoint of the whole state. Random draws depend on (seed, step) alone, so no generator is in it.

        Returns False where it could not be written and the run is configured to go on.
        """
        if not broadcast_(self.state()):
            self.display.warn(f"step {self.step}: the ranks' states differed; all ranks go on with that of rank 0")
        parts = {
            "algorithm": self.algorithm.state_dict(),
            "ema": self.update.ema.state_dict(),
            "momentum": self.update.state_dict(),
            "meter": self.meter.state_dict(),
            "bad_steps": self.update.bad_steps.counts,
            "log": {"lines": torch.tensor(self.recorder.lines)},
        }
        try:
            self.recorder.sync()
            self.checkpoints.save(self.step, parts)
        except OSError as error:
            self.report_unwritten(error)
            return False
        return True

    def record(self, kind: str, values: dict[str, float]) -> None:
        """Writes a line of the log."""
        try:
            self.recorder.write(kind, self.step, values)
        except OSError as error:
            self.report_unwritten(error)

    def report_unwritten(self, error: OSError) -> None:
        """Raises an NPMatchError, or with training.on_save_error=continue prints a warning."""
        path, checkpoints = error.filename or self.checkpoints.folder.parent, self.checkpoints.paths()
        last = f"the last good checkpoint is {checkpoints[-1]}" if checkpoints else "there is no checkpoint yet"
        problem = f"{path}: cannot be written after step {self.step} ({error.strerror or error}); {last}"
        if self.config.on_save_error == "stop":
            raise NPMatchError(f"{problem}; fix this, then go on with --resume") from error
        self.display.warn(f"{problem}; going on without saving (training.on_save_error=continue)")

    def open_log(self, recorder: Recorder, log: dict[str, Tensor]) -> None:
        """Continues a log; warns of lines that the checkpoint's part `log` has counted and that are missing now."""
        self.recorder = recorder
        written = int(log.get("lines", recorder.lines))
        if lost := max(written - recorder.lines, 0):
            self.display.warn(
                f"{recorder.path}: has lost {lost} of its {written} line(s) up to step {self.step}, and with "
                "them a part of the curves and of the training time; going on with a gap"
            )

    def restore(self, step: int, parts: dict[str, dict[str, Tensor]]) -> None:
        """Loads the state of a checkpoint; raises an NPMatchError where it does not fit this configuration."""
        self.step = step
        try:
            self.algorithm.load_state_dict(parts["algorithm"])
            self.update.ema.load_state_dict(parts["ema"])
            self.update.load_state_dict(parts["momentum"])
            self.meter.load_state_dict(parts.get("meter", {}))
            for name, count in self.update.bad_steps.counts.items():
                count.copy_(parts["bad_steps"][name])
        except (RuntimeError, KeyError) as error:
            problem = str(error).splitlines()[:2][-1].strip()  # torch names the tensor in its second line
            raise NPMatchError(
                f"step {step} does not fit this configuration, data or version of npmatch ({problem[:160]}); go on "
                "with those it was written with, or train again in another --out"
            ) from error
        self.display.advance(step)
