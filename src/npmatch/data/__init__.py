"""Images and labels: sources → split → streams.

    dataset = load_dataset("cifar10", Path("data"))  # or load_configured(config), for a DataConfig
    split = make_split(dataset, labels=250, seed=0)
    sampler = Sampler(0, len(split.labeled), len(split.unlabeled), batch_labeled=64, batch_unlabeled=448)
    for batch in make_stream(dataset, split, sampler, "cuda").batches(0, 1000):
        ...

To use your own data set, write a function that takes the folder given as `--data` (None without it) and returns a
`Dataset`. Unlabelled images have the label −1. (The label −2 is reserved for foreign images: those that
`data.foreign` mixes in, see foreign.py, and those of the open set `cifar10-open`.)

    def load(root: Path) -> Dataset:
        x, y = np.load(root / "x.npy"), np.load(root / "y.npy")  # uint8 N C H W, int64 N
        images = ArrayImages(torch.from_numpy(x))
        return Dataset("mine", ("cat", "dog"), ImageSet(images, torch.from_numpy(y)))

Name it on the command line as `package.module:load`; nothing has to be registered. To decode images from files when
they are needed, use `FileImages(paths, size)` in place of `ArrayImages`.
"""

from npmatch.data.foreign import mix_foreign
from npmatch.data.images import ArrayImages, FileImages, decode_image, to_tensor
from npmatch.data.labels import load_configured
from npmatch.data.loading import iterate_images
from npmatch.data.sources.registry import SOURCES, load_dataset
from npmatch.data.split import Split
from npmatch.data.stratify import make_split
from npmatch.data.streams import RawBatch, Sampler, Stream, make_stream
from npmatch.types import Dataset, ImageSet, ImageStore

__all__ = [
    "SOURCES",
    "ArrayImages",
    "Dataset",
    "FileImages",
    "ImageSet",
    "ImageStore",
    "RawBatch",
    "Sampler",
    "Split",
    "Stream",
    "decode_image",
    "iterate_images",
    "load_configured",
    "load_dataset",
    "make_split",
    "make_stream",
    "mix_foreign",
    "to_tensor",
]
