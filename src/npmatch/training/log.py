"""A run's log: what a step measured (`Meter`), metrics.jsonl and TensorBoard (`Recorder`), and warnings (`Watch`)."""

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
from npmatch.files import write_atomically
from npmatch.types import FOREIGN, Step


class ScalarFile:
    """An event file of its own for each start of a run."""

    def __init__(self, folder: Path, purge_step: int) -> None:
        """What earlier files of the folder say of later steps than `purge_step` is hidden."""
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
        """One point of one curve."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        self._write(self._event(wall_time=time.time(), step=step, summary=summary))

    def _write(self, event: object) -> None:
        self.records.write(event.SerializeToString())  # type: ignore[attr-defined]

    def close(self) -> None:
        """No more of them."""
        self.file.close()


class Recorder:
    """Appends lines {"kind", "step", …}; after a resume the log goes on without a gap or a repeat."""

    def __init__(self, path: Path, tensorboard: Path, resume_at: int | None = None) -> None:
        """Lines after step `resume_at` are forgotten, and the final one: those steps will be taken again."""
        self.path = path
        kept = [r for r in read_log(path) if resume_at is not None and r["step"] <= resume_at]
        kept = [r for r in kept if r["kind"] != "final"]
        write_atomically(self.path, "".join(json.dumps(r) + "\n" for r in kept).encode())
        self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self.whole = self.path.stat().st_size  # bytes of lines that are whole
        self.waiting = b""  # lines that could not be written yet
        self.lines = len(kept)
        self.curves = ScalarFile(tensorboard, purge_step=resume_at or 0)
        self.seconds_before = max((r.get("seconds", 0.0) for r in kept), default=0.0)

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """One line; where the disk refuses it, an OSError, and the line is written together with the next one."""
        self.waiting += (json.dumps({"kind": kind, "step": step, **values}) + "\n").encode()
        self.lines += 1
        self._write_waiting()
        for name, value in values.items():
            if isinstance(value, int | float):
                self.curves.add(f"{kind}/{name}", value, step)

    def _write_waiting(self) -> None:
        try:
            written = 0
            while written < len(self.waiting):  # a disk that is nearly full takes a part
                written += self.file.write(self.waiting[written:]) or 0
        except OSError:
            self.file.truncate(self.whole)  # half a line would be in the way of the next one
            raise
        self.whole += len(self.waiting)
        self.waiting = b""

    def sync(self) -> None:
        """The log is on disk after this: a checkpoint must not be newer than the lines before it."""
        self._write_waiting()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Everything is on disk after this."""
        try:
            self.sync()
        finally:
            self.file.close()
            self.curves.close()


class Unrecorded(Recorder):
    """A log that is not kept, for training that leaves no files."""

    def __init__(self) -> None:
        """Nothing is opened."""
        self.seconds_before = 0.0
        self.lines = 0

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Forgets the line."""

    def sync(self) -> None:
        """Nothing to keep."""

    def close(self) -> None:
        """Nothing to close."""


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's log; an end torn by a crash is left out."""
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise NPMatchError(f"{path}: cannot be read ({error.strerror})") from error
    records = [_parse(line) for line in lines if line]
    while records and records[-1] is None:
        records.pop()
    whole = [record for record in records if record is not None]
    if len(whole) < len(records):
        line = records.index(None) + 1
        raise NPMatchError(f"{path}, line {line}: not a record; the file was altered, restore or remove the line")
    return whole


def last_record(records: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any] | None:
    """The newest line of a kind: train, eval or final, which a finished run has."""
    return next((record for record in reversed(records) if record["kind"] == kind), None)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    types = {"kind": str, "step": int, "seconds": int | float}
    fits = isinstance(record, dict) and all(isinstance(record.get(key, 0.0), types[key]) for key in types)
    return record if fits else None


class Meter:
    """Sums of what steps log, and of how good their pseudo-labels are; part of a checkpoint, like any state.

    pseudo_accuracy is the share of right ones among trusted pseudo-labels whose truth is a class. An image of no class
    can be given no right one, so it counts there as neither right nor wrong; where there are such images, the log says
    of them foreign_trusted (the share of those seen that was trusted) and trusted_is_foreign (their share of all
    trusted images).
    """

    def __init__(self, num_classes: int, truth: Tensor) -> None:
        """`truth` N: the unlabelled images' labels, −1 = unknown, −2 = no class; read for diagnostics, nowhere else."""
        self.truth = truth
        self.has_foreign = bool((truth == FOREIGN).any())
        self.num_classes = num_classes
        self.totals: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, step: Step, index: Tensor, extra: dict[str, Tensor], good: Tensor | None = None) -> None:
        """Accumulates one step without asking the device for anything; with `good`, 0-d bool, only where it holds."""
        one = torch.ones_like(step.loss.detach())
        values = {f"mean/{name}": v for name, v in {"loss": step.loss.detach(), **step.logs, **extra}.items()}
        if step.pseudo is not None and step.keep is not None:
            truth, keep = self.truth[index], step.keep
            judged = keep & (truth >= 0)
            values |= {
                "seen": one * keep.numel(),
                "kept": keep.sum(),
                "judged": judged.sum(),
                "right": (judged & (step.pseudo == truth)).sum(),
                "kept_per_class": one.new_zeros(self.num_classes).scatter_add(0, step.pseudo, keep.to(one.dtype)),
            }
            if self.has_foreign:
                foreign = truth == FOREIGN
                values |= {"foreign": foreign.sum(), "foreign_kept": (foreign & keep).sum()}
        for name, value in {"steps": one, **values}.items():
            value = value if good is None else torch.where(good, value, torch.zeros_like(value))
            if name in self.totals:
                self.totals[name].add_(value)  # in place: a captured step keeps its storage
            else:
                self.totals[name] = value.clone()

    def read(self) -> dict[str, float]:
        """Means over the interval as plain numbers, and a new interval begins; this waits for the device."""
        totals = {name: total.to("cpu", copy=True) for name, total in self.totals.items()}
        for total in self.totals.values():
            total.zero_()
        steps = float(totals["steps"])
        if steps == 0:  # none of them was good
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
        """The interval so far."""
        return self.totals

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Goes on in the middle of an interval."""
        self.totals = {name: value.to(self.truth.device, copy=True) for name, value in state.items()}


class Watch:
    """Warns once per trouble: nothing is ever trusted, or one class swallows the pseudo-labels."""

    def __init__(self, num_classes: int, patience: int = 5) -> None:
        """`patience` is the number of logged lines in a row that make a trouble."""
        self.num_classes = num_classes
        self.patience = patience
        self.lines: dict[str, int] = {}

    def look(self, means: Mapping[str, float]) -> list[str]:
        """Warnings due after this line of the log."""
        if "trusted" not in means:
            return []
        swallowed = max(0.5, 3 / self.num_classes)
        troubles = {
            "no pseudo-label is trusted, so unlabelled images teach nothing; raise algorithm.max_entropy, lower "
            "algorithm.confidence, or check that the labelled images are learnt (loss_labeled)": means["trusted"]
            < 1e-4,
            f"one class holds over {swallowed:.0%} of the trusted pseudo-labels; set algorithm.alignment=true, lower "
            "training.learning_rate, or give more labels (unless your classes really are that unequal)": means.get(
                "largest_class_share", 0.0
            )
            > swallowed
            and means["trusted"] > 0.05
            and self.num_classes > 2,
        }
        due = []
        for text, present in troubles.items():
            self.lines[text] = self.lines.get(text, 0) + 1 if present else 0
            if self.lines[text] == self.patience:
                due.append(text)
        return due


def number(value: object) -> float | None:
    """A finite number, or None for whatever else a log may hold."""
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    return None


def final_scores(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The numbers a finished run ended with; what another program made a word or null of counts as not measured."""
    final = last_record(records, "final") or {}
    return {key: value for key, value in final.items() if key not in ("kind", "step") and number(value) is not None}
