"""The log of a run: what its steps measured, warnings that follow from it, metrics.jsonl and TensorBoard."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npmatch.errors import NPMatchError
from npmatch.files import read_regular, write_atomically
from npmatch.types import FOREIGN, Step


class Meter:
    """Sums of what steps log and of how good their pseudo-labels are; its state is part of a checkpoint.

    pseudo_accuracy is the share of correct labels among the trusted pseudo-labels of images whose true class is known.
    Foreign images, which belong to no class, do not count there. Where the data has foreign images, two more values are
    logged: foreign_trusted, the share of them that was trusted, and trusted_is_foreign, their share of all trusted
    images.
    """

    def __init__(self, num_classes: int, truth: Tensor) -> None:
        """`truth` N: true labels of the unlabelled images, −1 = unknown, −2 = no class; used for diagnostics only."""
        self.truth = truth
        self.has_foreign = bool((truth == FOREIGN).any())
        self.num_classes = num_classes
        self.totals: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, step: Step, index: Tensor, extra: dict[str, Tensor], good: Tensor | None = None) -> None:
        """Adds one step, without waiting for the device; with the 0-d bool `good`, only if it holds."""
        one = torch.ones_like(step.loss.detach())
        values = {f"mean/{name}": v for name, v in {"loss": step.loss.detach(), **step.logs, **extra}.items()}
        if step.pseudo is not None and step.keep is not None:
            truth, keep = self.truth[index], step.keep
            judged = keep * (truth >= 0)  # bool, or the weight of each pseudo-label
            values |= {
                "seen": one * keep.numel(),
                "kept": keep.sum(),
                "judged": judged.sum(),
                "right": (judged * (step.pseudo == truth)).sum(),
                "kept_per_class": one.new_zeros(self.num_classes).scatter_add(0, step.pseudo, keep.to(one.dtype)),
            }
            if self.has_foreign:
                foreign = truth == FOREIGN
                values |= {"foreign": foreign.sum(), "foreign_kept": (foreign * keep).sum()}
        values["steps"] = one
        together = torch.cat([value.float().flatten() for value in values.values()])  # a few operations, not many
        if good is not None:
            together = torch.where(good, together, torch.zeros_like(together))
        sizes, parts = [value.numel() for value in values.values()], []
        for (name, value), part in zip(values.items(), torch.split(together, sizes), strict=True):
            if name not in self.totals:
                self.totals[name] = torch.zeros_like(value, dtype=together.dtype)
            parts.append(part.view(value.shape))
        # In place: a captured step keeps its storage.
        torch._foreach_add_([self.totals[name] for name in values], parts)

    def read(self) -> dict[str, float]:
        """Means since the last reading as plain numbers, and starts a new interval; waits for the device."""
        totals = {name: total.to("cpu", copy=True) for name, total in self.totals.items()}
        for total in self.totals.values():
            total.zero_()
        steps = float(totals["steps"])
        if steps == 0:  # all of them were bad
            return {}
        means = {name[5:]: float(t) / steps for name, t in totals.items() if name.startswith("mean/")}
        if "seen" in totals:
            kept, judged = float(totals["kept"]), float(totals["judged"])
            means["trusted"] = kept / float(totals["seen"])
            if judged:
                means["pseudo_accuracy"] = float(totals["right"]) / judged
            if kept:
                means["largest_class_share"] = float(totals["kept_per_class"].max()) / kept
            if float(totals.get("foreign", 0)):
                means["foreign_trusted"] = float(totals["foreign_kept"]) / float(totals["foreign"])
            if kept and "foreign" in totals:
                means["trusted_is_foreign"] = float(totals["foreign_kept"]) / kept
        return means

    def state_dict(self) -> dict[str, Tensor]:
        """The sums since the last reading."""
        return self.totals

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continues with the sums of an interval that has begun."""
        self.totals = {name: value.to(self.truth.device, torch.float32, copy=True) for name, value in state.items()}


class PseudoLabelMonitor:
    """Warns where, over several lines of the log, no pseudo-label is trusted or one class holds most of them."""

    def __init__(self, num_classes: int, patience: int = 5) -> None:
        """A warning is due after `patience` lines of the log in a row that show the problem."""
        self.num_classes = num_classes
        self.patience = patience
        self.lines: dict[str, int] = {}  # warning → lines in a row that show its problem

    def warnings_after(self, means: Mapping[str, float]) -> list[str]:
        """The warnings that are due after a line of the log with these values."""
        if "trusted" not in means:
            return []
        limit = max(0.5, 3 / self.num_classes)
        share = means.get("largest_class_share", 0.0)
        problems = {
            "no pseudo-label is trusted, so unlabelled images teach nothing; raise algorithm.max_entropy, lower "
            "algorithm.confidence, or check that the labelled images are learnt (loss_labeled)": (
                means["trusted"] < 1e-4
            ),
            f"one class holds over {limit:.0%} of the trusted pseudo-labels; set algorithm.alignment=true, lower "
            "training.learning_rate, or give more labels (unless your classes really are that unequal)": (
                share > limit and means["trusted"] > 0.05 and self.num_classes > 2
            ),
        }
        due = []
        for warning, present in problems.items():
            self.lines[warning] = self.lines.get(warning, 0) + 1 if present else 0
            if self.lines[warning] == self.patience:
                due.append(warning)
        return due


class Recorder:
    """Appends lines {"kind", "step", …} to metrics.jsonl, and their numbers to TensorBoard."""

    def __init__(self, path: Path, tensorboard: Path, resume_at: int | None = None) -> None:
        """Removes the lines after step `resume_at` and the final one, as a resumed run takes those steps again."""
        self.path = path
        kept = [r for r in read_log(path) if resume_at is not None and r["step"] <= resume_at]
        kept = [r for r in kept if r["kind"] != "final"]
        write_atomically(self.path, "".join(json.dumps(r) + "\n" for r in kept).encode())
        self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self.whole = self.path.stat().st_size  # bytes of complete lines in the file
        self.waiting = b""  # lines that could not be written so far
        self.lines = len(kept)
        self.curves = EventFile(tensorboard, purge_step=0 if resume_at is None else resume_at + 1)
        self.seconds_before = max((r.get("seconds", 0.0) for r in kept), default=0.0)

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Writes one line; after an OSError the line is kept and written together with the next one."""
        self.waiting += (json.dumps({"kind": kind, "step": step, **values}) + "\n").encode()
        self.lines += 1
        self._write_waiting()
        for name, value in values.items():
            if isinstance(value, int | float):
                self.curves.add(f"{kind}/{name}", value, step)

    def _write_waiting(self) -> None:
        try:
            written = 0
            while written < len(self.waiting):  # a nearly full disk may take only a part
                written += self.file.write(self.waiting[written:]) or 0
        except OSError:
            self.file.truncate(self.whole)  # an incomplete line would corrupt the next one
            raise
        self.whole += len(self.waiting)
        self.waiting = b""

    def sync(self) -> None:
        """Forces the log to disk; called before a checkpoint, which must not be newer than its log."""
        self._write_waiting()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Forces the log to disk and closes the files."""
        try:
            self.sync()
        finally:
            self.file.close()
            self.curves.close()


class Unrecorded(Recorder):
    """A recorder that writes nothing, for training without files."""

    def __init__(self) -> None:
        """Opens no file."""
        self.seconds_before = 0.0
        self.lines = 0

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Does nothing."""

    def sync(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class EventFile:
    """A TensorBoard event file; each start or resume of a run writes its own."""

    def __init__(self, folder: Path, purge_step: int) -> None:
        """Makes TensorBoard hide points from `purge_step` on in earlier files of the folder."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now * 1000)}.{socket.gethostname()}.{os.getpid()}"
        self.file = open(folder / name, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self.records = RecordWriter(self.file)
        self._event = Event
        self._write(Event(wall_time=now, file_version="brain.Event:2"))
        self._write(Event(wall_time=now, step=purge_step, session_log=SessionLog(status=SessionLog.START)))

    def add(self, name: str, value: float, step: int) -> None:
        """Adds one point to the curve called `name`."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        self._write(self._event(wall_time=time.time(), step=step, summary=summary))

    def _write(self, event: object) -> None:
        self.records.write(event.SerializeToString())  # type: ignore[attr-defined]

    def close(self) -> None:
        """Closes the file."""
        self.file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a log, one per line; an incomplete end, left by a crash, is skipped."""
    if not path.exists():
        return []
    try:
        lines = read_regular(path).split(b"\n")[:-1]
    except OSError as error:
        raise NPMatchError(f"{path}: cannot be read ({error.strerror})") from error
    records = [_parse(line) for line in lines if line]
    while records and records[-1] is None:
        records.pop()
    if None in records:
        line = records.index(None) + 1
        raise NPMatchError(f"{path}, line {line}: not a record; the file was altered, restore or remove the line")
    return [record for record in records if record is not None]


def _parse(line: bytes) -> dict[str, Any] | None:
    """The record of a line, or None where the line is not one."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    types = {"kind": str, "step": int, "seconds": int | float}  # only seconds may be absent: the default is a float
    is_record = isinstance(record, dict) and all(isinstance(record.get(key, 0.0), types[key]) for key in types)
    return record if is_record else None


def last_record(records: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any] | None:
    """The newest record of a kind (train, eval or final), or None; a finished run has a final one."""
    return next((record for record in reversed(records) if record["kind"] == kind), None)


def final_scores(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The scores in the final record, {} without one; a value that is not a finite number is left out."""
    final = last_record(records, "final") or {}
    return {key: value for key, value in final.items() if key not in ("kind", "step") and number(value) is not None}


def number(value: object) -> float | None:
    """`value` as a float if it is a finite number, else None."""
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    return None
