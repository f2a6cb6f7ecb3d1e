"""Checkpoints: one safetensors file each, written whole or not at all, checksummed; the last two are kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from npmatch.errors import NPMatchError
from npmatch.files import TEMPORARY, write_atomically

__all__ = ["Checkpoints", "Unsaved", "load_tensors", "save_tensors", "write_atomically"]

KEPT = 2
Parts = dict[str, dict[str, Tensor]]


def save_tensors(path: Path, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any] | None = None) -> None:
    """A safetensors file; scalars travel as JSON in its header, and a checksum of everything with them."""
    contiguous = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    scalars = dict(scalars or {})
    # One key: of several, safetensors writes now one first and now another, and equal runs give equal files.
    header = json.dumps({**scalars, "sha256": _checksum(contiguous, scalars)}, sort_keys=True)
    write_atomically(path, save(contiguous, {"npmatch": header}))


def load_tensors(
    path: Path, device: str | torch.device = "cpu", unsigned: bool = True
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_tensors` wrote, tensors and scalars; an error where a bit of it has changed since.

    `unsigned`: whether a file without a checksum will do, such as one that another program wrote.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        scalars = dict(json.loads(metadata.get("npmatch", "{}")))
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise NPMatchError(f"{path}: not a readable safetensors file ({error})") from error
    checksum = scalars.pop("sha256", None)
    if checksum != _checksum(tensors, scalars) and not (checksum is None and unsigned):
        raise NPMatchError(f"{path}: damaged, its checksum does not match")
    return {name: t.to(device) for name, t in tensors.items()}, scalars


def _checksum(tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> str:
    """Of names, types, shapes and values, and of the scalars."""
    digest = hashlib.sha256(json.dumps(scalars, sort_keys=True).encode())
    for name in sorted(tensors):
        t = tensors[name]
        digest.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        digest.update(t.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class Checkpoints:
    """The folder of a run's checkpoints."""

    def __init__(self, folder: Path) -> None:
        """Nothing is created before the first save."""
        self.folder = folder

    def save(self, step: int, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Writes the state after `step` steps and forgets all but the newest ones."""
        self.folder.mkdir(exist_ok=True)  # not its parents: where a mount has vanished, its place is not filled
        for torn in self.folder.glob(f"step-*{TEMPORARY}"):  # left by a kill; on a disk that is nearly full it hurts
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
        """Step and parts of the newest checkpoint that is whole, or None where there is none at all."""
        paths, damaged = self.paths(), list[Path]()
        for path in reversed(paths):
            try:
                found = _load_parts(path)
            except NPMatchError as error:
                warn(str(error))
                damaged.append(path)
                continue
            for other in damaged:
                warn(f"{other.name} is put aside and {path.name} used, the one before it")
                with contextlib.suppress(OSError):  # under this name it is not counted among those that are kept
                    other.rename(other.with_name(f"damaged-{other.name}"))
            return found
        if paths:
            raise NPMatchError(f"{self.folder}: no checkpoint in it can be read; train again in another --out")
        return None


class Unsaved(Checkpoints):
    """Checkpoints that are not kept, for training that leaves no files."""

    def __init__(self) -> None:
        """Has no folder."""

    def save(self, step: int, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Forgets the state."""

    def paths(self) -> list[Path]:
        """None."""
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
