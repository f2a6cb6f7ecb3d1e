"""Scalars for TensorBoard, written where the loop stands: its own writer is a thread, whose errors reach nobody."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path


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
