"""Checkpoints: one safetensors file each, written whole or not at all; the last two are kept."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from npmatch.types import NPMatchError

KEPT = 2


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file's content: after a crash at any moment the old or the new one is there, whole."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any] | None = None) -> None:
    """A safetensors file; scalars travel as JSON in its header."""
    contiguous = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    metadata = None if scalars is None else {"npmatch": json.dumps(scalars, sort_keys=True)}
    write_atomically(path, save(contiguous, metadata))


def load_tensors(path: Path, device: str | torch.device = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_tensors` wrote: tensors and scalars."""
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            return tensors, json.loads(metadata.get("npmatch", "{}"))
    except (SafetensorError, OSError, ValueError) as error:
        raise NPMatchError(f"{path}: not a readable safetensors file ({error})") from error


class Checkpoints:
    """The folder of a run's checkpoints."""

    def __init__(self, folder: Path) -> None:
        """Nothing is created before the first save."""
        self.folder = folder

    def save(self, step: int, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Writes the state after `step` steps and forgets all but the newest ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{step:08d}.safetensors"
        tensors = {f"{part}/{name}": t for part, state in parts.items() for name, t in state.items()}
        save_tensors(path, tensors, {"step": step})
        for old in self.paths()[:-KEPT]:
            old.unlink()

    def paths(self) -> list[Path]:
        """All checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*.safetensors"))

    def load_latest(self) -> tuple[int, dict[str, dict[str, Tensor]]] | None:
        """Step and parts of the newest checkpoint, or None where there is none."""
        paths = self.paths()
        if not paths:
            return None
        tensors, scalars = load_tensors(paths[-1])
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            part, _, key = name.partition("/")
            parts.setdefault(part, {})[key] = tensor
        return int(scalars["step"]), parts


class Unsaved(Checkpoints):
    """Checkpoints that are not kept, for training that leaves no files."""

    def __init__(self) -> None:
        """Has no folder."""

    def save(self, step: int, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Forgets the state."""

    def paths(self) -> list[Path]:
        """None."""
        return []
