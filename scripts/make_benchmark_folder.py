"""Writes a benchmark as a user's folder of images: labeled/<class>/, unlabeled/ and test/<class>/.

python scripts/make_benchmark_folder.py fashion-mnist DIR        # from Debian's dataset-fashion-mnist
python scripts/make_benchmark_folder.py cifar10 DIR --data DATA --labels 40 --unlabeled 4960 --seed 1
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from PIL import Image

from npmatch.data import load_dataset, make_split
from npmatch.types import ImageSet


def write_images(images: ImageSet, positions: torch.Tensor, folder: Path, class_names: tuple[str, ...] | None) -> None:
    """One PNG for each position, in a folder of its class if there are class names."""
    pixels = images.images.take(positions)
    for position, picture in zip(positions.tolist(), pixels, strict=True):
        part = folder if class_names is None else folder / class_names[int(images.labels[position])]
        part.mkdir(parents=True, exist_ok=True)
        shown = picture[0] if len(picture) == 1 else picture.permute(1, 2, 0)  # grey, or C H W → H W C
        Image.fromarray(shown.numpy()).save(part / f"{position:05}.png")


def main() -> None:
    """Draws the images by a seed, equally many of each class where they are labelled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="the data set: fashion-mnist, cifar10, mnist, …")
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder to write, which must not exist")
    parser.add_argument("--data", type=Path, metavar="DATA", help="folder with the data set's files")
    parser.add_argument("--labels", type=int, default=100, help="labelled images in all (default: 100)")
    parser.add_argument("--unlabeled", type=int, default=6000, help="unlabelled images (default: 6000)")
    parser.add_argument("--test", type=int, default=1000, help="test images in all (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw (default: 0)")
    parser.add_argument("--truth", type=Path, metavar="FILE", help="CSV to write, with the unlabelled images' labels")
    options = parser.parse_args()
    dataset = load_dataset(options.source, options.data)
    options.folder.mkdir(parents=True)
    names = tuple(name.replace("/", "-") for name in dataset.class_names)
    split = make_split(dataset, options.labels, options.seed, include_labeled=False)
    generator = torch.Generator().manual_seed(options.seed)
    unlabeled = split.unlabeled[torch.randperm(len(split.unlabeled), generator=generator)[: options.unlabeled]]
    write_images(dataset.train, split.labeled, options.folder / "labeled", names)
    write_images(dataset.train, unlabeled.sort().values, options.folder / "unlabeled", None)
    if options.truth is not None:
        classes = (names[int(k)] for k in dataset.train.labels[unlabeled])
        rows = (f"unlabeled/{i:05}.png,{name}" for i, name in zip(unlabeled.tolist(), classes, strict=True))
        options.truth.write_text("\n".join(["path,label", *rows]) + "\n", encoding="utf-8")
    assert dataset.test is not None
    each = options.test // len(names)
    test = torch.cat([(dataset.test.labels == k).nonzero().flatten()[:each] for k in range(len(names))])
    write_images(dataset.test, test, options.folder / "test", names)


if __name__ == "__main__":
    main()
