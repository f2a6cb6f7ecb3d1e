"""A run's folder: the names of all files in it, how they are read and written, and whether the run is finished."""

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
from npmatch.data.sources.walk import walk
from npmatch.decide.calibration import SUMMARY
from npmatch.distributed.ranks import world_size
from npmatch.errors import NPMatchError
from npmatch.files import (
    LOCK,
    can_lock,
    final_name,
    in_utf8,
    is_locked,
    locked,
    read_regular,
    remove_leftovers,
    was_locked_by,
    write_atomically,
)
from npmatch.predict.saved import MODEL_CONFIG, MODEL_WEIGHTS, ModelSpec
from npmatch.training.log import final_scores, last_record, read_log
from npmatch.types import Prediction
from npmatch.user_code import refuse_code
from npmatch.version import __version__

START_KEY = "training.start_from"  # a setting: the run whose weights this one started with
STARTED_IN = "working_folder"  # field of environment.json: the folder that relative paths in config.yaml start from


class RunFolder:
    """The files of one run. No other module knows their names."""

    def __init__(self, path: str | Path) -> None:
        """The folder need not exist."""
        self.path = Path(path)
        # Written at the start, in this order: config.yaml last, because a folder that has it is a run.
        self.given_labels = self.path / "given-labels.csv"  # with --resume-from: the labels people have given so far
        self.folder_labels = self.path / "folder-labels.csv"  # the table of labels in the folder of images
        self.split = self.path / "split.json"
        self.data = self.path / "data.json"  # description of the data and the split, to detect changes
        self.quarantine = self.path / "quarantine.json"  # the files that are left out, each with the reason
        self.environment = self.path / "environment.json"
        self.config = self.path / "config.yaml"
        # Written during training.
        self.log = self.path / "metrics.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = self.path / "checkpoints"
        # Beside the run, because other runs on the same images share them.
        self.features = self.path.parent / ".features"
        # Written at the end; the log's final line comes after all of them.
        self.model_config = self.path / MODEL_CONFIG
        self.model_weights = self.path / MODEL_WEIGHTS
        self.calibration = self.path / SUMMARY
        self.test_predictions = self.path / "predictions" / "test.parquet"
        self.report = self.path / "report.html"
        # Written when people label images, by `npmatch label` and the page.
        self.labels = self.path / "labels.csv"
        # Written when people measure the model's error, by `npmatch audit`.
        self.audit = self.path / "audit.json"
        # Written by `npmatch forecast`.
        self.forecast = self.path / "forecast.json"

    def __str__(self) -> str:
        """The path; messages name a run by it."""
        return str(self.path)

    def exists(self) -> bool:
        """Whether a run was started here."""
        return self.config.is_file()

    def owns(self, name: str) -> bool:
        """Whether a file of this name is the run's own, such as its log, model or labels; a report is not."""
        files = {*vars(self).values(), backup_of(self.labels)} - {self.report}
        return self.exists() and self.path / name in files

    def has_model(self) -> bool:
        """Whether the folder holds a saved model."""
        return self.model_config.is_file() and self.model_weights.is_file()

    def is_finished(self) -> bool:
        """Whether the run is finished: it has a model, and its log, unless that was deleted, has a final line."""
        return self.has_model() and (not self.log.exists() or self.has_results())

    def has_results(self) -> bool:
        """Whether the log has a final line, which is written last."""
        return last_record(self.records(), "final") is not None

    def holds_only_a_start(self) -> bool:
        """Whether the folder is missing, empty, or holds only files that a run killed at its very start leaves."""
        at_start = (
            self.given_labels,
            self.folder_labels,
            self.split,
            self.data,
            self.quarantine,
            self.environment,
            self.config,
        )
        known = {LOCK, *(path.name for path in at_start)}
        names = [path.name for path in self.path.iterdir()] if self.path.is_dir() else []
        return all(final_name(name) in known for name in names)

    @contextmanager
    def locked(self, owner: str, warn: Callable[[str], None]) -> Iterator[None]:
        """Locks the folder for this process; `warn` is called if the operating system has no file locks."""
        if not can_lock():
            warn(f"{self}: this system has no file locks (fcntl); start no second process in this folder")
        with locked(self.path, owner):
            for path in (self.split, self.data, self.config, self.log, self.model_weights, self.test_predictions):
                remove_leftovers(path)
            yield

    def is_locked(self) -> bool:
        """Whether a process holds the folder's lock."""
        return is_locked(self.path)

    def was_locked_by(self, owner: str) -> bool:
        """Whether `owner` was the last to lock the folder; its lock may have ended since."""
        return was_locked_by(self.path, owner)

    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return read_log(self.log)

    def final_scores(self) -> dict[str, float]:
        """The scores in the log's final line; empty if the run is not finished."""
        return final_scores(self.records())

    def read_config(self) -> Config:
        """The run's configuration, with paths resolved from the folder that the run was started in.

        An error names the version of npmatch that wrote the file, if that is another one.
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
                f"{error}; written by npmatch {written_by}, whose run this version, {__version__}, cannot read: use "
                "that version, or train again in another --out"
            ) from error

    def started_from(self) -> RunFolder | None:
        """The run that this one was started from with --resume-from, if any; the rest of the settings is not read."""
        if not self.exists():
            return None
        layer = read_config_file(self.config)
        start = {**layer, **paths_of_run(layer, self.path, self.read_environment().get(STARTED_IN))}.get(START_KEY)
        return None if start is None else RunFolder(str(start))

    def read_environment(self) -> dict[str, Any]:
        """The content of environment.json; empty if it cannot be read."""
        try:
            environment = json.loads(read_regular(self.environment).decode())
        except (OSError, ValueError, RecursionError):
            return {}
        return environment if isinstance(environment, dict) else {}

    def read_data(self) -> dict[str, Any] | None:
        """The description of the data when the run was started, or None if there is no such file."""
        if not self.data.exists():
            return None
        try:
            data = json.loads(read_regular(self.data).decode())
            if not isinstance(data, dict):
                raise ValueError(f"a {type(data).__name__}")
        except (OSError, ValueError, RecursionError) as error:
            raise NPMatchError(f"{self.data}: not what npmatch wrote ({error}); restore or remove it") from error
        return data

    def read_forecast(self) -> dict[str, Any] | None:
        """What `npmatch forecast` wrote; None if there is nothing that can be shown."""
        try:
            found = json.loads(read_regular(self.forecast).decode())
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def write_start(
        self,
        config: Config,
        split: Split,
        data: dict[str, Any],
        quarantine: Sequence[Quarantined] | None,
        device: torch.device,
        folder_labels: bytes | None = None,
    ) -> None:
        """Writes the files of a run's start; a `quarantine` of None leaves quarantine.json as it is."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if folder_labels is not None:
                write_atomically(self.folder_labels, folder_labels)
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

    def write_results(
        self,
        split: Split,
        spec: ModelSpec,
        prediction: Prediction | None,
        held_out: ImageSet | None,
        final: dict[str, Any],
    ) -> None:
        """Writes the results of a baseline, which is no run: it has neither a configuration nor a model."""
        self.path.mkdir(parents=True, exist_ok=True)
        split.save(self.split)
        spec.save(self.model_config)
        if prediction is not None and held_out is not None:
            self.write_test_predictions(prediction, held_out, spec.class_names)
        write_atomically(self.log, (json.dumps({"kind": "final", "step": 0, **final}) + "\n").encode())

    def write_test_predictions(self, prediction: Prediction, held_out: ImageSet, class_names: Sequence[str]) -> None:
        """Writes predictions/test.parquet with one row for each held-out image."""
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
                **({} if prediction.outlier is None else {"outlier": prediction.outlier.numpy()}),
            }
        )
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer)
        self.test_predictions.parent.mkdir(exist_ok=True)
        write_atomically(self.test_predictions, buffer.getvalue().to_pybytes())

    def read_test_names(self) -> list[str]:
        """The names of the held-out images, in the order of their predictions; none if there is no such file."""
        try:
            return _read_column(self.test_predictions, "image") if self.test_predictions.exists() else []
        except (OSError, ValueError, LookupError) as error:  # pyarrow's are ValueErrors
            raise NPMatchError(f"{self.test_predictions}: damaged ({error}); restore or remove it") from error

    def read_test_predictions(self) -> tuple[Prediction, Tensor, list[str]] | None:
        """The prediction of the held-out images, their labels N and the class names; None if there is no such file."""
        if not self.test_predictions.exists():
            return None
        try:
            return _read_predictions(self.test_predictions, self.model_config)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise NPMatchError(
                f"{self.test_predictions}: damaged, or not of the classes in {self.model_config} ({reason}); restore "
                "it, or remove it to show the run without predictions"
            ) from error


def _read_column(path: Path, column: str) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(read_regular(path)), columns=[column])
    return [str(text) for text in table[column].to_pylist()]


def backup_of(table: Path) -> Path:
    """The file beside a table of labels that holds its last good state."""
    return table.with_name(f"{table.stem}.backup{table.suffix}")


def runs_below(folder: Path) -> list[Path]:
    """The folders of all runs below a folder, sorted."""
    return sorted(Path(inside.path) for inside in walk(folder, hidden=True) if "config.yaml" in inside.files)


def _read_predictions(path: Path, model_config: Path) -> tuple[Prediction, Tensor, list[str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    class_names: list[str] = json.loads(read_regular(model_config).decode())["class_names"]
    # Its content: pyarrow takes names in UTF-8 only.
    table = pq.read_table(pa.BufferReader(read_regular(path)), columns=["true_label", "uncertainty", "probabilities"])
    position = {name: k for k, name in enumerate(class_names)}
    y = torch.tensor([position[name] for name in table["true_label"].to_pylist()])
    flat = table["probabilities"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    probs = torch.tensor(flat, dtype=torch.float32).view(len(y), len(class_names))
    return Prediction(probs, torch.tensor(table["uncertainty"].to_numpy())), y, class_names


def describe_environment(config: Config, device: torch.device) -> dict[str, Any]:
    """The content of environment.json: versions, device and seed, and the folder the run was started in."""
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
    """The git commit of npmatch, or None if it does not run from a checkout."""
    import subprocess

    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return head.stdout.strip() or None
