"""A run's folder: the name of every file in it, whether the run is finished, and how its files are read and written."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npmatch.config.paths import paths_of_run, working_folder
from npmatch.config.tree import CODE_KEYS, Config, config_in_file, read_config_file, write_config
from npmatch.data import ImageSet, Split
from npmatch.data.check.findings import Quarantined
from npmatch.distributed.ranks import world_size
from npmatch.errors import NPMatchError
from npmatch.files import LOCK, TEMPORARY, can_lock, in_utf8, is_locked, locked, was_locked_by, write_atomically
from npmatch.predict.saved import MODEL_CONFIG, MODEL_WEIGHTS
from npmatch.training.log import final_scores, last_record, read_log
from npmatch.types import Prediction
from npmatch.user_code import refuse_code
from npmatch.version import __version__

STARTED_IN = "working_folder"  # the field of environment.json that relative paths of the configuration start from


class RunFolder:
    """The files of one run. Nobody else knows their names."""

    def __init__(self, path: str | Path) -> None:
        """Looks at nothing; the folder need not exist."""
        self.path = Path(path)
        # Written at the start, in this order: config.yaml last, because it is what makes the folder a run.
        self.given_labels = self.path / "given-labels.csv"  # with --resume-from: the labels people had given until then
        self.split = self.path / "split.json"
        self.data = self.path / "data.json"  # what the data and the split are, to tell a change
        self.quarantine = self.path / "quarantine.json"  # the files left out of it, each with its reason
        self.environment = self.path / "environment.json"
        self.config = self.path / "config.yaml"
        # Written along the way.
        self.log = self.path / "metrics.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = self.path / "checkpoints"
        # Written at the end; the log's final line comes after all of them.
        self.model_config = self.path / MODEL_CONFIG
        self.model_weights = self.path / MODEL_WEIGHTS
        self.test_predictions = self.path / "predictions" / "test.parquet"
        self.report = self.path / "report.html"
        # Written by people, through `npmatch label` and the page.
        self.labels = self.path / "labels.csv"

    def __str__(self) -> str:
        """The path, as messages name a run."""
        return str(self.path)

    def exists(self) -> bool:
        """Whether a run was started here."""
        return self.config.is_file()

    def has_model(self) -> bool:
        """Whether there is a model to predict with."""
        return self.model_config.is_file() and self.model_weights.is_file()

    def is_finished(self) -> bool:
        """Whether the run has come to its end: it has a model, and its log, where it is still there, a final line."""
        return self.has_model() and (not self.log.exists() or last_record(self.records(), "final") is not None)

    def holds_only_a_start(self) -> bool:
        """Whether there is nothing here but what a run killed at its very start leaves."""
        started = (self.given_labels, self.split, self.data, self.quarantine, self.environment, self.config)
        known = {LOCK, *(path.name for path in started)}
        names = [path.name for path in self.path.iterdir()] if self.path.is_dir() else []
        return all(name.removesuffix(TEMPORARY) in known for name in names)

    @contextmanager
    def locked(self, owner: str, warn: Callable[[str], None]) -> Iterator[None]:
        """The folder is this process's alone inside; `warn` hears where the operating system has no locks."""
        if not can_lock():
            warn(f"{self}: this system has no file locks (fcntl); start no second process in this folder")
        with locked(self.path, owner):
            yield

    def is_locked(self) -> bool:
        """Whether a process is at work here."""
        return is_locked(self.path)

    def was_locked_by(self, owner: str) -> bool:
        """Whether `owner` was the last to lock the folder; its lock may have ended since."""
        return was_locked_by(self.path, owner)

    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return read_log(self.log)

    def final_scores(self) -> dict[str, float]:
        """The numbers the run ended with; none before it has ended."""
        return final_scores(self.records())

    def read_config(self) -> Config:
        """The run's configuration, with its paths resolved from the folder that the run was started in.

        Where it cannot be read, the error names the version of npmatch that wrote it, if that is another one.
        """
        environment = self.read_environment()
        try:
            layer = read_config_file(self.config)
            refuse_code((layer.get(key) for key in CODE_KEYS), self.config)
            return config_in_file({**layer, **paths_of_run(layer, self.path, environment.get(STARTED_IN))}, self.config)
        except NPMatchError as error:
            written_by = environment.get("npmatch")
            if written_by in (None, __version__):
                raise
            raise NPMatchError(
                f"{error}; written by npmatch {written_by}, which this version, {__version__}, cannot go on from: use "
                "that version, or train again in another --out"
            ) from error

    def read_environment(self) -> dict[str, Any]:
        """What environment.json says; nothing where it cannot be read."""
        try:
            found = json.loads(self.environment.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def read_data(self) -> dict[str, Any] | None:
        """What the data was when the run was started; None where that was not written down."""
        if not self.data.exists():
            return None
        try:
            found = json.loads(self.data.read_text(encoding="utf-8"))
            if not isinstance(found, dict):
                raise ValueError(f"a {type(found).__name__}")
        except (ValueError, RecursionError) as error:
            raise NPMatchError(f"{self.data}: not what npmatch wrote ({error}); restore or remove it") from error
        return found

    def write_start(
        self,
        config: Config,
        split: Split,
        data: dict[str, Any],
        quarantine: Sequence[Quarantined] | None,
        device: torch.device,
    ) -> None:
        """What the folder holds from the first step on; a `quarantine` of None leaves the one that is there."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            split.save(self.split)
            write_atomically(self.data, json.dumps(data, indent=2).encode())
            if quarantine:
                rows = [{"path": file.path, "reason": file.kind, "detail": file.detail} for file in quarantine]
                write_atomically(self.quarantine, (json.dumps(rows, indent=1) + "\n").encode())
            elif quarantine is not None:
                self.quarantine.unlink(missing_ok=True)
            write_atomically(self.environment, json.dumps(describe_environment(config, device), indent=2).encode())
            write_config(config, self.config)
        except OSError as error:
            raise NPMatchError(f"{self}: cannot be written ({error.strerror}); choose another --out") from error

    def write_test_predictions(self, prediction: Prediction, held_out: ImageSet, class_names: Sequence[str]) -> None:
        """One row for each held-out image."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = held_out.names or [str(i) for i in range(len(held_out))]
        table = pa.table(
            {
                "image": [in_utf8(name) for name in names],
                "true_label": [class_names[i] for i in held_out.labels.tolist()],
                "label": [class_names[i] for i in prediction.label.tolist()],
                "confidence": prediction.confidence.numpy(),
                "uncertainty": prediction.entropy.numpy(),
                "probabilities": prediction.probs.tolist(),
            }
        )
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer)
        self.test_predictions.parent.mkdir(exist_ok=True)
        write_atomically(self.test_predictions, buffer.getvalue().to_pybytes())

    def read_test_predictions(self) -> tuple[Prediction, Tensor, list[str]] | None:
        """The run's answers for its held-out images, their labels N, and the names of the classes."""
        if not self.test_predictions.exists():
            return None
        try:
            return _read_predictions(self.test_predictions, self.model_config)
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:  # pyarrow's are ValueErrors
            what = f"{type(error).__name__}: {error}"
            raise NPMatchError(
                f"{self.test_predictions}: damaged, or not of the classes in {self.model_config} ({what}); restore it, "
                "or remove it: the run is then shown without them"
            ) from error


def runs_below(folder: Path) -> list[Path]:
    """The folders of all runs that lie below a folder, sorted."""
    return sorted(path.parent for path in folder.rglob("config.yaml"))


def _read_predictions(path: Path, model_config: Path) -> tuple[Prediction, Tensor, list[str]]:
    import pyarrow.parquet as pq

    class_names: list[str] = json.loads(model_config.read_text(encoding="utf-8"))["class_names"]
    table = pq.read_table(path, columns=["true_label", "uncertainty", "probabilities"])
    position = {name: k for k, name in enumerate(class_names)}
    y = torch.tensor([position[name] for name in table["true_label"].to_pylist()])
    flat = table["probabilities"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    probs = torch.tensor(flat, dtype=torch.float32).view(len(y), len(class_names))
    return Prediction(probs, torch.tensor(table["uncertainty"].to_numpy())), y, class_names


def describe_environment(config: Config, device: torch.device) -> dict[str, Any]:
    """Versions, device and seed of a run, and where it was started."""
    import torchvision

    return {
        "npmatch": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "ranks": world_size(),
        "seed": config.seed,
        "commit": _commit(),
        STARTED_IN: working_folder(),
    }


def _commit() -> str | None:
    """The commit npmatch runs from, where it runs from a checkout."""
    import subprocess

    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    found = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
