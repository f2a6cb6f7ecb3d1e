"""The features of a folder's pictures, for the quick look and for choosing what to label; kept in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from npmatch.data import FileImages
from npmatch.data.fingerprint import hash_contents
from npmatch.data.sources.listing import Listing
from npmatch.distributed.devices import choose_device
from npmatch.draws import mix
from npmatch.labelling.first import MOST_IMAGES, SIDE, find_network, learnt_features
from npmatch.training import load_tensors, save_tensors
from npmatch.web.models import Features, PretrainedNetwork
from npmatch.web.rounds import stamp_of


class PictureFeatures:
    """Computes the features of pictures, those that it has computed before only if their files have changed."""

    def __init__(self, folder: Path, device: str | None) -> None:
        """`folder` is where they are kept for the next start."""
        self.folder, self.device = folder, device
        self._known: dict[int, tuple[object, torch.Tensor]] = {}  # by number of the picture, with the file's stamp

    def describe(
        self,
        listing: Listing,
        paths: Sequence[str],
        used: list[int],
        begin: Callable[[int], None],
        advance: Callable[[int], None],
    ) -> Features:
        """The features of the pictures `used`, or of a random part of many; `begin` gets their number."""
        if len(used) > MOST_IMAGES:
            order = torch.randperm(len(used), generator=torch.Generator().manual_seed(mix(0, "first labels")))
            used = [used[place] for place in sorted(order[:MOST_IMAGES].tolist())]
        begin(len(used))
        device = choose_device(self.device)
        config = find_network(listing, device)
        images = FileImages([paths[row] for row in used], SIDE)
        key = hash_contents(images, torch.arange(len(used)))[:16]
        file = self.folder / f"page-{key}-{config.name.rpartition(':')[2]}.safetensors"
        stamps = {row: stamp_of(Path(paths[row])) for row in used}
        if file.is_file():
            values = load_tensors(file)[0]["features"]
        else:
            new = [row for row in used if self._known.get(row, (None,))[0] != stamps[row]]
            advance(len(used) - len(new))
            if new:
                found = learnt_features(
                    config, FileImages([paths[row] for row in new], SIDE), device, workers=0, advance=advance
                )
                self._known |= {row: (stamps[row], value) for row, value in zip(new, found, strict=True)}
            values = torch.stack([self._known[row][1] for row in used])
            file.parent.mkdir(parents=True, exist_ok=True)
            save_tensors(file, {"features": values})
        self._known = {row: (stamps[row], value) for row, value in zip(used, values, strict=True)}
        return Features(PretrainedNetwork(config), np.array(used, dtype=np.int64), values)
