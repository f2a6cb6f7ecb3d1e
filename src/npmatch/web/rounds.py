"""The rounds of a folder: the runs that were trained on it, by the page or in a terminal."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from npmatch.config.paths import paths_of_run
from npmatch.config.tree import read_config_file
from npmatch.errors import NPMatchError
from npmatch.predict.saved import ModelSpec
from npmatch.report.formatting import printable
from npmatch.report.probe import read_probe
from npmatch.runs.folder import STARTED_IN, RunFolder
from npmatch.training.log import final_scores, last_record

NAME = re.compile(r"round(\d+)")


class Rounds:
    """The runs in one folder that were trained on the images of another; nothing is kept in memory but what is read."""

    def __init__(self, data: Path, out: Path) -> None:
        """`out` need not exist."""
        self.data, self.out = data, out
        self._facts: dict[str, tuple[object, dict[str, Any]]] = {}  # by name, with the stamps of the files

    def names(self) -> list[str]:
        """The rounds in their order: round2 comes before round10."""
        try:
            found = [entry.name for entry in os.scandir(self.out) if entry.is_dir() and not entry.name.startswith(".")]
        except OSError:
            return []
        runs = [name for name in found if RunFolder(self.out / name).exists() and self._is_of_data(name)]
        return sorted(
            runs, key=lambda name: [(int(part or 0), text) for part, text in re.findall(r"(\d+)|(\D+)", name)]
        )

    def _is_of_data(self, name: str) -> bool:
        return bool(self.describe(name)["is_of_data"])

    def folder(self, name: str) -> RunFolder:
        """The folder of a round; an unknown name is an error, so that no path from the page is opened."""
        if name not in self.names():
            raise NPMatchError(f"{printable(name)}: there is no such round")
        return RunFolder(self.out / name)

    def next_name(self) -> str:
        """The name of the next round: one higher than any, and one that no folder has."""
        numbers = [int(match[1]) for name in self.names() if (match := NAME.fullmatch(name))]
        number = max(numbers, default=0) + 1
        while not RunFolder(self.out / f"round{number}").holds_only_a_start():
            number += 1
        return f"round{number}"

    def finished(self) -> list[str]:
        """The rounds that have a model."""
        return [name for name in self.names() if self.describe(name)["is_finished"]]

    def locked(self) -> str | None:
        """The round at which a process is at work, if there is one."""
        return next((name for name in self.names() if RunFolder(self.out / name).is_locked()), None)

    def progress(self, name: str) -> dict[str, Any]:
        """Step, number of steps and what was measured last, also of a round that has not begun to write."""
        facts = self.describe(name)
        step, steps, seconds = facts["step"], facts["iterations"], facts["seconds"]
        left = seconds / step * (steps - step) if step and steps and seconds else None
        return {"round": name, "step": step, "iterations": steps, "left": left, **facts["last"]}

    def describe(self, name: str) -> dict[str, Any]:
        """The facts of a round, read again only where its files have changed."""
        run = RunFolder(self.out / name)
        stamp = tuple(stamp_of(path) for path in (run.config, run.log, run.model_weights, run.audit, run.forecast))
        if self._facts.get(name, (None,))[0] != stamp:
            self._facts[name] = stamp, self._read(name, run)
        return self._facts[name][1]

    def _read(self, name: str, run: RunFolder) -> dict[str, Any]:
        try:
            records, config = run.records(), read_config_file(run.config)
        except NPMatchError:  # not begun yet, or damaged: it is not shown as a round
            nothing: dict[str, Any] = {"step": 0, "iterations": None, "seconds": None, "last": {}}
            return {**nothing, "name": name, "is_of_data": False, "is_finished": False}
        train = last_record(records, "train") or {}
        scores = final_scores(records)
        probe = read_probe(scores)
        return {
            "name": name,
            "is_of_data": self._has_root(run, config),
            "is_finished": run.is_finished(),
            "algorithm": printable(config.get("algorithm.name", "")),
            "step": max((record.get("step", 0) for record in records), default=0),
            "iterations": config.get("training.iterations"),
            "seconds": train.get("seconds"),
            "scores": {key: scores[key] for key in ("error", "ece", "n") if key in scores},
            "labels": ModelSpec.load(run.model_config).num_labeled if run.is_finished() else None,
            "probe": None if probe is None else probe.words,
            "beside": "-".join(str(stamp_of(path)[0]) for path in (run.audit, run.forecast)),
            "last": {key: train[key] for key in ("trusted", "pseudo_accuracy") if key in train},
        }

    def _has_root(self, run: RunFolder, config: dict[str, Any]) -> bool:
        """Whether a run was trained on the images of this folder; its path is relative to where it was started."""
        root = {**config, **paths_of_run(config, run.path, run.read_environment().get(STARTED_IN))}.get("data.root")
        try:
            return isinstance(root, str) and os.path.samefile(os.path.expanduser(root), self.data)
        except OSError:
            return False


def stamp_of(path: Path) -> tuple[int, int]:
    """Time and size of a file, to detect changes; zeros if there is none."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
