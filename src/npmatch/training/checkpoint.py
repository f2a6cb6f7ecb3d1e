"""Checkpoints: one safetensors file each, written atomically, with a checksum; the last two are kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from npmatch.errors import NPMatchError
from npmatch.files import TEMPORARY, check_held, check_regular, write_atomically

__all__ = ["Checkpoints", "Unsaved", "checksum_of", "load_tensors", "save_tensors", "write_atomically"]

KEPT = 2
Parts = dict[str, dict[str, Tensor]]


def save_tensors(path: Path, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any] | None = None) -> None:
    """Writes tensors to a safetensors file, with `scalars` and a checksum of everything as JSON in its header."""
    contiguous = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    scalars = dict(scalars or {})
    # All in one key: safetensors writes several keys in random order, and equal runs must give equal files.
    header = json.dumps({**scalars, "sha256": _checksum(contiguous, scalars)}, sort_keys=True)
    write_atomically(path, save(contiguous, {"npmatch": header}))


def load_tensors(
    path: Path, device: str | torch.device = "cpu", unsigned: bool = True
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and scalars of a file written by `save_tensors`; raises an NPMatchError if its checksum is wrong.

    `unsigned` also accepts a file without a checksum, such as one that another program wrote.
    """
    try:
        check_regular(path)
        with _open_tensors(path) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        scalars = dict(json.loads(metadata.get("npmatch", "{}")))
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise NPMatchError(f"{path}: not a readable safetensors file ({error})") from error
    checksum = scalars.pop("sha256", None)
    if checksum != _checksum(tensors, scalars) and not (checksum is None and unsigned):
        raise NPMatchError(f"{path}: damaged, its checksum does not match")
    return {name: t.to(device) for name, t in tensors.items()}, scalars


def checksum_of(path: Path) -> str:
    """The checksum of a file of tensors: the one in its header, which `load_tensors` verifies, or else computed."""
    try:
        check_regular(path)
        with _open_tensors(path) as file:
            stated = json.loads((file.metadata() or {}).get("npmatch", "{}")).get("sha256")
    except (SafetensorError, OSError, ValueError, AttributeError) as error:
        raise NPMatchError(f"{path}: not a readable safetensors file ({error})") from error
    return stated if isinstance(stated, str) else _checksum(*load_tensors(path))


@contextlib.contextmanager
def _open_tensors(path: Path) -> Iterator[Any]:
    """Opens a safetensors file, whose library takes names in UTF-8 only, under a name that it takes."""
    try:
        os.fsencode(path).decode()
    except UnicodeDecodeError:
        with TemporaryDirectory() as folder:
            link = Path(folder) / "link"
            link.symlink_to(path.absolute())
            with safe_open(link, framework="pt") as file:
                yield file
    else:
        with safe_open(path, framework="pt") as file:
            yield file


def _checksum(tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> str:
    """SHA-256 of names, types, shapes and values of the tensors, and of the scalars."""
    digest = hashlib.sha256(json.dumps(scalars, sort_keys=True).encode())
    for name in sorted(tensors):
        t = tensors[name]
        digest.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        digest.update(t.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class Checkpoints:
    """The folder of a run's checkpoints."""

    def __init__(self, folder: Path) -> None:
        """The first save creates the folder."""
        self.folder = folder

    def save(self, step: int, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Writes the state after `step` steps and deletes all but the newest KEPT checkpoints."""
        check_held(self.folder)  # another process that has taken over the run may be writing the file removed below
        self.folder.mkdir(exist_ok=True)  # not its parents: where a mount has vanished, nothing may take its place
        for torn in self.folder.glob(f"step-*{TEMPORARY}"):  # left by a killed process; the disk may be nearly full
            torn.unlink()
        path = self.folder / f"step-{step:08d}.safetensors"
        tensors = {f"{part}/{name}": t for part, state in parts.items() for name, t in state.items()}
        save_tensors(path, tensors, {"step": step})
        for old in self.paths()[:-KEPT]:
            old.unlink()

    def paths(self) -> list[Path]:
        """All checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*.safetensors"))

    def load_latest(self, warn: Callable[[str], None]) -> tuple[int, Parts] | None:
        """Step and parts of the newest intact checkpoint, or None without any; calls `warn` for each damaged one."""
        paths, damaged = self.paths(), list[Path]()
        for path in reversed(paths):
            try:
                checkpoint = _load_parts(path)
            except NPMatchError as error:
                warn(str(error))
                damaged.append(path)
                continue
            for other in damaged:
                warn(f"{other.name} is put aside; the checkpoint before it, {path.name}, is used")
                with contextlib.suppress(OSError):  # under the new name it is not among the newest KEPT
                    other.rename(other.with_name(f"damaged-{other.name}"))
            return checkpoint
        if paths:
            raise NPMatchError(f"{self.folder}: no checkpoint in it can be read; train again in another --out")
        return None


class Unsaved(Checkpoints):
    """Checkpoints that are never written, for training without files."""

    def __init__(self) -> None:
        """Needs no folder."""

    def save(self, step: int, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Does nothing."""

    def paths(self) -> list[Path]:
        """No paths."""
        return []


def _load_parts(path: Path) -> tuple[int, Parts]:
    tensors, scalars = load_tensors(path, unsigned=False)
    step = scalars.get("step")
    if type(step) is not int or step < 0:
        raise NPMatchError(f"{path}: not a checkpoint, it names no step")
    parts: Parts = {}
    for name, tensor in tensors.items():
        part, _, key = name.partition("/")
        parts.setdefault(part, {})[key] = tensor
    return step, parts
