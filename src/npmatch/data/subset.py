"""Some of a store's images, as a store."""

from __future__ import annotations

from torch import Tensor

from npmatch.types import ImageSet, ImageStore


class SelectedImages(ImageStore):
    """The images of another store at `index`, in that order."""

    def __init__(self, store: ImageStore, index: Tensor) -> None:
        """`index`: n, int64, positions in `store`."""
        self.store, self.index = store, index
        self.shape = store.shape

    def __len__(self) -> int:
        """How many were selected."""
        return len(self.index)

    def take(self, index: Tensor) -> Tensor:
        """The images at `index` as uint8, n C H W."""
        return self.store.take(self.index[index])


def selected(images: ImageSet, index: Tensor) -> ImageSet:
    """Images at `index`, n int64, with their labels and names."""
    names = [images.names[position] for position in index.tolist()] if images.names else []
    return ImageSet(SelectedImages(images.images, index), images.labels[index], names)
